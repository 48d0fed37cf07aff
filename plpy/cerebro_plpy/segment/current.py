"""The segment of this process: a backend has one worker, for as long as it lives."""

from __future__ import annotations

from cerebro_db.core.errors import SegmentLost

from ..database.access import Database
from .worker import Segment

_segment: Segment | None = None


def mine(db: Database) -> Segment:
    """The worker of this process, made when it is first needed."""
    global _segment
    if _segment is None:
        _segment = Segment(db.plpy)
    return _segment


def opened(db: Database) -> Segment:
    """The worker of this process, which the driver must have opened.

    Greenplum can replace the processes of a session without an error: when one of them is killed while a transaction is
    being committed, for example.  The new process has no trainer, no rows and no states.
    """
    segment = mine(db)
    if segment.settings is None:
        raise SegmentLost(
            "this process has no trainer: it was never opened, or it has replaced a process that was killed",
            hint="SELECT cerebro._worker_open(…) opens it.",
        )
    return segment


def close_mine() -> None:
    """End the worker of this process, its trainers and its files."""
    global _segment
    if _segment is not None:
        _segment.close()
        _segment = None
