"""Calls of functions that steer a run, through another session, where Greenplum lets the caller's send no statement."""

from __future__ import annotations

import json
from typing import Any

import psycopg2

from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.sql import Sql, identifier, marks, sql

from .. import platform
from ..database import cancellation
from ..database.access import Database
from ..database.entry import INTERNAL, entry
from ..platform.base import FEWEST
from ..sessions import logins

# What sql/api/95_greenplum_calls.sql names as steering.
CALLS = ("wait", "cancel", "resume", "forget", "materialize", "stop_model", "go_on", "clone_model", "add_configuration",
         "extend", "set_budget")  # fmt: skip


def elsewhere(plpy: Any, called: str, arguments: list[str | None], caller: str) -> str | None:
    """What the call returns, as text."""
    cancellation.expect_coordinator()
    cancellation.admit()  # it runs no statement in this session
    return _elsewhere(plpy, called=called, arguments=arguments, caller=caller)  # type: ignore[no-any-return]


@entry(called=INTERNAL)
def _elsewhere(db: Database, called: str, arguments: list[str | None], caller: str) -> str | None:
    # What ``caller`` says is not trusted: any user may call this.  Whose session it is, the server says.
    found = json.loads(caller)
    user = logins.Owner(
        name=found["name"],
        oid=cancellation.current_user_id(),
        database=found["database"],
        admitted=True,
        settings="",
        version="",
        sets_role=True,
        limit=platform.of(db).queue_limit(found["queue"], found["statements"]),
        queued=found["queued"],
    )
    if user.limit is not None:
        user.limit.require(FEWEST + 1, "those of a run, the caller's and that of the session which calls for it")
    client = cancellation.client_socket() if found["checks"] else None
    session = logins.session_of(user, f"cerebro_db {called}", lambda: cancellation.look(db.plpy, client))
    try:
        session.configure(search_path=found["search_path"])
        session.hear = lambda notice: _pass_on(db, notice)
        rows = session.run(call_of(called, len(arguments)), arguments)
    except psycopg2.Error as error:
        refused = CerebroError(error.diag.message_primary or str(error), hint=error.diag.message_hint)
        refused.detail, refused.sqlstate = error.diag.message_detail, error.pgcode or refused.sqlstate
        raise refused from error
    finally:
        session.close()
    value = rows[0][0]
    return None if value is None else str(value)


def call_of(function: str, arguments: int) -> Sql:
    """The call of a steering function.  The arguments come as texts, which PostgreSQL reads in the function's types."""
    if function not in CALLS:
        raise InvalidArgument(f"{function!r} is not called in another session")
    return sql("SELECT cerebro.{name}({values})", name=identifier(function), values=marks(arguments))


def _pass_on(db: Database, notice: str) -> None:
    severity, _, text = notice.strip().partition(":  ")
    (db.warning if severity == "WARNING" else db.notice)(text)
