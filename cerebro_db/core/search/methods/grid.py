"""Grid search: every combination of the values."""

from __future__ import annotations

from collections.abc import Sequence

from ...records import dataclass, field
from ..history import History
from ..proposing import Sampler
from ..spaces.space import Point, Space


@dataclass
class GridSearch(Sampler):
    space: Space
    name = "grid"
    does = "tries every combination of the values. Numbers need `step` or `points`"
    independent = True
    _points: Sequence[Point] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._points = list(self.space.grid())

    def sample(self, history: History, number: int, count: int) -> Sequence[Point]:
        return self._points[number : number + count]

    def size(self) -> int:
        return len(self._points)
