"""Patience: stops a model that has not become better for some epochs."""

from __future__ import annotations

from ...records import dataclass
from .. import scores
from ..method_parameters import MIN_EPOCHS, MOST_EPOCHS, Parameter
from ..policy import Decision, History, Policy, Verdict


@dataclass
class Patience(Policy):
    epochs: int  # of the run
    patience: int = 3  # epochs
    min_delta: float = 0.0  # an improvement by less is none
    min_epochs: int = 1  # no model is stopped earlier
    name = "patience"
    does = "stops a model that has not improved by more than `min_delta` for `patience` epochs"
    parameters = (
        MIN_EPOCHS,
        Parameter("patience", 3, 1, MOST_EPOCHS),
        Parameter("min_delta", 0.0, 0.0, whole=False),
    )

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        since = epoch - self.patience
        lately = range(max(0, since) + 1, epoch + 1)
        waiting = since < 1 or not any(scores.measured(history, model, one) for one in lately)
        if waiting or not self.min_epochs <= epoch < self.epochs:
            return Decision(model, epoch, Verdict.CONTINUE)
        before, now = scores.best(history, model, since), scores.best(history, model, epoch)
        if now < before - self.min_delta:
            return Decision(model, epoch, Verdict.CONTINUE)
        reason = f"nothing better than {scores.shown(history, before)} for {self.patience} epochs"
        return Decision(model, epoch, Verdict.STOP, reason)
