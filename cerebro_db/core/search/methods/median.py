"""The median stopping rule: stops a model whose best score is worse than the median of what others had on average.

Golovin et al., Google Vizier: A Service for Black-Box Optimization, 2017.  There a model is compared with those that
have completed their training.  Here models train side by side, so it is compared with all that have come as far.
"""

from __future__ import annotations

import math
import statistics

from ...records import dataclass
from .. import scores
from ..method_parameters import MIN_EPOCHS, Parameter
from ..policy import Decision, History, Policy, Verdict
from ..spaces.space import MOST_POINTS


@dataclass
class MedianStopping(Policy):
    epochs: int  # of the run
    min_epochs: int = 1  # no model is stopped earlier
    min_models: int = 5  # to compare with
    name = "median"
    does = (
        "stops a model whose best value so far is worse than the median of the others' averages up to the same epoch. "
        "The others are all models that have completed this epoch"
    )
    parameters = (MIN_EPOCHS, Parameter("min_models", 5, 1, MOST_POINTS))

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        others = [
            average
            for other in history.models
            if other != model and len(history.epochs(other)) >= epoch
            if (average := self._average(history, other, epoch)) is not None
        ]
        if not self.min_epochs <= epoch < self.epochs or len(others) < max(1, self.min_models):
            return Decision(model, epoch, Verdict.CONTINUE)
        mine, median = scores.best(history, model, epoch), statistics.median(others)
        if mine <= median:
            return Decision(model, epoch, Verdict.CONTINUE)
        had, than = scores.shown(history, mine), scores.shown(history, median)
        reason = f"{had} at best after epoch {epoch}; the median of {len(others)} others is {than}"
        return Decision(model, epoch, Verdict.STOP, reason)

    def _average(self, history: History, model: int, epoch: int) -> float | None:
        known = [score for one in range(1, epoch + 1) if (score := history.score(model, one)) is not None]
        return math.fsum(score / len(known) for score in known) if known else None  # finite, however large they are
