"""The packed bytes of a seed are those of every earlier version, for columns of all types and every division of rows.

The digests were made by the version whose Python encoded row by row (0.2.0 before the rows were gathered in chunks).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sql.lab import Lab

ROWS = """
CREATE TABLE kinds AS SELECT i AS id, (i * 7919 % 1000) / 10.0 AS a, CASE WHEN i % 7 = 0 THEN NULL ELSE i % 50 END AS b,
  'c' || i * 31 % 11 AS c, 'many ' || i * 7919 % 700 AS many, date '2020-01-01' + i % 900 AS d,
  timestamptz '2021-01-01 00:00+00' + i * interval '613 s' AS ts, i % 3 = 0 AS flag,
  ARRAY[i % 256, i % 7, i % 3]::smallint[] AS small, ARRAY[[i % 10, i % 9], [i % 8, i % 70000]]::integer[] AS square,
  ARRAY[i / 3.0, i]::real[] AS reals, decode(lpad(to_hex(i % 65536), 8, '0'), 'hex') AS px,
  CASE WHEN i % 13 = 0 THEN NULL ELSE 'k' || i % 5 END AS kind, (ARRAY['r', 'g', 'b'])[1 + i % 3]::varchar AS rgb,
  i % 4 AS team, i % 10 AS w, sin(i) * 10 AS y, i % 2 AS bin, 'good food and ' || i % 17 || ' wines' AS txt,
  1.5 * (i % 100) AS num, (CASE WHEN i % 3 = 0 THEN format('[5:7]={%s,%s,1}', i % 5, i % 7)
                                ELSE format('{%s,%s,1}', i % 5, i % 7) END)::integer[] AS bounds,
  array_fill(i % 9, ARRAY[1, 2, 1, 2, 1, 2]) AS six,
  CASE WHEN i % 4 = 0 THEN array_remove(ARRAY[1.5, NULL, i]::real[], NULL) ELSE ARRAY[2.5, i]::real[] END AS mapped
  FROM generate_series(1, 60000) i
"""
MORE = """
CREATE TABLE few AS SELECT * FROM kinds WHERE id <= 3000;
CREATE TABLE keyless AS SELECT c, flag, bin, b FROM kinds;
CREATE VIEW seen AS SELECT a, b, c, y FROM kinds
"""
SHAPE = json.dumps({"px": {"as": "pixels", "shape": [2, 2, 1]}})
WINDOWS = json.dumps({"by": "team", "order": "id", "length": 4})

PACKED: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "all types": ("pack", "kinds", "y", "a,b,c,many,d,ts,flag,num,txt", {}),
    "700 classes": ("pack", "kinds", "many", "a,small", {}),
    "classes with NULL": ("pack_plain", "kinds", "kind", "reals", {}),
    "class weights": ("pack", "kinds", "rgb", "a,b,kind", {"class_weight": "balanced"}),
    "arrays": ("pack", "kinds", "y,reals", "small,square,a", {}),
    "other lower bounds": ("pack", "few", "bin", "bounds,mapped", {}),
    "six dimensions": ("pack", "few", "bin", "six", {}),
    "pixels": ("pack", "kinds", "bin", "px", {"prepare": SHAPE}),
    "groups": ("pack", "kinds", "y", "a,b,c", {"group_by": "team"}),
    "groups and folds": ("pack", "few", "y", "a,b,c", {"group_by": "team", "folds": 3}),
    "folds": ("pack", "kinds", "bin", "a,b,c", {"folds": 4}),
    "weights": ("pack", "kinds", "y", "a,b", {"weights": "w"}),
    "small buffers": ("pack", "few", "c", "a,b,many,d", {"buffer_size": 100}),
    "classes apart": ("pack", "few", "c", "a,b,many,d", {"stratify": True}),
    "by time": ("pack", "kinds", "y", "a,b", {"split_at": "ts"}),
    "windows": ("pack", "few", "y", "a,b,c", {"sequence": WINDOWS}),
    "no key": ("pack", "keyless", "c", "b,flag", {}),
    "a view": ("pack", "seen", "y", "a,b,c", {}),
    "divided integers": ("pack_plain", "kinds", "rgb", "small", {"divide_by": 255}),
    "divided reals": ("pack_plain", "kinds", "bin", "square", {"divide_by": 7}),
}  # fmt: skip
DIGESTS = {
    "all types": "4a0bc998192ff428",
    "700 classes": "b50fbb278509cc0b",
    "classes with NULL": "b9a9d8679f880976",
    "class weights": "6ac3454cc1e36ab5",
    "arrays": "f3ece967c4819527",
    "other lower bounds": "6927b8fee13059ad",
    "six dimensions": "6a47123ea086b8b8",
    "pixels": "4c17f1df7a70100c",
    "groups": "a14b3e14101fac5d",
    "groups and folds": "99f7965ff93500b3",
    "folds": "fcceeb9bcbca04c5",
    "weights": "d7fbde1437d0ce1a",
    "small buffers": "a7f89f0c5db3204b",
    "classes apart": "90468415449866f8",
    "by time": "e098c47896ecacb6",
    "windows": "3c9ea5a72fa038df",
    "no key": "0b082b93c94c8d54",
    "a view": "5a3501ef2f108faa",
    "divided integers": "da7951831026d79b",
    "divided reals": "e3a68d3aa60c5fb5",
}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab(ROWS)
    lab("ALTER TABLE kinds ADD PRIMARY KEY (id)")
    for statement in MORE.split(";"):
        lab(statement)
    lab("ALTER TABLE few ADD PRIMARY KEY (id)")
    yield lab


def digest(place: Lab, table: str) -> str:
    """Of the variables of all buffers, in their order."""
    names = [variable["name"] for variable in described(place, table)]
    found = hashlib.sha256()
    listed = ", ".join(f'"{name}", "{name}_shape"' for name in names)
    for row in place(f"SELECT {listed} FROM {table} ORDER BY buffer_id"):
        for value in row:
            found.update(bytes(value) if isinstance(value, memoryview) else str(value).encode())
    return found.hexdigest()[:16]


def described(place: Lab, table: str) -> list[dict[str, str]]:
    layout = place.value(f"SELECT layout FROM {table}_summary")
    others = [layout[one] for one in ("weight", "fold") if layout.get(one)]
    return [*layout["inputs"], *layout["outputs"], *others]


@pytest.mark.parametrize("name", PACKED)
def test_a_seed_gives_the_same_bytes(place: Lab, name: str) -> None:
    function, source, target, inputs, more = PACKED[name]
    arguments = {"source_table": source, "output_table": "packed", "target": target, "inputs": inputs, "seed": 3,
                 "segments": 3, **more}  # fmt: skip
    listed = ", ".join(f"{argument} => %s" for argument in arguments)
    place("DROP TABLE IF EXISTS packed, packed_summary, packed_validation, packed_validation_summary")
    place(f"SELECT cerebro.{function}({listed})", *arguments.values())
    assert digest(place, "packed") == DIGESTS[name]
