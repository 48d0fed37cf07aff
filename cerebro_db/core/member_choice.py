"""Which models an ensemble is made of, from what they predict of rows for validation.

The mean that predicts these rows best is found by a search.  It fits them by chance, too, and a mean of more models
predicts others better.  So all models join, or all but the worst ones, unless the searched mean is better by more than
a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from .metrics import LEAST_PROBABILITY
from .records import dataclass

Comparison = tuple[float, float]  # what a mean loses more than another, and the standard error of that


@dataclass(frozen=True)
class OfOutput:
    """What the models predict of one output: a list for each model, with a number for each row.

    Of a class, it is the probability of the row's own class; of a number, the error.  The mean of models has the mean
    of their probabilities, and the mean of their errors.
    """

    of_classes: bool
    of_models: Sequence[Sequence[float]]

    def losses(self, models: Sequence[int]) -> list[float]:
        """The loss of the mean of these models, of each row; infinite where it is no number."""
        count = len(models)
        means = [math.fsum(ones) / count for ones in zip(*(self.of_models[model] for model in models))]
        if self.of_classes:
            found = [-math.log(max(one, LEAST_PROBABILITY)) if math.isfinite(one) else math.inf for one in means]
        else:
            found = [one * one for one in means]
        return [one if math.isfinite(one) else math.inf for one in found]

    def loss(self, models: Sequence[int]) -> float:
        found = self.losses(models)
        return math.fsum(found) / len(found)


def members(outputs: Sequence[OfOutput]) -> list[int]:
    """The models of which the ensemble is the mean, the best one first; the first alone if none predicts numbers."""
    every = range(len(outputs[0].of_models))
    # Of several outputs each counts alike, however large its numbers are.
    units = [_unit(one.loss([model]) for model in every) for one in outputs]

    def loss(models: Sequence[int]) -> float:
        return sum(one.loss(models) / unit for one, unit in zip(outputs, units))

    ranked = [model for alone, model in sorted((loss([model]), model) for model in every) if math.isfinite(alone)]
    searched = _searched(ranked, loss)
    for count in range(len(ranked), 1, -1):
        found = [compared(one, ranked[:count], searched) for one in outputs]
        worse = math.fsum(more / unit for (more, _), unit in zip(found, units))
        if worse <= math.hypot(*(error / unit for (_, error), unit in zip(found, units))):
            return ranked[:count]
    return searched or [0]


def _unit(losses: Iterable[float]) -> float:
    least = min(losses)
    return least if 0 < least < math.inf else 1.0


def _searched(ranked: Sequence[int], loss: Callable[[list[int]], float]) -> list[int]:
    """The best mean on the way on which each step adds the model that makes the mean best."""
    way: list[int] = list(ranked[:1])
    best, least = list(way), loss(way) if way else math.inf
    while len(way) < len(ranked):
        reached, added = min((loss([*way, model]), model) for model in ranked if model not in way)
        way.append(added)
        if reached < least:
            best, least = list(way), reached
    return best


def compared(output: OfOutput, models: Sequence[int], others: Sequence[int]) -> Comparison:
    """The mean of the models with the mean of others, over the rows."""
    differences = [one - other for one, other in zip(output.losses(models), output.losses(others))]
    rows = len(differences)
    more = math.fsum(differences) / rows
    spread = math.fsum((one - more) ** 2 for one in differences) / max(1, rows - 1)
    return more, math.sqrt(spread / rows)
