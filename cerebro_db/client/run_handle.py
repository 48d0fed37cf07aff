"""A handle on one run: wait for the run, look at it, or cancel it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol, TypeAlias

from .errors import RunFailed
from .orm import LeaderboardEntry, Run, RunProgress

UNDER_WAY = ("created", "running")
# Seconds that one waiting statement takes at most: libpq does not react to Ctrl-C while a statement runs.
SLICE = 1.0


class RunCalls(Protocol):
    """The calls that a handle makes. ``Cerebro`` has them."""

    def run(self, run: int) -> Run: ...
    def status_within(self, run: int, seconds: float) -> str: ...
    def cancel(self, run: int) -> bool: ...
    def run_progress(self, run: int) -> RunProgress: ...
    def follow(self, run: int, every: float) -> Iterator[RunProgress]: ...
    def leaderboard(self, run: int) -> list[LeaderboardEntry]: ...


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
        """The status in ``cerebro.runs``, except that ``finished`` also means that the model tables exist."""
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
        left = SLICE
        while True:
            if deadline is not None:
                left = max(0.0, min(SLICE, deadline - time.monotonic()))
            status = self._calls.status_within(self.run, left)
            if status not in UNDER_WAY:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.run} is still {status} after {timeout} s")
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

    def leaderboard(self) -> list[LeaderboardEntry]:
        """The models of the run, the best first."""
        return self._calls.leaderboard(self.run)

    def __repr__(self) -> str:
        return f"<RunHandle of run {self.run}>"


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
