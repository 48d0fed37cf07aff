"""Which models an ensemble is made of, and how often each counts, from what they predict of rows for validation.

The choice is greedy with replacement (Caruana et al., Ensemble Selection from Libraries of Models, 2004): each step
adds the model with which the mean of all that were added so far is best.  A model that is added twice counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .metrics import LEAST_PROBABILITY
from .records import dataclass

STEPS = 20  # more change the mean little


@dataclass(frozen=True)
class OfOutput:
    """What the models predict of one output: a list for each model, with a number for each row.

    Of a class, it is the probability of the row's own class; of a number, the error.  The mean of models has the mean
    of their probabilities, and the mean of their errors.
    """

    of_classes: bool
    of_models: Sequence[Sequence[float]]

    def loss(self, sums: Sequence[float], added: int) -> float:
        """The loss of the mean, from the sums over the models that were added; infinite if it is no number."""
        if not all(map(math.isfinite, sums)):
            return math.inf
        if self.of_classes:
            least = LEAST_PROBABILITY * added
            return math.log(added) - math.fsum(math.log(max(one, least)) for one in sums) / len(sums)
        return math.fsum(one * one for one in sums) / len(sums) / added**2

    def loss_of(self, counts: Sequence[int]) -> float:
        """The loss of the mean in which each model counts so often."""
        chosen = [(its, times) for its, times in zip(self.of_models, counts) if times]
        sums = [sum(its[row] * times for its, times in chosen) for row in range(len(self.of_models[0]))]
        return self.loss(sums, sum(counts))

    def unit(self) -> float:
        """The loss of the best model, so that the losses of several outputs can be added."""
        least = min(self.loss(one, 1) for one in self.of_models)
        return least if 0 < least < math.inf else 1.0


def counts(outputs: Sequence[OfOutput], most: int) -> list[int]:
    """How often each model counts.  At most so many models count at all; the first alone if none predicts numbers."""
    models = len(outputs[0].of_models)
    units = [one.unit() for one in outputs]
    sums = [[0.0] * len(one.of_models[0]) for one in outputs]
    chosen = [0] * models
    best, best_loss = [1] + [0] * (models - 1), math.inf
    for step in range(1, STEPS + 1):
        full = sum(map(bool, chosen)) >= most
        losses = {
            model: math.fsum(
                one.loss([a + b for a, b in zip(sum_, one.of_models[model])], step) / unit
                for one, sum_, unit in zip(outputs, sums, units)
            )
            for model in range(models)
            if chosen[model] or not full
        }
        added = min(losses, key=lambda model: (losses[model], model))
        chosen[added] += 1
        sums = [[a + b for a, b in zip(sum_, one.of_models[added])] for one, sum_ in zip(outputs, sums)]
        if losses[added] < best_loss:
            best, best_loss = list(chosen), losses[added]
    return best
