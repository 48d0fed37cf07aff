"""The loop that keeps segments busy, over ports: no database, no clock and no framework of its own.

The real ports (``cerebro_plpy.driver``) are worker sessions; the fake ones of the tests are a
simulated clock with injected faults.  Either way this is the whole of Model Hopper Parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .schedule import Schedule, Status, Unit


@dataclass(frozen=True)
class Outcome:
    """What became of a unit.  ``error`` is None when it is committed."""

    unit: Unit
    seconds: float = 0.0  # its share, if it trained together with others
    error: str | None = None
    # A crash of a trainer or a lost session says little about the configuration: try again.
    try_again: bool = False


class Ports(Protocol):
    def start(self, units: Sequence[Unit]) -> None:
        """Begin a unit on its segment, or several visits that train together, and return at once.

        Of several each has an outcome of its own.  A segment that reads ahead begins them after what it does.
        """

    def reads_ahead(self, segment: int) -> bool:
        """Whether a busy segment could make ready what comes next."""

    def wait(self) -> list[Outcome]:
        """Block a short while, at most until something ended.  Raises when the run is cancelled.

        An error in an outcome says that nothing of the unit is committed.  Ports that cannot tell (a
        session lost during COMMIT) ask the log, or raise: the run is then taken up from its log.
        """

    def gave_up(self, configuration: int, reason: str) -> None:
        """A configuration has failed for good; the others go on.  Told once per configuration."""

    def trying_again(self, unit: Unit, reason: str) -> None:
        """A unit failed and will be repeated."""


def run(schedule: Schedule, ports: Ports) -> None:
    """Drive an experiment from wherever its schedule stands to its end."""
    while not schedule.finished:
        for segment in range(schedule.plan.segments):
            if segment not in schedule.busy or ports.reads_ahead(segment):
                unit = schedule.take(segment)
                if unit is not None:
                    ports.start([unit, *schedule.companions(unit)])
        if not schedule.busy:
            raise RuntimeError("no unit is runnable and none is under way: the schedule is stuck")
        for outcome in ports.wait():
            settle(schedule, ports, outcome)


def settle(schedule: Schedule, ports: Ports, outcome: Outcome) -> None:
    unit, key = outcome.unit, outcome.unit.configuration
    if outcome.error is None:
        schedule.succeeded(unit, outcome.seconds)
        return
    # Several evaluations of one configuration may fail, each on its segment: it is given up once.
    already = schedule.progress[key].status is Status.FAILED
    if schedule.failed(unit, outcome.error, try_again=outcome.try_again):
        ports.trying_again(unit, outcome.error)
    elif not already:
        ports.gave_up(key, schedule.progress[key].reason or outcome.error)
