"""What a contender is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.database import Database
from tests.bench.meter import Meter, Taken, descendants, memory
from tests.bench.works import Work
from tests.sql.lab import Json


class Skipped(Exception):
    """Who does not take part, and why."""


@dataclass
class Measured:
    """One piece of work done once by one contender."""

    contender: str
    taken: Taken
    start: float  # seconds of it until all workers were ready
    results: list[dict[str, float]] = field(default_factory=list)  # of each configuration: loss, accuracy
    more: Json = field(default_factory=dict)


@dataclass
class Stage:
    """A work, and where it is done."""

    work: Work
    database: Database
    folder: Path  # with what the rivals read
    idle: int = 0  # bytes of memory that the server takes when nothing is done

    def settle(self) -> None:
        """Before a contender begins, the last one has left."""
        self.database.wait_until_idle()
        self.idle = memory(descendants())

    def meter(self, *folders: Path) -> Meter:
        return Meter(self.database.server, [*self.database.folders, *folders], self.idle)


Contender = Callable[[Stage], Iterator[Measured]]
