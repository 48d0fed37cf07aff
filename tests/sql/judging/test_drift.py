"""How far rows have drifted from those that a table was packed from."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab

COLUMNS = {
    "id": "int", "price": "double precision", "rooms": "int", "city": "text", "built": "date", "about": "text",
    "garden": "boolean", "sold": "numeric",
}  # fmt: skip
INPUTS = "price, rooms, city, built, about, garden"
CITIES = ("Ulm", "Bonn", "Kiel")


def house(number: int, more: float = 0.0, cities: tuple[str, ...] = CITIES) -> tuple[object, ...]:
    some = random.Random(number)
    price = None if some.random() < 0.1 else some.lognormvariate(12 + more, 0.5)
    words = " ".join(some.choice(("large", "small", "light", "dark", "near", "far")) for _ in range(12))
    built = f"{some.randrange(1950, 2020)}-0{some.randrange(1, 10)}-11"
    return (
        number,
        price,
        some.randrange(1, 40),
        some.choice(cities),
        built,
        words,
        some.random() < 0.3,
        some.gauss(0, 1),
    )


@pytest.fixture(scope="module")
def houses(lab: Lab) -> Iterator[Lab]:
    lab.table("houses", COLUMNS, [house(number) for number in range(3000)])
    lab("ALTER TABLE houses ADD PRIMARY KEY (id)")
    lab.table("later", COLUMNS, [house(number, 0.4, (*CITIES, "Gera")) for number in range(5000, 6000)])
    lab(f"SELECT cerebro.pack('houses', 'packed', 'sold', '{INPUTS}', %s)", json.dumps({"about": "words"}))
    yield lab


def drift(place: Lab, query: str, table: str = "packed") -> dict[str, dict[str, Any]]:
    names = ("column_name", "is_target", "psi", "psi_by_chance", "jensen_shannon", "nulls", "nulls_in_training", "rows",
             "largest_change")  # fmt: skip
    rows = place(f"SELECT {', '.join(names)} FROM cerebro.drift(%s, %s)", table, query)
    assert [row[2] for row in rows] == sorted((row[2] for row in rows), reverse=True)
    return {row[0]: dict(zip(names, row)) for row in rows}


def test_the_rows_of_training_have_not_drifted(houses: Lab) -> None:
    found = drift(houses, "SELECT * FROM houses")
    assert set(found) == {"price", "rooms", "city", "built", "garden", "sold"}
    assert [name for name, row in found.items() if row["is_target"]] == ["sold"]
    for row in found.values():  # they were packed without a fifth of these rows
        assert row["psi"] < 0.01 and row["jensen_shannon"] < 0.001 and row["rows"] == 3000
    others = drift(houses, "SELECT * FROM houses WHERE id % 2 = 0")
    assert all(row["psi"] < 6 * row["psi_by_chance"] for row in others.values())


def test_what_has_changed_comes_first(houses: Lab) -> None:
    found = drift(houses, "SELECT id, price, rooms, city, built, about, garden FROM later")
    assert [*found][:2] == ["city", "price"] or [*found][:2] == ["price", "city"]
    assert found["price"]["psi"] > 0.25 and found["city"]["psi"] > 0.25 and "sold" not in found
    assert all(found[name]["psi"] < 0.1 for name in ("rooms", "built", "garden"))
    assert (
        found["city"]["largest_change"].startswith("other values: 2")
        and "0 % in training" in found["city"]["largest_change"]
    )
    assert found["price"]["largest_change"].startswith("from ")


def test_the_figures_are_those_of_a_computation_by_hand(houses: Lab) -> None:
    (profile,) = [
        one for one in houses.value("SELECT packing -> 'profiles' FROM packed_summary") if one["column"] == "price"
    ]
    edges, before = profile["edges"], profile["rows"]
    counts = [0] * (len(edges) + 2)
    prices = [price for (price,) in houses("SELECT price FROM later")]
    for price in prices:
        counts[-1 if price is None else sum(price >= edge for edge in edges)] += 1
    p = [(one + 0.5) / (sum(before) + 0.5 * len(before)) for one in before]
    q = [(one + 0.5) / (len(prices) + 0.5 * len(counts)) for one in counts]
    psi = sum((new - old) * math.log(new / old) for old, new in zip(p, q))
    found = drift(houses, "SELECT * FROM later")["price"]
    assert found["psi"] == pytest.approx(psi, rel=1e-12)
    p, q = ([one / sum(rows) for one in rows] for rows in (before, counts))
    middle = [(old + new) / 2 for old, new in zip(p, q)]
    entropy = sum(one * math.log2(one / m) for side in (p, q) for one, m in zip(side, middle) if one) / 2
    assert found["jensen_shannon"] == pytest.approx(entropy, rel=1e-9)
    assert found["nulls"] == counts[-1] / len(prices) and found["nulls_in_training"] == before[-1] / sum(before)
    training = houses.value("SELECT rows FROM packed_summary")
    assert sum(before) == training and min(before[:-1]) > 0.08 * 0.9 * training  # ten parts of about equal size


def test_numbers_that_repeat_and_columns_without_values(houses: Lab) -> None:
    columns = {
        "id": "int",
        "mostly": "real",
        "stamp": "bigint",
        "empty": "real",
        "wide": "real",
        "y": "text",
    }
    rows = [
        (
            n,
            0.0 if n % 10 else float(n),
            1_700_000_000 + n,
            None if n % 2 else 1.0 * n,
            1e30 * (-1) ** n * n,
            "ab"[n % 2],
        )
        for n in range(1000)
    ]
    houses.table("odd", columns, rows)
    houses("ALTER TABLE odd ADD PRIMARY KEY (id)")
    houses("SELECT cerebro.pack('odd', 'odd_packed', 'y', 'mostly, stamp, empty, wide')")
    found = drift(houses, "SELECT * FROM odd", "odd_packed")
    assert all(row["psi"] < 0.02 for row in found.values()) and len(found) == 5
    moved = drift(houses, "SELECT id, 1.0::real AS mostly, stamp + 900 AS stamp, NULL::real AS empty,"
                  " 'NaN'::real AS wide, 'c' AS y FROM odd", "odd_packed")  # fmt: skip
    assert {name: row["psi"] for name, row in moved.items() if row["psi"] < 1} == {}
    assert moved["mostly"]["largest_change"].startswith("0: 0 % of the rows, ")
    assert moved["empty"]["nulls"] == 1.0 and moved["empty"]["largest_change"].startswith("NULL: 100 %")


def test_many_rows_with_few_different_values_are_not_sampled(houses: Lab) -> None:
    """Rows with the same values have the same hash, so a sample by hash would have all of them or none."""
    houses(
        "CREATE TABLE few AS SELECT i % 2 = 0 AS a, i % 3 AS b, (i % 2)::text AS y FROM generate_series(1, 120000) i"
    )
    houses("SELECT cerebro.pack('few', 'few_packed', 'y', validation => 0)")
    assert [sum(one["rows"]) for one in houses.value("SELECT packing -> 'profiles' FROM few_packed_summary")] == 3 * [
        120000
    ]
    assert all(row["psi"] < 1e-6 for row in drift(houses, "SELECT * FROM few", "few_packed").values())


def test_bins_of_dates_are_dates(houses: Lab) -> None:
    found = drift(houses, "SELECT id, price, rooms, city, built + 40000 AS built, about, garden FROM later")
    assert re.match(r"from 20[01]\d-\d\d-\d\d: 100 % of the rows, ", found["built"]["largest_change"])


def test_bad_input_is_named(houses: Lab) -> None:
    for table, query, message in (
        ("packed", "SELECT 1 AS price", "does not have the inputs rooms, built"),
        ("packed", "SELECT * FROM later WHERE false", "the query returns no rows"),
        ("packed", "", "query must not be empty"),
        ("packed", "nowhere", "there is no table 'nowhere'"),
        ("houses", "SELECT * FROM later", "neither a model table nor a packed table"),
        ("packed", "SELECT id, 'x'::text AS price, rooms, city, built, about, garden FROM later", "text now"),
        ("packed", "SELECT id, price, rooms, city, built, about, garden, 'x'::text AS sold FROM later",
         "it was a number"),
    ):  # fmt: skip
        with pytest.raises(psycopg2.Error, match=message):
            drift(houses, query, table)


def test_tables_of_an_earlier_version_say_what_they_lack(houses: Lab) -> None:
    houses("CREATE TABLE old AS SELECT * FROM packed")
    houses("CREATE TABLE old_summary AS SELECT * FROM packed_summary")
    houses("ALTER TABLE old_summary DROP COLUMN packing")
    with pytest.raises(psycopg2.Error, match="does not say how the values of its columns were distributed"):
        drift(houses, "SELECT * FROM later", "old")


@pytest.mark.parametrize(
    "change, message",
    [
        ("jsonb_set(packing, '{profiles,0,rows}', '[1]')", "has to have 11 items"),
        ("jsonb_set(packing, '{profiles,0,kind}', '\"sound\"')", "has to be one of number, date, category"),
        ("'[]'", "has to be a JSON object"),
        ("jsonb_set(packing, '{profiles,0,edges}', '[3, 2]')", "has to ascend"),
        ("jsonb_set(packing, '{arguments,validation}', '\"x\"')", "validation"),
    ],
)
def test_a_summary_written_by_hand_is_read_with_care(houses: Lab, change: str, message: str) -> None:
    with houses.db.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(f"UPDATE packed_summary SET packing = {change}")
            with pytest.raises(psycopg2.Error, match=message):
                cursor.execute("SELECT * FROM cerebro.drift('packed', 'SELECT * FROM later')")
        finally:
            cursor.execute("ROLLBACK")
