"""Rows of a run's log that Greenplum loses while the caller's own transaction writes them (docs/operate.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cerebro_db.core.errors import CerebroError, CorruptState
from cerebro_db.core.scheduling.schedule import Schedule

from ... import platform
from ...database.access import Database
from ...sessions.failures import CANCELLED
from ...sessions.session import Session
from ..record.log import RunLog
from ..tables.model_tables import NoModel
from .searching import Search

CONSEQUENCES = (CerebroError, LookupError, TypeError, ValueError)  # of a log with gaps: what was lost may be anything


def require_none(db: Database, session: Session, schedule: Schedule, search: Search) -> None:
    """Refuse to end a run of whose log rows were lost while it was written."""
    if not _can_be_lost(db, session):
        return
    try:
        found = search.reread().progress
    except CONSEQUENCES:
        found = {}
    known = schedule.progress
    whole = found.keys() == known.keys() and all(
        (found[number].hops, found[number].status) == (known[number].hops, known[number].status) for number in known
    )
    if not whole:
        raise _lost(search.run.id)


@contextlib.contextmanager
def named(db: Database, session: Session, run_id: int) -> Iterator[None]:
    """Around a run that is on record: an error says so if it is the consequence of lost rows."""
    try:
        yield
    except CONSEQUENCES as error:
        stopped = isinstance(error, CerebroError) and error.sqlstate == CANCELLED
        if (
            not stopped
            and _can_be_lost(db, session)
            and (isinstance(error, NoModel) or not _is_readable(session, run_id))
        ):
            raise _lost(run_id) from error
        raise


def _can_be_lost(db: Database, session: Session) -> bool:
    return session.own and not platform.of(db).subtransactions_are_safe


def _is_readable(session: Session, run_id: int) -> bool:
    try:
        RunLog.of(session, run_id).plan.load()
    except CONSEQUENCES:
        return False
    return True


def _lost(run_id: int) -> CorruptState:
    return CorruptState(
        f"run {run_id}: rows of its log are missing, because other sessions read it, and Greenplum took them for"
        " aborted",
        hint="Call it again while no other session trains or queries runs; or COMMIT after packing.",
    )
