"""Runs without a waiting caller: a session of the server's own drives them."""

from __future__ import annotations

import time
from typing import Callable

import psycopg2

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.sql import sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.cancellation import listener
from ..database.polling import LISTEN_EVERY
from ..platform.base import FEWEST
from ..sessions import logins
from ..sessions.session import Session, Statement, leave
from .record.log import RunLog


def require_statements(db: Database) -> None:
    """Refuse a run that its own caller would keep waiting."""
    limit = platform.of(db).statement_limit(db)
    if limit is not None:
        limit.require(FEWEST + 1, "those of a run, and the caller's until the run has started")


def start(
    db: Database,
    run_id: int,
    epochs: int | None = None,
    retry_failed: bool = False,
    on_cancel: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Have a session of its own drive a run; raises what that session refuses at once.

    ``on_cancel`` is called if this call is cancelled before the run has begun, before that session learns it.
    """
    log = RunLog.of_caller(db, run_id)
    before = log.drivers.starts()
    drive = Statement(sql("SELECT cerebro._drive({}, {}, {})"), (run_id, epochs, retry_failed))
    begin(db, f"run {run_id}", drive, lambda: log.drivers.starts() != before, on_cancel=on_cancel)


def begin(
    db: Database,
    what: str,
    statement: Statement,
    has_begun: Callable[[], bool],
    *,
    search_path: str | None = None,
    on_cancel: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Have a session of its own run a statement; return when it has begun what it is for, or has ended.

    Raises what that session refuses before that.  ``on_cancel`` is called if this call is cancelled until then, before
    that session learns it.
    """
    require_statements(db)
    session: Session | None = None
    try:
        session = logins.connect_as(db, relations.current_role(db), f"cerebro_db {what}", listener(db.plpy))
        session.outlive()
        if search_path is not None:
            session.configure(search_path=search_path)
        session.send(statement)
        while not session.ready() and not has_begun():
            time.sleep(LISTEN_EVERY)
    except psycopg2.Error as error:
        refused = CerebroError(error.diag.message_primary or str(error), hint=error.diag.message_hint)
        refused.sqlstate = error.pgcode or refused.sqlstate
        raise refused from error
    except BaseException as error:  # a cancel: the run is not wanted
        on_cancel(error)
        if session is not None:
            session.cancel()
            leave([session])
        raise
    finally:
        if session is not None:  # its backend notices when its transaction has ended: it has nothing to send before
            session.close()
