"""Random search: independent points, none twice."""

from __future__ import annotations

from collections.abc import Sequence

from ...records import dataclass
from ..history import History
from ..proposing import Sampler, random_points
from ..spaces.space import Point, Space


@dataclass
class RandomSearch(Sampler):
    space: Space
    seed: int
    name = "random"
    does = "tries independent random points, none twice"
    independent = True

    def sample(self, history: History, number: int, count: int) -> Sequence[Point]:
        return random_points(self.space, self.seed, history, number, count)
