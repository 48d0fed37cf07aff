"""Pieces of work that share a segment's session: while the trainer computes for one, another fetches or stores."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from cerebro_db.core.schedule import Unit

from .sessions import Rows, Statement, Work

# Like a session's work; None: it waits for another turn's next step, and is to be asked again after that.
TurnSteps = Generator[Optional[Statement], Any, Any]


class Patient(tuple):  # type: ignore[type-arg]
    """A statement that waits a moment for the trainer, again and again: all else that there is to do goes first."""


@dataclass(eq=False)
class Turn:
    """One unit, or several that train together, from the first statement to the last."""

    units: list[Unit]
    started: float
    begun: bool  # it was alone when it began, or has had the trainer: it does not fetch ahead
    steps: TurnSteps = field(init=False)
    statement: Statement | None = None  # what it would have the session do next
    shares: bool = False  # it leaves the session to others while the trainer computes
    rows: int = 0  # trained on, but not committed
    result: Any = None


@dataclass
class Turns:
    """Those of one segment, the oldest first.  One of them has the trainer, if any, since some moment."""

    under_way: list[Turn] = field(default_factory=list)
    over: list[Turn] = field(default_factory=list)
    computing: Turn | None = None
    since: datetime | None = None
    asked: Turn | None = None  # whose statement the session has

    def work(self) -> Work:
        """What the session does as long as there are any."""
        while self.under_way:
            for turn in reversed(self.under_way):  # who comes next begins before the one before it stores
                if turn.statement is None:
                    self._go_on(turn, None)
            asking = [turn for turn in reversed(self.under_way) if turn.statement is not None]
            if asking:
                turn = self.asked = min(asking, key=self._place)
                assert turn.statement is not None
                self._go_on(turn, (yield turn.statement))
            elif self.under_way:
                raise RuntimeError("all turns of a segment wait for each other")

    @contextlib.contextmanager
    def computes(self, turn: Turn) -> Iterator[None]:
        self.computing, self.since = turn, None
        try:
            yield
        finally:
            self.computing = self.since = None

    def followed(self, turn: Turn) -> bool:
        """Whether another turn comes after this one."""
        return self.under_way[-1] is not turn

    def abandon(self) -> list[Turn]:
        """End them all, wherever they are."""
        ended, self.under_way = self.under_way, []
        for turn in ended:
            turn.steps.close()
        return ended

    def _go_on(self, turn: Turn, rows: Rows | None) -> None:
        try:
            turn.statement = turn.steps.send(rows)
        except StopIteration as end:
            turn.result = end.value
            self.under_way.remove(turn)
            self.over.append(turn)

    def _place(self, turn: Turn) -> int:
        if isinstance(turn.statement, Patient):
            return 2
        return 0 if turn is self.computing else 1
