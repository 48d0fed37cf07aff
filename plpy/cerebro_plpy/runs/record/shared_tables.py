"""Which of the two tables that small states share gets the next states, and when states move to the other one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Callable

from cerebro_db.core.records import dataclass, field

BOTH = (0, 1)
# How much is appended to a table before the states that are still needed move to the other one: so many times what is
# needed, since moving costs as much as storing, and so many bytes, since TRUNCATE waits for the disk.
TIMES_NEEDED, FEWEST_APPENDED = 4, 1 << 20


@dataclass
class SharedTables:
    """The two tables that small states share, as the session that drives the run knows them."""

    current: int = 0  # states are appended to this one
    appended: int = 0  # bytes, since it is the current one
    enough: int = 0  # so many bytes, then the other one may be next
    leaving: bool = False  # the states in the other one have to move
    moving: bool = False  # a transaction that moves them is under way
    writers: list[int] = field(default_factory=lambda: [0, 0])  # transactions under way that append to each
    filled: list[bool] = field(default_factory=lambda: [False, False])  # whether each may have rows

    @contextlib.contextmanager
    def appending(self, size: int) -> Iterator[int]:
        """Around a transaction that appends so many bytes: the number of the table."""
        table = self.current
        self.writers[table] += 1
        self.filled[table] = True
        try:
            yield table
        finally:
            self.writers[table] -= 1
        self.appended += size

    @property
    def other(self) -> int:
        return 1 - self.current

    def turn(self, needed: Callable[[], int]) -> None:
        """Append to the other table from now on, if this one has more than enough.  ``needed``: bytes in all."""
        if self.leaving or self.appended <= self.enough:
            return
        self.enough = max(FEWEST_APPENDED, TIMES_NEEDED * needed())  # models may have been added
        if self.appended > self.enough:
            self.current, self.appended, self.leaving = self.other, 0, True

    @property
    def may_move(self) -> bool:
        """Whether states can move now: nobody appends to the table that they leave."""
        return self.leaving and not self.moving and not self.writers[self.other]

    @contextlib.contextmanager
    def emptying(self) -> Iterator[None]:
        """Around the transaction that moves states out of the other table, and empties it."""
        self.moving = self.filled[self.current] = True
        try:
            yield
        finally:
            self.moving = False
        self.leaving = False
