"""Hyperband: brackets of successive halving, from many models that are judged early to few that train long.

Li et al., Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization, 2018.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from ...records import dataclass
from ..method_parameters import RUNGS
from .brackets import Brackets, Kind
from .rungs import epochs_of_rungs


@dataclass
class Hyperband(Brackets):
    name = "hyperband"
    does = (
        "halving in brackets of several kinds: many models with an early first rung, fewer with a late one, some "
        "without"
    )
    parameters = RUNGS

    def _kinds(self) -> Iterable[Kind]:
        most = max(0, math.floor(math.log(self.epochs / self.min_epochs, self.reduction) + 1e-9))
        kinds = [
            (
                math.ceil((most + 1) / (kind + 1) * self.reduction**kind - 1e-9),
                epochs_of_rungs(self.epochs * self.reduction**-kind, self.reduction, self.epochs),
            )
            for kind in range(most, -1, -1)
        ]
        if self.configurations < sum(size for size, _ in kinds):
            return scaled(kinds, self.configurations)
        return itertools.cycle(kinds)


def scaled(kinds: Sequence[Kind], configurations: int) -> list[Kind]:
    """All brackets, each smaller: so many models in all, in the same proportions."""
    whole, before, given, made = sum(size for size, _ in kinds), 0, 0, []
    for size, places in kinds:
        before += size
        upto = round(configurations * before / whole)
        if upto > given:
            made.append((upto - given, places))
        given = upto
    return made
