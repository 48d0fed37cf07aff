"""The errors of the Python client. Each has a message and mostly a hint that says what to do."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg2
import sqlalchemy.exc

from cerebro_db.core.entry_points import Extensible
from cerebro_db.core.errors import Unsupported
from cerebro_db.core.texts import harmless

T = TypeVar("T")


class ClientError(Exception):
    """The base class of the client's errors. ``hint`` says what to do, or is None."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        # A traceback writes the text to the terminal. The attributes keep what the server said.
        super().__init__(harmless(message if hint is None else f"{message}\nHINT: {hint}", lines=True))
        self.message = message
        self.hint = hint


class CannotConnect(ClientError):
    """The server cannot be reached, or the database does not have the extension."""


class NoSuchRun(ClientError):
    """You have no run with this number."""


class NoSuchModel(ClientError):
    """The table does not exist, is not a model table, or has no model of this configuration."""


class MissingPackage(ClientError):
    """This environment lacks a Python package that the call needs."""

    def __init__(self, message: str, packages: str, more: str = "") -> None:
        # The shell of a user seldom has the environment of this Python.
        super().__init__(message, f"{shlex.quote(sys.executable)} -m pip install {packages}{more}")


class ReadOnly(ClientError):
    """The ORM was asked to change a view."""


class ServerError(ClientError):
    """The database reported an error. ``sqlstate`` is its code."""

    def __init__(self, message: str, hint: str | None, detail: str | None, sqlstate: str | None) -> None:
        super().__init__(message, hint)
        self.detail = detail
        self.sqlstate = sqlstate


class Cancelled(ServerError):
    """The statement was cancelled."""


HOW_RUNS_END = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted: its session is gone",
}


class RunFailed(ClientError):
    """A run did not end as it should. ``status`` is failed, cancelled, interrupted or finished.

    ``finished`` means that all models were trained but the model tables could not be made.
    """

    def __init__(self, run: int, status: str, reason: str | None) -> None:
        what = f"run {run} {HOW_RUNS_END.get(status, f'is {status}')}"
        hint = f"SELECT cerebro.resume({run}); continues it."
        if status == "finished" and f"cerebro.resume({run})" not in (reason or ""):
            hint = f"SELECT cerebro.materialize({run}, 'another_table'); makes its model tables."
        super().__init__(what if reason in (None, what) else f"{what}: {reason}", hint)
        self.run = run
        self.status = status


def found(among: Extensible[T], name: str, missing: str, what: str) -> T:
    """What has this name, built in or from another package."""
    try:
        return among[name]
    except KeyError:
        raise ClientError(missing, f"The {what}: {', '.join(among.names())}.") from None
    except Unsupported as error:
        raise ClientError(error.message, error.hint) from error


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns errors of psycopg2 and SQLAlchemy into a ClientError with the server's message and hint."""
    try:
        yield
    except psycopg2.Error as error:
        raise of_driver(error) from error
    except sqlalchemy.exc.DBAPIError as error:
        raise (of_driver(error.orig) if isinstance(error.orig, psycopg2.Error) else ClientError(str(error))) from error


def of_driver(error: psycopg2.Error) -> ClientError:
    """The ClientError for an error of psycopg2."""
    diagnosis: Any = error.diag
    message = diagnosis.message_primary or (str(error).strip() or type(error).__name__).splitlines()[0]
    if error.pgcode is None and isinstance(error, psycopg2.OperationalError):
        return CannotConnect(
            message, "cerebro up starts the embedded cluster; --dsn or CEREBRO_DSN names another database."
        )
    wanted = Cancelled if error.pgcode == "57014" else ServerError
    return wanted(message, diagnosis.message_hint, diagnosis.message_detail, error.pgcode)
