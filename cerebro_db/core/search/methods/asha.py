"""ASHA, asynchronous successive halving: at each rung the best 1 / reduction of the models so far go on.

Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020.  A model that is not among the best of its rung
waits there, stopped, and goes on once it is.  No model waits until a rung is complete.
"""

from __future__ import annotations

from ...records import dataclass
from ..method_parameters import RUNGS
from ..policy import Decision, History, Policy, Verdict
from . import rungs


@dataclass
class Asha(Policy):
    epochs: int  # of the run
    configurations: int  # how many models will begin in all
    min_epochs: int = 1  # until the first rung
    reduction: float = 3.0
    name = "asha"
    does = (
        "at each rung, the best third (1 / `reduction`) of the models that have reached it so far go on at once. "
        "The others wait, and go on if they are among the best third later"
    )
    parameters = RUNGS

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        released = self._released(history, model, epoch)
        gone_on = tuple(one for one in released if one != model)
        places = self._rungs()
        if epoch not in places:
            return Decision(model, epoch, Verdict.CONTINUE, gone_on=gone_on)
        rung = places.index(epoch) + 1
        if model in released:
            return Decision(model, epoch, Verdict.CONTINUE, f"{rungs.PASSES} {rung}", gone_on=gone_on)
        reached = sum(len(history.epochs(one)) >= epoch for one in history.models if one != model) + 1
        reason = f"{rungs.WAITS} {rung}: not among the best of {reached} after epoch {epoch}"
        return Decision(model, epoch, Verdict.STOP, reason, gone_on=gone_on)

    def expected_epochs(self, place: int, done: int) -> float:
        return rungs.expected_epochs(self._rungs(), self.reduction, self.epochs, done)

    def released(self, history: History) -> tuple[int, ...]:
        return self._released(history)

    def _released(self, history: History, asked: int | None = None, epoch: int = 0) -> tuple[int, ...]:
        models = sorted({*history.models, *(() if asked is None else (asked,))})
        full = len(models) >= self.configurations
        places = self._rungs()
        return tuple(
            rungs.released(history, models, places, self.reduction, full=full, for_all=False, asked=asked, epoch=epoch)
        )

    def _rungs(self) -> tuple[int, ...]:
        return rungs.epochs_of_rungs(self.min_epochs, self.reduction, self.epochs)
