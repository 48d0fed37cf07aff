"""Every foreseeable failure, in one place: what it is called, its SQLSTATE, what the user reads.

A ``CerebroError`` is raised anywhere below the database and becomes an ordinary PostgreSQL error
(message, DETAIL, HINT, SQLSTATE) at the edge.  The message says which argument and why, the hint
says what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # how an operating system says that a disk is full
MAKE_ROOM = "Make room, then SELECT cerebro.resume(run) goes on where it stopped."


class CerebroError(Exception):
    """An error a user can understand and act on."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def told(self) -> dict[str, Any]:
        """What goes over the trainer's pipe and from a segment to the driver; ``from_told`` makes an error of it."""
        parts = {"kind": type(self).__name__, "message": self.message, "detail": self.detail, "hint": self.hint}
        return {name: value for name, value in parts.items() if value is not None}


class InvalidArgument(CerebroError):
    """An argument has a value that cannot be used."""

    sqlstate = "22023"


class InvalidSyntax(CerebroError):
    """A parameter string or JSON text cannot be parsed."""

    sqlstate = "22P02"


class BadData(CerebroError):
    """The rows themselves cannot be used: NULLs, ragged arrays, too many classes."""

    sqlstate = "22000"


class UndefinedTable(CerebroError):
    sqlstate = "42P01"


class UndefinedColumn(CerebroError):
    sqlstate = "42703"


class UndefinedObject(CerebroError):
    """A model, a configuration or a run that does not exist."""

    sqlstate = "42704"


class DuplicateTable(CerebroError):
    sqlstate = "42P07"


class InvalidName(CerebroError):
    sqlstate = "42602"


class NotPermitted(CerebroError):
    sqlstate = "42501"


class Unsupported(CerebroError):
    sqlstate = "0A000"


class WrongState(CerebroError):
    """The object exists but is not in a state in which this can be done."""

    sqlstate = "55000"


class InUse(CerebroError):
    """Another session is doing this already."""

    sqlstate = "55006"


class UnsafeModel(CerebroError):
    """An architecture holds something that is not on the allow-list."""

    sqlstate = "42501"


class CannotConnect(CerebroError):
    """A worker session could not be opened."""

    sqlstate = "08001"


class OutOfResources(CerebroError):
    sqlstate = "53000"


class LimitExceeded(CerebroError):
    """More than a role, or the server, may have."""

    sqlstate = "53400"


class DiskFull(CerebroError):
    """No room for what has to be written; what is committed stays, and a run can be resumed."""

    sqlstate = "53100"


class TrainerFailed(CerebroError):
    """The trainer process died or answered nonsense; the unit may be tried again elsewhere."""

    sqlstate = "58000"


class ConfigurationFailed(CerebroError):
    """The configuration itself cannot be trained; trying again would not help."""

    sqlstate = "22023"


class Cancelled(CerebroError):
    """Another session asked for the run to end."""

    sqlstate = "57014"


class CorruptState(CerebroError):
    """A model state does not have the bytes that were written."""

    sqlstate = "XX001"


def from_told(told: Mapping[str, Any]) -> CerebroError:
    """The error that ``told`` describes: of the class of that name, or a plain CerebroError."""
    kinds = {kind.__name__: kind for kind in CerebroError.__subclasses__()}
    made = kinds.get(str(told.get("kind")), CerebroError)
    message = str(told.get("message", "the trainer gave no reason"))
    return made(message, hint=told.get("hint"), detail=told.get("detail"))
