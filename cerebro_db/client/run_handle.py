"""A handle on one run: wait for the run, look at it, or cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

from .errors import RunFailed
from .orm import UNDER_WAY, LeaderboardEntry, LearningCurvePoint, Run, RunProgress
from .row_lists import RowList

# Seconds that one waiting statement takes at most: libpq does not react to Ctrl-C while a statement runs.
SLICE = 1.0


class RunCalls(Protocol):
    """The calls that a handle makes. ``Cerebro`` has them."""

    def run(self, run: int) -> Run: ...
    def status_within(self, run: int, seconds: float) -> str: ...
    def cancel(self, run: int) -> bool: ...
    def run_progress(self, run: int) -> RunProgress: ...
    def follow(self, run: int, every: float) -> Iterator[RunProgress]: ...
    def leaderboard(self, run: int) -> RowList[LeaderboardEntry]: ...
    def learning_curve(self, run: int) -> RowList[LearningCurvePoint]: ...
    def watch(self, run: int) -> RunProgress: ...
    def _picture(self, run: int) -> str: ...
    def report(self, runs: int, path: str | Path, replace: bool, *, examples: bool) -> Path: ...


class RunHandle:
    """What ``train``, ``search``, ``fit`` and ``resume`` return.

    A handle holds the run's number and nothing else. The run continues without it, and ``Cerebro.handle(run)``
    returns a new one in any process.
    """

    def __init__(self, calls: RunCalls, run: int) -> None:
        self._calls = calls
        self.run = run

    @property
    def status(self) -> str:
        """The status in ``cerebro.runs``."""
        return self._calls.status_within(self.run, 0.0)

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self.status not in UNDER_WAY

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the model tables exist and returns the run's number.

        Raises RunFailed if the run ends in another way, and TimeoutError after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self._status_by(deadline)) in UNDER_WAY:
            _require_time(deadline, self.run, status)
        return self._ended_well(status)

    def _status_by(self, deadline: float | None) -> str:
        left = SLICE if deadline is None else max(0.0, min(SLICE, deadline - time.monotonic()))
        return self._calls.status_within(self.run, left)

    def _ended_well(self, status: str) -> int:
        message = self._calls.run(self.run).message
        if status != "finished" or message:
            raise RunFailed(self.run, status, message)
        return self.run

    def cancel(self) -> bool:
        """Asks the run to end, which takes about a second. Committed hops stay. Returns False if it had ended."""
        return self._calls.cancel(self.run)

    def progress(self) -> RunProgress:
        """How far the run is."""
        return self._calls.run_progress(self.run)

    def follow(self, every: float = 0.5) -> Iterator[RunProgress]:
        """The progress every so many seconds, until the run has ended."""
        return self._calls.follow(self.run, every)

    def watch(self) -> RunProgress:
        """Shows the progress until the run has ended, in a notebook, on a terminal, or as lines of text."""
        return self._calls.watch(self.run)

    def leaderboard(self) -> RowList[LeaderboardEntry]:
        """The models of the run, the best first."""
        return self._calls.leaderboard(self.run)

    def report(self, path: str | Path = "report.html", replace: bool = False, *, examples: bool = True) -> Path:
        """Writes one HTML file about the model and the run, and returns its path. ``Cerebro.report`` says the rest."""
        return self._calls.report(self.run, path, replace, examples=examples)

    def learning_curve(self) -> RowList[LearningCurvePoint]:
        """Losses and first metrics by model and epoch."""
        return self._calls.learning_curve(self.run)

    async def wait_async(self, timeout: float | None = None) -> int:
        """As ``wait``, while other tasks of the event loop go on. If the task is cancelled, the run continues."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := await asyncio.to_thread(self._status_by, deadline)) in UNDER_WAY:
            _require_time(deadline, self.run, status)
        return await asyncio.to_thread(self._ended_well, status)

    async def follow_async(self, every: float = 0.5) -> AsyncIterator[RunProgress]:
        """As ``follow``, while other tasks of the event loop go on."""
        while True:
            progress = await asyncio.to_thread(self.progress)
            yield progress
            if progress.ended:
                return
            await asyncio.sleep(every)

    def __repr__(self) -> str:
        return f"<RunHandle of run {self.run}>"

    def _repr_html_(self) -> str:
        return self._calls._picture(self.run)


def _require_time(deadline: float | None, run: int, status: str) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise TimeoutError(f"run {run} is still {status}")


AnyRun: TypeAlias = int | Run | RunHandle


def number_of(run: AnyRun) -> int:
    if isinstance(run, (Run, RunHandle)):
        return run.run
    if isinstance(run, bool) or not isinstance(run, int):
        raise TypeError(f"a run is given by its number, its row or its handle, not by {run!r}")
    return run


def owner_of(run: AnyRun, owner: str | None = None) -> str | None:
    """Whose run it is, if that is known: several users can have a run of one number."""
    return run.owner if owner is None and isinstance(run, Run) else owner
