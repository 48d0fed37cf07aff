"""Synchronous successive halving in brackets: the common part of successive halving and Hyperband.

A bracket is a number of models that begin together.  When all of them that are left have reached a rung, the best
1 / reduction go on.  Until then a model that has reached the rung is stopped and waits.  Meanwhile models of later
brackets begin, so no segment is idle because of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from ...records import dataclass
from ..policy import Decision, History, Policy, Verdict
from . import rungs

Kind = tuple[int, tuple[int, ...]]  # of brackets: how many models, and the epochs of the rungs


@dataclass(frozen=True)
class Bracket:
    first: int  # how many models begin before those of this bracket
    size: int
    rungs: tuple[int, ...]


@dataclass
class Brackets(Policy, ABC):
    """The models of a run in the order of their numbers, in brackets."""

    epochs: int  # of the run
    configurations: int  # how many models will begin in all; what people add besides trains to its end
    min_epochs: int = 1  # until the first rung
    reduction: float = 3.0

    def brackets(self) -> Iterator[Bracket]:
        """The brackets of the configurations."""
        first = 0
        for size, places in self._kinds():
            if first >= self.configurations:
                return
            size = min(size, self.configurations - first)
            yield Bracket(first, size, places)
            first += size

    @abstractmethod
    def _kinds(self) -> Iterable[Kind]:
        """Brackets for all configurations, or more."""

    def expected_epochs(self, place: int, done: int) -> float:
        mine = next((one for one in self.brackets() if one.first <= place < one.first + one.size), None)
        return rungs.expected_epochs(mine.rungs if mine else (), self.reduction, self.epochs, done)

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        released = self._released(history, model, epoch)
        gone_on = tuple(one for one in released if one != model)
        models = sorted({*history.models, model})
        index = models.index(model)
        bracket = next((one for one in self.brackets() if one.first <= index < one.first + one.size), None)
        if bracket is None or epoch not in bracket.rungs:
            return Decision(model, epoch, Verdict.CONTINUE, gone_on=gone_on)
        place = bracket.rungs.index(epoch) + 1
        if model in released:
            return Decision(model, epoch, Verdict.CONTINUE, f"{rungs.PASSES} {place}", gone_on=gone_on)
        mine = models[bracket.first : bracket.first + bracket.size]
        reached = sum(len(history.epochs(one)) >= epoch for one in mine if one != model) + 1
        reason = f"{rungs.WAITS} {place}: {reached} of {bracket.size} models have reached epoch {epoch}"
        return Decision(model, epoch, Verdict.STOP, reason, gone_on=gone_on)

    def released(self, history: History) -> tuple[int, ...]:
        return self._released(history)

    def _released(self, history: History, asked: int | None = None, epoch: int = 0) -> tuple[int, ...]:
        models = sorted({*history.models, *(() if asked is None else (asked,))})
        found: list[int] = []
        for bracket in self.brackets():
            if bracket.first >= len(models):
                break  # of a search that only a budget ends, there are many more
            mine = models[bracket.first : bracket.first + bracket.size]
            full = len(mine) == bracket.size
            found += rungs.released(
                history, mine, bracket.rungs, self.reduction, full=full, for_all=True, asked=asked, epoch=epoch
            )
        return tuple(sorted(found))
