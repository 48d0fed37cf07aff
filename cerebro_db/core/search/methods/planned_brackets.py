"""Successive halving in brackets that are planned: how many models each has, and after which epochs its rounds end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...records import dataclass
from ..policy import Decision, History, Verdict
from .brackets import Brackets, Kind


@dataclass
class PlannedBrackets(Brackets):
    planned: Sequence[tuple[int, Sequence[int]]] = ()  # of each bracket: models, and the ends of its rounds
    name = "hyperband"

    def _kinds(self) -> Iterable[Kind]:
        return [(size, tuple(ends[:-1])) for size, ends in self.planned]

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        """As all brackets do; and the models of a bracket that ends before the others end with it."""
        decision = super().decide(history, model, epoch)
        models, last = sorted({*history.models, model}), 0
        for bracket, (_, ends) in zip(self.brackets(), self.planned):
            if model in models[bracket.first : bracket.first + bracket.size]:
                last = ends[-1]
        if epoch != last or last >= self.epochs:
            return decision
        reason = f"the last round of its bracket ends after epoch {epoch}"
        return replace(decision, verdict=Verdict.STOP, reason=reason)
