"""The errors that users can see, with their SQLSTATEs.

Any layer can raise a ``CerebroError``.  The entry point that SQL called turns it into a PostgreSQL error with message,
DETAIL, HINT and SQLSTATE.  The message names the wrong argument and says why it is wrong; the hint says what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # the error numbers of a full disk and of an exceeded quota
MAKE_ROOM = "Free some disk space or memory, then continue the run with SELECT cerebro.resume(run)."  # a hint


class CerebroError(Exception):
    """An error that a user can understand and act on."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def as_dict(self) -> dict[str, Any]:
        """The error as a trainer sends it to a segment, and a segment to the driver.  The inverse is ``from_dict``."""
        fields = {"kind": type(self).__name__, "message": self.message, "detail": self.detail, "hint": self.hint}
        return {name: value for name, value in fields.items() if value is not None}

    told = as_dict  # the old name, until all calls have the new one


class InvalidArgument(CerebroError):
    """An argument has a value that cannot be used."""

    sqlstate = "22023"


class InvalidSyntax(CerebroError):
    """A parameter string or JSON text cannot be parsed."""

    sqlstate = "22P02"


class BadData(CerebroError):
    """The rows of a table cannot be used: NULLs, arrays of different shapes, too many classes."""

    sqlstate = "22000"


class UndefinedTable(CerebroError):
    sqlstate = "42P01"


class UndefinedColumn(CerebroError):
    sqlstate = "42703"


class UndefinedObject(CerebroError):
    """A model, a configuration or a run does not exist."""

    sqlstate = "42704"


class DuplicateTable(CerebroError):
    sqlstate = "42P07"


class DuplicateFunction(CerebroError):
    sqlstate = "42723"


class InvalidName(CerebroError):
    sqlstate = "42602"


class NotPermitted(CerebroError):
    sqlstate = "42501"


class Unsupported(CerebroError):
    sqlstate = "0A000"


class GpuMissing(CerebroError):
    """The framework of a trainer finds no GPU.  No model is to blame, and the whole call fails."""

    sqlstate = "0A000"


class WrongState(CerebroError):
    """The object exists, but its state does not allow the operation."""

    sqlstate = "55000"


class InUse(CerebroError):
    """Another session is already doing this."""

    sqlstate = "55006"


class UnsafeModel(CerebroError):
    """A part of an architecture or of compile parameters is not on the allow-list."""

    sqlstate = "42501"


class CannotConnect(CerebroError):
    """A worker session could not be opened."""

    sqlstate = "08001"


class SerializationFailure(CerebroError):
    """What the transaction sees no longer fits together; the same call in a new transaction works."""

    sqlstate = "40001"


class OutOfResources(CerebroError):
    sqlstate = "53000"


class OutOfMemory(OutOfResources):
    """A trainer lacks memory for a model.  It may have enough for the model's shards."""


class DependentObjects(CerebroError):
    """Other objects depend on the one that is to be dropped."""

    sqlstate = "2BP01"


class LimitExceeded(CerebroError):
    """The operation would exceed a limit of a role or of the server."""

    sqlstate = "53400"


class DiskFull(CerebroError):
    """A disk is full.  Everything committed is kept, and the run can be resumed."""

    sqlstate = "53100"


class TrainerFailed(CerebroError):
    """The trainer process died or sent an invalid answer.  The unit can be retried, also on another segment."""

    sqlstate = "58000"


class TrainerKilled(TrainerFailed):
    """Something has killed the trainer, most likely the kernel because memory ran out."""


class RowsLost(CerebroError):
    """The rows that a segment had cached are gone or damaged.  The segment can read them again."""

    sqlstate = "58030"


class StateLost(CerebroError):
    """The file of a state was deleted before the state was stored.  The visit can be repeated, in a new session."""

    sqlstate = "58P01"


class SessionEnded(CerebroError):
    """A session of the server to itself was ended from outside."""

    sqlstate = "08006"


class SegmentLost(CerebroError):
    """A session has lost its process on a segment, or that process was replaced.  The SQLSTATE is Greenplum's."""

    sqlstate = "58M01"


class ConfigurationFailed(CerebroError):
    """The configuration itself cannot be trained.  A retry would fail again."""

    sqlstate = "22023"


class Cancelled(CerebroError):
    """Another session has cancelled the run."""

    sqlstate = "57014"


class CorruptState(CerebroError):
    """A model state is damaged: its bytes are not those that were written."""

    sqlstate = "XX001"


def kinds(base: type[CerebroError] = CerebroError) -> Iterator[type[CerebroError]]:
    """All classes of errors."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def from_dict(fields: Mapping[str, Any]) -> CerebroError:
    """The error in a dictionary of ``as_dict``.  An unknown class becomes a plain CerebroError."""
    classes = {error_class.__name__: error_class for error_class in kinds()}
    error_class = classes.get(str(fields.get("kind")), CerebroError)
    message = str(fields.get("message", "the trainer gave no reason"))
    return error_class(message, hint=fields.get("hint"), detail=fields.get("detail"))
