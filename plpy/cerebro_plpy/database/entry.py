"""The decorator ``entry``: makes a function of ours the body of a SQL function, and its errors PostgreSQL errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import wraps
from typing import Any, Callable, NoReturn

from cerebro_db import __version__
from cerebro_db.core.errors import MAKE_ROOM, NO_ROOM, CerebroError, DiskFull, Unsupported, WrongState
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import harmless

from . import cancellation, listening, sizes
from .access import Database
from .words import ErrorWords

# Characters; some errors repeat what the user gave, and all of it would go into the server's log.
LONGEST_MESSAGE = 4000


INTERNAL = ""  # ``called`` of a function that only the product calls: its errors become parts of others

_is_of_this_version = False  # the SQL of this session's database; after an update, it needs a new session anyway


def entry(
    function: Callable[..., Any] | None = None,
    *,
    called: str | None = None,
    longest: int = sizes.LONGEST,
    words: type[ErrorWords] = ErrorWords,
    any_version: bool = False,
) -> Callable[..., Any]:
    """The function is called with ``plpy`` and arguments by name, and gets a Database in place of ``plpy``.

    The sizes of arguments are limited (``sizes.py``); ``longest``: the characters of a text.  A cancel ends the
    function wherever it computes (``listening.py``).  ``words``: the texts of errors about tables and models.
    ``any_version``: also SQL of another version than this code may call it.

    A CerebroError becomes a PostgreSQL error with SQLSTATE, DETAIL and HINT.  Its message says what is wrong.  The name
    of the SQL function stands before it: ``called``, or "cerebro." and the name of the Python function.  The error of a
    statement (a cancel is one) keeps its own text.  Any other exception is a defect of ours and keeps its traceback.
    """

    if function is None:
        return lambda function: entry(function, called=called, longest=longest, words=words, any_version=any_version)
    body = function
    name = f"cerebro.{function.__name__}" if called is None else called

    @wraps(body)
    def call(plpy: Any, *of_old_sql: Any, **arguments: Any) -> Any:  # that of 0.1 has no names
        _refuse_within_query(plpy)
        db = Database(plpy, name, words)

        def action() -> Any:
            if not any_version:
                _require_sql_of_this_version(db)
            sizes.require(arguments, longest)
            return body(db, *of_old_sql, **arguments)

        return _as_postgres(db, action)

    return call


def _refuse_within_query(plpy: Any) -> None:
    """Refuse to run on Greenplum's coordinator while segments work on the query that calls the function.

    A statement would crash the server there.  PL/pgSQL guards the functions that users call, and admits them where only
    a cursor is open (sql/api/95_greenplum_calls.sql).
    """
    if cancellation.is_dispatching() and not cancellation.was_admitted():
        raise _postgres_error(
            plpy, Unsupported("a query calls this on the coordinator, where it cannot run statements.")
        )


def _require_sql_of_this_version(db: Database) -> None:
    """Refuse the SQL functions of another version: ``make install`` replaces the code before databases are updated."""
    global _is_of_this_version
    if _is_of_this_version:
        return
    found = db.text(sql("SELECT extversion AS v FROM pg_catalog.pg_extension WHERE extname = 'cerebro_db'"))
    version = found[0]["v"] if len(found) else __version__
    if _numbers(version) < _numbers(__version__):
        raise WrongState(
            f"the SQL functions of this database ({version}) are older than the code on this server ({__version__}).",
            hint="A superuser updates them: ALTER EXTENSION cerebro_db UPDATE;",
        )
    if version != __version__:
        raise WrongState(
            f"the code of this session ({__version__}) is older than the SQL functions of this database ({version}).",
            hint=f"Start a new session. If that is no help, install the code of {version} on every host: make install.",
        )
    _is_of_this_version = True


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def entry_of_rows(called: str) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]:
    """As ``entry``, for a generator: the SQL function returns its rows one after the other.

    The first row is made at once: PL/Python puts a message of its own before the errors of later rows.  It gives up a
    generator whose rows are not all wanted, or whose query failed; the generator must not run SQL then.
    """

    def decorate(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(function)
        def call(plpy: Any, *of_old_sql: Any, **arguments: Any) -> Iterator[Any]:
            _refuse_within_query(plpy)
            db = Database(plpy, called)
            rows: Iterator[Any] = iter(())
            end = object()

            def begin() -> Any:
                nonlocal rows
                _require_sql_of_this_version(db)
                sizes.require(arguments, sizes.LONGEST)
                rows = function(db, *of_old_sql, **arguments)
                return next(rows, end)

            first = _as_postgres(db, begin)

            def all_rows() -> Iterator[Any]:
                row = first
                while row is not end:
                    yield row
                    row = _as_postgres(db, lambda: next(rows, end))

            return all_rows()

        return call

    return decorate


def _as_postgres(db: Database, action: Callable[[], Any]) -> Any:
    """What the action returns; its errors become PostgreSQL errors."""
    plpy = db.plpy
    try:
        with cancellation.held_back(plpy):
            return listening.during(plpy, action)
    except CerebroError as error:
        failure = _postgres_error(plpy, error, db.called)
    except plpy.SPIError as error:
        told = CerebroError(str(error))
        _, told.detail, told.hint, *_ = getattr(error, "spidata", None) or (None, None, None)
        told.sqlstate = error.sqlstate
        failure = _postgres_error(plpy, told, INTERNAL if told.message.startswith("cerebro") else db.called)
        if not error.sqlstate.startswith("57"):  # a cancel is no defect; anything else may be one of our SQL
            failure = failure.with_traceback(error.__traceback__)
            failure.explained = False
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        failure = _postgres_error(plpy, DiskFull(str(error), hint=MAKE_ROOM), db.called)
    except KeyboardInterrupt as interrupt:
        # Greenplum raises this for a cancel, here as soon as the signal is no longer held back.
        told = CerebroError(str(interrupt) or cancellation.CANCELLED)
        told.sqlstate = "57014"
        failure = _postgres_error(plpy, told)
    raise failure


def failed(plpy: Any, called: str, error: BaseException) -> NoReturn:
    """Raise an error of a statement as ``entry`` does, for a function that is none."""

    def raise_it() -> NoReturn:
        raise error

    _as_postgres(Database(plpy, called), raise_it)
    raise AssertionError


def _postgres_error(plpy: Any, told: CerebroError, called: str = INTERNAL) -> Any:
    """What ``plpy.error`` raises, without the "plpy.Error: " that PL/Python puts before each message.

    PL/Python writes "<class name>: <text>", so the class has the name of the called function, or is named after the
    first part of the message.  Clients write the texts to a terminal, and the names in them may be those of others.
    """
    message = told.message
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    text = harmless(message, lines=True)
    if not called:
        head, colon, rest = text.partition(": ")
        called, text = (head, rest) if colon and head else ("cerebro", text)
    error = type(called, (plpy.Error,), {"__module__": "builtins"})(text)
    error.explained = True  # api.QUIETLY leaves the traceback out
    error.sqlstate = told.sqlstate
    error.detail, error.hint = (part and harmless(part, lines=True) for part in (told.detail, told.hint))
    return error
