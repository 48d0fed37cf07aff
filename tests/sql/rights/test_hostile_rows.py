"""No row that a user can write by hand breaks, or holds up, a view of others.

The rows come from the catalog: hostile values of each column's type in each column of each table of the log that users
write, and in JSON also under each key that a view reads. A plain user inserts them. Either the table refuses a row, or
every view answers a monitor and an administrator. A new column or view is tried without a change of this file.
CEREBRO_ALL_ROWS=1 tries all values.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg2
import pytest

from tests.conftest import new_database
from tests.sql.users import town
from tests.thorough import TIMES

STAGES = json.dumps({"train": 1})
RUN = 5
# A row of each table, which all belong to one run: with them every view has something to show.
SOUND: dict[str, dict[str, Any]] = {
    "run": {
        "source_table": "x", "packed_table": "x", "validation_table": "y", "model_table": "x", "selection_table": "x",
        "arch_table": "x",
        "epochs": 1, "evaluate_every": 1, "seed": 1, "segments": 1, "dist_keys": [0], "configurations": 1,
        "rows_per_epoch": 1, "validation_rows": 1, "storage": "x", "options": "{}", "layout": "{}",
        "packed_summary": "{}", "version": "0",
    },
    "architecture": {"model_id": 1, "given": "{}", "architecture": "{}"},
    "configuration": {
        "configuration": 1, "place": 1, "model_id": 1, "compile_params": "c", "fit_params": "f",
        "compile": "{}", "fit": "{}", "parameters": '{"units": 8}',
    },
    "model": {"model": 1, "configuration": 1, "seed": 1, "initial": "random"},
    "event": {"event": "created"},
    "attempt": {"model": 1, "hop": 1, "segment": 0},
    "hop": {
        "model": 1, "hop": 1, "epoch": 1, "segment": 0, "started_at": "2026-01-01", "finished_at": "2026-01-02",
        "trainer_pid": 1, "rows": 1, "steps": 1, "loss": 1.0, "metric": 1.0, "metrics": '{"f1_score": [1, 2]}',
        "state_bytes": 8, "state_sha256": "x", "weights_offset": 0, "weights_bytes": 8, "seconds": STAGES,
    },
    "evaluation": {
        "model": 1, "epoch": 1, "dataset": "validation", "part": 0, "segment": 0, "started_at": "2026-01-01", "rows": 1,
        "loss": 1.0, "metrics": '{"f1_score": [1, 2]}', "seconds": STAGES,
    },
    "objective": {"model": 1, "epoch": 1, "hop": 1, "value": 0.0, "kept": True},
    "decision": {"model": 1, "epoch": 1, "decision": "stop", "policy": "p"},
    "heartbeat": {"rows_done": 1, "rows_total": 1},
    "request": {"action": "stop"},
    "profile": {
        "engine": "jax", "shapes": "x", "batch_size": 1, "parallel": "hopping", "threads": 1, "trainers": 1,
        "machine": "m", "visits": 1, "train_row": 1.0, "evaluate_row": 1.0, "build": 1.0, "hop": 1.0, "state_bytes": 8,
        "memory_mb": 1, "fused": 2, "fused_share": 0.5,
    },
}  # fmt: skip
# What another row of the same run differs in, where the primary key asks for it.
NUMBERED = {"attempt": "hop", "hop": "hop", "evaluation": "epoch", "objective": "epoch"}
REPEATABLE = {"event", "profile", "decision", "heartbeat", "request", *NUMBERED}

WHOLE = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}
LONG = [10_000, 300_000, 20_000_000]
SCALARS = ["x", "NaN", "x" * 120_000, -1, 0, 2**31, 10**25, None, [1], {"a": 1}]
RAW_SCALARS = ["1e400", "-1e-400", "1e99999"]  # numbers that Python has not
SHAPES = [
    "1", '"x"', "null", "true", "[]", "{}", "[[], {}]", "[" * 500 + "]" * 500, "[" * 5000 + "]" * 5000,
    '{"a": ' * 3000 + "1" + "}" * 3000, json.dumps({"x" * 100_000: [0] * 100_000}), json.dumps({"a": [0] * 2_000_000}), 
    json.dumps({"a": [0] * 29_000}),
    json.dumps({f"f1_score{n}": n for n in range(9_900)}),
    '{"a": 1e400, "b": [1e-400, null]}', "[1e99999, 1e99999]",
    json.dumps({"f1_score": [0] * 29_000}), '{"": 0}', '{"\\u001b[31m": 1}',
]  # fmt: skip
HOSTILE: dict[str, list[Any]] = {
    "boolean": [True, False],
    "double precision": ["NaN", "Infinity", "-Infinity", 1.7e308, -1.7e308, 5e-324, -1e-200, 1e99, 0, -1],
    "timestamp with time zone": ["infinity", "-infinity", "4714-11-24 BC", "294276-01-01", "2000-01-01", "2999-12-31"],
    "text": ["", "%s", "\x1b[31m", "'", "a.b.c", '"', *("x" * size for size in LONG), "é" * 100_000],
    "name": ["", "pg_monitor"],
    "regrole": ["cerebro_admin", "-"],
    "integer[]": [
        "{}", "{NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}", "{2147483647}", "{-1}",
        *("{" + ",".join(["0"] * size) + "}" for size in (5000, 200_000, 5_000_000)),
    ],
}  # fmt: skip
# All values take over ten minutes. Otherwise each column is tried with every so many of them, from its own place on.
EVERY = 1 if os.environ.get("CEREBRO_ALL_ROWS") else 12 if TIMES >= 5 else 36
WITHIN = 20.0  # seconds for all views; an empty log takes a fraction of one


def keys_that_views_read(definitions: list[str]) -> set[tuple[str, ...]]:
    """The paths into JSON in the definitions of views."""
    found: set[tuple[str, ...]] = set()
    for text in definitions:
        found |= {(key,) for key in re.findall(r"->>? '([^']+)'::text", text)}
        found |= {tuple(path.split(",")) for path in re.findall(r"#>>? '\{([^}]+)\}'::text\[\]", text)}
    return found


def documents(paths: set[tuple[str, ...]]) -> Iterator[str]:
    """A JSON for each path and each hostile value there."""
    for path in sorted(paths):
        for value in [*map(json.dumps, SCALARS), *RAW_SCALARS]:
            text = value
            for key in reversed(path):
                text = f"[{text}]" if key.isdigit() else json.dumps({key: None}).replace("null", text)
            yield text
    # With a number of the right sort beside, as a timestamp needs it.
    yield json.dumps({"pid": 1, "backend_start": "0000-01-01T00:00:00+00"})
    yield json.dumps({"pid": 1, "backend_start": "9999-99-01T00:00:00+00"})
    yield json.dumps({"added": [{"model": 1}] * 100_000})
    yield '{"added": [' + ",".join(['{"model": 1e9999}'] * 5000) + "]}"


class Log:
    """A database whose log is empty, and three users of it."""

    def __init__(self, root: Any, user: str, readers: list[str]) -> None:
        self.root, self.user, self.readers = root, user, readers
        self.columns: dict[str, dict[str, str]] = {}
        # The tables of runs; added_architecture and added_weights have rows that nobody else's view shows.
        for table, column, kind in root(
            "SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_class c JOIN pg_attribute a"
            " ON a.attrelid = c.oid WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind IN ('r', 'p')"
            " AND has_table_privilege('cerebro_user', c.oid, 'INSERT') AND a.attnum > 0 AND NOT a.attisdropped"
            " AND c.relname NOT IN ('added_architecture', 'added_weights')"
        ):
            self.columns.setdefault(table, {})[column] = kind
        views = root(
            "SELECT oid::regclass::text, pg_get_viewdef(oid) FROM pg_class"
            " WHERE relnamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace) AND relkind = 'v'"
            " ORDER BY 1"
        )
        self.views = [
            view
            for view, _ in views
            if root("SELECT has_table_privilege('cerebro_monitor', %s, 'SELECT')", view) == [True]
        ]
        self.paths = keys_that_views_read([definition for _, definition in views])
        self.words: dict[str, tuple[str, list[str]]] = {}  # table -> a column of words, and the words
        for table, definition in root(
            "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'cerebro'::regnamespace AND conname LIKE '%\\_is\\_known'"
        ):
            column = re.search(r"\(\(+(\w+)", definition)
            assert column
            self.words[table.removeprefix("cerebro.")] = (column[1], re.findall(r"'((?:[^']|'')*)'::text", definition))
        self.numbers = itertools.count(100)

    def hostile(self, kind: str) -> Iterator[Any]:
        if kind in WHOLE:
            yield from (-WHOLE[kind] - 1, -1, 0, 1, WHOLE[kind] - 1, WHOLE[kind])
        elif kind in ("json", "jsonb"):
            yield from SHAPES
            yield from documents(self.paths)
        else:
            yield from HOSTILE[kind]

    def insert(self, table: str, row: dict[str, Any]) -> None:
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join(["%s"] * len(row))
        self.root(f"INSERT INTO cerebro.{table} ({names}) VALUES ({marks})", *row.values())

    def run(self, number: int, table: str = "", row: dict[str, Any] | None = None) -> None:
        for other, sound in SOUND.items():
            self.insert(other, {"run": number, **sound, **((row or {}) if other == table else {})})

    def written(self, table: str, column: str, value: Any, /, **more: Any) -> bool:
        """Whether the user could write the value into a row of a run."""
        self.root("SAVEPOINT before")
        try:
            if table in REPEATABLE and column not in ("run", "owner"):
                number = {NUMBERED[table]: next(self.numbers)} if table in NUMBERED else {}
                self.insert(table, {"run": RUN, **SOUND[table], **more, **number, column: value})
            else:
                self.run(next(self.numbers), table, {**more, column: value})
            self.root("RELEASE SAVEPOINT before")
            return True
        except psycopg2.Error:
            self.root("ROLLBACK TO before")
            return False

    def as_user(self) -> None:
        self.root(f"SET LOCAL ROLE {self.user}")

    def trouble(self, within: float, readers: Iterable[str] | None = None) -> list[str]:
        """The views that fail, or take longer, for those who may see the rows."""
        found = []
        for reader in readers or self.readers:
            self.root(f"RESET ROLE; SET LOCAL ROLE {reader}")
            for view in self.views:
                self.root(f"SAVEPOINT looking; SET LOCAL statement_timeout = '{int(within * 1000)}'")
                try:
                    self.root(f"SELECT sum(length(v::text)) FROM {view} v")
                except psycopg2.Error as error:
                    found.append(f"{view} as {reader}: {str(error).splitlines()[0][:200]}")
                self.root("ROLLBACK TO looking")
        self.root("RESET ROLE")
        return found


@pytest.fixture(scope="module")
def empty(server: str) -> Iterator[Log]:
    with new_database(server) as database, town(database) as people:
        user = people.user("writer", "cerebro_user")
        readers = [people.user("mona", "cerebro_monitor"), people.user("adam", "cerebro_admin")]
        people("SET jit = off")
        yield Log(people, user.name, [reader.name for reader in readers])


@pytest.fixture
def log(empty: Log) -> Iterator[Log]:
    empty.root("BEGIN")
    try:
        yield empty
    finally:
        empty.root("ROLLBACK")


def test_every_table_of_the_log_is_tried(log: Log) -> None:
    assert set(log.columns) == set(SOUND)
    known = {*HOSTILE, *WHOLE, "json", "jsonb"}
    assert {kind for columns in log.columns.values() for kind in columns.values()} <= known
    assert {("pid",), ("train",), ("new", "parent")} <= log.paths
    assert set(log.words) == {"event", "model", "hop", "evaluation", "decision", "request"}


def test_an_untouched_log_is_shown_at_once(log: Log) -> None:
    """What the bound is compared with; and all rows are such that views show them."""
    log.as_user()
    log.run(RUN)
    assert log.trouble(2.0) == []
    for reader in log.readers:
        log.root(f"SET LOCAL ROLE {reader}")
        for view in log.views:
            rows = log.root(f"SELECT count(*) FROM {view}")
            assert rows >= [1] or view in (
                "cross_validation",
                "groups",
                "custom_functions",
                "custom_function",
                "models",
            ), view


@pytest.mark.parametrize("table", SOUND)
def test_no_hostile_row_breaks_a_view(log: Log, table: str) -> None:
    took: dict[str, Any] = {}
    for place, (column, kind) in enumerate(log.columns[table].items()):
        readers = log.readers if TIMES >= 5 else log.readers[place % len(log.readers) :][:1]
        log.root("SAVEPOINT untouched")
        log.as_user()
        log.run(RUN)
        accepted = []
        contexts: list[dict[str, Any]] = [{}]
        if table in log.words and kind == "jsonb":
            name, words = log.words[table]
            contexts = [{name: word} for word in words]
        if table == "event" and column != "model":
            contexts = [{**context, "model": model} for context in contexts for model in (None, 1)]
        if table == "decision" and column not in ("model", "epoch"):
            contexts += [{**context, "model": None, "epoch": None} for context in contexts]
        # Shapes are the same in every context.
        tried = itertools.chain(
            itertools.product(contexts[:1], log.hostile(kind)),
            itertools.product(contexts[1:], documents(log.paths) if kind == "jsonb" else log.hostile(kind)),
        )
        first = zlib.crc32(f"{table}.{column}".encode()) % EVERY
        for context, value in itertools.islice(tried, first, None, EVERY):
            if log.written(table, column, value, **{k: v for k, v in context.items() if k != column}):
                accepted.append(f"{context}{str(value)[:60]}")
        began = time.monotonic()
        trouble = log.trouble(WITHIN, readers)
        took[column] = (len(accepted), round(time.monotonic() - began, 1))
        assert not trouble, (table, column, trouble, accepted[:200])
        log.root("ROLLBACK TO untouched")
    print(table, took)


@pytest.mark.thorough  # tests/sql/runs/test_views.py has rows at the bounds, and each column is alone above
def test_the_worst_rows_that_are_let_in(log: Log) -> None:
    """Of each column the longest value that its table takes, all in one run."""
    log.as_user()
    worst: dict[str, dict[str, Any]] = {}
    for table, columns in log.columns.items():
        worst[table] = {}
        for column, kind in columns.items():
            if kind in (*WHOLE, "boolean", "regrole", "name") or column in ("run", "owner"):
                continue
            for value in sorted(log.hostile(kind), key=lambda value: -len(str(value))):
                log.root("SAVEPOINT trial")
                short = {name: other for name, other in worst[table].items() if len(str(other)) < 1000}
                accepted = log.written(table, column, value, **short)
                log.root("ROLLBACK TO trial")
                if accepted:
                    worst[table][column] = value
                    break
    for number in (1, 2):
        for table, sound in SOUND.items():
            log.insert(table, {"run": number, **sound, **worst[table]})
    assert log.trouble(WITHIN, log.readers if TIMES >= 5 else log.readers[-1:]) == []
