"""Threshold: stops a model that is not good enough after some epochs."""

from __future__ import annotations

from ...records import dataclass
from .. import scores
from ..method_parameters import MIN_EPOCHS, Parameter
from ..policy import Decision, History, Policy, Verdict


@dataclass
class Threshold(Policy):
    epochs: int  # of the run
    value: float  # of the objective, as the user knows it
    min_epochs: int = 1  # no model is stopped earlier
    name = "threshold"
    does = "stops a model that is worse than `value` after `min_epochs` epochs or later"
    parameters = (MIN_EPOCHS, Parameter("value", whole=False, needed=True))

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        limit, mine = history.objective.score(self.value), scores.at(history, model, epoch)
        assert limit is not None
        if not self.min_epochs <= epoch < self.epochs or mine <= limit:
            return Decision(model, epoch, Verdict.CONTINUE)
        reason = f"{scores.shown(history, mine)} after epoch {epoch}; the threshold is {self.value:.4g}"
        return Decision(model, epoch, Verdict.STOP, reason)
