"""Tables as people have them: cerebro.pack, and evaluating and predicting with what it packed."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import Lab
from tests.thorough import tries

ROWS = 600
PEOPLE = f"""
CREATE TYPE size AS ENUM ('small', 'medium', 'large');
CREATE DOMAIN euro AS numeric CHECK (VALUE >= 0);
CREATE DOMAIN picture AS bytea;
CREATE TABLE city_names (city_id integer PRIMARY KEY);
INSERT INTO city_names SELECT 1 + i * 7 FROM generate_series(0, 19) i;
CREATE TABLE people AS SELECT i AS id, i * 7919 % 1000003 AS ssn,
  CASE WHEN i % 11 = 0 THEN NULL ELSE 20 + i * 37 % 50 END AS age,
  exp((i * 7919 % 600) / 60.0 - 2)::euro AS "Net Income",
  (i % 13)::real / 3 AS height, CASE WHEN i % 50 = 0 THEN 'NaN' ELSE i / 10.0 END::double precision AS odd,
  CASE WHEN i % 9 = 0 THEN NULL ELSE (ARRAY['Rome', 'Paris', 'D''Oh "x" \\b', 'Ωmega'])[1 + i % 4] END AS city,
  CASE WHEN i < 8 THEN 'only ' || i ELSE 'common' END AS rarely,
  'user' || i % 400 AS login, (ARRAY['small', 'large', 'medium'])[1 + i % 3]::size AS size,
  i % 5 = 0 AS member, 1 + (i % 20) * 7 AS city_id, i % 4 AS rooms,
  date '2020-02-28' + i AS born, timestamptz '2021-03-01 10:00+02' + i * interval '7 hours 13 min' AS seen,
  CASE WHEN i % 10 <> 0 THEN time '08:00' + i * interval '1 min' END AS wakes, i * interval '1 hour' AS slept,
  repeat('good food and ', 1 + i % 3) || (ARRAY['bad wine', 'fine Wine!', 'Übles Bier'])[1 + i % 3] || i AS review,
  CASE WHEN i % 12 <> 0 THEN i / 7.0::numeric END AS gaps,
  CASE WHEN i % 15 <> 0 THEN date '2001-01-01' + i END AS left_on,
  ARRAY[i, i % 7]::real[] AS sensors, decode(lpad(to_hex(i * 251 % 65536), 4, '0'), 'hex') AS pixels,
  '7'::text AS fixed, NULL::text AS nothing, (i % 97)::text AS digits,
  '{{}}'::json AS extra, point(1, i) AS place, i % 60 AS patient,
  (ARRAY['no', 'yes', 'maybe'])[1 + (i * 7 % 11) % 3] AS answer, (i * 13 % 101) * 1000 AS price
FROM generate_series(1, {ROWS}) i;
ALTER TABLE people ADD PRIMARY KEY (ssn);
ALTER TABLE people ADD FOREIGN KEY (city_id) REFERENCES city_names;
"""
WISHES = {"odd": {"not_finite": "null"}, "height": "quantile", "review": {"length": 12},
          "pixels": {"shape": [2]}}  # fmt: skip


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    # Greenplum wants the columns of a primary key to say where a row is.
    lab(
        PEOPLE.replace(
            "ALTER TABLE people ADD PRIMARY",
            "ALTER TABLE people SET DISTRIBUTED BY (ssn);\nALTER TABLE people ADD PRIMARY",
        )
        if lab.greenplum
        else PEOPLE
    )
    return lab


def packed(place: Lab, output: str, target: str = "answer", source: str = "people", **more: Any) -> list[str]:
    """Pack; return the notices."""
    if isinstance(more.get("prepare"), dict):
        more["prepare"] = json.dumps(more["prepare"])
    named = "".join(f", {name} => %s" for name in more)
    place.told()
    place(f"SELECT pack(%s, %s, %s{named})", source, output, target, *more.values())
    return [line.removeprefix("NOTICE:  ") for line in place.told()]


def refused(place: Lab, output: str = "refused", **more: Any) -> psycopg2.Error:
    before = place.tables()
    with pytest.raises(psycopg2.Error) as error:
        packed(place, output, **more)
    assert error.value.diag.message_hint, error.value
    assert place.tables() == before
    return error.value


def values(place: Lab, table: str, variable: str) -> np.ndarray:
    """What a packed table holds of a variable, row by row."""
    layout = place.value(f"SELECT layout FROM {table}_summary")
    (entry,) = [v for v in layout["inputs"] + layout["outputs"] if v["name"] == variable]
    buffers = place(f'SELECT "{variable}" FROM {table} ORDER BY buffer_id')
    joined = b"".join(bytes(payload) for (payload,) in buffers)
    return np.frombuffer(joined, entry["dtype"]).reshape(-1, *entry["shape"])


def columns_of(place: Lab, table: str) -> dict[str, Any]:
    rows = place(
        "SELECT column_name, variable, prepared_as, start, width, parameters, is_target FROM prepared_columns(%s)",
        table,
    )
    return {name: dict(zip(("variable", "as", "place", "width", "parameters", "target"), row)) for name, *row in rows}


def test_every_column_becomes_what_suits_it(place: Lab) -> None:
    said = packed(place, "all_packed", prepare=WISHES, seed=1, segments=2)
    became = columns_of(place, "all_packed")
    assert {name: one["as"] for name, one in became.items()} == {
        "age": "number", "Net Income": "number", "height": "number", "odd": "number", "slept": "number",
        "city": "category", "rarely": "category", "login": "category", "size": "category", "member": "category",
        "city_id": "category", "rooms": "category", "digits": "category", "born": "date", "seen": "date",
        "wakes": "date", "review": "words", "sensors": "as_is", "pixels": "pixels", "patient": "number",
        "price": "number",
        "gaps": "number", "left_on": "date",
        "answer": "one_hot",
    }  # fmt: skip
    transforms = {name: one["parameters"].get("transform") for name, one in became.items() if one["as"] == "number"}
    assert transforms == {"age": "standard", "Net Income": "log", "height": "quantile", "odd": "standard",
                          "slept": "standard", "gaps": "standard", "patient": "standard",
                          "price": "standard"}  # fmt: skip
    ignored = {line.split("'")[1]: line.split("ignored: ")[1] for line in said if "ignored" in line}
    assert set(ignored) == {"id", "ssn", "fixed", "nothing", "extra", "place"}
    assert "numbers the rows" in ignored["id"] and "key" in ignored["ssn"] and "same value" in ignored["fixed"]
    assert any("'digits'" in line and "digits::double precision" in line for line in said)
    layout = place.value("SELECT layout FROM all_packed_summary")
    assert [v["name"] for v in layout["inputs"]] == ["numbers", "categories", "review", "sensors", "pixels"]
    rest = place.value("SELECT layout FROM all_packed_validation_summary")
    assert rest["inputs"] == layout["inputs"] and layout["rows"] + rest["rows"] == ROWS
    assert 0.14 * ROWS < rest["rows"] < 0.26 * ROWS


def test_numbers_are_what_the_documents_say(place: Lab) -> None:
    """The training rows of a packed table against the same arithmetic in NumPy."""
    packed(place, "nums_packed", "price", inputs='age, "Net Income", height, odd', prepare=WISHES, seed=1, validation=0)
    became = columns_of(place, "nums_packed")
    rows = place('SELECT age, "Net Income"::float8, height::float8, odd, price::float8 FROM people')
    got = np.hstack([values(place, "nums_packed", "numbers"), values(place, "nums_packed", "price")])
    wanted = []
    for age, income, height, odd, price in rows:
        p = became["age"]["parameters"]
        row = [((p["fill"] if age is None else age) - p["mean"]) / p["deviation"], float(age is None)]
        p = became["Net Income"]["parameters"]
        row.append((math.log1p(income / p["unit"]) - p["mean"]) / p["deviation"])
        p = became["height"]["parameters"]
        row.append(float(np.interp(height, p["knots"], p["scores"])))
        p = became["odd"]["parameters"]
        row += [((p["fill"] if math.isnan(odd) else odd) - p["mean"]) / p["deviation"], float(math.isnan(odd))]
        wanted.append([*row, price])
    wanted_rows = np.array(sorted(wanted, key=lambda row: [round(x, 4) for x in row]))
    got_rows = np.array(sorted(got.tolist(), key=lambda row: [round(x, 4) for x in row]))
    np.testing.assert_allclose(got_rows, wanted_rows, atol=3e-6)
    ages = [age for age, *_ in rows if age is not None]
    p = became["age"]["parameters"]
    assert p["mean"] == pytest.approx(np.mean(ages), abs=2e-3) and p["deviation"] == pytest.approx(
        np.std(ages), rel=1e-5
    )
    assert p["fill"] == np.median(ages)
    quantiles = np.quantile(got[got[:, 1] == 0, 0], np.linspace(0, 1, 33), method="inverted_cdf")
    np.testing.assert_allclose(p["edges"], quantiles, atol=0.0051)
    height = became["height"]["parameters"]
    assert height["edges"] == sorted({round(one, 2) for one in height["scores"]})
    target = became["price"]["parameters"]
    assert target["mean"] == pytest.approx(np.mean([row[-1] for row in rows]), rel=1e-4)


def test_a_null_counts_as_the_median_or_the_mean_day(place: Lab) -> None:
    packed(place, "gaps_packed", "price", inputs="gaps, left_on", seed=1, validation=0)
    became, numbers = columns_of(place, "gaps_packed"), values(place, "gaps_packed", "numbers")
    gaps = became["gaps"]["parameters"]
    without = numbers[numbers[:, 1] == 1]
    assert len(without) == ROWS // 12 and gaps["fill"] == pytest.approx(ROWS / 14, rel=0.01)
    np.testing.assert_allclose(without[:, 0], (gaps["fill"] - gaps["mean"]) / gaps["deviation"], atol=1e-6)
    no_date = numbers[numbers[:, -1] == 1]
    assert len(no_date) == ROWS // 15
    np.testing.assert_allclose(no_date[:, 2:-1], 0, atol=1e-12)


def test_codes_words_and_dates(place: Lab) -> None:
    wishes = {
        "login": {"as": "category", "values": 3, "least": 1, "buckets": 8},
        "review": {"ids": 500, "length": 4},
    }
    inputs = "city, rarely, login, size, born, wakes, review"
    packed(place, "codes_packed", "price", inputs=inputs, seed=1, prepare=wishes, validation=0)
    became = columns_of(place, "codes_packed")
    city = became["city"]["parameters"]
    assert set(city["values"]) == {"Rome", "Paris", 'D\'Oh "x" \\b', "Ωmega"}
    codes = values(place, "codes_packed", "categories")
    counted = Counter(codes[:, 0].tolist())
    for code, name in enumerate([None, *city["values"]]):
        assert counted[code] == place.value("SELECT count(*) FROM people WHERE city IS NOT DISTINCT FROM %s", name)
    rarely = became["rarely"]["parameters"]
    assert rarely["values"] == ["common"] and len(rarely["rare"]) == 7
    assert Counter(codes[:, 1].tolist()) == {1: ROWS - 7, 2: 7}
    login = codes[:, 2]
    assert (
        became["login"]["parameters"]["buckets"] == 8 and login.min() >= 1 and set(range(4, 12)) <= set(login.tolist())
    )
    words = values(place, "codes_packed", "review")
    assert sorted(words.tolist()) == word_ids(place, [text for (text,) in place("SELECT review FROM people")], 4, 500)
    numbers = values(place, "codes_packed", "numbers")
    born = became["born"]["parameters"]
    assert born["cycles"] == ["year", "month", "week"] and became["wakes"]["parameters"]["cycles"] == ["day"]
    days = numbers[:, 6] * born["deviation"] + born["mean"]
    first_day = place.value("SELECT min(born) - date '1970-01-01' FROM people")
    assert sorted(np.round(days).astype(int).tolist()) == list(range(first_day, first_day + ROWS))
    assert Counter(numbers[:, -1].tolist()) == {0.0: ROWS - ROWS // 10, 1.0: ROWS // 10}
    np.testing.assert_allclose(numbers[:, 0] ** 2 + numbers[:, 1] ** 2, 1, atol=1e-5)


def word_ids(place: Lab, texts: list[str | None], length: int, ids: int) -> list[list[int]]:
    """The ids of the words of texts, sorted, made in Python but for the hash."""
    words = [re.findall(r"[^\W_]+", (text or "").lower())[:length] for text in texts]
    listed = sorted({word for some in words for word in some})
    hashes = dict(place('SELECT w, hashtextextended(w COLLATE "C", 0) FROM unnest(%s) w', listed))
    return sorted([*(1 + hashes[word] % (ids - 1) for word in some), *[0] * (length - len(some))] for some in words)


def test_texts_with_few_words_are_filled_up(place: Lab) -> None:
    texts = [None, "", " ?!", "  GOOD! ", "a-b_c", "Ünder der Brücke", "one two three four five six", "it's\ttab\nline"]
    place.table("notes", {"note": "text", "y": "text"}, [(text, y) for text in texts for y in "ab"])
    packed(place, "notes_packed", "y", "notes", validation=0, prepare={"note": {"as": "words", "length": 3, "ids": 50}})
    found = values(place, "notes_packed", "note")
    assert sorted(found.tolist()) == word_ids(place, texts * 2, 3, 50)
    packed(place, "letters", "y", "notes", validation=0, prepare={"note": {"as": "words", "length": 1, "ids": 2}})
    assert sorted(values(place, "letters", "note").ravel().tolist()) == [0] * 6 + [1] * 10


@pytest.mark.parametrize("length", [1, 5, 8, 19])
def test_all_texts_are_divided_as_the_regular_expression_divides_them(place: Lab, length: int) -> None:
    """Texts with ASCII letters and common punctuation take a faster way."""
    letters = "".join(map(chr, range(1, 128))) + "äßŠİΣ–„”…\u00a0\u2003\ufeff漢字𝄞"
    chosen = random.Random(5)
    plain = "abc XYZ 019 .,-'\":!?/();"
    texts = [
        "".join(chosen.choices(plain if number % 2 else letters, k=chosen.randrange(60))) for number in range(3000)
    ] + list(letters)
    ((found, differ),) = place(
        f"""
        SELECT count(*), count(*) FILTER (WHERE ids IS DISTINCT FROM expected) FROM (
            SELECT cerebro_internal._word_ids(t, {length}, 1000) AS ids,
                   (ARRAY(SELECT (1 + (hashtextextended(w COLLATE "C", 0) %% 999 + 999) %% 999)::integer
                            FROM unnest(regexp_split_to_array(lower(t), '[[:space:][:punct:]]+'))
                                 WITH ORDINALITY AS u (w, n)
                           WHERE w <> '' ORDER BY n LIMIT {length}) || array_fill(0, ARRAY[{length}]))[1:{length}]
                   AS expected
              FROM unnest(%s) AS t) compared
        """,
        texts,
    )
    assert (found, differ) == (len(texts), 0)


def test_words_are_those_of_training_whatever_the_collation_of_the_column(place: Lab) -> None:
    collations = ["C"]
    if place("SELECT 1 FROM pg_collation WHERE collprovider = 'i' LIMIT 1"):
        place("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        collations.append("loose")
    texts = ["Good food, bad wine", "Übles … Bier!", "«plain»—words", "a\u2003b"]
    wanted = place("SELECT t, cerebro_internal._word_ids(t, 4, 1000) FROM unnest(%s) t ORDER BY 1", texts)
    for collation in collations:
        found = f'SELECT t, cerebro_internal._word_ids(t COLLATE "{collation}", 4, 1000) FROM unnest(%s) t ORDER BY 1'
        assert place(found, texts) == wanted


# -- no skew -------------------------------------------------------------------------------------------------

STILL = "optimizer='SGD(lr=0.0)', loss='mse'"  # training leaves the weights as they are


def reflect(place: Lab, source: str, name: str, prepare: dict[str, Any]) -> None:
    """Make a model that predicts its own inputs.  ``source`` has a column y of arrays of any length.

    The table of models is ``name``; those of its packed rows are name_packed and name_packed_validation.
    """
    packed(place, f"{name}_probe", "y", source, validation=0, prepare=prepare)
    inputs = [(v["name"], v["shape"][0]) for v in place.value(f"SELECT layout FROM {name}_probe_summary")["inputs"]]
    total = sum(size for _, size in inputs)
    place(f"UPDATE {source} SET y = array_fill(0::real, ARRAY[{total}])")
    packed(place, f"{name}_packed", "y", source, validation=0.2, prepare=prepare, seed=1, segments=1)
    layers = [(c.input_layer([size], name=variable), []) for variable, size in inputs]
    layers.append((c.layer("Concatenate", "all"), [variable for variable, _ in inputs]))
    layers.append((c.layer("Dense", "out", units=total), ["all"]))
    weights = np.concatenate([np.eye(total).ravel(), np.zeros(total)]).astype("f4").tobytes()
    model = place.architecture(c.functional(layers, [variable for variable, _ in inputs], ["out"]), weights)
    place.selection(f"{name}_mst", [(model, STILL, "batch_size=64")])
    place.fit(f"{name}_packed", name, f"{name}_mst", 1)


@pytest.fixture(scope="module")
def mirror(place: Lab) -> Lab:
    """A model of people that predicts its own inputs."""
    place("CREATE TABLE mirrored AS SELECT *, ARRAY[0]::real[] AS y FROM people")
    place("ALTER TABLE mirrored DROP COLUMN ssn")
    reflect(place, "mirrored", "mirror", WISHES)
    return place


def test_the_seed_orders_rows_whose_texts_are_all_null(lab: Lab) -> None:
    """The order must not be that in which the rows lie in the table."""
    for name, order in (("upwards", "ASC"), ("downwards", "DESC")):
        lab(
            f"CREATE TABLE {name} AS SELECT i * 0.5 AS size, CASE WHEN i % 10 = 0 THEN 'some' END AS note,"
            f" i % 2 = 0 AS even FROM generate_series(1, 300) i ORDER BY i {order}"
        )
        for seed in (1, 2):
            packed(lab, f"{name}_{seed}", "even", name, seed=seed, segments=1, inputs="size, note")
    sizes = {name: values(lab, name, "numbers")[:, 0].tolist() for name in ("upwards_1", "downwards_1", "upwards_2")}
    assert sizes["upwards_1"] == sizes["downwards_1"] != sizes["upwards_2"]
    neighbours = [one < other for one, other in zip(sizes["upwards_1"], sizes["upwards_1"][1:])]
    assert 100 < sum(neighbours) < 200  # mixed, not sorted


def prepared_rows(place: Lab, table: str) -> list[tuple[float, ...]]:
    """All inputs of a packed table, row by row, sorted."""
    layout = place.value(f"SELECT layout FROM {table}_summary")
    found = np.hstack([values(place, table, v["name"]).astype("f4") for v in layout["inputs"]])
    return sorted(map(tuple, found.tolist()))


def said_rows(
    place: Lab, test: str = "mirrored", inputs: str | None = None, model: str = "mirror"
) -> list[tuple[float, ...]]:
    place("DROP TABLE IF EXISTS said")
    place("SELECT madlib_keras_predict(%s, %s, 'id', %s, 'said', 'prob', false, 1)", model, test, inputs)
    place("SET extra_float_digits = 1")  # to read what was predicted
    return sorted(tuple(value) for (value,) in place("SELECT estimated_y FROM said"))


def test_prediction_prepares_the_very_values_of_packing(mirror: Lab) -> None:
    """For every type of column, whatever the settings of the session that predicts."""
    expected = sorted(prepared_rows(mirror, "mirror_packed") + prepared_rows(mirror, "mirror_packed_validation"))
    assert len(expected) == ROWS and said_rows(mirror) == expected
    mirror(
        "SET timezone = 'Pacific/Chatham'; SET datestyle = 'German'; SET intervalstyle = 'iso_8601';"
        " SET extra_float_digits = -15; SET standard_conforming_strings = off; SET bytea_output = 'escape'"
    )
    try:
        assert said_rows(mirror) == expected
    finally:
        mirror("RESET ALL")
        mirror(f"SET search_path = {mirror.schema}, public, cerebro, madlib")


LETTERS = "abc XYZ 09.,-_'\"\\\n\t$%üßΩ漢𝄞"


def random_value(kind: str, chosen: random.Random) -> Any:
    """A value of a type, as text; now and then an extreme one."""
    extreme = chosen.random() < 0.1
    if kind in ("smallint", "integer", "bigint"):
        bits = {"smallint": 15, "integer": 31, "bigint": 63}[kind]
        return str(chosen.choice([-(1 << bits), (1 << bits) - 1, 0]) if extreme else chosen.randrange(-999, 999))
    if kind in ("real", "double precision", "numeric", "money", "real[]"):
        largest = {"real": 1e37, "double precision": 1e300, "numeric": 1e300, "money": 1e12, "real[]": 1e9}[kind]
        number = chosen.choice([largest, -largest, 1e-30]) if extreme else round(chosen.gauss(5, 20), 9)
        number = round(number, 2) if kind == "money" else number
        return [number, -number, 0.5] if kind == "real[]" else str(number)
    if kind in ("date", "timestamp", "timestamptz"):
        if extreme:
            return chosen.choice(["infinity", "-infinity", "0001-01-01", "9999-12-31 00:00:00", "0044-03-15 BC"])
        day = f"{chosen.randrange(1900, 2100)}-{chosen.randrange(1, 13):02}-{chosen.randrange(1, 29):02}"
        return day if kind == "date" else f"{day} {random_value('time', chosen)}"
    if kind == "time":
        return f"{chosen.randrange(24):02}:{chosen.randrange(60):02}:{chosen.random() * 59:09.6f}"
    if kind == "interval":
        return f"{chosen.randrange(-500, 500)} days {chosen.random() * 1e5:.6f} seconds"
    if kind == "boolean":
        return chosen.random() < 0.5
    if kind == "bytea":
        return "\\x" + chosen.randbytes(3).hex()
    if kind == "integer[]":
        return [chosen.randrange(-40000, 40000), chosen.randrange(9)]
    if kind == "uuid":
        return f"00000000-0000-0000-0000-{chosen.randrange(30):012}"
    if kind == "inet":
        return f"10.0.0.{chosen.randrange(20)}"
    length = chosen.randrange(4) if kind == "char(5)" or chosen.random() < 0.6 else chosen.randrange(80)
    return "".join(chosen.choices(LETTERS, k=length))


@pytest.mark.parametrize("seed", range(1, 1 + tries(1)))
def test_random_rows_of_all_types_are_prepared_as_they_were_packed(place: Lab, seed: int) -> None:
    kinds = ["smallint", "integer", "bigint", "real", "double precision", "numeric", "money", "boolean", "text",
             "varchar(90)", "char(5)", "uuid", "inet", "date", "timestamp", "timestamptz", "time", "interval", "real[]",
             "integer[]", "bytea"]  # fmt: skip
    chosen, name = random.Random(seed), f"random_{seed}"
    columns = {
        "id": "integer",
        **{f"c{place}": kind for place, kind in enumerate(kinds)},
        "note": "text",
        "y": "real[]",
    }
    rows = []
    for number in range(300):
        found = [
            None if "[" not in kind and kind != "bytea" and chosen.random() < 0.1 else random_value(kind, chosen)
            for kind in [*kinds, "text"]
        ]
        rows.append((number, *found, [0.0]))
    place.table(name, columns, rows)
    transforms = {
        f"c{kinds.index(kind)}": chosen.choice(["standard", "log", "quantile"]) for kind in ("real", "numeric")
    }
    reflect(
        place,
        name,
        f"{name}_mirror",
        {"note": {"as": "words", "length": 6, "ids": 50}, "bytea": {"shape": [3]}, **transforms},
    )
    tables = (f"{name}_mirror_packed", f"{name}_mirror_packed_validation")
    expected = sorted(row for table in tables for row in prepared_rows(place, table))
    assert len(expected) == 300 and said_rows(place, name, model=f"{name}_mirror") == expected


def test_rows_are_prepared_in_the_same_way_from_a_view_with_other_types(mirror: Lab) -> None:
    """smallint for integer, real for numeric, varchar for text, a timestamp for a date: the same values."""
    mirror(
        "CREATE VIEW others AS SELECT id, y, review::varchar, city::varchar(40), size::text, age::smallint,"
        ' "Net Income"::numeric, height, odd, rarely, login, member, city_id::bigint, rooms::smallint, born::timestamp,'
        " seen, wakes, slept, gaps, left_on::timestamp, sensors, digits, patient::bigint,"
        " price, answer, pixels::picture AS pixels FROM mirrored"
    )
    expected = sorted(prepared_rows(mirror, "mirror_packed") + prepared_rows(mirror, "mirror_packed_validation"))
    assert said_rows(mirror, "others") == expected
    mirror("SELECT pack_like('others', 'again', 'y', NULL, 'mirror_packed')")
    assert prepared_rows(mirror, "again") == expected
    mirror("SELECT madlib_keras_evaluate('mirror', 'again', 'judged', NULL, 1)")
    wanted = float(np.mean(np.square(np.array(expected, "f4"))))
    assert mirror.value("SELECT loss FROM judged") == pytest.approx(wanted, rel=1e-4)


def test_what_training_has_not_seen(mirror: Lab) -> None:
    mirror(
        "CREATE TABLE news AS SELECT * FROM mirrored LIMIT 3; UPDATE news SET city = 'Oslo', height = NULL, age = 1e9,"
        " born = 'infinity', seen = NULL, login = 'nobody', size = NULL WHERE id IN (SELECT id FROM news LIMIT 2)"
    )
    mirror.told()
    rows = said_rows(mirror, "news")
    said = mirror.told()
    assert any("'city' of 'news': 2 of 3 rows have a value that training has not seen" in line for line in said), said
    assert any("'height'" in line and "NULL" in line for line in said)
    became = columns_of(mirror, "mirror_packed")
    assert np.isfinite(rows).all()
    place = became["age"]["place"] - 1
    assert {row[place] for row in rows} >= {100.0}  # as far from the mean as a number can be
    width = sum(one["width"] for one in became.values() if one["variable"] == "numbers")
    assert Counter(row[width + became["city"]["place"] - 1] for row in rows)[0.0] >= 2
    mirror("DROP TABLE news")


# -- splits --------------------------------------------------------------------------------------------------


def sides(place: Lab, name: str, column: str = "n") -> tuple[list[float], list[float]]:
    """The values of a number that is an input as it is (mean 0, deviation 1), on both sides."""
    parameters = columns_of(place, name)[column]["parameters"]
    both = []
    for table in (name, f"{name}_validation"):
        scaled = values(place, table, "numbers")[:, 0].astype(float)
        both.append(sorted((scaled * parameters["deviation"] + parameters["mean"]).round().astype(int).tolist()))
    return both[0], both[1]


@pytest.fixture(scope="module")
def visits(place: Lab) -> Lab:
    place(
        "CREATE TABLE visits AS SELECT i AS n, i % 40 AS patient,"
        " timestamp '2024-01-01' + i % 90 * interval '1 day' AS at,"
        " CASE WHEN i % 20 = 0 THEN 'rare' ELSE 'usual' END AS kind FROM generate_series(1, 400) i"
    )
    return place


def test_rows_stay_on_their_side_when_rows_are_added(visits: Lab) -> None:
    wishes = {"n": "standard"}
    packed(visits, "before", "kind", "visits", prepare=wishes, inputs="n")
    visits("CREATE TABLE grown AS SELECT * FROM visits UNION ALL SELECT n + 400, patient, at, kind FROM visits")
    packed(visits, "after", "kind", "grown", prepare=wishes, inputs="n")
    (training, validation), (more_training, more_validation) = sides(visits, "before"), sides(visits, "after")
    assert sorted(training + validation) == list(range(1, 401)) and 50 < len(validation) < 115
    assert set(training) <= set(more_training) and set(validation) <= set(more_validation)


def test_rows_are_divided_by_all_columns_whichever_are_inputs(visits: Lab) -> None:
    """A flag alone would put all rows with one value, and so perhaps a whole class, on one side."""
    visits(
        "CREATE TABLE flagged AS SELECT n % 2 = 0 AS flag, ARRAY[n, 1]::real[] AS curve, NULL::real[] AS none,"
        " CASE WHEN n % 4 < 2 THEN 'a' ELSE 'b' END AS kind FROM visits"
    )
    packed(visits, "flags", "kind", "flagged", inputs="flag")
    for side in ("flags", "flags_validation"):
        found = Counter(zip(values(visits, side, "categories")[:, 0], values(visits, side, "kind")[:, 0]))
        assert len(found) == 4 and min(found.values()) > 5


def test_split_by_keeps_rows_together(visits: Lab) -> None:
    packed(
        visits,
        "by_patient",
        "kind",
        "visits",
        split_by="patient",
        prepare={"n": "standard"},
        inputs="n",
        validation=0.3,
    )
    training, validation = sides(visits, "by_patient")
    assert not {n % 40 for n in training} & {n % 40 for n in validation} and validation
    packed(visits, "without", "kind", "visits", split_by="patient")
    assert "patient" not in columns_of(visits, "without")  # it would tell the rows apart


def test_of_few_groups_each_side_gets_one(visits: Lab) -> None:
    for names in ("abc", "defg", "hi"):
        listed = ", ".join(f"('{name}')" for name in names)
        visits(f"CREATE TABLE few_{names} AS SELECT p, i AS n, i % 3 AS y FROM (VALUES {listed}) v (p),"
               " generate_series(1, 20) i")  # fmt: skip
        for share in (0.01, 0.2, 0.99):
            name = f"few_{names}_{round(100 * share)}"
            packed(visits, name, "y", f"few_{names}", inputs="n", split_by="p", validation=share)
            parts = [visits.value(f"SELECT layout -> 'rows' FROM {name}{end}_summary") for end in ("", "_validation")]
            assert sum(parts) == 20 * len(names) and min(parts) >= 20 and parts[0] % 20 == 0


def test_split_at_takes_the_latest(visits: Lab) -> None:
    packed(visits, "latest", "kind", "visits", split_at="at", prepare={"n": "standard"}, inputs="n", validation=0.25)
    training, validation = sides(visits, "latest")
    assert max(n % 90 for n in training) < min(n % 90 for n in validation)
    assert 60 < len(validation) <= 100


def test_stratified_classes_have_the_same_share(visits: Lab) -> None:
    packed(visits, "strata", "kind", "visits", stratify=True, prepare={"n": "standard"}, inputs="n", validation=0.25)
    counts = [Counter(n % 20 == 0 for n in side) for side in sides(visits, "strata")]
    assert counts == [{False: 285, True: 15}, {False: 95, True: 5}]


def test_a_table_of_its_own_for_validation(visits: Lab) -> None:
    visits("CREATE VIEW few AS SELECT n::bigint, kind::varchar FROM visits WHERE n < 11")
    packed(visits, "own", "kind", "visits", inputs="n", prepare={"n": "standard"}, validation_table="few")
    assert sides(visits, "own") == (list(range(1, 401)), list(range(1, 11)))
    visits("CREATE VIEW texts AS SELECT n, kind || patient AS patient FROM visits")
    wishes = {"patient": "number", "n": "standard"}
    error = refused(visits, target="patient", source="visits", inputs="n", validation_table="texts", prepare=wishes)
    assert "'patient' of type text does not fit the training table's 'patient' (real)" in str(error)
    visits("CREATE VIEW fewer AS SELECT kind FROM few")
    error = refused(visits, target="kind", source="visits", inputs="n, patient", validation_table="few")
    assert "few does not have the input patient" in str(error)


def test_the_same_seed_gives_the_same_tables(visits: Lab) -> None:
    visits("CREATE TABLE reversed AS SELECT * FROM visits ORDER BY n DESC")
    for name, source in (("one", "visits"), ("two", "reversed")):
        packed(visits, name, "kind", source, seed=3, segments=2)
    one, two = (visits.value(f"SELECT layout FROM {name}_summary") for name in ("one", "two"))
    assert one == two


def test_parallel_workers_give_the_same_tables(visits: Lab) -> None:
    visits(
        "CREATE TABLE many AS SELECT i AS n, i % 1000 / 7.0 AS size, 'kind ' || i % 40 AS kind,"
        " 'word ' || i % 9 || ' end' AS note, i % 3 AS y FROM generate_series(1, 60000) i; ANALYZE many"
    )
    layouts = []
    wishes = {"note": {"as": "words", "length": 4}}
    for name, workers in (("packed_by_workers", 2), ("packed_alone", 0)):
        visits(f"SET max_parallel_workers_per_gather = {workers}; SET min_parallel_table_scan_size = 0")
        visits("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0")
        packed(visits, name, "y", "many", seed=4, segments=2, prepare=wishes)
        layouts.append([visits.value(f"SELECT layout FROM {name}{part}_summary") for part in ("", "_validation")])
    visits("RESET max_parallel_workers_per_gather; RESET min_parallel_table_scan_size")
    visits("RESET parallel_setup_cost; RESET parallel_tuple_cost")
    assert layouts[0] == layouts[1]
    assert not visits("SELECT relname FROM pg_class WHERE relname LIKE 'cerebro_rows_%%'")


def scans(place: Lab, table: str, output: str, source: str, **more: Any) -> int:
    """Pack, and count how often the rows of a table have been read for it."""
    counted = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = %s::regclass"
    place("SET max_parallel_workers_per_gather = 0; BEGIN")
    before = place.value(counted, table)  # some of the last transactions may still be among them
    packed(place, output, "kind", source, **more)
    found = place.value(counted, table) - before
    place("COMMIT; RESET max_parallel_workers_per_gather")
    return int(found)


@pytest.mark.parametrize("more", [{}, {"stratify": True}, {"split_by": "at"}, {"weights": "n"}], ids=str)
def test_rows_that_are_copied_first_are_packed_alike(visits: Lab, more: dict[str, Any]) -> None:
    """Those of a view are, and those of a small table are not."""
    if visits.greenplum:
        pytest.skip("rows have no order there, and are not copied")
    visits(
        "DROP TABLE IF EXISTS own, own_validation, own_summary, own_validation_summary, through, through_validation,"
        " through_summary, through_validation_summary; DROP TABLE IF EXISTS mixed CASCADE;"
        "CREATE TABLE mixed AS SELECT v.*, n / 7.0::real AS size, 'note ' || n % 50 AS cerebro_hash, n % 3 = 0 AS flag"
        " FROM visits v; CREATE VIEW mixed_view AS SELECT * FROM mixed"
    )
    often = scans(visits, "mixed", "own", "mixed", seed=3, segments=2, **more)
    seldom = scans(visits, "mixed", "through", "mixed_view", seed=3, segments=2, **more)
    assert seldom <= 2 < often, (seldom, often)  # whether there are rows, and the copy
    for part in ("", "_validation"):
        own, through = (visits.value(f"SELECT layout FROM {name}{part}_summary") for name in ("own", "through"))
        assert own == through
    assert not visits("SELECT relname FROM pg_class WHERE relname ~ '^rows_[0-9a-f]{12}$'")


def test_a_large_table_without_a_key_is_copied_once(visits: Lab) -> None:
    if visits.greenplum:
        pytest.skip("rows have no order there, and are not copied")
    visits(
        "CREATE TABLE large AS SELECT i AS n, i % 40 AS patient, i / 7.0 AS size,"
        " repeat('note ' || i % 50, 20) AS note, i % 3 = 0 AS flag,"
        " CASE WHEN i % 20 = 0 THEN 'rare' ELSE 'usual' END AS kind FROM generate_series(1, 30000) i"
    )
    without = scans(visits, "large", "large_kept", "large", seed=1, segments=2)
    visits("ALTER TABLE large ADD PRIMARY KEY (n)")
    keyed = scans(visits, "large", "large_keyed", "large", seed=1, segments=2)
    assert without <= 2 < keyed, (without, keyed)
    visits("ALTER TABLE large DROP CONSTRAINT large_pkey; UPDATE large SET size = 'NaN' WHERE n = 7")
    error = refused(visits, "large_refused", source="large", target="kind")
    assert "column 'size' is NaN or infinite in 1 of" in str(error)
    assert not visits("SELECT relname FROM pg_class WHERE relname ~ '^rows_[0-9a-f]{12}$'")


# -- large tables ------------------------------------------------------------------------------------------------

MANY = 80_000  # rows: a sample of them tells about most columns
LARGE = f"""
CREATE TABLE sampled AS SELECT i AS number, sin(i) * 10 + 50 AS wave, CASE WHEN i <> 77 THEN cos(i)::real END AS gap,
  CASE WHEN i = 4242 THEN 1e6 ELSE i % 1009 / 10.0 END AS spike, (i * 7919::bigint % 50021)::integer AS drawn,
  (i * 7919::bigint % 1000003)::integer AS given,
  CASE WHEN i = 99 THEN 9 ELSE i % 3 END AS few, timestamp '2020-01-01' + i % 3001 * interval '1 day'
  + CASE WHEN i = 4711 THEN interval '1 hour' ELSE '0' END AS at,
  CASE WHEN i = 5 THEN NULL ELSE 'user ' || i % 5003 END AS login, CASE WHEN i = 8 THEN 'once' ELSE 'kind ' || i % 7 END
  AS kind, 'a text of ' || i || ' words' AS note, i % 2 AS y FROM generate_series(1, {MANY}) i
"""


@pytest.fixture(scope="module")
def large(place: Lab) -> Lab:
    place(LARGE)
    place("ALTER TABLE sampled ADD PRIMARY KEY (number)")
    return place


def test_a_sample_tells_about_columns_with_many_values(large: Lab) -> None:
    """What only one row has is found, too: a NULL, an extreme, a time of day, a rare value."""
    said = packed(large, "sampled_packed", "y", "sampled", validation=0, seed=1, segments=2)
    assert any("'given' is ignored: its numbers are different in every row" in line for line in said)
    became = {name: one["parameters"] for name, one in columns_of(large, "sampled_packed").items()}
    assert {name: one["missing"] for name, one in became.items() if "missing" in one} == {
        "wave": False, "gap": True, "spike": False, "drawn": False, "at": False,
    }  # fmt: skip
    rows = np.array(large("SELECT wave::float8, drawn::float8 FROM sampled"))
    for place, name in enumerate(("wave", "drawn")):
        assert abs(became[name]["mean"] - rows[:, place].mean()) < 0.02 * rows[:, place].std()
        assert abs(became[name]["deviation"] / rows[:, place].std() - 1) < 0.02
    assert became["spike"]["transform"] != "standard"  # as the one row far away demands
    assert "day" in became["at"]["cycles"]
    assert became["few"]["values"] == ["1", "2", "0"] and became["few"]["rare"] == ["9"]
    assert sorted(became["kind"]["values"]) == [f"kind {i}" for i in range(7)] and became["kind"]["rare"] == ["once"]
    assert became["login"]["buckets"] > 0 and len(became["login"]["values"]) == 1000
    assert became["note"]["length"] == 8


def test_a_value_that_is_not_finite_is_found_beside_a_sample(large: Lab) -> None:
    large("CREATE VIEW spoiled AS SELECT number, CASE WHEN number = 3 THEN 'NaN' ELSE wave END AS wave, y FROM sampled")
    error = refused(large, "spoiled_packed", target="y", source="spoiled", validation=0)
    assert f"column 'wave' is NaN or infinite in 1 of {MANY} rows" in str(error)


def test_one_row_far_away_has_the_weight_of_one_row(large: Lab) -> None:
    large(
        "CREATE VIEW sentinel AS SELECT number, y,"
        " date '2020-01-01' + number % 1000 + CASE number WHEN 3 THEN 100000 ELSE 0 END AS day FROM sampled"
    )
    packed(large, "sentinel_packed", "y", "sentinel", inputs="day", validation=0, seed=1, segments=2)
    became = columns_of(large, "sentinel_packed")["day"]["parameters"]
    days = np.array([day for (day,) in large("SELECT day - date '1970-01-01' FROM sentinel")])
    assert days.std() < 500 and became["deviation"] == pytest.approx(days.std(), rel=0.1)
    assert became["mean"] == pytest.approx(days.mean(), abs=0.03 * days.std())


def test_rows_of_few_kinds_are_all_counted(large: Lab) -> None:
    """Rows with the same values have the same hash: a sample of them could be of one kind."""
    large(
        "CREATE TABLE repeated AS SELECT k * k AS a, k / 7.0 AS b, k % 5 AS c, k % 3 AS d, 'k' || k AS e, k % 2 AS y"
        f" FROM (SELECT i % 40 AS k FROM generate_series(1, {MANY}) i) kinds"
    )
    packed(large, "repeated_packed", "y", "repeated", validation=0, seed=1, segments=2)
    became = columns_of(large, "repeated_packed")
    squares = np.arange(40) ** 2
    assert became["a"]["parameters"]["mean"] == pytest.approx(squares.mean(), rel=1e-4)
    assert became["a"]["parameters"]["deviation"] == pytest.approx(squares.std(), rel=1e-4)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_many_rows_of_one_kind_are_all_counted(large: Lab, share: float) -> None:
    """Beside others that are all different.  They have one hash, and would be in the sample all or not at all."""
    large("DROP TABLE IF EXISTS crowded, crowded_packed, crowded_packed_summary")
    large(
        f"CREATE TABLE crowded AS SELECT CASE WHEN i <= {share} * {MANY} THEN 1e6 ELSE i + random() END AS a,"
        f" CASE WHEN i <= {share} * {MANY} THEN 0 ELSE i % 2 END AS y FROM generate_series(1, {MANY}) i"
    )
    packed(large, "crowded_packed", "y", "crowded", validation=0, seed=1, segments=2)
    became = columns_of(large, "crowded_packed")["a"]["parameters"]
    values = np.array([float(value) for (value,) in large("SELECT a::float8 FROM crowded")])
    if became["transform"] == "standard":
        assert became["mean"] == pytest.approx(values.mean(), rel=1e-3)
    assert became["fill"] == pytest.approx(np.median(values), rel=0.02)


def test_rows_whose_unique_key_is_null_are_mixed(lab: Lab) -> None:
    lab("CREATE TABLE guests (email text UNIQUE, x integer, y integer)")
    lab("INSERT INTO guests SELECT NULL, i, i % 2 FROM generate_series(1, 2000) i")
    lab("SELECT cerebro.pack('guests', 'guests_packed', 'y', inputs => 'x', validation => 0.2, seed => 1)")
    ((rows,),) = lab("SELECT rows FROM guests_packed_validation_summary")
    assert 250 < rows < 550, "not all or none of them"


def test_a_sample_is_the_same_in_a_copy_of_the_rows(large: Lab) -> None:
    if large.greenplum:
        pytest.skip("rows have no order there, and are not copied")
    large(
        "CREATE TABLE keyless AS SELECT wave, drawn, kind, y FROM sampled;"  # it has too few columns to be copied
        " CREATE VIEW keyless_view AS SELECT * FROM keyless"
    )
    for name, source in (("kept", "keyless"), ("seen", "keyless_view")):
        packed(large, f"{name}_packed", "y", source, seed=1, segments=2)
    for part in ("", "_validation"):
        kept, seen = (large.value(f"SELECT layout FROM {name}_packed{part}_summary") for name in ("kept", "seen"))
        assert kept == seen


def test_a_user_who_may_not_make_temporary_tables_packs_a_large_table(visits: Lab) -> None:
    visits("CREATE TABLE wide_open AS SELECT i AS n, i % 100 AS size, i % 3 AS y FROM generate_series(1, 50000) i")
    database, user = visits("SELECT current_database(), current_user")[0]
    visits(f'REVOKE TEMPORARY ON DATABASE "{database}" FROM PUBLIC')
    visits("CREATE ROLE packs_only; GRANT cerebro_user TO packs_only; GRANT SELECT ON wide_open TO packs_only")
    try:
        visits(f'GRANT USAGE, CREATE ON SCHEMA "{visits.schema}" TO packs_only; SET ROLE packs_only')
        packed(visits, "without_copy", "y", "wide_open", validation=0, segments=2)
        assert visits.value("SELECT layout -> 'rows' FROM without_copy_summary") == 50_000
    finally:
        visits("RESET ROLE")
        visits(f'GRANT TEMPORARY ON DATABASE "{database}" TO PUBLIC; DROP OWNED BY packs_only; DROP ROLE packs_only')


# -- sources -------------------------------------------------------------------------------------------------


def test_partitions_views_and_odd_names(visits: Lab) -> None:
    visits(
        'CREATE TABLE "My Table" ("It\'s" real, "a.b" text, "select" text, y text) PARTITION BY LIST (y);'
        "CREATE TABLE parts_1 PARTITION OF \"My Table\" FOR VALUES IN ('u');"
        "CREATE TABLE parts_2 PARTITION OF \"My Table\" FOR VALUES IN ('v');"
        "INSERT INTO \"My Table\" SELECT i / 7.0, 'x' || i % 3, NULLIF(i % 4, 0), chr(117 + i % 2)"
        " FROM generate_series(1, 100) i;"
        'CREATE VIEW "v W" AS SELECT * FROM "My Table"'
    )
    for name, source in (("parted", '"My Table"'), ("seen", '"v W"')):
        packed(visits, f'"{name} P"', "y", source, seed=1, validation=0.3)
    assert set(columns_of(visits, '"seen P"')) == {"It's", "a.b", "select", "y"}
    layouts = [visits.value(f'SELECT layout FROM "{name} P_summary"') for name in ("parted", "seen")]
    assert layouts[0]["inputs"] == layouts[1]["inputs"] and layouts[0]["outputs"] == layouts[1]["outputs"]


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"inputs": "age, answer"}, "the target 'answer' is among the inputs"),
        ({"target": "fixed"}, "the target 'fixed' has the same value in all rows"),
        ({"target": "ssn", "prepare": {"ssn": "category"}}, "different values in"),
        ({"target": "review"}, "the target 'review' has"),
        ({"target": "nothing"}, "NULL in"),
        ({"target": "unknown", "source": "unknowns"}, "the target 'unknown' is NULL in all"),
        ({"target": "height", "stratify": True, "source": "unknowns"}, "stratify: each value of column 'height' has"),
        ({"target": "odd", "validation": 0}, "the target 'odd' is NaN or infinite in 12 of 600 rows"),
        ({"inputs": "age, nothing"}, "column 'nothing' is NULL in all"),
        ({"inputs": "age, odd"}, "column 'odd' is NaN or infinite in"),
        ({"inputs": "age, extra"}, "the input 'extra' has the type json"),
        ({"inputs": "nobody"}, "invalid inputs ('nobody')"),
        ({"inputs": "fixed"}, "no column that can be an input"),
        ({"prepare": {"digits": "number"}}, "column 'digits' of type text cannot become number"),
        ({"prepare": {"nobody": "number"}}, "'nobody', which is neither a column nor the type of a column"),
        ({"prepare": {"age": "guess"}}, "'age' cannot be 'guess'"),
        ({"prepare": {"age": {"as": "number", "speed": 1}}}, "number has no argument 'speed'"),
        ({"prepare": {"age": {"values": 0}}}, "values cannot be 0"),
        ({"prepare": {"age": 3}}, "'age' must be a text or a JSON object"),
        ({"prepare": {"answer": "words"}}, "another choice than category or number for the target 'answer'"),
        ({"prepare": "[1]"}, "must be a JSON object"),
        ({"validation": 1.5}, "validation must be a share from 0 to 1"),
        ({"validation": 0, "stratify": True}, "stratify needs a share"),
        ({"split_by": "patient", "split_at": "born"}, "split_by and split_at cannot be used together"),
        ({"split_by": "patient, city"}, "split_by must be one column, not patient, city"),
        ({"split_at": "born, seen"}, "split_at must be one column"),
        ({"target": "answer, city_id", "stratify": True}, "stratify needs a single target, not 2"),
        ({"split_by": "nobody"}, "invalid split_by ('nobody')"),
        ({"split_at": "nothing"}, "is NULL in all rows"),
        ({"validation": 1e-9}, "no row of people is left for validation"),
        ({"validation": 0.3, "validation_table": "city_names"}, "validation and validation_table cannot be used"),
        ({"validation_table": "people"}, "validation_table is the source itself"),
        ({"output": "people"}, "already exists"),
        ({"output": "blocked"}, "blocked_validation_summary' already exists"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused_and_leaves_nothing(place: Lab, more: dict[str, Any], says: str) -> None:
    place("CREATE TABLE IF NOT EXISTS blocked_validation_summary (x int)")
    place(
        "CREATE OR REPLACE VIEW unknowns AS"
        " SELECT age, odd, (id * 0.5)::real AS height, NULL::real AS unknown FROM people"
    )
    given = {"prepare": {"odd": "ignore"}, **more}
    if "odd" in str(given.get("inputs")) or given.get("target") == "odd":
        del given["prepare"]
    assert says in str(refused(place, **given))


def test_an_empty_table_is_refused(place: Lab) -> None:
    place("CREATE TABLE nobody AS SELECT * FROM people WHERE false")
    assert "has no rows" in str(refused(place, source="nobody"))


def test_prediction_names_the_inputs_that_are_missing_or_changed(mirror: Lab) -> None:
    mirror("CREATE VIEW lacking AS SELECT id, age, review, city FROM mirrored")
    mirror("CREATE VIEW changed AS SELECT m.*, x.* FROM (SELECT * FROM mirrored) m, (SELECT 1 AS one) x")
    for test, inputs, says in (
        ("lacking", None, "does not have the inputs "),
        ("mirrored", "age, city", "independent_varname names age, city, but the model was trained on"),
    ):
        with pytest.raises(psycopg2.Error, match=says) as error:
            said_rows(mirror, test, inputs)
        assert error.value.diag.message_hint
    mirror("CREATE TABLE retyped AS SELECT * FROM mirrored; ALTER TABLE retyped ALTER age TYPE text")
    with pytest.raises(psycopg2.Error, match=r"did not have in training: age \(text now, integer in training\)"):
        said_rows(mirror, "retyped")
    mirror("CREATE TABLE spelled AS SELECT * FROM mirrored; ALTER TABLE spelled ALTER sensors TYPE text[]")
    with pytest.raises(psycopg2.Error, match=r"sensors \(text\[\] now, an array of numbers in training\)"):
        said_rows(mirror, "spelled")


def test_unknown_categories_are_an_error_on_request(place: Lab) -> None:
    place("CREATE TABLE strict AS SELECT city, answer FROM people WHERE city IS NOT NULL")
    packed(place, "strict_packed", source="strict", prepare={"city": {"unknown": "error"}}, validation=0)
    place("INSERT INTO strict SELECT 'Oslo', answer FROM strict LIMIT 1")
    with pytest.raises(psycopg2.Error, match="'city' of strict: 1 of .* have a value that training has not seen[.]"):
        place("SELECT pack_like('strict', 'strict_val', 'answer', NULL, 'strict_packed')")
    error = pytest.raises(psycopg2.Error, place, "SELECT * FROM prepared_columns('strict')").value
    assert "not a packed table" in str(error)


# -- architectures -------------------------------------------------------------------------------------------

HOUSES = """
CREATE TABLE houses AS SELECT i AS id, size, city, garden, built, note, sensors,
  round((30000 + 2000 * size * CASE city WHEN 'Rome' THEN 2 ELSE 1 END + CASE WHEN garden THEN 40000 ELSE 0 END
   + 500 * (built - date '1950-01-01') / 365.25)::numeric, 2) AS price,
  CASE WHEN note LIKE '%ruin%' THEN 'cheap' WHEN size > 110 THEN 'grand' ELSE 'plain' END AS class
 FROM (SELECT i, (20 + i * 7919 % 160)::real AS size, (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i * 31 % 3] AS city,
              i * 17 % 5 < 2 AS garden, date '1950-01-01' + i * 6007 % 25000 AS built,
              'house ' || (ARRAY['of stone', 'of wood', 'in ruins'])[1 + i * 13 % 7 % 3] || ' number ' || i AS note,
              ARRAY[i % 5, i % 3]::smallint[] AS sensors
         FROM generate_series(1, 1200) i) h;
"""


@pytest.fixture(scope="module")
def houses(place: Lab) -> Lab:
    place(HOUSES)
    return place


@pytest.fixture(scope="module")
def trained(houses: Lab) -> Lab:
    """price_models: an mlp for the price; class_models: a residual network for the class."""
    for target, kind, left_out in (("price", "mlp", "class"), ("class", "resnet", "price")):
        wishes = {left_out: "ignore", "id": "ignore"}
        packed(houses, f"{target}_packed", target, "houses", seed=1, segments=1, prepare=wishes)
        layout = houses.value(f"SELECT layout FROM {target}_packed_summary")
        assert [v["name"] for v in layout["inputs"]] == ["numbers", "categories", "note", "sensors"]
        units = '{"units": 64}'
        houses(f"SELECT load_keras_model('{target}_arch', architecture('{kind}', '{target}_packed', '{units}'))")
        compiled = houses.compiled(f"{target}_packed", "Adam(learning_rate=0.003)")
        houses.selection(f"{target}_mst", [(1, compiled, "batch_size=32")], arch=f"{target}_arch")
        others = f"{target}_packed_validation"
        houses.fit(
            f"{target}_packed",
            f"{target}_models",
            f"{target}_mst",
            12,
            validation_table=others,
            options={"deterministic": True, "seed": 1},
        )
        houses(f"SELECT madlib_keras_predict('{target}_models', 'houses', 'id', NULL, '{target}_told', 'response',"
               " mst_key => 1)")  # fmt: skip
    return houses


def final_metric(place: Lab, table: str) -> float:
    return place.value(f"SELECT validation_metrics_final FROM {table}_info")


def test_architectures_that_fit_a_table_learn_it(trained: Lab) -> None:
    right = trained.value("SELECT avg((class = class_value)::int) FROM class_told JOIN houses USING (id)")
    assert final_metric(trained, "class_models") > 0.9 and right > 0.95
    # the mean absolute deviation of the prices is above 100,000
    off = trained.value("SELECT avg(abs(price - estimated_price)) FROM price_told JOIN houses USING (id)")
    assert final_metric(trained, "price_models") < 35_000 and off < 35_000


# -- predictions in a query ----------------------------------------------------------------------------------


def test_a_query_predicts_what_the_table_of_predictions_has(trained: Lab) -> None:
    ours = trained("SELECT key_value::int, value FROM predict('price_models', 'SELECT * FROM houses') ORDER BY 1")
    assert ours == trained("SELECT id, estimated_price FROM price_told ORDER BY 1")
    classes = trained(
        "SELECT key_value::int, target, class, value FROM predict('class_models', 'TABLE houses;') ORDER BY 1"
    )
    assert classes == trained("SELECT id, class_name, class_value, NULL::float8 FROM class_told ORDER BY 1")
    top = trained("SELECT key_value, count(*), sum(probability), max(rank) FROM predict('class_models',"
                  " 'SELECT * FROM houses WHERE id < 9 -- a few', top => 3) GROUP BY 1")  # fmt: skip
    assert len(top) == 8 and all(count == 3 and abs(whole - 1) < 1e-5 and rank == 3 for _, count, whole, rank in top)
    joined = "SELECT count(*) FROM houses h JOIN predict('class_models', 'TABLE houses') p ON p.key_value = h.id::text"
    assert trained.value(f"{joined} WHERE p.class = h.class") > 1100
    # Queries that use some of its columns, in another order
    trained("CREATE TABLE kept AS SELECT class, key_value FROM predict('class_models', 'TABLE houses')")
    assert trained.value("SELECT count(*) FROM kept k JOIN class_told t ON t.id = k.key_value::int"
                         " WHERE k.class = t.class_value") == 1200  # fmt: skip
    used = "count(p.rank), count(p.value), count(p.target), min(p.rank), min(p.target), max(p.probability) <= 1"
    assert trained(f"SELECT {used} {joined.partition('count(*)')[2]}") == [(1200, 0, 1200, 1, "class", True)]
    trained("DROP TABLE kept")


def test_prediction_writes_nothing_and_sees_the_callers_rows(trained: Lab) -> None:
    connection = trained.connect()
    connection.autocommit = False
    with connection, connection.cursor() as cursor:
        cursor.execute("UPDATE houses SET size = NULL, city = NULL, built = NULL WHERE id = 7")
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute("SELECT value FROM predict('price_models', 'SELECT * FROM houses WHERE id = 7')")
        ((changed,),) = cursor.fetchall()
        cursor.execute("SELECT txid_current_if_assigned() IS NOT NULL")  # by the UPDATE
        connection.rollback()
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute("SELECT value FROM predict('price_models', 'SELECT * FROM houses WHERE id = 7')")
        ((before,),) = cursor.fetchall()
        cursor.execute("SELECT txid_current_if_assigned()")
        assert cursor.fetchall() == [(None,)]
    connection.close()
    told = trained.value("SELECT estimated_price FROM price_told WHERE id = 7")
    assert before == pytest.approx(told, rel=1e-6) and abs(changed - told) > 1


def test_a_table_of_an_earlier_version_has_no_bins(place: Lab) -> None:
    packed(place, "binned_packed", "price", inputs="age, born, city", seed=1)
    model = "SELECT architecture('mlp', 'binned_packed', '{\"bins\": 8}')"
    assert "re_lu" in json.dumps(place.value(model))
    layout = place.value("SELECT layout FROM binned_packed_summary")
    for feature in layout["inputs"][0]["preparation"]["features"]:
        assert len(feature.pop("edges")) > 8
    place("UPDATE binned_packed_summary SET layout = %s", json.dumps(layout))
    with pytest.raises(psycopg2.Error, match="parameters: bins cannot be 8: an earlier version has packed") as error:
        place(model)
    assert error.value.diag.message_hint.startswith("Pack the table again")
    assert "re_lu" not in json.dumps(place.value("SELECT architecture('mlp', 'binned_packed')"))


def test_a_class_and_a_number_are_predicted_at_once(place: Lab) -> None:
    wishes = {"odd": {"not_finite": "null"}}
    packed(place, "mixed_packed", "answer, price", inputs="age, height, city, odd", prepare=wishes, seed=1)
    model = place.architecture(place.value("SELECT architecture('mlp', 'mixed_packed')"), table="mixed_arch")
    compiled = place.compiled("mixed_packed")
    place.selection("mixed_mst", [(model, compiled, "batch_size=64")], arch="mixed_arch")
    place.fit("mixed_packed", "mixed_models", "mixed_mst", 1)
    rows = place(
        "SELECT target, count(*), count(value), count(class), count(probability), max(rank), count(DISTINCT key_value)"
        " FROM predict('mixed_models', 'SELECT * FROM people', 'id', top => 2) GROUP BY 1 ORDER BY 1"
    )
    assert rows == [("answer", 2 * ROWS, 0, 2 * ROWS, 2 * ROWS, 2, ROWS), ("price", ROWS, ROWS, 0, 0, None, ROWS)]
    judged = "'mixed_models', 'SELECT * FROM people', target => "
    assert place.value(f"SELECT sum(count) FROM confusion_matrix({judged}'answer')") == ROWS
    assert place.value(f"SELECT count(*) FROM residuals({judged}'price') WHERE residual IS NOT NULL") == ROWS
    with pytest.raises(psycopg2.Error, match="classes and numbers at once") as error:
        place("SELECT madlib_keras_predict('mixed_models', 'people', 'id', NULL, 'said_both', mst_key => 1)")
    assert "cerebro.predict()" in error.value.diag.message_hint


def test_keys(trained: Lab) -> None:
    few = "SELECT * FROM houses WHERE id < 4"
    for key, expected in (("city", {"Bonn", "Lyon", "Rome"}), ("ID", {"1", "2", "3"}), (None, {"1", "2", "3"})):
        assert {k for (k,) in trained("SELECT key_value FROM predict('price_models', %s, %s)", few, key)} == expected
    inputs = "SELECT size, city, garden, built, note, sensors FROM houses LIMIT 5"
    rows = trained("SELECT key_value FROM predict('price_models', %s)", inputs)
    assert sorted(rows) == [(str(number),) for number in range(1, 6)]
    assert trained("SELECT * FROM predict('price_models', %s)", f"{inputs} OFFSET 9999") == []


@pytest.mark.parametrize(
    ("model", "query", "more", "says"),
    [
        ("price_models", "SELECT id, city, size FROM houses", "", "the query does not have the inputs built, garden"),
        ("price_models", "SELECT id, size::text, city, garden, built, note, sensors FROM houses", "", "size (text now"),
        ("price_models", "SELECT NULL::int AS id, h.* FROM houses h", ", key => 'nobody'", "key must be one column"),
        ("price_models", "SELECT NULL::int AS no, h.* FROM houses h", ", key => 'no'", "rows have a NULL in the key"),
        ("price_models", "", "", "query must not be empty"),
        ("price_models", "nowhere", "", "query: there is no table 'nowhere'"),
        ("houses", "TABLE houses", "", "'houses' is not a table of trained models"),
        ("price_models", "SELECT * FROM nowhere", "", 'relation "nowhere" does not exist'),
        ("price_models", "DELETE FROM houses", "", "syntax error"),
        ("price_models", "TABLE houses", ", configuration => 9", "has no configuration 9"),
        ("class_models", "TABLE houses", ", top => 0", "top cannot be 0"),
        ("mirror", "TABLE mirrored", "", "the model predicts arrays"),
        ("price_models", "SELECT h.* FROM houses h, predict('price_models', 'TABLE houses') p", "",
         "cerebro.predict: a query or view whose rows are being predicted cannot call it"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_refused(
    trained: Lab, mirror: Lab, model: str, query: str, more: str, says: str
) -> None:
    with pytest.raises(psycopg2.Error) as error:
        trained(f"SELECT * FROM predict(%s, %s{more})", model, query)
    assert says in error.value.diag.message_primary
    assert trained.value("SELECT count(*) FROM predict('price_models', 'SELECT * FROM houses LIMIT 3')") == 3


def test_a_prediction_that_is_given_up_leaves_the_session_usable(trained: Lab) -> None:
    chunks = (
        "cerebro_internal._predict_rows('price_models', 'TABLE houses', NULL, NULL, 1, NULL, false, false, NULL, NULL,"
        " false)"
    )
    for _ in range(2):
        rows = trained(f"SELECT ({chunks}).ids[1] LIMIT 1")
        assert len(rows) == 1
        with pytest.raises(psycopg2.Error, match="division by zero"):
            trained(f"SELECT 1 / (cardinality(ids) * 0) FROM (SELECT ({chunks}).ids) c")
    assert trained.value("SELECT count(*) FROM predict('price_models', 'TABLE houses')") == 1200


def test_a_function_predicts_a_row(trained: Lab) -> None:
    called = trained.value("SELECT create_predictor('price_models', 'price_of')")
    assert called == f"{trained.schema}.price_of(size, built, city, garden, note, sensors)"
    arguments = "size, built, city, garden, note, sensors"

    def told(function: str) -> list[Any]:
        if trained.greenplum:  # a query would call it on the segments
            with pytest.raises(
                psycopg2.Error, match="while the segments work on this query. It cannot run statements there"
            ):
                trained(f"SELECT {function}({arguments}) FROM houses")
            texts = ", ".join(f"{name}::text" for name in arguments.split(", "))
            rows = trained(f"SELECT id, {texts} FROM houses WHERE id < 6 ORDER BY 1")
            return [(row[0], trained.value(f"SELECT {function}(%s, %s, %s, %s, %s, %s)", *row[1:])) for row in rows]
        return trained(f"SELECT id, {function}({arguments}) FROM houses WHERE id < 6 ORDER BY 1")

    expected = trained("SELECT id, estimated_price FROM price_told WHERE id < 6 ORDER BY 1")
    # sums of one row may be rounded otherwise
    assert np.array(told("price_of")) == pytest.approx(np.array(expected), rel=1e-6)
    unknown = "size => NULL, built => NULL, city => 'O''slo \\', garden => true, note => '', sensors => '{1,1}'"
    assert math.isfinite(trained.value(f"SELECT price_of({unknown})"))  # also for a text without words
    trained("SELECT create_predictor('class_models', '\"the class\"')")
    assert told('"the class"') == trained("SELECT id, class_value FROM class_told WHERE id < 6 ORDER BY 1")
    with pytest.raises(psycopg2.Error, match="already exists with same argument types"):
        trained("SELECT create_predictor('price_models', 'price_of')")


def test_a_function_for_more_columns_than_a_function_can_have(houses: Lab) -> None:
    columns = ", ".join(f"(i * {n} % 101 / 3.0)::real AS c{n}" for n in range(1, 101))
    houses(f"CREATE TABLE broad AS SELECT i % 3 AS y, {columns} FROM generate_series(1, 90) i")
    packed(houses, "broad_packed", "y", "broad", validation=0, segments=1, prepare={"real": "number"})
    houses("SELECT load_keras_model('broad_arch', architecture('mlp', 'broad_packed', '{\"units\": 2}'))")
    compiled = houses.compiled("broad_packed")
    houses.selection("broad_mst", [(1, compiled, "batch_size=32")], arch="broad_arch")
    houses.fit("broad_packed", "broad_models", "broad_mst", 1)
    with pytest.raises(psycopg2.Error, match="has 100 input columns; a function takes at most 99") as error:
        houses("SELECT create_predictor('broad_models', 'of_many')")
    assert "cerebro.predict" in error.value.diag.message_hint
