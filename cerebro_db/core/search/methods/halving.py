"""Successive halving: at each rung the best 1 / reduction of a bracket go on, once all its models are there.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016; with the sizes of
the rungs rounded down, as in Li et al., Hyperband, 2018.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ...records import dataclass
from ..method_parameters import RUNGS, Parameter
from ..spaces.space import MOST_POINTS
from .brackets import Brackets, Kind
from .rungs import epochs_of_rungs


@dataclass
class Halving(Brackets):
    bracket: int | None = None  # models in a bracket; None: all of them or, if they have no number, one per last rung
    name = "halving"
    does = (
        "as `asha`, but models are compared when all models of a bracket have reached the rung. Meanwhile the "
        "models of the next bracket begin. `bracket` is the number of models of a bracket"
    )
    parameters = (*RUNGS, Parameter("bracket", None, 2, MOST_POINTS, unset="all"))

    def rungs(self) -> tuple[int, ...]:
        return epochs_of_rungs(self.min_epochs, self.reduction, self.epochs)

    def _kinds(self) -> Iterable[Kind]:
        rungs, size = self.rungs(), self.bracket or self.configurations
        if size == MOST_POINTS:
            size = max(2, round(self.reduction ** len(rungs)))
        return itertools.repeat((size, rungs))
