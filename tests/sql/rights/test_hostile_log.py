"""Rows of the log that a user has written by hand: a run with such rows is resumed, replayed, handed out, steered and
forgotten, or an error of ours says why not.  No error is one of Python's, and no text of a row runs as SQL.

Each column gets some of the values, another one others.  CEREBRO_ALL_VALUES=1 tries all of them in each column.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.events import Event
from cerebro_db.core.sql import literal, shown
from tests import documents
from tests.documents import MARK, SQL
from tests.sql import users
from tests.sql.rights.test_hostile_documents import OURS, RAW
from tests.sql.users import User
from tests.thorough import TIMES

# Each of these columns gets each value; those that a check of the table refuses prove nothing.
PLAIN = {
    "run": ["source_table", "packed_table", "validation_table", "model_table", "epochs", "evaluate_every", "seed",
            "segments", "dist_keys", "configurations", "rows_per_epoch", "storage", "validation_rows", "version"],
    "configuration": ["configuration", "place", "model_id", "compile_params", "fit_params"],
    "model": ["configuration", "visits", "seed", "initial", "initial_sha256", "parent", "fold"],
    "hop": ["model", "hop", "kind", "epoch", "segment", "rows", "steps", "loss", "metric_name", "metric",
            "metric_states", "state_bytes", "state_sha256", "weights_offset", "weights_bytes"],
    "evaluation": ["model", "epoch", "dataset", "part", "segment", "rows", "loss", "metric_name", "metric",
                   "metric_states"],
}  # fmt: skip
# Each of these columns gets each document.
JSON = {
    "run": ["options", "layout", "validation_layout", "packed_summary"],
    "architecture": ["given", "architecture"],
    "configuration": ["compile", "fit", "parameters", "chosen"],
    "event": ["detail"],
    "hop": ["metrics", "seconds"],
    "evaluation": ["metrics", "seconds"],
}
TEXTS = ("''", "$$' || " + SQL[3] + "$$", "'2147483647'", "'0'", "'{2147483647,NULL}'", "NULL")
# Not all rows of a run can have the same value: one of them gets another one.
ONE_ROW = {
    "hop": [("model", "7"), ("hop", "7"), ("hop", "2147483647"), ("epoch", "7"), ("segment", "7")],
    "evaluation": [("model", "7"), ("epoch", "7"), ("epoch", "2147483647"), ("part", "7"), ("part", "-1")],
    "event": [("model", "7"), ("model", "NULL"), *(("event", f"'{event}'") for event in Event)],
}
DOCUMENTS = (
    "{}", '{"": null}', '{"x": [1e400]}', '{"kind": "one_hot"}', '{"columns": {}, "partitions": [[]]}',
    json.dumps({"x": SQL[3], "objective": SQL[0], "pid": 1, "group": SQL[1]}), '{"a": ' * 500 + "1" + "}" * 500,
)  # fmt: skip


SOME = None if os.environ.get("CEREBRO_ALL_VALUES") else 3 if TIMES >= 5 else 1  # values of a column


def some(values: Sequence[str], turn: int) -> Sequence[str]:
    """Those for the column of this place: the next column gets the next ones."""
    if SOME is None:
        return values
    return [values[(turn * SOME + number) % len(values)] for number in range(min(SOME, len(values)))]


@pytest.fixture(scope="module")
def ann(server: str) -> Iterator[User]:
    with users.town(server) as root:
        ann = root.user("ann", "cerebro_user")
        users.equip(ann, segments=2 if TIMES >= 5 else 1)
        first = users.fit(ann, epochs=2)
        ann("SET statement_timeout = '30s'")  # nothing may take long because of a row
        ann(f"CREATE SEQUENCE rang; CREATE FUNCTION {MARK}() RETURNS bigint LANGUAGE sql AS"
            f" $$ SELECT nextval('{ann.name}.rang') $$")  # fmt: skip
        for table in ("run", "architecture", "configuration", "model", "event", "hop", "evaluation", "decision",
                      "objective"):  # fmt: skip
            ann(f"CREATE TABLE kept_{table} AS SELECT * FROM cerebro.{table} WHERE run = %s", first)
        ann.wrong = []  # type: ignore[attr-defined]
        yield ann


@pytest.fixture(autouse=True)
def nothing_is_wrong(ann: User) -> Iterator[None]:
    """All the wrong errors of a test together."""
    ann.wrong = []  # type: ignore[attr-defined]
    yield
    assert not ann.wrong, "\n".join(ann.wrong)  # type: ignore[attr-defined]


def copied(ann: User, change: dict[str, tuple[str, str]]) -> int:
    """The number of a run with the rows and states of the first one; ``change``: table -> a column and its SQL."""
    (number,) = ann("SELECT nextval('cerebro.run_id')")
    (storage,) = ann("SELECT storage FROM kept_run")
    own = f"run_{number:012x}"
    for (table,) in ann("SELECT ARRAY[tablename::text] FROM pg_tables WHERE schemaname = 'cerebro_state'"
                        " AND tablename LIKE %s", storage + "%"):  # fmt: skip
        ann(f"CREATE TABLE cerebro_state.{table.replace(storage, own)} (LIKE cerebro_state.{table} INCLUDING ALL)")
        ann(f"INSERT INTO cerebro_state.{table.replace(storage, own)} TABLE cerebro_state.{table}")

    for table in ("run", "architecture", "configuration", "model", "event", "hop", "evaluation", "objective"):
        columns = ann(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            f"kept_{table}",
        )
        column, value = change.get(table, ("", ""))
        known = {"storage": f"'{own}'", "model_table": f"'{ann.name}.made_{number}'", "run": str(number), column: value}
        chosen = [known.get(one, one) for one in columns]
        ann(f"INSERT INTO cerebro.{table} ({', '.join(columns)}) SELECT {', '.join(chosen)} FROM kept_{table}")
    return int(number)


def tried(ann: User, statement: str, *values: Any) -> psycopg2.Error | None:
    try:
        ann(statement, *values)
    except psycopg2.Error as error:
        message = str(error.diag.message_primary)
        if error.pgcode not in OURS - {"57014"} or any(word in message for word in RAW):
            ann.wrong.append(f"{statement}: {error.pgcode} {message}")  # type: ignore[attr-defined]
        return error
    finally:
        assert ann("SELECT is_called FROM rang") == [False], statement
    return None


def use(ann: User, change: dict[str, tuple[str, str]]) -> int:
    """What happens with such a run: (how many of the calls were refused); -1 if the tables do not take the rows."""
    ann("BEGIN")
    try:
        number = copied(ann, change)
    except psycopg2.Error:
        ann("ROLLBACK")
        return -1
    ann("COMMIT")
    refused, before = 0, len(ann.wrong)  # type: ignore[attr-defined]
    for statement in (
        f"SELECT cerebro.resume({number}, epochs => 3)",
        f"SELECT cerebro.materialize({number}, 'out_{number}')",
        "SELECT cerebro.madlib_fit_multiple_model('packed', 'again', 'mst', 2,"
        f""" options => '{{"replay": {number}}}')""",
        f"SELECT cerebro.extend({number}, 5)",
    ):
        refused += tried(ann, statement) is not None
    made = ", ".join(f"{one}{ending}" for one in (f"out_{number}", f"made_{number}", "again")
                     for ending in ("", "_info", "_summary"))  # fmt: skip
    ann(f"DROP TABLE IF EXISTS {made}")
    if len(ann.wrong) > before:  # type: ignore[attr-defined]
        ann.wrong[-1] += f" [{change}]"[:300]  # type: ignore[attr-defined]
    error = tried(ann, f"SELECT cerebro.forget({number})")
    assert error is None, error
    return refused


@pytest.mark.parametrize("table", PLAIN)
def test_a_run_with_another_value_in_a_column(ann: User, table: str) -> None:
    tries = [(column, value) for place, column in enumerate(PLAIN[table]) for value in some(TEXTS, place)]
    taken = sum(use(ann, {table: (column, value)}) >= 0 for column, value in tries)
    assert taken > len(tries) / 8, "the checks of the table let hardly anything in: nothing is tested"


@pytest.mark.parametrize("table", ONE_ROW)
def test_a_run_with_another_value_in_one_row(ann: User, table: str) -> None:
    for place, (column, value) in enumerate(ONE_ROW[table]):
        if TIMES < 5 and place % 3:
            continue
        for order in ("ASC", "DESC") if SOME is None else ("ASC", "DESC")[place % 2 :][:1]:
            which = f"(SELECT ctid FROM kept_{table} ORDER BY ctid {order} LIMIT 1)"
            one = f"CASE WHEN ctid = {which} THEN {value} ELSE {column} END"
            assert use(ann, {table: (column, one)}) >= 0, (column, value)


@pytest.mark.parametrize("table", JSON)
def test_a_run_with_another_document(ann: User, table: str) -> None:
    others = (*(shown(literal(text)) for text in DOCUMENTS), *JSON[table], "NULL")
    tries = [(column, value) for place, column in enumerate(JSON[table]) for value in some(others, place)]
    assert any([use(ann, {table: (column, value)}) >= 0 for column, value in tries])


def test_who_has_removed_what_the_log_says_of_a_run_can_forget_it(ann: User) -> None:
    number = copied(ann, {"event": ("event", "'forgotten'")})
    assert ann("SELECT count(*) FROM cerebro.runs WHERE run = %s", number) == [0]
    ann(f"SELECT cerebro.forget({number})")
    assert ann("SELECT count(*) FROM cerebro.run WHERE run = %s", number) == [0]


@pytest.mark.parametrize(("column", "value"), [("hop", 7), ("epoch", 7), ("segment", 7)])
def test_a_hop_that_a_model_cannot_have_is_named(ann: User, column: str, value: int) -> None:
    last = "(SELECT max(hop) FROM kept_hop)"
    number = copied(ann, {"hop": (column, f"CASE WHEN hop = {last} THEN {value} ELSE {column} END")})
    error = tried(ann, f"SELECT cerebro.resume({number}, epochs => 3)")
    assert error is not None and column in str(error) and "hop" in str(error) and str(value) in str(error), error
    ann(f"SELECT cerebro.forget({number})")


def test_a_last_state_without_a_checksum_is_no_state(ann: User) -> None:
    """Only hops in the middle of an order have none."""
    assert use(ann, {"hop": ("state_sha256", "NULL")}) > 0


REQUESTS = [
    ("stop", "{}"), ("stop", '{"model": "1"}'), ("stop", '{"model": 99}'), ("go on", '{"model": 1}'),
    ("add", '{"new": 7}'), ("add", '{"new": {"parent": 1, "visits": [7]}}'),
    ("add", '{"new": {"parent": 1, "visits": "x"}}'),
    ("add", '{"new": {"key": {"compile_params": 1, "fit_params": 2, "model_id": 1}}}'),
    ("add", '{"new": {"key": {"compile_params": "x", "fit_params": "y", "model_id": 1}}}'),
    ("add", '{"new": {"key": {"compile_params": "x", "fit_params": "y", "architecture": "[[[["}}}'),
    ("add", '{"new": {"configuration": {"compile_params": "x", "fit_params": "y", "model_id": 1, "name": 7}}}'),
    ("add", '{"new": {"configuration": {"compile_params": "x", "fit_params": "y", "model_id": 1, "arch_params": 7}}}'),
    ("add", '{"new": {"key": 99}}'), ("add", '{"new": {"key": 1e400}}'), ("extend", '{"epochs": 2.5}'),
    ("budget", '{"seconds": 1e400}'), ("budget", '{"x": 1}'), ("budget", "[]"), ("extend", '"x"'),
    ("stop", "[" * documents.DEEP + "]" * documents.DEEP),
]  # fmt: skip


def test_requests_that_were_written_by_hand_are_refused_and_the_run_goes_on(ann: User) -> None:
    number, made = copied(ann, {}), 0
    for action, detail in REQUESTS:  # the table refuses some of them
        with contextlib.suppress(psycopg2.errors.DataError, psycopg2.errors.CheckViolation, psycopg2.OperationalError):
            ann("INSERT INTO cerebro.request (run, action, detail) VALUES (%s, %s, %s::jsonb)", number, action, detail)
            made += 1
    assert made > len(REQUESTS) / 2
    assert tried(ann, f"SELECT cerebro.resume({number}, epochs => 3)") is None
    assert ann("SELECT status FROM cerebro.runs WHERE run = %s", number) == ["finished"]
    told = ann("SELECT reason FROM cerebro.decision WHERE run = %s AND decision = 'refuse'", number)
    assert len(told) >= made - 2, told  # two of them can be done
    assert not any(word in reason for reason in told for word in RAW), told
    ann(f"SELECT cerebro.forget({number})")
