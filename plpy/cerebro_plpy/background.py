"""Runs without a waiting caller, and what one may say of a run from any session."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Callable

import psycopg2

from cerebro_db.core.errors import CerebroError, InUse, NotPermitted, Unsupported, WrongState
from cerebro_db.core.names import quote

from . import logins, tables
from .db import Database, entry
from .dialect import is_greenplum, lost_a_segment
from .interrupts import listener
from .runs import STATES, no_such_run
from .sessions import LISTEN_EVERY
from .team import failure_of

Ask = Callable[[str, int], Any]  # a statement's only value, of which $1 is the run


def start(db: Database, owner: str, run_id: int, epochs: int | None = None, retry_failed: bool = False) -> None:
    """Have a session of its own drive the run, which was noted as submitted; what it refuses at once is raised."""
    # A session goes on without a client as long as it has nothing to send, and this one, told to be silent, has nothing
    # before its transaction has ended: then it finds nobody there, and ends.
    with contextlib.closing(logins.connect_as(db, owner, f"cerebro_db run {run_id}", listener(db.plpy))) as session:
        session.configure(client_connection_check_interval="0", statement_timeout="0")
        session.run("SET client_min_messages = error")
        session.send("SELECT cerebro.resume(%s, %s, %s)", (run_id, epochs, retry_failed))
        try:
            while not session.ready() and not under_way(db, run_id):
                time.sleep(LISTEN_EVERY)
        except psycopg2.Error as error:
            refused = CerebroError(error.diag.message_primary or str(error), hint=error.diag.message_hint)
            refused.sqlstate = error.pgcode or refused.sqlstate
            raise refused from error


def under_way(db: Database, run_id: int) -> bool:
    return bool(
        db.value(
            "SELECT max(event_id) FILTER (WHERE event = 'started') > max(event_id) FILTER (WHERE event = 'submitted')"
            " FROM cerebro.event WHERE run = $1 AND owner = current_user",
            ("bigint",),
            run_id,
        )
    )


def submitted(db: Database, run_id: int) -> bool:
    """Whether nobody waits for the run's end: it was submitted, and has not been taken up since."""
    return (
        db.value(
            "SELECT event FROM cerebro.event WHERE run = $1 AND owner = current_user"
            " AND event IN ('submitted', 'started') ORDER BY event_id DESC LIMIT 1",
            ("bigint",),
            run_id,
        )
        == "submitted"
    )


def require_own(db: Database, run_id: int) -> None:
    if not db.value("SELECT 1 FROM cerebro.run WHERE run = $1 AND owner = current_user", ("bigint",), run_id):
        raise no_such_run(run_id)


def status(db: Database, run_id: int) -> str:
    return status_by(asked_here(db), run_id)


def status_by(ask: Ask, run_id: int) -> str:
    for _ in range(2):
        found = ask("SELECT status FROM cerebro.runs WHERE run = $1", run_id)
        # Its session may have ended while the statement ran, and its last word be later than what the statement sees:
        # the next one sees it.
        if found != "interrupted":
            break
    if found is None:
        raise no_such_run(run_id)
    return found


def asked_here(db: Database) -> Ask:
    return lambda sql, run_id: db.value(sql, ("bigint",), run_id)


@contextlib.contextmanager
def asked_for_long(db: Database) -> Iterator[Ask]:
    """Asks again and again: on Greenplum in a session of its own, which endures the loss of a segment.

    Ours would lose its segments with it, between two statements, and that leaves Python damaged there.
    """
    if not is_greenplum(db):
        yield asked_here(db)
        return
    try:
        with contextlib.closing(
            logins.connect_as(db, tables.current_role(db), "cerebro_db wait", listener(db.plpy))
        ) as session:
            session.endures = lost_a_segment

            def ask(sql: str, run_id: int) -> Any:
                session.listen()
                rows = session.run(sql.replace("$1", "%s"), [run_id] * sql.count("$1"))
                return rows[0][0] if rows else None

            yield ask
    except psycopg2.Error as error:
        raise failure_of("the session that waits", error) from error


@entry
def wait(db: Database, run_id: int, timeout: float | None) -> str:
    """The run's status once it has ended and its tables are there, or when the time is over."""
    if db.value("SELECT current_setting('transaction_isolation')") != "read committed":
        raise Unsupported(
            "wait error: this transaction does not see what happens after its first statement.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )
    deadline = time.monotonic() + timeout if timeout is not None else None
    now = standing(asked_here(db), run_id)
    if ended(now) or over(deadline):
        return now
    with asked_for_long(db) as ask:
        while not ended(now) and not over(deadline):
            time.sleep(LISTEN_EVERY)  # the next question listens for cancel
            now = standing(ask, run_id)
    return now


def standing(ask: Ask, run_id: int) -> str:
    """The run's status, to those who want its tables."""
    now = status_by(ask, run_id)
    return "running" if now == "finished" and tables_to_come(ask, run_id) else now


def ended(status: str) -> bool:
    return status not in ("created", "running")


def over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def tables_to_come(ask: Ask, run_id: int) -> bool:
    """Whether a submitted run that is finished is still making its model tables."""
    return bool(
        ask(
            """
            SELECT 1
              FROM (SELECT max(event_id) FILTER (WHERE event = 'submitted') AS submitted,
                           max(event_id) FILTER (WHERE event = 'started') AS started,
                           max(event_id) FILTER (WHERE event IN ('materialized', 'not materialized')) AS made
                      FROM cerebro.event WHERE run = $1) last
              JOIN cerebro.event s ON s.run = $1 AND s.event_id = last.started
              JOIN cerebro._sessions() driver
                ON driver.pid = (s.detail ->> 'pid')::integer
               AND driver.backend_start = (s.detail ->> 'backend_start')::timestamptz
             WHERE last.submitted IS NOT NULL AND last.started > COALESCE(last.made, 0)
            """,
            run_id,
        )
    )


@entry
def cancel(db: Database, run_id: int) -> bool:
    """Ask whoever drives the run to end it; True if somebody does."""
    if status(db, run_id) != "running":
        return False
    db.execute(
        "INSERT INTO cerebro.event (run, owner, event, detail) SELECT run, owner, 'cancel requested',"
        " jsonb_build_object('by', current_user) FROM cerebro.runs WHERE run = $1",
        ("bigint",),
        run_id,
    )
    return True


@entry
def forget(db: Database, run_id: int) -> None:
    """Remove a run's log and states; the model tables it left are the user's and stay."""
    owners = [
        row["owner"]
        for row in db.rows(
            "SELECT owner::pg_catalog.text AS owner FROM cerebro.runs WHERE run = $1"
            " ORDER BY owner = current_user DESC, owner",
            ("bigint",),
            run_id,
        )
    ]
    if owners and owners[0] != tables.current_role(db):
        forget_anothers(db, run_id, owners)
        return
    now = status(db, run_id)
    if now == "running":
        raise InUse(f"run {run_id} is running", hint=f"SELECT cerebro.cancel({run_id}) ends it first.")
    storage = db.value("SELECT storage FROM cerebro.run WHERE run = $1 AND owner = current_user", ("bigint",), run_id)
    if storage is None:
        raise no_such_run(run_id)
    leaves = db.rows(
        "SELECT c.relname::text AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
        " ON n.oid = c.relnamespace WHERE n.nspname = $1 AND starts_with(c.relname::text, $2)",
        ("text", "text"),
        STATES,
        storage + "_",
    )
    for leaf in leaves:
        db.execute(f"DROP TABLE {STATES}.{quote(leaf['name'])}")
    for table in ("heartbeat", "attempt", "evaluation", "hop", "event", "configuration", "architecture", "run"):
        db.execute(f"DELETE FROM cerebro.{table} WHERE run = $1 AND owner = current_user", ("bigint",), run_id)


def forget_anothers(db: Database, run_id: int, owners: list[str]) -> None:
    """An administrator's work; a monitor can see the run, no more."""
    if not db.value("SELECT pg_catalog.pg_has_role(current_user, 'cerebro_admin', 'USAGE')"):
        raise NotPermitted(
            f'run {run_id} is of "{owners[0]}"', hint="Its owner can forget it, or a member of cerebro_admin."
        )
    if len(owners) > 1:
        raise WrongState(f"several users have a run {run_id}: {', '.join(owners)}", hint="Let one of them forget it.")
    if status(db, run_id) == "running":
        raise InUse(f"run {run_id} is running", hint=f"SELECT cerebro.cancel({run_id}) ends it first.")
    db.rows("SELECT cerebro._forget($1, $2)", ("bigint", "name"), run_id, owners[0])
