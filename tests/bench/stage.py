"""The input of a contender, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.database import Database
from tests.bench.meter import Meter, Taken, descendants, memory
from tests.bench.works import Work
from tests.sql.lab import Json


class Skipped(Exception):
    """A contender does not take part; the message says why."""


@dataclass
class Measured:
    """One piece of work done once by one contender."""

    contender: str
    taken: Taken
    start: float  # the seconds of it until all workers were ready
    results: list[dict[str, float]] = field(default_factory=list)  # for each configuration: loss, accuracy
    more: Json = field(default_factory=dict)


@dataclass
class Stage:
    """A work, and the place where a contender does it."""

    work: Work
    database: Database
    folder: Path  # the files that the rivals read
    idle: int = 0  # bytes of memory of the idle server

    def settle(self) -> None:
        """Wait until all processes of the last contender have ended."""
        self.database.wait_until_idle()
        self.idle = memory(descendants())

    def meter(self, *folders: Path) -> Meter:
        return Meter(self.database.server, [*self.database.folders, *folders], self.idle)


Contender = Callable[[Stage], Iterator[Measured]]
