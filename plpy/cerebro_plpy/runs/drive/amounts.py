"""What a driver tells of a run every second, without a look at all models each time: there may be thousands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from cerebro_db.core.scheduling.schedule import Schedule, Status

from ..record.run import Run

LOOKING = 50  # an estimate is made anew after so many times the seconds that it has taken


class Pauses:
    """Says when something may be computed anew, so that it costs little of the driver's time."""

    def __init__(self) -> None:
        self._made_at, self._took = -float("inf"), 0.0

    def are_over(self, now: float) -> bool:
        return now - self._made_at >= LOOKING * self._took

    @contextlib.contextmanager
    def computing(self, now: float) -> Iterator[None]:
        began = time.process_time()
        yield
        self._made_at, self._took = now, time.process_time() - began


class RowsInAll:
    """The rows that a whole run trains on."""

    def __init__(self, run: Run, schedule: Schedule) -> None:
        self.run, self.schedule = run, schedule
        self._stands: tuple[int, ...] | None = None  # how things stood when they were counted
        self._rows, self._pauses = 0, Pauses()

    def now(self, *, last: bool = False) -> int:
        """Models that failed or were stopped count as far as they came.

        A method may stop some of many models every second: then this is counted less often, but the ``last`` time.
        """
        stands = (len(self.schedule.progress), self.run.epochs, self.schedule.failures, len(self.schedule.decisions))
        now = time.monotonic()
        if stands != self._stands and (last or self._pauses.are_over(now)):
            with self._pauses.computing(now):
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
        self._seconds: float | None = None
        self._made_at, self._pauses = 0.0, Pauses()

    def at(self, now: float, estimated: Callable[[], float | None]) -> float | None:
        """The last estimate as long as a new one would cost too much of the driver's time."""
        if self._seconds is not None and not self._pauses.are_over(now):
            return max(0.0, self._seconds - (now - self._made_at))
        with self._pauses.computing(now):
            self._seconds, self._made_at = estimated(), now
        return self._seconds
