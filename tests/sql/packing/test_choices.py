"""What packing concludes from values: which columns identify rows or give the target away, and what targets become."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab

ROWS = 400
CARS = f"""
CREATE TABLE makers (maker integer PRIMARY KEY, country text);
INSERT INTO makers SELECT i * 7, (ARRAY['it', 'de', 'jp'])[1 + i % 3] FROM generate_series(1, 40) i;
CREATE TABLE cars (id integer PRIMARY KEY, plate uuid UNIQUE, maker integer REFERENCES makers, weight real,
                   kg double precision, power integer, sold date, price numeric);
INSERT INTO cars SELECT i, md5(i::text)::uuid, 7 * (1 + i % 40), 900 + i * 37 % 900 + i / 1000.0,
                        800 + i * 7919 % 100003, 40 + i * 13 % 200, date '2020-01-01' + i, 5000 + i * 6151 % 9973
  FROM generate_series(1, {ROWS}) i;
CREATE VIEW cheap AS SELECT c.*, m.country FROM cars c JOIN makers m USING (maker) WHERE c.price < 14000;
CREATE VIEW "over a view" AS SELECT id AS "Car", power, weight, price FROM cheap;
CREATE VIEW sales AS SELECT c.id AS car, c.maker, c.weight, c.price, n FROM cars c, generate_series(1, 3) n;
CREATE MATERIALIZED VIEW kept AS SELECT id, weight, price FROM cars;
CREATE TABLE copied AS SELECT id, weight, kg, price FROM cars WHERE id % 3 > 0;
"""


@pytest.fixture(scope="module")
def garage(lab: Lab) -> Lab:
    lab(CARS.replace("plate uuid UNIQUE", "plate uuid") if lab.greenplum else CARS)
    return lab


def packed(garage: Lab, source: str, target: str = "price", **more: Any) -> tuple[dict[str, str], list[str], Any]:
    """What the columns became, the notices, and the layout's key."""
    garage.told()
    garage("DROP TABLE IF EXISTS packed, packed_summary")
    named = "".join(f", {name} => %s" for name in more)
    garage(f"SELECT pack(%s, 'packed', %s, validation => 0, seed => 1{named})", source, target, *more.values())
    told = garage.told()
    became = dict(garage("SELECT column_name, prepared_as FROM prepared_columns('packed') WHERE NOT is_target"))
    return became, told, garage.value("SELECT layout ->> 'key' FROM packed_summary")


def ignored(told: list[str], column: str) -> str:
    return next((line for line in told if f"the column '{column}' is ignored" in line), "")


@pytest.mark.parametrize(
    ("source", "key", "why"),
    [
        ("cars", "id", "it is a key"),
        ("cheap", "id", "a key of a table below the view"),
        ('"over a view"', "Car", "a key of a table below the view"),
        ("kept", "id", "a key of a table below the view"),
        ("copied", "id", "different in every row"),
    ],
)
def test_a_column_that_identifies_rows_is_no_input(garage: Lab, source: str, key: str, why: str) -> None:
    became, told, recorded = packed(garage, source)
    assert key not in became and why in ignored(told, key) and recorded == key
    assert became["weight"] == "number"  # different in every row, but it is a measurement
    named = "Car" if key == "Car" else "id"
    again, told, _ = packed(garage, source, prepare=f'{{"{named}": "number"}}')
    assert again[key] == "number" and not ignored(told, key)


@pytest.mark.parametrize("type", ["number", "integer"])
@pytest.mark.parametrize("choice", ["number", "category"])
def test_a_wish_for_a_type_leaves_keys_ignored(garage: Lab, type: str, choice: str) -> None:
    for source, key in (("cars", "id"), ("cheap", "id"), ("copied", "id")):
        if (source, type, choice) == ("copied", "number", "category"):
            continue  # its measurements are different in every row, too
        became, told, recorded = packed(garage, source, prepare=f'{{"{type}": "{choice}", "price": "number"}}')
        assert key not in became and ignored(told, key) and recorded == key
        assert became.get("power", choice) == choice
    wished = f'{{"{type}": "{choice}", "price": "number", "id": "number"}}'
    named, _, _ = packed(garage, "cars", prepare=wished)
    assert named["id"] == "number"


def test_measurements_that_happen_to_be_different_are_inputs(garage: Lab) -> None:
    became, _, _ = packed(garage, "copied")
    assert became == {"weight": "number", "kg": "number"}  # whole numbers far apart, too


def test_the_key_of_a_joined_table_is_a_category(garage: Lab) -> None:
    """A join repeats it, so it says which of few things a row is about."""
    became, told, recorded = packed(garage, "sales")
    assert became["car"] == became["maker"] == "category" and recorded is None and not ignored(told, "car")


def test_the_hint_says_how_to_use_a_key(garage: Lab) -> None:
    garage.told()
    garage("DROP TABLE IF EXISTS packed, packed_summary")
    garage("SELECT pack('cars', 'packed', 'price', validation => 0)")
    (line,) = [line for line in garage.told() if "'id'" in line]
    assert """HINT:  prepare => '{"id": "number"}' makes it an input.""" in line


LEAKS = """
CREATE TABLE orders AS SELECT i * 7919 % 100003 AS x, (i * 31 % 17)::real / 3 AS y, (i * 13 % 997)::numeric AS net,
  (i * 13 % 997) * 1.19 AS gross, ln(1 + i * 13 % 997) AS logarithm, i * 7 % 10 AS grade,
  CASE WHEN i * 7 % 10 > 6 THEN 'bad' ELSE 'good' END AS verdict,
  CASE WHEN i * 7 % 10 > 6 THEN 'returned' WHEN i % 2 = 0 THEN 'sent' ELSE 'kept' END AS state,
  CASE WHEN i * 7 % 10 > 6 AND i % 9 > 0 THEN 'maybe' ELSE 'no' END AS hint
  FROM generate_series(1, 2000) i
"""


def test_a_column_that_gives_the_target_away_is_warned_of(garage: Lab) -> None:
    garage(LEAKS)

    def leaks(target: str, inputs: str) -> set[str]:
        _, told, _ = packed(garage, "orders", target, inputs=inputs)
        return {line.split("'")[1] for line in told if line.startswith("WARNING") and "alone predicts" in line}

    assert leaks("verdict", "x, y, state, grade, hint") == {"state", "grade"}
    assert leaks("gross", "x, y, net, logarithm, hint") == {"net", "logarithm"}
    assert leaks("y", "x, net, grade, verdict") == set()


TARGETS = """
CREATE TABLE goals AS SELECT i * 37 % 101 AS x, date '2021-01-01' + i AS day, date '2021-01-01' + i % 40 AS of_few_days,
  (i * 7 % 60)::text AS digits, (i * 7 % 2)::real AS flag, 1000000 + i AS large, 1000000 + i % 20 AS few_large,
  json_build_object('a', i) AS document, (i % 7 * 10)::text::money AS cost
  FROM generate_series(1, 300) i
"""


@pytest.fixture(scope="module")
def goals(lab: Lab) -> Lab:
    lab(TARGETS)
    return lab


@pytest.mark.parametrize(
    ("target", "said", "hint"),
    [
        ("day", "the target 'day' has", 'extract(epoch FROM "day")'),
        ("digits", "is text, but all its 60 different values are numbers", '"digits": "category"'),
        ("document", "labels of type json cannot be sorted", "text"),
    ],
)
def test_a_target_that_is_no_class_is_refused(goals: Lab, target: str, said: str, hint: str) -> None:
    for call in ("pack('goals', 'no', %s, 'x', validation => 0)", "train('goals', 'no', %s, inputs => 'x')"):
        with pytest.raises(psycopg2.Error) as error:
            goals(f"SELECT {call}", target)
        assert said in str(error.value) and hint in error.value.diag.message_hint


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        ("flag", "real", 'It has only the values 0, 1; prepare => \'{"flag": "category"}\' makes classes of them'),
        ("of_few_days", "class", "one of 40 classes, because its type is date. To predict a number, make a view with"),
        ("large", "real", "because it has many different integers"),
        ("few_large", "class", None),
        ("cost", "class", '"cost"::numeric::double precision'),
    ],
)
def test_a_target_that_might_be_another_is_told(goals: Lab, target: str, kind: str, said: str | None) -> None:
    _, told, _ = packed(goals, "goals", target, inputs="x")
    mine = [line for line in told if f"'{target}' is predicted" in line]
    assert goals.value("SELECT layout #>> '{outputs,0,kind}' FROM packed_summary") == kind
    assert [said in line for line in mine] == ([] if said is None else [True]), mine


def test_classes_on_request(goals: Lab) -> None:
    for target, classes in (("digits", 60), ("flag", 2)):
        packed(goals, "goals", target, inputs="x", prepare=f'{{"{target}": "category"}}')
        assert goals.value("SELECT layout #>> '{outputs,0,shape,0}' FROM packed_summary") == str(classes)


# -- what is new in the rows for validation --------------------------------------------------------------------

DAYS = """
CREATE TABLE days AS SELECT i AS id, date '2021-01-01' + i AS day, i % 7 AS weekday,
  date_part('month', date '2021-01-01' + i)::integer AS month, (i * 37 % 101)::real AS heat, sin(i) * 9 AS sold
  FROM generate_series(0, 299) i;
CREATE TABLE next_days AS SELECT id, day, weekday + 7 * (id % 2) AS weekday, month, heat, sold FROM days;
CREATE TABLE days_in_words AS SELECT id, day, weekday::text AS weekday, month, heat, sold FROM days
"""
USUAL = {"month": "category", "weekday": "category", "heat": "number"}


@pytest.fixture(scope="module")
def days(lab: Lab) -> Lab:
    lab(DAYS)
    return lab


def kinds(days: Lab, **more: Any) -> tuple[dict[str, str], dict[str, str]]:
    """What the columns became, and why some are no categories."""
    days.told()
    days("DROP TABLE IF EXISTS days_p, days_p_summary, days_p_validation, days_p_validation_summary")
    named = "".join(f", {name} => %s" for name in more)
    inputs = "month, weekday, heat"
    days(f"SELECT pack('days', 'days_p', 'sold', inputs => %s, seed => 1{named})", inputs, *more.values())
    became = dict(days("SELECT column_name, prepared_as FROM prepared_columns('days_p') WHERE NOT is_target"))
    lines = [line for line in days.told() if "is a number and no category" in line]
    assert all("makes it a category" in line for line in lines)
    return became, {line.split("'")[1]: line.splitlines()[0].split("category: ")[1] for line in lines}


def test_few_numbers_with_new_values_in_the_rows_for_validation_are_no_categories(days: Lab) -> None:
    assert kinds(days) == (USUAL, {})
    assert kinds(days, validation=0) == (USUAL, {})
    became, why = kinds(days, split_at="day", validation=0.3)
    assert became == {**USUAL, "month": "number"}
    new = days.value("SELECT 100 * avg((month > 7)::integer) FROM days WHERE id >= 210")
    assert why["month"] == f"{new:.0f}% of the rows for validation have a value that no training row has"
    assert set(why) == {"month"}
    wished, why = kinds(days, split_at="day", validation=0.3, prepare='{"month": "category", "integer": "category"}')
    assert (wished, why) == (USUAL, {})


def test_the_rows_of_another_table_change_the_decision_too(days: Lab) -> None:
    became, why = kinds(days, validation_table="next_days")
    assert became == {**USUAL, "weekday": "number"} and why["weekday"].startswith("50% of the rows")
    with pytest.raises(psycopg2.Error, match=r"weekday \(text now, integer in training\)"):
        kinds(days, validation_table="days_in_words")


def test_a_window_of_few_numbers_follows_the_same_rule(days: Lab) -> None:
    became, why = kinds(days, sequence='{"order": "day", "length": 3}', validation=0.3)
    assert became == {**USUAL, "month": "number"} and set(why) == {"month"}


# -- codes -------------------------------------------------------------------------------------------------------

CALLS = """
CREATE TABLE lines (line integer PRIMARY KEY);
INSERT INTO lines SELECT 1000 + i FROM generate_series(1, 900) i;
CREATE TABLE calls AS SELECT i AS id, 5000 + i * 7919 % 300 AS shop_id, 10000 + i * 7919 % 130 * 37 AS "zipCode",
  i * 7919 % 300 AS tickets, 70000 + i * 7919 % 2000 AS basket_id, 1001 + i * 7919 % 900 AS line,
  (i * 7919 % 300 * 104729 % 41) + i % 3 AS minutes FROM generate_series(1, 6000) i;
ALTER TABLE calls ADD PRIMARY KEY (id)
"""


@pytest.fixture(scope="module")
def calls(lab: Lab) -> Lab:
    for statement in CALLS.split(";"):
        lab(statement)
    if not lab.greenplum:
        lab("ALTER TABLE calls ADD FOREIGN KEY (line) REFERENCES lines")
    return lab


def test_numbers_that_are_codes_by_their_name_are_categories(calls: Lab) -> None:
    became, told, _ = packed(calls, "calls", "minutes", inputs='shop_id, "zipCode", tickets, basket_id')
    assert became == {"shop_id": "category", "zipCode": "category", "tickets": "number", "basket_id": "number"}
    assert any("means of the target" in line and "shop_id" in line for line in told)
    parameters = calls.value(
        "SELECT parameters FROM prepared_columns('packed') WHERE column_name = 'shop_id' AND prepared_as = 'category'"
    )
    assert sorted(parameters["values"]) == [str(5000 + place) for place in range(300)]
    wished, _, _ = packed(calls, "calls", "minutes", inputs="shop_id, tickets", prepare='{"shop_id": "number"}')
    assert wished == {"shop_id": "number", "tickets": "number"}


def test_codes_of_a_large_table_are_counted_in_all_rows(calls: Lab) -> None:
    """Of other columns, a sample is looked at.  Four hundred of the shops have three rows each."""
    calls("CREATE TABLE many_calls AS SELECT i AS id, CASE WHEN i % 100 = 0 THEN 300 + i / 100 % 400 ELSE i % 300 END"
          " AS shop_id, i % 977 AS tickets, i % 41 AS minutes FROM generate_series(1, 120000) i")  # fmt: skip
    became, _, _ = packed(calls, "many_calls", "minutes", inputs="shop_id, tickets")
    assert became == {"shop_id": "category", "tickets": "number"}
    codes = calls.value(
        "SELECT parameters FROM prepared_columns('packed') WHERE column_name = 'shop_id' AND prepared_as = 'category'"
    )
    assert {*codes["values"], *codes["rare"]} == set(
        map(str, (one for (one,) in calls("SELECT DISTINCT shop_id FROM many_calls")))
    )


def test_each_value_of_a_foreign_key_has_a_code(calls: Lab) -> None:
    if calls.greenplum:
        pytest.skip("Greenplum has no foreign keys")
    packed(calls, "calls", "minutes", inputs="line, tickets")
    sizes = (
        "SELECT jsonb_array_length(parameters -> 'values') FROM prepared_columns('packed') WHERE column_name = 'line'"
    )
    assert calls.value(sizes + " AND prepared_as = 'category'") == 900


# -- texts -------------------------------------------------------------------------------------------------------


def test_ids_and_length_of_words_follow_the_texts(lab: Lab) -> None:
    draw = random.Random(4)
    texts = [" ".join(f"w{int(draw.paretovariate(0.35))}" for _ in range(draw.randrange(4, 60))) for _ in range(3000)]
    texts = [text.replace(" ", ", ") if place % 3 else text for place, text in enumerate(texts)] + [None] * 50
    lab.table("essays", {"essay": "text", "y": "text"}, [(text, "ab"[place % 2]) for place, text in enumerate(texts)])

    def prepared(**more: Any) -> tuple[int, int]:
        lab("DROP TABLE IF EXISTS essays_p, essays_p_summary")
        named = "".join(f", {name} => %s" for name in more)
        lab(f"SELECT pack('essays', 'essays_p', 'y', validation => 0, seed => 1{named})", *more.values())
        ((found,),) = lab("SELECT parameters FROM prepared_columns('essays_p') WHERE NOT is_target")
        return found["length"], found["ids"]

    divided = [re.findall("[a-z0-9]+", text) for text in texts if text]
    longest = sorted(map(len, divided))[math.ceil(0.95 * len(divided)) - 1]
    counted = Counter(word for words in divided for word in words)
    several = sum(count > 1 for count in counted.values())
    assert 48 < longest <= 64 and 2000 < several <= 4000
    assert prepared() == (64, 4000)
    assert prepared(prepare='{"essay": {"as": "words", "length": 10}}') == (10, 4000)
    assert prepared(prepare='{"text": {"as": "words", "ids": 50}, "y": "category"}') == (64, 50)
    lab("INSERT INTO essays SELECT essay || ' w1 ' || md5(essay), y FROM essays WHERE essay > 'w1, w5' LIMIT 100")
    assert prepared() == (64, 4000)  # a few more rows change nothing
    more = [" ".join(f"w{int(draw.paretovariate(0.35))}" for _ in range(draw.randrange(4, 60))) for _ in range(12_000)]
    lab.table("more", {"essay": "text"}, [(text,) for text in more])
    lab("INSERT INTO essays SELECT essay, 'a' FROM more")
    counted.update(word for text in more for word in text.split())
    assert 4000 < sum(count > 1 for count in counted.values()) <= 8000
    assert prepared() == (64, 8000)  # a sample of the rows tells


TITLES = """
CREATE TABLE staff AS SELECT (ARRAY['senior', 'junior', 'chief', 'night', 'deputy', 'field'])[1 + i % 6] || ' '
  || (ARRAY['nurse', 'driver', 'clerk', 'cook'])[1 + i / 6 % 4] || ' ' || i / 5 % 90 AS title,
  md5(i::text) || ' ' || md5('x' || i) AS codes, (i % 90) || ' of many' AS frequent,
  'j' || i % 700 || '-' || i % 11 AS single, n * 37 % 101 / 7.0 AS wage
  FROM (SELECT n, n % 600 AS i FROM generate_series(1, 900) n) s;
"""


def test_titles_whose_words_come_again_are_words(garage: Lab) -> None:
    """Not codes of two words, nor texts of one word, nor titles with many rows each."""
    garage(TITLES)
    became, _, _ = packed(garage, "staff", "wage")
    assert became == {"title": "words", "codes": "category", "frequent": "category", "single": "category"}
    wished, _, _ = packed(garage, "staff", "wage", prepare='{"title": "category"}')
    assert wished["title"] == "category"
