"""The segment of this process: a backend has one worker, for as long as it lives."""

from __future__ import annotations

from ..database.access import Database
from .worker import Segment

_segment: Segment | None = None


def mine(db: Database) -> Segment:
    """The worker of this process, made when it is first needed."""
    global _segment
    if _segment is None:
        _segment = Segment(db.plpy)
    return _segment


def close_mine() -> None:
    """End the worker of this process, its trainers and its files."""
    global _segment
    if _segment is not None:
        _segment.close()
        _segment = None
