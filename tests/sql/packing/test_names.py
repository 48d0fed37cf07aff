"""Hostile names of tables, columns, schemas and runs: each works unchanged, or is refused with a clear error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg2.sql import SQL, Identifier

from cerebro_db.core.names import split_list
from tests.sql.lab import Lab, flower_model, run
from tests.thorough import tries

FRAGMENTS = [
    '"', '""', "'", "''", ";", "--", "/*", "*/", "\\", "\\'", "$$", "$x$", "%", "%%", "%s", "%(a)s", "%1$s", "%n", "{}",
    "{0}", "{a.__class__}", "\n", "\r\n", "\t", "\x01", "\x1b[31m", "\x7f", " ", ".", ",", "(", ")", "[1]", ":",
    "::text", "=", "$1", "pg_temp", "pg_catalog", "information_schema", "select", "table", "user", "null", "NULL",
    "default", "public", "Mixed", "\u202e", "\u2066", "\u200b", "\ufeff", "ß", "İ", "ı", "é", "e\u0301", "日本", "😀",
    "\U0010fffd", "א", "٣", "_summary", "_seg0", "x" * 40, "__dist_key__", "; DROP TABLE canary; --",
    "'; DROP TABLE canary; --", '"; DROP TABLE canary; --', "'||(SELECT 1)||'", "$$; DROP TABLE canary; $$",
    "\\'; DROP TABLE canary; --", "E'\\\\'",
]  # fmt: skip
ANYTHING = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
NAMES = st.lists(st.one_of(st.sampled_from(FRAGMENTS), ANYTHING), min_size=1, max_size=5).map("".join)
# The errors that a name may cause. A syntax error or an internal error would mean that it was not quoted.
CLEAR = {"42602", "42622", "42P01", "42703", "42P07", "42701", "22023", "3F000", "42704", "0A000", "22000", "42P16"}
WORST = [
    'semi"; DROP TABLE canary; --',
    "quo'te",
    "per%s%%cent%(x)s",
    "back\\slash\\'",
    "dollar$$quote$1",
    "new\nline",
    "pg_temp.x",
    "select",
    "\u202ertl\u2066א",
    "{0}{a.b}",
    "Mixed Case",
    "\N{GRINNING FACE}" * 9,
]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def size(name: str) -> int:
    return len(name.encode())


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab("CREATE TABLE canary AS SELECT 1 AS alive")
    return lab


def relations(place: Lab) -> set[tuple[str, str]]:
    return set(
        place(
            "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname !~ '^pg_toast'"
        )
    )


@contextlib.contextmanager
def undone(place: Lab) -> Iterator[None]:
    place("BEGIN")
    try:
        yield
    finally:
        place("ROLLBACK")


def attempted(place: Lab, statement: str, *values: Any) -> str | None:
    """The SQLSTATE of the refusal, or None."""
    place("SAVEPOINT before")
    try:
        place(statement, *values)
    except psycopg2.Error as error:
        place("ROLLBACK TO before")
        assert error.pgcode in CLEAR, (error.pgcode, str(error), values)
        return error.pgcode
    return None


COUNT = {"names": 0, "made": 0}


@settings(max_examples=tries(25), deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(NAMES, NAMES)
@example("a" * 63, "b")
@example("a" * 64, "b" * 64)
@example("é" * 31 + "a", "b" * 63)
@example("a" * 55, "b" * 49)
@example('"', "%s")
def test_any_name(place: Lab, name: str, column: str) -> None:
    """The names for packed tables, architecture tables and selection tables, and all names derived from them."""
    COUNT["names"] += 2
    with undone(place):
        before = relations(place)
        given_name, given_column = quoted(name), quoted(column)
        expected: set[str] = set()
        source, table, taken = "plain source", SQL("CREATE TABLE {} (id int, {} real[], y text)"), size(column) > 63
        if not taken and column not in ("id", "y"):
            with place.db.cursor() as cursor:
                cursor.execute(table.format(Identifier(source), Identifier(column)))
                cursor.execute(SQL("INSERT INTO {} VALUES (1, '{{1,2}}', 'a'), (2, '{{3,4}}', 'b')").format(
                    Identifier(source)))  # fmt: skip
            expected.add(source)
            refused = attempted(place, "SELECT pack_plain(%s, %s, 'y', %s, segments => 1)",
                                quoted(source), given_name, given_column)  # fmt: skip
            if refused is None:
                expected |= {name, name + "_summary", name + "_seg0"}
                layout, kept = place(f"SELECT layout, inputs FROM {quoted(name + '_summary')}".replace(
                    "%", "%%") + " WHERE %s", True)[0]  # fmt: skip
                assert layout["inputs"][0]["name"] == column and split_list(kept, "inputs") == [column]
                COUNT["made"] += 1
            elif column not in ("__dist_key__", "buffer_id"):
                assert max(size(name) + 8, size(column)) > 63 or refused in ("42602", "42701"), (name, column, refused)
        arch, mst = name[:20] + "A", name[:20] + "M"
        refused = attempted(place, "SELECT load_keras_model(%s, %s, NULL, %s, %s)", quoted(arch),
                            json.dumps(flower_model()), name, column)  # fmt: skip
        if refused is None:
            expected.add(arch)
            rows = place(f"SELECT name, description FROM {quoted(arch)}".replace("%", "%%") + " WHERE %s", True)
            assert rows == [(name, column)]
            refused = attempted(
                place, "SELECT load_model_selection_table(%s, %s, ARRAY[1], ARRAY[%s], ARRAY['batch_size=1'])",
                quoted(arch), quoted(mst), "optimizer='adam', loss='mse'",
            )  # fmt: skip
            if refused is None:
                expected |= {mst, mst + "_summary"}
        else:
            assert size(arch) > 63 or not arch.strip()
        # The same texts without quotes may mean anything, but nothing in them is executed.
        for text in (name, column):
            attempted(place, "SELECT pack_plain(%s, %s, %s, %s)", text, text + "_out", text, text)
            attempted(place, "SELECT load_keras_model(%s, %s)", text + "_a", json.dumps(flower_model()))
        new = {relation for schema, relation in relations(place) - before if schema == place.schema}
        own = {"_out", "_out_summary", "_out_seg0", "_out_seg1", "_a", "_mst_key_seq"}
        assert all(relation.endswith(tuple(own)) for relation in new - expected), new - expected
        assert place("SELECT alive FROM canary") == [(1,)]


def test_there_were_enough() -> None:
    if not COUNT["names"]:
        pytest.skip("the names were not tried")
    assert COUNT["names"] >= tries(25)
    assert COUNT["made"] >= tries(3)


@pytest.mark.parametrize("text", ["a\0b", "\0"])
def test_no_zero_bytes(place: Lab, text: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        place("SELECT pack_plain(%s, 'o', 'y', 'x')", text)


def test_the_worst_through_everything(place: Lab) -> None:
    """Whole runs, each with six of the worst names for its schema, tables, columns and name."""
    weights = set()
    for first in range(0, len(WORST), 6):
        names = (WORST + WORST)[first : first + 6]
        schema = f"§ {first} {names[0][:20]}"  # no schema may begin with pg_
        place(f"CREATE SCHEMA {quoted(schema)}")
        try:
            place(f"SET search_path = {quoted(schema)}, cerebro, madlib")
            weights.add(through_everything(place, schema, names))
        finally:
            place(f"SET search_path = {place.schema}, public, cerebro, madlib")
            for (run_id,) in place("SELECT run FROM cerebro.run WHERE name = %s", names[0]):
                place("SELECT cerebro.forget(%s)", run_id)
            place(f"DROP SCHEMA {quoted(schema)} CASCADE")
    assert place("SELECT alive FROM canary") == [(1,)]
    assert len(weights) == 1  # The names do not influence the training.


def through_everything(place: Lab, schema: str, names: list[str]) -> bytes:
    name, short = names[0], names[0][:10]
    source, packed, models, x, y = (f"{one[:13]} {what}" for one, what in zip(names[1:], ("r", "p", "m", "x", "y")))
    with place.db.cursor() as cursor:
        cursor.execute(SQL("CREATE TABLE {} (id int, {} real[], {} text)").format(*map(Identifier, (source, x, y))))
        rows = "INSERT INTO {} SELECT i, ARRAY[sin(i), cos(i)], (ARRAY['a''%s', '\"b\\'])[i % 2 + 1]"
        cursor.execute(SQL(rows + " FROM generate_series(1, 12) i").format(Identifier(source)))
    full = f"{quoted(schema)}.{quoted(packed)}"
    place("SELECT pack_plain(%s, %s, %s, %s, segments => 1, seed => 1)",
          quoted(source), full, quoted(y), quoted(x))  # fmt: skip
    model = flower_model(2, 2)
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    place("SELECT load_keras_model(%s, %s)", quoted(f"{short} arch"), json.dumps(model))
    compiled = "optimizer='sgd', loss='categorical_crossentropy'"
    place("SELECT load_model_selection_table(%s, %s, ARRAY[1], ARRAY[%s], ARRAY['batch_size=4'])",
          quoted(f"{short} arch"), quoted(f"{short} mst"), compiled)  # fmt: skip
    found = place.value(
        "SELECT madlib_fit_multiple_model(%s, %s, %s, 1, validation_table => %s, name => %s, description => %s,"
        " options => %s)",
        full, quoted(models), quoted(f"{short} mst"), full, name, name, json.dumps({"deterministic": True, "seed": 1}),
    )  # fmt: skip
    assert place("SELECT run_name, status FROM leaderboard WHERE run = %s", found) == [(name, "finished")]
    place("SELECT madlib_keras_evaluate(%s, %s, %s, NULL, 1)", quoted(models), full, quoted(f"{short} judged"))
    place("SELECT madlib_keras_predict(%s, %s, 'id', %s, %s, 'prob', mst_key => 1)",
          quoted(models), quoted(source), quoted(x), quoted(f"{short} said"))  # fmt: skip
    escaped = quoted(f"{short} said").replace("%", "%%")
    said = run(place.db, f"SELECT DISTINCT class_name, class_value FROM {escaped} WHERE %s ORDER BY 2", True)
    assert sorted(value for _, value in said) == ['"b\\', "a'%s"] and {column for column, _ in said} == {y}
    escaped = quoted(models).replace("%", "%%")
    return bytes(run(place.db, f"SELECT model_weights FROM {escaped} WHERE %s", True)[0][0])
