"""How much better the best of several models looks on the rows that have chosen it than it is on new rows."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median

from .member_choice import difference, mean

DRAWS = 300  # an estimate differs by a few percent from one with other draws


def of_choosing(losses: Sequence[Sequence[float]]) -> float | None:
    """By how much the loss of the best model is expected to rise on new rows, because it was chosen as the best.

    ``losses``: of each model, a number for each row.  The rows are the same, so what they have in common favours no
    model: an error of one model alone is the standard error of its difference from the best, divided by the root of 2.
    Draws of such errors around the losses choose again, and lower the loss of the chosen model by its error.

    None: a loss is not finite, or there is nothing to choose.
    """
    means = list(map(mean, losses))
    if len(means) < 2 or not all(map(math.isfinite, means)):
        return None
    best = min(range(len(means)), key=means.__getitem__)
    errors = [difference(one, losses[best])[1] for place, one in enumerate(losses) if place != best]
    error = median(errors) / math.sqrt(2)
    numbers, total = random.Random(0), 0.0
    for _ in range(DRAWS):
        drawn = [numbers.gauss(0.0, error) for _ in means]
        total -= drawn[min(range(len(means)), key=lambda place: means[place] + drawn[place])]
    return max(0.0, total / DRAWS)
