"""The server gathers rows in chunks: what is wrong in one of them is named, and nothing is packed wrongly."""

from __future__ import annotations

from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab

PIXELS = '{"px": {"as": "pixels", "shape": [28, 28, 1]}}'


def pack(lab: Lab, source: str, target: str, inputs: str, function: str = "pack", **more: Any) -> None:
    lab("DROP TABLE IF EXISTS chunked, chunked_summary, chunked_validation, chunked_validation_summary")
    given = {"source_table": source, "output_table": "chunked", "target": target, "inputs": inputs, "seed": 1, **more}
    lab(f"SELECT cerebro.{function}({', '.join(f'{name} => %s' for name in given)})", *given.values())


def refused(lab: Lab, *arguments: Any, **more: Any) -> str:
    with pytest.raises(psycopg2.Error) as error:
        pack(lab, *arguments, **more)
    return str(error.value.diag.message_primary)


@pytest.mark.parametrize("other", ["2, 2, 2", "2, 1, 2, 1, 2, 1"])
def test_of_six_dimensions_each_is_compared(lab: Lab, other: str) -> None:
    lab("DROP TABLE IF EXISTS boxes")
    lab("CREATE TABLE boxes AS SELECT i AS id, i % 2 AS bin, array_fill(i % 9, CASE WHEN i = 7"
        f" THEN ARRAY[{other}] ELSE ARRAY[1, 2, 1, 2, 1, 2] END) AS six FROM generate_series(1, 300) i")  # fmt: skip
    told = refused(lab, "boxes", "bin", "six", "pack_plain")
    assert told.endswith(f"has arrays of different shapes: [1, 2, 1, 2, 1, 2] and [{other}].")


@pytest.mark.parametrize("rows", [300, 60_000])
def test_another_shape_is_named(lab: Lab, rows: int) -> None:
    lab("DROP TABLE IF EXISTS lists")
    lab(f"CREATE TABLE lists AS SELECT i AS id, i % 2 AS bin, ARRAY[i, 1] AS arr FROM generate_series(1, {rows}) i")
    lab(f"UPDATE lists SET arr = '{{1, 2, 3}}' WHERE id = {rows - 5}")
    assert refused(lab, "lists", "bin", "arr").endswith("has arrays of different shapes: [2] and [3].")
    lab(f"UPDATE lists SET arr = '{{1, NULL}}' WHERE id = {rows - 5}")
    assert refused(lab, "lists", "bin", "arr").endswith("has arrays with NULL elements.")


def test_other_lower_bounds_do_not_hide_other_shapes(lab: Lab) -> None:
    lab("CREATE TABLE bounds AS SELECT i AS id, i % 2 AS bin, ARRAY[i, i + 1] AS arr FROM generate_series(1, 300) i")
    lab("CREATE TABLE others AS SELECT * FROM bounds")
    lab("UPDATE bounds SET arr = '[3:4]={1,7}' WHERE id = 2; UPDATE others SET arr = '{1, 2, 3}' WHERE id = 250")
    told = refused(lab, "bounds", "bin", "arr", validation_table="others")
    assert told.endswith("'arr' of table others has arrays of different shapes: [2] and [3].")


def test_bytes_far_larger_than_the_shape_are_named(lab: Lab) -> None:
    """A chunk of so many of them would be larger than any value."""
    lab("CREATE TABLE files (id integer, bin integer, px bytea)")
    lab("INSERT INTO files SELECT i, i % 2, convert_to(repeat('x', 250000), 'UTF8') FROM generate_series(1, 5000) i")
    told = refused(lab, "files", "bin", "px", prepare=PIXELS)
    assert told.endswith("values without the 784 bytes that the shape [28, 28, 1] has.")
    lab("DROP TABLE files")


def test_the_key_of_a_table_does_not_bind_those_that_inherit(lab: Lab) -> None:
    """So 200,000 rows with the same key have one hash, and a sample by hashes would be two rows."""
    lab("CREATE TABLE parent (id integer PRIMARY KEY, a float8, c text, y float8)")
    lab("CREATE TABLE child () INHERITS (parent)")
    lab("INSERT INTO parent SELECT i, i % 100, 'c' || i % 5, sin(i) FROM generate_series(1, 10) i")
    lab("INSERT INTO child SELECT 7, i, 'c' || i % 5, i FROM generate_series(1, 200000) i")
    lab("CREATE TABLE apart AS SELECT * FROM parent LIMIT 100")
    pack(lab, "parent", "y", "a, c", validation_table="apart")
    profiles = lab.value("SELECT packing FROM chunked_summary")["profiles"]
    assert [sum(profile["rows"]) for profile in profiles] == [200_010] * 3


def test_an_operator_of_the_callers_does_not_choose_the_rows(lab: Lab) -> None:
    lab("CREATE TABLE many AS SELECT i AS id, i % 7 AS a, sin(i) AS y FROM generate_series(1, 60000) i")
    lab("CREATE FUNCTION never(tid, tid) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false'")
    lab("CREATE OPERATOR >= (LEFTARG = tid, RIGHTARG = tid, FUNCTION = never)")
    path = lab.value("SHOW search_path")
    try:
        lab(f"SET search_path = {lab.schema}, pg_catalog, {path}")
        pack(lab, "many", "y", "a")
    finally:
        lab(f"SET search_path = {path}")
        lab(f"DROP OPERATOR {lab.schema}.>= (tid, tid); DROP FUNCTION never")
    assert lab.value("SELECT sum(rows) FROM (SELECT rows FROM chunked_summary UNION ALL"
                     " SELECT rows FROM chunked_validation_summary) s") == 60_000  # fmt: skip


def test_as_many_columns_as_a_table_has(lab: Lab) -> None:
    columns = ", ".join(f"(i * {place} % 11)::real AS f{place}" for place in range(1, 1501))
    lab(f"CREATE TABLE wide AS SELECT {columns} FROM generate_series(1, 300) i")
    pack(lab, "wide", "f1", ", ".join(f"f{place}" for place in range(2, 1501)))
    assert lab.value("SELECT rows FROM chunked_summary") > 200
