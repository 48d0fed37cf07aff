"""How the statements of a run in the caller's own session are run where a cancel does not end those of PL/Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.sql import Sql, shown, sql
from cerebro_plpy import platform
from cerebro_plpy.sessions import own_session
from cerebro_plpy.sessions.own_session import OwnSession
from cerebro_plpy.sessions.session import BEGIN, COMMIT, ROLLBACK, Statement


class ServerError(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("it failed")
        self.sqlstate = sqlstate


class FakeResult(list):  # type: ignore[type-arg]
    def coltypes(self) -> list[int]:
        return [25]

    def colnames(self) -> list[str]:
        return ["one"]


class FakeDatabase:
    """Keeps the statements that it is given."""

    plpy = SimpleNamespace(SPIError=ServerError, Error=ServerError)

    def __init__(self) -> None:
        self.performed: list[tuple[str, bool]] = []
        self.texts: list[str] = []
        self.error: str | None = None

    def perform(self, statement: Sql, *, answers: bool) -> list[dict[str, Any]]:
        if self.error is not None:
            raise ServerError(self.error)
        self.performed.append((shown(statement), answers))
        return [{"one": 1}] if answers else []

    def text(self, statement: Sql) -> FakeResult:
        self.texts.append(shown(statement))
        return FakeResult([{"one": "1"}])


@pytest.fixture
def db(monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    monkeypatch.setattr(own_session.platform, "of", lambda db: platform.GREENPLUM)
    return FakeDatabase()


def session_of(db: Any, *, lasting: bool) -> OwnSession:
    session = OwnSession(db, lambda: None)
    session.lasting = lasting
    return session


ON_SEGMENT = "FROM cerebro.place WHERE __dist_key__ = 3"
HERE = sql("FROM cerebro.place WHERE __dist_key__ = 3")
WORK = sql("SELECT cerebro_internal._work({}) {here}", here=HERE)


@pytest.mark.parametrize(
    ("sent", "performed", "answers"),
    [
        (Statement(WORK, ("{}; SELECT",)),
         f"SELECT cerebro_internal._work('{{}}; SELECT') {ON_SEGMENT}", True),
        (Statement.joined([Statement(sql("INSERT INTO cerebro.attempt (run) VALUES ({})"), (1,)),
                           Statement(WORK, ("{}",))]),
         f"INSERT INTO cerebro.attempt (run) VALUES (1); SELECT cerebro_internal._work('{{}}') {ON_SEGMENT}", True),
        (Statement.joined([BEGIN, Statement(sql("INSERT INTO s SELECT 1")), COMMIT]),
         "INSERT INTO s SELECT 1", False),
        (Statement.joined([BEGIN, Statement(sql("CREATE TABLE t AS SELECT 1")),
                           Statement(sql("SELECT cerebro_internal._data_in(x) FROM t")),
                           Statement(sql("DROP TABLE t")), COMMIT]),
         "CREATE TABLE t AS SELECT 1; SELECT cerebro_internal._data_in(x) FROM t; DROP TABLE t", False),
        (Statement.joined([ROLLBACK, Statement(sql("SELECT cerebro_internal._worker_close() {here}", here=HERE))]),
         f"SELECT cerebro_internal._worker_close() {ON_SEGMENT}", True),
        (Statement(sql("INSERT INTO s SELECT 1 RETURNING 1"), answers=True),
         "INSERT INTO s SELECT 1 RETURNING 1", True),
    ],
)  # fmt: skip
def test_a_workers_statements_are_performed(db: FakeDatabase, sent: Statement, performed: str, answers: bool) -> None:
    session = session_of(db, lasting=True)
    session.send(sent)
    assert db.performed == [], "a statement runs when its result is needed"
    assert session.answer() == ([(1,)] if answers else [])
    assert db.performed == [(performed, answers)] and db.texts == []


def test_the_log_is_read_directly_and_written_through_plpgsql(db: FakeDatabase) -> None:
    """A query has all its rows, with their types; a change may wait for a lock."""
    session = session_of(db, lasting=False)
    assert session.run(sql("SELECT one FROM cerebro.run WHERE run = {}"), (1,)) == [("1",)]
    assert db.performed == [] and db.texts[-1] == "SELECT one FROM cerebro.run WHERE run = 1"
    session.run(sql("INSERT INTO cerebro.event (run) VALUES ({})"), (1,))
    assert db.performed == [("INSERT INTO cerebro.event (run) VALUES (1)", False)]
    assert session.run_statement(BEGIN) == session.run_statement(COMMIT) == []
    assert len(db.performed) == 1


@pytest.mark.parametrize("sqlstate", ["57014", "57P01", "58M01"])
def test_a_cancel_and_a_lost_segment_end_the_call(db: FakeDatabase, sqlstate: str) -> None:
    db.error = sqlstate
    with pytest.raises(ServerError):
        session_of(db, lasting=True).run(WORK, ("{}",))
    db.error = "22012"
    with pytest.raises(psycopg2.Error) as caught:
        session_of(db, lasting=True).run(WORK, ("{}",))
    assert caught.value.pgcode == "22012"
