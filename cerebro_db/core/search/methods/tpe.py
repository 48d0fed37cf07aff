# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""TPE, the tree-structured Parzen estimator of Optuna: points that resemble the better ones of those tried.

Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011.  Optuna runs in a process of the trainer's
environment.  What it suggests is a function of the space, the seed, the trials and the number of the suggestion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional

from ...codec import Within
from ...documents import LARGEST_NUMBER
from ...records import dataclass
from .. import scores
from ..history import History
from ..method_parameters import Parameter
from ..proposing import Sampler, proposed, random_points
from ..spaces.space import MOST_POINTS, Point, Space
from .rungs import waits

COMPLETE, PRUNED, RUNNING = "complete", "pruned", "running"


@dataclass(frozen=True)
class Trial:
    """A point that was tried, or is being tried."""

    point: Mapping[str, Any]
    state: str
    score: Optional[Annotated[float, Within(-LARGEST_NUMBER, LARGEST_NUMBER)]]  # None: none yet, or not a finite number
    epochs: Annotated[int, Within(0, 2**31 - 1)]

    def __post_init__(self) -> None:
        if self.state not in (COMPLETE, PRUNED, RUNNING):
            raise ValueError(f"a trial is {COMPLETE}, {PRUNED} or {RUNNING}")

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "point": dict(self.point)}


# (the dimensions, a seed, the number of the suggestion, the trials, how many) -> points
Suggest = Callable[[Sequence[Mapping[str, Any]], int, int, Sequence[Trial], int], Sequence[Point]]


@dataclass
class Tpe(Sampler):
    space: Space
    seed: int
    epochs: int  # of the run
    suggest: Suggest
    startup: int = 10  # so many random points come first
    past: Sequence[Trial] = ()  # of earlier runs
    name = "tpe"
    does = "tries `startup` random points, then points that resemble the better ones so far (TPE of Optuna)"
    parameters = (Parameter("startup", 10, 1, MOST_POINTS),)
    needs_optuna = True

    def sample(self, history: History, number: int, count: int) -> Sequence[Point]:
        trials = [*self.past, *self._trials(history)]
        if sum(trial.state != RUNNING for trial in trials) < self.startup:
            return random_points(self.space, self.seed, history, number, count)
        return self.suggest(self.space.described(), self.seed, number, trials, count)

    def _trials(self, history: History) -> list[Trial]:
        found = []
        for model, point in proposed(history).items():
            if not self.space.has(point):
                continue
            epochs = len(history.epochs(model))
            score = scores.best(history, model, epochs)
            over = history.failed(model) or (history.stopped(model) and not waits(history, model))
            if history.failed(model):
                score = scores.WORST
            state = (
                COMPLETE if epochs >= self.epochs and not over else PRUNED if over or waits(history, model) else RUNNING
            )
            found.append(Trial(point, state, score if math.isfinite(score) else None, epochs))
        return found
