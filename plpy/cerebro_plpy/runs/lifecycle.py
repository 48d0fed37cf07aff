"""What any session may do about a run: wait for it, cancel it, forget it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cerebro_db.core.errors import InUse, NotPermitted, Unsupported
from cerebro_db.core.events import RunStatus
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..database import locks, relations
from ..database.access import Database
from ..database.entry import entry
from ..database.polling import LISTEN_EVERY
from ..platform.base import FEWEST
from ..sessions import recorder
from ..sessions.session import Rows
from .record.log import RunLog


@entry
def wait(db: Database, run: int, timeout: float | None) -> str:
    """The run's status, once it has ended and its model tables are there, or when the time is over."""
    _require_news(db)
    deadline = time.monotonic() + timeout if timeout is not None else None

    def over(ended: bool) -> bool:
        return ended or (deadline is not None and time.monotonic() >= deadline)

    whose = RunLog.of_caller(db, run).drivers.whose()
    status, ended, message = RunLog.of_caller(db, run).drivers.standing(whose)
    if not over(ended):
        with _polled(db, run) as log:
            while not over(ended):
                time.sleep(LISTEN_EVERY)  # the next question listens for a cancel
                status, ended, message = log.drivers.standing(whose)
    if status is RunStatus.FINISHED and ended and message is not None:
        db.warning(f"run {run} is finished: {message}")
    return str(status)


def _require_news(db: Database) -> None:
    if db.value(sql("SELECT current_setting('transaction_isolation')")) != "read committed":
        raise Unsupported(
            "this transaction does not see what happens after its first statement.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )


@contextlib.contextmanager
def _polled(db: Database, run: int) -> Iterator[RunLog]:
    """A log to ask again and again: through another session if the caller's would not survive the loss of a segment."""
    if not platform.of(db).waits_in_own_session:
        yield RunLog.of_caller(db, run)
        return
    limit = platform.of(db).statement_limit(db)
    if limit is not None:
        limit.require(FEWEST + 1, "those of the run, and this one's")
    with recorder.opened(db, "wait", "the session that waits") as session:

        def ask(statement: Sql, parameters: Sequence[Any]) -> Rows:
            session.listen()
            return session.run(statement, parameters)

        yield RunLog(ask, run)


@entry
def cancel(db: Database, run: int, owner: str | None) -> bool:
    """Ask the session that drives the run to end it, or that is to begin it; False if no session does.

    Whoever begins or finishes the run meanwhile does that before the run's status is asked, or waits for the end of
    this transaction and sees the request.
    """
    _require_news(db)
    log = RunLog.of_caller(db, run)
    locks.take(db, locks.of_run(run), f"run {run}")
    whose = log.drivers.whose(owner)
    status = log.drivers.status(whose)
    if status is RunStatus.FINISHING:
        db.notice(f"run {run} has finished its training and is making its model tables, so it is not cancelled")
    if status not in (RunStatus.RUNNING, RunStatus.CREATED):
        return False
    if whose != relations.current_role(db):
        require_admin(db, run, whose, "cancel")
    log.events.request_cancel(whose)
    return True


@entry(called="cerebro.forget")
def to_forget(db: Database, run: int, owner: str | None) -> str:
    """The owner of a run that the caller may remove; nothing else can change the run until the transaction ends."""
    locks.take(db, locks.of_run(run), f"run {run}")
    log = RunLog.of_caller(db, run)
    whose = log.drivers.whose(owner)
    if whose != relations.current_role(db):
        require_admin(db, run, whose, "forget")
    if (status := log.drivers.under_way(whose)) is not None:
        wait = f"SELECT cerebro.wait({run}) waits for its end."
        end = f"SELECT cerebro.cancel({run}) ends it first."
        raise InUse(f"run {run} is {status}", hint=wait if status is RunStatus.FINISHING else end)
    if whose == relations.current_role(db):
        log.known.require_own()
    return whose


def require_admin(db: Database, run: int, owner: str, verb: str) -> None:
    """A monitor can see the runs of others, no more."""
    if not db.value(sql("SELECT pg_catalog.pg_has_role(current_user, 'cerebro_admin', 'USAGE')")):
        raise NotPermitted(
            f'run {run} belongs to "{owner}"', hint=f"Its owner can {verb} it, or a member of cerebro_admin."
        )
