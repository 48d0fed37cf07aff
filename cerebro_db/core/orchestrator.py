"""The loop that keeps segments busy, over ports: no database, no clock and no framework of its own.

The real ports (``cerebro_plpy.driver``) are worker sessions; the fake ones of the tests are a
simulated clock with injected faults.  Either way this is the whole of Model Hopper Parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .schedule import Schedule, Unit


@dataclass(frozen=True)
class Outcome:
    """What became of a unit.  ``error`` is None when it is committed."""

    unit: Unit
    seconds: float = 0.0
    error: str | None = None
    # A crash of a trainer or a lost session says little about the configuration: try again.
    try_again: bool = False


class Ports(Protocol):
    def start(self, unit: Unit) -> None:
        """Begin a unit on its segment and return at once."""

    def wait(self) -> list[Outcome]:
        """Block a short while, at most until something ended.  Raises when the run is cancelled."""

    def gave_up(self, configuration: int, reason: str) -> None:
        """A configuration has failed for good; the others go on."""

    def trying_again(self, unit: Unit, reason: str) -> None:
        """A unit failed and will be repeated."""


def run(schedule: Schedule, ports: Ports) -> None:
    """Drive an experiment from wherever its schedule stands to its end."""
    idle = set(range(schedule.plan.segments)) - set(schedule.busy)
    while not schedule.finished:
        for segment in sorted(idle):
            unit = schedule.take(segment)
            if unit is not None:
                idle.discard(segment)
                ports.start(unit)
        if not schedule.busy:
            raise RuntimeError("no unit is runnable and none is under way: the schedule is stuck")
        for outcome in ports.wait():
            idle.add(outcome.unit.segment)
            if outcome.error is None:
                schedule.succeeded(outcome.unit, outcome.seconds)
            elif schedule.failed(outcome.unit, outcome.error, try_again=outcome.try_again):
                ports.trying_again(outcome.unit, outcome.error)
            elif schedule.progress[outcome.unit.configuration].reason is not None:
                ports.gave_up(outcome.unit.configuration, schedule.progress[outcome.unit.configuration].reason or "")
