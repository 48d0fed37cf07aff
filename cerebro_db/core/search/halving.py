"""Successive halving: at each rung the best 1 / reduction of a bracket go on, once all of it have reached the rung.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from .brackets import Brackets, Kind
from .rungs import epochs_of_rungs


@dataclass
class Halving(Brackets):
    bracket: int | None = None  # models in a bracket; None: all of them
    name = "halving"

    def rungs(self) -> tuple[int, ...]:
        return epochs_of_rungs(self.min_epochs, self.reduction, self.epochs)

    def _kinds(self) -> Iterable[Kind]:
        return itertools.repeat((self.bracket or self.configurations, self.rungs()))
