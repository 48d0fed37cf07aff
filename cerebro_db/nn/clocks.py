"""Clocks: the time of an order by stage, the pace of its progress reports, and the effort of a computation."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds by stage of an order."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str, features: float = 0.0) -> float:
        """The stage of that name ends now, perhaps not for the first time; returns the seconds of this time.

        ``features``: seconds in which features were computed meanwhile; they count as a stage of their own.
        """
        now = time.monotonic()
        seconds, self._last = now - self._last - features, now
        self.laps[name] = round(self.laps.get(name, 0.0) + seconds, 6)
        if features:
            self.laps["features"] = round(self.laps.get("features", 0.0) + features, 6)
        return round(seconds, 6)


class Pace:
    """Says when the next of some repeated reports is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Stopwatch:
    """Adds up the seconds of what is done within it."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        """``wait``: until a device has done what it was given, which counts, too."""
        self.seconds = 0.0
        self._wait = wait
        self._begun = 0.0

    def __enter__(self) -> Stopwatch:
        self._begun = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self._wait()
        self.seconds += time.monotonic() - self._begun


class Effort:
    """Seconds that a computation would take on a machine with nothing else to do.

    On a processor the time counts in which this process computes: while other processes have the processor, its
    threads wait. On a GPU this process waits anyway, so elapsed time counts.
    """

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._last = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        """Since the last call."""
        before, self._last = self._last, (time.monotonic(), time.process_time())
        passed, computed = (now - then for now, then in zip(self._last, before))
        return round(passed if self._gpu else min(passed, computed), 9)
