"""The recorder session: it writes a run's log, and goes on when Greenplum loses a segment for a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.cancellation import listener
from . import logins
from .failures import failure_of
from .own_session import OwnSession
from .session import Session


@contextlib.contextmanager
def opened(
    db: Database, purpose: str = "recorder", failing: str = "the run's record", *, own: bool = False
) -> Iterator[Session]:
    """A session of the current user; errors of the database name what was ``failing``.

    ``own``: the caller's own session.
    """
    here = platform.of(db)
    try:
        session: Session = OwnSession(db, listener(db.plpy))
        if not own:
            session = logins.connect_as(db, relations.current_role(db), f"cerebro_db {purpose}", session.listen)

        def endures(error: psycopg2.Error) -> bool:
            lost = here.lost_a_segment(error)
            session.segments_lost |= lost
            return lost

        session.endures = endures
        try:
            yield session
        finally:
            with contextlib.suppress(psycopg2.Error):
                session.close()
    except psycopg2.Error as error:
        raise failure_of(failing, error, here) from error
