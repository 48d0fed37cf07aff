"""The trainer of the driver's own session, in which Optuna suggests points of a search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core.engines import ENGINES
from cerebro_db.core.errors import TrainerFailed
from cerebro_db.core.protocol import Suggest, Suggested, TrainerSettings
from cerebro_db.core.search.methods.tpe import Trial
from cerebro_db.core.search.spaces.space import Point

from ...database.access import Database
from ...database.cancellation import listener
from ...segment import current, memory, nursery_connection


class Suggestions:
    """Starts the trainer when it is first asked."""

    def __init__(self, db: Database, engine: str, *, shares: bool = False) -> None:
        """``shares``: the models train in this session, too, by the same trainer."""
        self._db, self._shares = db, shares
        # The template of the run's engine is there already, so its fork takes the least memory.
        mine = engine if engine in ENGINES else nursery_connection.default_engine(listener(db.plpy))
        self._settings = TrainerSettings(engine=mine, threads=1)
        self._started = False

    def __call__(
        self, dimensions: Sequence[Mapping[str, Any]], seed: int, number: int, trials: Sequence[Trial], count: int
    ) -> list[Point]:
        told = [trial.to_json() for trial in trials]
        order = Suggest([dict(one) for one in dimensions], seed, number, told, count)
        try:
            return list(self._answer(order).points)
        except TrainerFailed:  # memory ran out, or somebody ended it: a new one gives the same answer
            return list(self._answer(order).points)

    def require(self) -> None:
        """Raise an error that says what to install, unless Optuna is there."""
        self._answer(Suggest([], 0, 0, [], count=0))

    def _answer(self, order: Suggest) -> Suggested:
        mine = current.mine(self._db)
        if not self._shares:
            mine.start(self._settings, memory.limit_of_trainers(self._db))
            self._started = True
        return mine.obey(order)

    def close(self) -> None:
        if self._started:
            current.close_mine()
            self._started = False
