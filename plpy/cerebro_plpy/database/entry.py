"""The decorator ``entry``: makes a function of ours the body of a SQL function, and its errors PostgreSQL errors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any, Callable

from cerebro_db.core.errors import MAKE_ROOM, NO_ROOM, CerebroError, DiskFull
from cerebro_db.core.texts import harmless

from . import cancellation, listening, sizes
from .access import Database

# Characters; some errors repeat what the user gave, and all of it would go into the server's log.
LONGEST_MESSAGE = 4000


def entry(function: Callable[..., Any] | None = None, *, longest: int = sizes.LONGEST) -> Callable[..., Any]:
    """The function is called with ``plpy``, and gets a Database in its place.

    Its arguments have limits (``sizes.py``); ``longest``: of the characters of a text.  A cancel ends it wherever it
    computes (``listening.py``).

    A CerebroError becomes a PostgreSQL error with SQLSTATE, DETAIL and HINT.  The error of a statement (a cancel is
    one) keeps its own.  Any other exception is a defect of ours and keeps its traceback.
    """

    if function is None:
        return lambda function: entry(function, longest=longest)
    body = function

    @wraps(body)
    def call(plpy: Any, *args: Any, **kwargs: Any) -> Any:
        def action() -> Any:
            sizes.require(args, kwargs, longest)
            return body(Database(plpy), *args, **kwargs)

        return _as_postgres(plpy, action)

    return call


def entry_of_rows(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """As ``entry``, for a generator: the SQL function returns its rows one after the other.

    The first row is made at once: PL/Python puts a message of its own before the errors of later rows.  It gives up a
    generator whose rows are not all wanted, or whose query failed; the generator must not run SQL then.
    """

    @wraps(function)
    def call(plpy: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        rows = function(Database(plpy), *args, **kwargs)
        end = object()

        def begin() -> Any:
            sizes.require(args, kwargs, sizes.LONGEST)
            return next(rows, end)

        first = _as_postgres(plpy, begin)

        def all_rows() -> Iterator[Any]:
            row = first
            while row is not end:
                yield row
                row = _as_postgres(plpy, lambda: next(rows, end))

        return all_rows()

    return call


def _as_postgres(plpy: Any, action: Callable[[], Any]) -> Any:
    """What the action returns; its errors become PostgreSQL errors."""
    try:
        with cancellation.held_back(plpy):
            return listening.during(plpy, action)
    except CerebroError as error:
        failure = _postgres_error(plpy, error.message, error.sqlstate, error.detail, error.hint)
    except plpy.SPIError as error:
        _, detail, hint, *_ = getattr(error, "spidata", None) or (None, None, None)
        failure = _postgres_error(plpy, str(error), error.sqlstate, detail, hint)
        if not error.sqlstate.startswith("57"):  # a cancel is no defect; anything else may be one of our SQL
            failure = failure.with_traceback(error.__traceback__)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        failure = _postgres_error(plpy, str(error), DiskFull.sqlstate, None, MAKE_ROOM)
    except KeyboardInterrupt as interrupt:
        # Greenplum raises this for a cancel, here as soon as the signal is no longer held back.
        failure = _postgres_error(plpy, str(interrupt) or cancellation.CANCELLED, "57014", None, None)
    raise failure


def _postgres_error(plpy: Any, message: str, sqlstate: str, detail: str | None, hint: str | None) -> Any:
    """What ``plpy.error`` raises, without the "plpy.Error: " that PL/Python puts before each message.

    PL/Python writes "<class name>: <text>", so the class is named after the first part of the message.  Clients write
    the texts to a terminal, and the names in them may be those of others.
    """
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    head, colon, text = harmless(message, lines=True).partition(": ")
    name, text = (head, text) if colon and head else ("cerebro", head + colon + text)
    error = type(name, (plpy.Error,), {"__module__": "builtins"})(text)
    error.sqlstate = sqlstate
    error.detail, error.hint = (told and harmless(told, lines=True) for told in (detail, hint))
    return error
