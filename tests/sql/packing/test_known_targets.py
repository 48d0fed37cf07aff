"""Rows whose target is NULL are left out, with a notice: everything is as if the table did not have them."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab

ROWS = """
CREATE TABLE {name} (id integer PRIMARY KEY, size real, city text, ward integer, at date, price real, kind text);
INSERT INTO {name} SELECT i, i * 37 % 91, (ARRAY['Ulm', 'Kiel'])[1 + i % 2], i % 20, date '2026-01-01' + i,
  CASE WHEN i % 10 > 0 THEN i % 50 END, CASE WHEN i % 15 > 0 THEN (ARRAY['a', 'b', 'c'])[1 + i % 3] END
  FROM generate_series({first}, {last}) i
"""
TABLES = {"homes": (1, 400), "later": (401, 500), "others": (501, 560)}
WAYS: list[dict[str, Any]] = [
    {"validation": 0.2},
    {"validation": 0.2, "target": "price, kind"},
    {"validation": 0.2, "target": "kind", "stratify": True},
    {"folds": 3},
    {"validation": 0.2, "split_by": "ward"},
    {"validation": 0.2, "split_at": "at"},
    {"validation_table": "others"},
    {"validation": 0.2, "group_by": "city"},
]


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """Each table also without the rows in which a target is NULL."""
    for name, (first, last) in TABLES.items():
        lab(ROWS.format(name=name, first=first, last=last))
        for target in ("price", "kind", "both"):
            known = {"both": "price IS NOT NULL AND kind IS NOT NULL"}.get(target, f"{target} IS NOT NULL")
            lab(f"CREATE TABLE {name}_{target} (LIKE {name} INCLUDING INDEXES);"
                f" INSERT INTO {name}_{target} SELECT * FROM {name} WHERE {known}")  # fmt: skip
    return lab


def rows_of(place: Lab, packed: str) -> list[Any]:
    """What tells the packed rows of both sides apart: hashes of all partitions."""
    endings = [one for one in ("", "_validation") if f"{packed}{one}" in place.tables()]
    return [place.value(f"SELECT layout->'partitions' FROM {packed}{ending}_summary") for ending in endings]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way))
def test_packed_rows_are_those_with_a_target(place: Lab, way: dict[str, Any]) -> None:
    given = {"target": "price", "inputs": "size, city", "segments": 2, "seed": 3, **way}
    ending = {"price": "_price", "kind": "_kind"}.get(given["target"], "_both")
    found = []
    for number, known in enumerate(("", ending)):
        if "validation_table" in way:
            given["validation_table"] = f"others{known}"
        named = ", ".join(f"{name} => %s" for name in given)
        place.told()
        place(f"SELECT cerebro.pack('homes{known}', 'packed_{number}', {named})", *given.values())
        told = "".join(place.told())
        assert ("left out, because" in told) == (not known)
        if "group_by" not in way:
            place(f"SELECT cerebro.append('packed_{number}', 'later{known}')")
        found.append(rows_of(place, f"packed_{number}"))
        for table in [one for one in place.tables() if one.startswith(f"packed_{number}")]:
            place(f"DROP TABLE IF EXISTS {table}")
    assert found[0] == found[1] and found[0]


def test_a_model_predicts_the_rows_that_are_left_out(place: Lab) -> None:
    place.told()
    place("SELECT cerebro.fit('homes', 'prices', '{\"architecture\": \"mlp\", \"units\": 4}', target => 'price',"
          " inputs => 'size, city', epochs => 1, segments => 1, options => %s)", json.dumps({"seed": 1}))  # fmt: skip
    (told,) = [one for one in place.told() if "left out" in one]
    assert "40 rows of" in told and "because the target price is NULL" in told
    hint = told.partition("cerebro.predict(…, ")[2].partition(").")[0]
    assert place.value(f"SELECT count(*) FROM cerebro.predict('prices', {hint})") == 40
    figures = dict(place("SELECT metric, value FROM cerebro.evaluate('prices', 'homes')"))
    # Greenplum adds the rows up in any order.
    assert figures == pytest.approx(dict(place("SELECT metric, value FROM cerebro.evaluate('prices', 'homes_price')")))
    assert figures["rows"] == 360
    for function in ("calibrate", "importance"):  # the name of a table stands for its rows
        of_name = place(f"SELECT * FROM cerebro.{function}('prices', 'homes')")
        assert of_name == place(f"SELECT * FROM cerebro.{function}('prices', 'SELECT * FROM homes')")


def test_tables_without_a_target_are_refused(place: Lab) -> None:
    place("CREATE VIEW nothing AS SELECT id, size, NULL::real AS price, CASE WHEN id > 9 THEN 'a' END AS kind,"
          " CASE WHEN id < 9 THEN 'b' END AS other FROM homes")  # fmt: skip
    for target, says in (("price", "'price' is NULL in all 400 rows"), ("kind, other", "of all targets: kind, other")):
        with pytest.raises(psycopg2.Error, match=says) as error:
            place("SELECT cerebro.pack('nothing', 'never', %s, inputs => 'size')", target)
        assert error.value.diag.message_hint and "never" not in place.tables()


def test_rows_of_groups_are_left_out_without_a_promise(place: Lab) -> None:
    """A group without a target has no model, which could predict its rows."""
    place("CREATE VIEW halves AS SELECT id, size, city, CASE WHEN city = 'Ulm' THEN price END AS price FROM homes")
    place.told()
    place("SELECT cerebro.pack('halves', 'halves_packed', 'price', inputs => 'size', group_by => 'city')")
    (told,) = [one for one in place.told() if "left out" in one]
    assert "predict" not in told
