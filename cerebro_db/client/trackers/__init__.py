"""``cerebro track``: runs in the form of other tools that people look at results with.

``tracked`` reads a run once for all of them; ``tensorboard``, ``optuna`` and ``mlflow`` write it. Each may be called
again while the run goes on. Other packages add trackers by entry points, as ``mlflow`` is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Engine

from cerebro_db.core import entry_points
from cerebro_db.core.entry_points import Extensible

from ..errors import ClientError, found
from ..orm import Run
from . import optuna, tensorboard, tracked
from .tracked import TrackedRun

EXPERIMENT = "cerebro_db"
Tracker = Callable[[TrackedRun, str, str], object]  # writes a run to a place, under the name of an experiment

TRACKERS: Extensible[Tracker] = Extensible(
    entry_points.TRACKERS,
    {"tensorboard": tensorboard.write, "optuna": optuna.write},
    lambda point: entry_points.loaded(point, callable),
)


def track(engine: Engine, runs: Sequence[Run], places: Mapping[str, str], experiment: str) -> int:
    """Writes these runs to places, which have the names of their trackers.

    Returns how many models of folds and of groups were left out.
    """
    if not places:
        raise ClientError("Say where to.", "--tensorboard FOLDER, --mlflow URI, --optuna FILE or --to TRACKER=PLACE.")
    writers = {name: found(TRACKERS, name, f"There is no tracker {name!r}.", "trackers") for name in places}
    left_out = 0
    for run in runs:
        told = tracked.read(engine, run)
        for name, write in writers.items():
            write(told, places[name], experiment)
        left_out += told.left_out
    return left_out
