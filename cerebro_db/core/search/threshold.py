"""Threshold: stops a model that is not good enough after some epochs."""

from __future__ import annotations

from ..records import dataclass
from . import scores
from .policy import Decision, History, Policy, Verdict


@dataclass
class Threshold(Policy):
    epochs: int  # of the run
    value: float  # of the objective, as the user knows it
    min_epochs: int = 1  # no model is stopped earlier
    name = "threshold"

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        limit, mine = history.objective.score(self.value), scores.at(history, model, epoch)
        assert limit is not None
        if not self.min_epochs <= epoch < self.epochs or mine <= limit:
            return Decision(model, epoch, Verdict.CONTINUE)
        reason = f"{scores.shown(history, mine)} after epoch {epoch}; the threshold is {self.value:.4g}"
        return Decision(model, epoch, Verdict.STOP, reason)
