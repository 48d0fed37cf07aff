"""Population-based training: a model among the worst is replaced by a changed copy of one among the best.

Jaderberg et al., Population Based Training of Neural Networks, 2017.  Exploit: the copy has the whole state of the
better model, weights and optimizer.  Explore: its numbers, such as the learning rate, are multiplied or divided by a
factor.  The copy takes over the place of the model that it replaces, and trains as long as that model would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...parameters.grid_dimensions import random_stream
from ...records import dataclass
from .. import scores
from ..method_parameters import MOST_EPOCHS, Parameter
from ..policy import Decision, History, NewConfiguration, NewModel, Policy, Verdict
from ..proposing import new_models, proposed, random_points
from ..spaces.space import Space


@dataclass
class PopulationBased(Policy):
    space: Space
    seed: int
    epochs: int  # of the run
    configurations: int = 10  # the population
    interval: int = 1  # epochs between two comparisons of a model
    quantile: float = 0.25  # the share of the models that counts as the worst, and as the best
    factor: float = 1.2
    name = "pbt"
    does = (
        "population-based training: `max_configurations` models train at once. Every `interval` epochs, a model "
        "among the worst quarter (`quantile`) is replaced by a copy of a model among the best quarter. The copy "
        "has the weights and the optimizer's state of that model. Its numbers (learning rate, momentum, batch size "
        "and so on) are multiplied or divided by `factor`"
    )
    parameters = (
        Parameter("interval", 1, 1, MOST_EPOCHS),
        Parameter("quantile", 0.25, 0.01, 0.5, whole=False),
        Parameter("factor", 1.2, 1.001, 100, whole=False),
    )

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        begun = len(proposed(history))
        missing = self.configurations - begun
        points = random_points(self.space, self.seed, history, begun, missing) if missing > 0 else []
        return new_models(self.space, points)

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        go_on = Decision(model, epoch, Verdict.CONTINUE)
        age = self.age(history, model, epoch)
        if age >= self.epochs:
            if epoch >= self.epochs:
                return go_on
            return Decision(model, epoch, Verdict.STOP, f"it has trained {self.epochs} epochs with its predecessors")
        parent = None if age % self.interval else self._better(history, model, epoch)
        if parent is None:
            return go_on
        chance = random_stream(self.seed, f"pbt/{model}/{epoch}")
        point = self.space.explored(history.configuration(parent)["chosen"], chance, self.factor)
        drawn = self.space.configuration(point)
        own = NewConfiguration(drawn.compile_params, drawn.fit_params, chosen=point)
        reason = f"replaced by a changed copy of model {parent}"
        return Decision(model, epoch, Verdict.STOP, reason, (NewModel(parent=parent, configuration=own),))

    def age(self, history: History, model: int, epochs: int) -> int:
        """How many epochs a model and those whose place it has taken have trained."""
        age, origin = epochs, history.origin(model)
        while origin is not None:
            age, origin = age + origin[1], history.origin(origin[0])
        return age

    def _better(self, history: History, model: int, epoch: int) -> int | None:
        """One of the best, if the model is one of the worst.

        Each place of the population counts with the score that it had at the age of the model; one that has not come so
        far does not count. With the latest scores of all, models would be compared with older ones and with the copies
        that have replaced others of their own age, and more than the quantile would be replaced. With the last scores
        of those that are younger, which are worse for their age only, fewer would be.
        """
        age = self.age(history, model, epoch)
        known = {model: scores.at(history, model, epoch)}
        for other in history.models:
            alive = not history.stopped(other) and not history.failed(other)
            if other != model and alive and self.space.has(history.configuration(other).get("chosen") or {}):
                score = self._score_at(history, other, age)
                if score is not None:
                    known[other] = score
        ranked = sorted(known, key=lambda one: (known[one], one))
        count = min(max(1, math.floor(self.quantile * len(ranked))), len(ranked) // 2)
        if model not in ranked[len(ranked) - count :]:
            return None
        best = [one for one in ranked[:count] if known[one] < known[model] and history.epochs(one)]
        return best[int(random_stream(self.seed, f"pbt parent/{model}/{epoch}").random() * len(best))] if best else None

    def _score_at(self, history: History, model: int, age: int) -> float | None:
        """The score of a model's place at an age; None: it has none yet."""
        place: int | None = model
        while place is not None:
            epochs = age - self.age(history, place, 0)
            if epochs > len(history.epochs(place)):
                return None
            if epochs > 0:
                return scores.at(history, place, epochs)
            origin = history.origin(place)
            place = None if origin is None else origin[0]
        return None
