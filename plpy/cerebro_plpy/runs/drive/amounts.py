"""What a driver tells of a run every second, without a look at all models each time: there may be thousands."""

from __future__ import annotations

import time
from collections.abc import Callable

from cerebro_db.core.scheduling.schedule import Schedule, Status

from ..record.run import Run

LOOKING = 50  # an estimate is made anew after so many times the seconds that it has taken


class RowsInAll:
    """The rows that a whole run trains on."""

    def __init__(self, run: Run, schedule: Schedule) -> None:
        self.run, self.schedule = run, schedule
        self._stands: tuple[int, ...] | None = None  # how things stood when they were counted
        self._rows = 0

    def now(self) -> int:
        """Models that failed or were stopped count as far as they came."""
        stands = (len(self.schedule.progress), self.run.epochs, self.schedule.failures, len(self.schedule.decisions))
        if stands != self._stands:
            self._stands = stands
            self._rows = sum(map(self._rows_of, self.schedule.progress)) + self._rows_of_coming_groups()
        return self._rows

    def _rows_of_coming_groups(self) -> int:
        """The rows of the models of groups that wait for the model on all rows of their configuration."""
        if not self.run.options.groups_wait:
            return 0
        begun = {model.key for model in self.run.models.values() if model.asked.group_number is not None}
        coming = [
            number
            for number, mine in self.schedule.progress.items()
            if mine.plan.on_all_rows and mine.status is not Status.FAILED and self.run.models[number].key not in begun
        ]
        pieces = self.run.source.pieces
        once = sum(sum(pieces[number].values()) for number in self.run.groups) if coming else 0
        return len(coming) * once * self.run.epochs

    def _rows_of(self, model: int) -> int:
        mine, once = self.schedule.progress[model], self.run.rows_of(self.run.models[model])
        ended = mine.status in (Status.FAILED, Status.STOPPED)
        return once * mine.hops // len(mine.order) if ended else once * self.run.epochs


class Estimate:
    """The seconds that are left."""

    def __init__(self) -> None:
        self._made_at, self._took = -float("inf"), 0.0
        self._seconds: float | None = None

    def at(self, now: float, estimated: Callable[[], float | None]) -> float | None:
        """The last estimate as long as a new one would cost too much of the driver's time."""
        if self._seconds is not None and now - self._made_at < LOOKING * self._took:
            return max(0.0, self._seconds - (now - self._made_at))
        began = time.process_time()
        self._seconds, self._made_at = estimated(), now
        self._took = time.process_time() - began
        return self._seconds
