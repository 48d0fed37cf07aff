"""The segment of this process: a backend has one worker at a time, which works for one user.

The functions of a session can run for several users: after SET ROLE, in functions of others, and in the expressions of
others' tables and materialized views.  What a trainer has in memory belongs to the user that it was started for.

Users can call the functions that give orders to a worker, and an order can name any architecture: one that returns its
weights, for instance.  So a worker that has weights which its user may not read takes orders from Python alone.
"""

from __future__ import annotations

from cerebro_db.core.errors import InUse, SegmentLost
from cerebro_db.core.protocol import Rest

from ..database.access import Database
from .worker import Segment

_segment: Segment | None = None


def is_unused() -> bool:
    """Whether this process has no worker."""
    return _segment is None


def mine(db: Database) -> Segment:
    """The worker of this process and the current user, made when it is first needed.

    One of another user ends, with its trainers and files, unless a call of that user is under way.
    """
    global _segment
    if _segment is not None and _segment.current_user() != _segment.user:
        if not _segment.is_free:
            raise InUse(
                "the trainer of this session works for another user.",
                hint="Rows that are being read for one user cannot call functions for another one.",
            )
        close_mine()
    if _segment is None:
        _segment = Segment(db.plpy)
        _segment.user = _segment.current_user()
    return _segment


def sealed(db: Database) -> Segment:
    """The worker of this process, for weights that its user may not read.

    It begins anew: an order from SQL can have left files, names and cursors in a worker, which would get the weights.
    """
    if not mine(db).sealed:
        close_mine()
        mine(db).sealed = True
    return mine(db)


def unseal() -> None:
    """Before an order from SQL: end a worker that takes none."""
    if _segment is not None and _segment.sealed:
        _require_idle(_segment)
        close_mine()


def _require_idle(segment: Segment) -> None:
    if segment.lent:
        raise InUse("a registered model predicts in this session, which can do nothing else meanwhile.")


def opened(db: Database) -> Segment:
    """The worker of this process, which the driver must have opened.

    Greenplum can replace the processes of a session without an error: when one of them is killed while a transaction is
    being committed, for example.  The new process has no trainer, no rows and no states.
    """
    unseal()
    return _require_opened(mine(db))


def predicting(db: Database) -> Segment:
    """As ``opened``, for a function that gives rows to the prediction under way, and no other order."""
    return _require_opened(mine(db))


def _require_opened(segment: Segment) -> Segment:
    if segment.settings is None:
        raise SegmentLost(
            "this process has no trainer: it was never opened, or it has replaced a process that was killed",
            hint="SELECT cerebro._worker_open(…) opens it.",
        )
    return segment


def close(db: Database) -> None:
    """End the worker of this process if it is the current user's."""
    if _segment is not None:
        if mine(db).sealed:
            _require_idle(mine(db))
        close_mine()


def rest(segment: Segment, seconds: int) -> None:
    """Keep the trainer of this session for so many seconds, for its next call; 0: end it."""
    if seconds:
        segment.obey(Rest(seconds))
    else:
        close_mine()


def close_mine() -> None:
    """End the worker of this process, its trainers and its files."""
    global _segment
    if _segment is not None:
        _segment.close()
        _segment = None
