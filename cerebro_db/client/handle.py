"""A run that the server carries on, whoever is connected."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import RunFailed
from .orm import LeaderboardEntry, RunProgress

if TYPE_CHECKING:
    from .door import Cerebro

UNDER_WAY = ("created", "running")
SLICE = 1.0  # seconds; libpq is deaf to Ctrl-C while a statement runs, so none of ours takes longer


class RunHandle:
    """What ``submit`` gives at once: wait for the run, look at it, or cancel it.

    It holds the run's number and nothing else: the run goes on without it, and ``Cerebro.handle(run)`` takes it
    up again from any process.
    """

    def __init__(self, cerebro: Cerebro, run: int) -> None:
        self._cerebro = cerebro
        self.run = run

    @property
    def status(self) -> str:
        """``finished`` once its model tables are there, too; before, what ``cerebro.runs`` says."""
        return self._status_within(0.0)

    @property
    def done(self) -> bool:
        return self.status not in UNDER_WAY

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the model tables are there, and returns the run's number or raises what went wrong."""
        deadline = None if timeout is None else time.monotonic() + timeout
        left = SLICE
        while True:
            if deadline is not None:
                left = max(0.0, min(SLICE, deadline - time.monotonic()))
            status = self._status_within(left)
            if status not in UNDER_WAY:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.run} is still {status} after {timeout} s")
        message = self._cerebro.run(self.run).message
        if status != "finished" or message:
            raise RunFailed(self.run, status, message)
        return self.run

    def _status_within(self, seconds: float) -> str:
        return self._cerebro.rows("SELECT cerebro.wait(%s, %s)", (self.run, seconds))[0][0]

    def cancel(self) -> bool:
        """Asks the run to end, which takes a second or so; what it has committed stays. False if it has ended."""
        return self._cerebro.cancel(self.run)

    def progress(self) -> RunProgress:
        return self._cerebro.progress(self.run)

    def follow(self, every: float = 0.5) -> Iterator[RunProgress]:
        return self._cerebro.follow(self.run, every)

    def leaderboard(self) -> list[LeaderboardEntry]:
        return self._cerebro.leaderboard(self.run)

    def __repr__(self) -> str:
        return f"<RunHandle of run {self.run}>"


@contextlib.contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Ctrl-C while this is entered is raised when it is left: what is done within has its result first."""
    if threading.current_thread() is not threading.main_thread():  # others are never interrupted
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        raise KeyboardInterrupt
