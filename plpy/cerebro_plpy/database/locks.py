"""Locks by name that last until the end of the caller's transaction."""

from __future__ import annotations

import time

from cerebro_db.core.errors import InUse
from cerebro_db.core.sql import Sql, sql

from .access import Database
from .polling import LISTEN_EVERY

PATIENCE = 60.0  # seconds; anybody can take such a lock, and nobody may make another session wait for ever


def of_run(run: int) -> str:
    """The name of the lock of whoever claims or forgets a run."""
    return f"cerebro_db run {run}"


def of_owner(owner: str) -> str:
    """The name of the lock of whoever counts the runs of an owner."""
    return f"cerebro_db owner {owner}"


def in_use(what: str) -> InUse:
    return InUse(
        f"{what} cannot be changed now: another session holds the lock",
        hint="Try again when its transaction has ended. pg_locks shows the session (locktype advisory).",
    )


def attempt(name: Sql) -> Sql:
    """The query that takes the lock of a name, an expression, unless another session has it."""
    return sql("SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended({name}, 0))", name=name)


def holder(db: Database, name: str) -> int | None:
    """The process id of the session of the same user that has the lock of a name.  Anybody can take such a lock."""
    found: int | None = db.value(
        sql(
            "SELECT l.pid FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.usename = session_user"
            " AND (l.classid::bigint << 32) | l.objid::bigint = pg_catalog.hashtextextended($1, 0)"
        ),
        ("text",),
        name,
    )
    return found


def take(db: Database, name: str, what: str) -> None:
    """Wait for a lock, listening for a cancel; ``what`` is in use if another session keeps it too long."""
    deadline = time.monotonic() + PATIENCE
    while not db.value(attempt(sql("$1")), ("text",), name):
        if time.monotonic() > deadline:
            raise in_use(what)
        time.sleep(LISTEN_EVERY)  # the next question listens for a cancel
