"""Regularized evolution: changes the best of some random models of the youngest population.

Real et al., Regularized Evolution for Image Classifier Architecture Search, 2019.  Everything in the space can be
changed, the parameters of architectures included.  A child trains from its own initial weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...parameters.grid_dimensions import random_stream
from ...records import dataclass
from .. import scores
from ..history import History
from ..method_parameters import Parameter
from ..proposing import Sampler, proposed, random_points
from ..spaces.space import MOST_POINTS, Point, Space

MOST_ATTEMPTS = 20  # to change a point into one that was not tried before


@dataclass
class Evolution(Sampler):
    space: Space
    seed: int
    epochs: int  # of the run
    population: int = 16
    tournament: int = 4  # models of which the best is changed
    mutations: int = 1  # values that change
    name = "evolution"
    does = (
        "tries `population` random points. After that, each new point is that of the best of `tournament` random "
        "models among the last `population` ones, with `mutations` values changed. Parameters of architectures "
        "change, too"
    )
    parameters = (
        Parameter("population", 16, 2, MOST_POINTS),
        Parameter("tournament", 4, 1, MOST_POINTS),
        Parameter("mutations", 1, 1, 1000),
    )

    def sample(self, history: History, number: int, count: int) -> Sequence[Point]:
        known = {one: point for one, point in proposed(history).items() if self.space.has(point)}
        ended = sorted(one for one in known if self._has_ended(history, one))[-self.population :]
        first = count if not ended else max(0, min(count, self.population - number))
        found: list[dict[str, Any]] = random_points(self.space, self.seed, history, number, first)
        taken = {self.space.key(point) for point in [*known.values(), *found]}
        for place in range(number + first, number + count):
            point = self._child(history, known, ended, place, taken)
            taken.add(self.space.key(point))
            found.append(point)
        return found

    def _has_ended(self, history: History, model: int) -> bool:
        epochs = len(history.epochs(model))
        return not history.failed(model) and (epochs >= self.epochs or (epochs > 0 and history.stopped(model)))

    def _child(
        self, history: History, known: dict[int, Point], ended: Sequence[int], place: int, taken: set[Any]
    ) -> dict[str, Any]:
        chance = random_stream(self.seed, f"evolution/{place}")
        rivals = chance.choices(ended, k=self.tournament)  # with replacement, as in the paper

        def rank(model: int) -> tuple[int, float, int]:  # who was stopped later has been found better
            epochs = len(history.epochs(model))
            return -epochs, scores.best(history, model, epochs), model

        parent = known[min(rivals, key=rank)]
        for attempt in range(MOST_ATTEMPTS):
            child = self.space.mutated(parent, chance, self.mutations + attempt // 5)
            if self.space.key(child) not in taken:
                break
        return child
