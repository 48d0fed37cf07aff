"""What can go wrong at the Python door, each with what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg2
import sqlalchemy.exc


class ClientError(Exception):
    """A message, and where there is one, a hint: what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nHINT: {hint}")
        self.message = message
        self.hint = hint


class CannotConnect(ClientError):
    """The server cannot be reached, or the database has no cerebro_db in it."""


class NoSuchRun(ClientError):
    """There is no run of that number that you may see."""


class NoSuchModel(ClientError):
    """A table that is not a model table, or has no such mst_key."""


class MissingPackage(ClientError):
    """Something needs a Python package that this environment lacks."""


class ReadOnly(ClientError):
    """An attempt to change a view through the ORM."""


class ServerError(ClientError):
    """The database refused or failed; ``sqlstate`` says how."""

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
    """A run ended without what was wanted; ``status`` says how: failed, cancelled, interrupted.

    It is ``finished`` when all is trained, and only the model tables could not be made.
    """

    def __init__(self, run: int, status: str, reason: str | None) -> None:
        what = f"run {run} {HOW_RUNS_END.get(status, f'is {status}')}"
        hint = f"SELECT cerebro.resume({run}); goes on where it stopped."
        if status == "finished":
            hint = f"SELECT cerebro.materialize({run}, 'another_table'); makes them."
        super().__init__(what if reason in (None, what) else f"{what}: {reason}", hint)
        self.run = run
        self.status = status


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the driver and of SQLAlchemy come out as ours, with the server's message and hint."""
    try:
        yield
    except psycopg2.Error as error:
        raise of_driver(error) from error
    except sqlalchemy.exc.DBAPIError as error:
        raise (of_driver(error.orig) if isinstance(error.orig, psycopg2.Error) else ClientError(str(error))) from error


def of_driver(error: psycopg2.Error) -> ClientError:
    diagnosis: Any = error.diag
    message = diagnosis.message_primary or (str(error).strip() or type(error).__name__).splitlines()[0]
    if error.pgcode is None and isinstance(error, psycopg2.OperationalError):
        return CannotConnect(message, "cerebro up starts the embedded cluster; --dsn or CEREBRO_DSN names another.")
    kind = Cancelled if error.pgcode == "57014" else ServerError
    return kind(message, diagnosis.message_hint, diagnosis.message_detail, error.pgcode)
