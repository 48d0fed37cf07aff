"""The trainer of the caller's own session between two calls.

On its own, because predicting a row in a new session needs nothing else of this folder, and what worker sessions import
takes as long as a good part of that prediction.
"""

from __future__ import annotations

from cerebro_db.core import protocol

from ..database.access import Database
from ..segment import current
from . import limits
from .team_options import TeamOptions


def time_to_rest(db: Database, options: TeamOptions) -> tuple[int, int]:
    """For how many seconds the trainer of this session may wait for its next call (0: not at all).

    Also how many trainers of the role may stay after their sessions.
    """
    seconds, predictors = limits.waiting_predictors(db)
    return (0, 0) if options.gpus else (seconds, predictors)


def rest_mine(db: Database, seconds: int) -> None:
    """Keep the trainer of this session for its next call, if that is allowed."""
    if seconds:
        current.mine(db).obey(protocol.Rest(seconds))
    else:
        current.close_mine()
