"""Paced: as many configurations as the measured speed allows, and smaller learning rates for the best at the end.

How many epochs a budget allows is known only after the first visits.  The plan is made anew at each decision, from the
seconds of an epoch so far and the seconds that are left:

* A configuration begins while about ``MEAN_EPOCHS`` epochs for each are left.  The first ones, as many as there are
  segments, begin before anything is measured.
* Models wait at rungs as under ASHA.  A segment that has nothing else to do lets one of the best go on.
* A model that has stopped improving ends.
* In the last part of the budget, or when nothing else is left to do, the best models are *finished*: a copy with the
  whole best state goes on with a third of the learning rate, then a copy of that one, and so on.  Trees have no such
  rate: they go on until no further tree is better.

A model trains on one segment at a time, so at least as many models train as there are segments.  Where visits are
short, twice as many keep the segments busy: one is decided about while another trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...architecture import trees
from ...parameters import changes
from ...records import dataclass
from .. import scores
from ..method_parameters import MOST_EPOCHS, RUNGS, Parameter
from ..policy import Decision, History, NewConfiguration, NewModel, Policy, Verdict
from . import rungs

MEAN_EPOCHS = 12.0  # that a configuration trains when rungs stop most of them
STEPS = 3  # learning rates of a model that is finished
SMALLER = 3.0  # each of them is so many times smaller than the one before
LEAST_EPOCHS = 1.5  # that finishing takes, however short the last part of the budget is
FEWEST_EPOCHS = 6  # that finishing takes where the budget does not end it; or half as many as the model has trained
PATIENCE, PATIENCE_AT_END = 10, 4  # epochs without an improvement; or half of the epochs until the best one
WORTH = 12  # epochs before the best are finished: with fewer, no configuration begins beyond the plan
FINISHED = 6  # models that go on and are finished where there is time for it: an ensemble needs several good ones
SHORT_VISIT = 1.0  # seconds
FITS = 0.7  # an epoch begins if there is time for so much of it


@dataclass
class Paced(Policy):
    epochs: int  # of the run
    configurations: int  # how many models will begin at most
    min_epochs: int = 3  # until the first rung
    reduction: float = 3.0
    finish: float = 0.25  # the part of the budget
    name = "paced"
    timed = True
    does = (
        "as `asha`, but with only as many configurations as the measured speed allows in the budget. Of random points, "
        "the first has the middle of each range. A model that has "
        "stopped improving ends. In the last part of the budget (`finish`), or when nothing else is left to do, the "
        "best models go on as copies with a third, a ninth and a 27th of the learning rate, one model per segment"
    )
    parameters = (
        Parameter("min_epochs", 3, 1, MOST_EPOCHS),
        *RUNGS[1:],
        Parameter("finish", 0.25, 0.0, 0.9, whole=False),
    )

    # -- what becomes of a model -----------------------------------------------------------------------

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        if history.parent(model) is not None:
            return self._of_copy(history, model, epoch)
        if self._finishing(history):
            if model in self._best(history):
                if self._is_grown(history, model) and (flat := self._flat(history, model, epoch, PATIENCE_AT_END)):
                    return Decision(model, epoch, Verdict.STOP, flat)
                return self._smaller(history, model, epoch) or Decision(model, epoch, Verdict.CONTINUE)
            reason = f"the time that is left finishes the best {self._lines(history)}, and it is not among them"
            return Decision(model, epoch, Verdict.STOP, reason)
        return self._kept_busy(history, self._at_rung(history, model, epoch))

    def _at_rung(self, history: History, model: int, epoch: int) -> Decision:
        released = self._released(history, model, epoch)
        gone_on = tuple(one for one in released if one != model)
        flat = self._flat(history, model, epoch, PATIENCE)
        if flat:
            return Decision(model, epoch, Verdict.STOP, flat, gone_on=gone_on)
        places = self._rungs()
        if epoch not in places:
            return Decision(model, epoch, Verdict.CONTINUE, gone_on=gone_on)
        rung = places.index(epoch) + 1
        if model in released:
            return Decision(model, epoch, Verdict.CONTINUE, f"{rungs.PASSES} {rung}", gone_on=gone_on)
        reached = sum(len(history.epochs(one)) >= epoch for one in self._originals(history) if one != model) + 1
        reason = f"{rungs.WAITS} {rung}: not among the best of {reached} after epoch {epoch}"
        return Decision(model, epoch, Verdict.STOP, reason, gone_on=gone_on)

    def _kept_busy(self, history: History, decision: Decision) -> Decision:
        """The same decision; but one of the best goes on if a segment would have nothing to do."""
        model, epoch = decision.model, decision.epoch
        assert model is not None and epoch is not None
        stops = decision.verdict is Verdict.STOP
        training = {one for one in history.models if self._trains(history, one)} | {*decision.gone_on, model}
        if stops or epoch >= self.epochs:
            training.discard(model)
        further = self._idle(history, training, model if stops and decision.reason.startswith(rungs.WAITS) else None)
        gone_on = (*decision.gone_on, *(one for one in further if one != model))
        if model in further:
            rung = self._rungs().index(epoch) + 1
            reason = f"{rungs.PASSES} {rung}: a segment has nothing else to do"
            return Decision(model, epoch, Verdict.CONTINUE, reason, gone_on=gone_on)
        return Decision(model, epoch, decision.verdict, decision.reason, gone_on=gone_on)

    def _idle(self, history: History, training: set[int], asked: int | None = None) -> list[int]:
        """The best models that wait, as many as segments have nothing to do.  ``asked`` would wait, too."""
        lines = self._lines(history)
        begin = max(0, min(self.room(history, len(training), lines), self._unbegun(history)))
        idle = lines - len(training) - begin
        waiting = [
            one
            for one in self._best(history, FINISHED)
            if one not in training
            and (one == asked or rungs.waits(history, one))
            and len(history.epochs(one)) < self.epochs
        ]
        return waiting[:idle] if idle > 0 else []

    def _of_copy(self, history: History, model: int, epoch: int) -> Decision:
        step, left = len(self._with_ancestors(history, model)) - 1, self._epochs_left(history, model, epoch)
        flat = self._flat(history, model, epoch, PATIENCE_AT_END)
        steps = STEPS - step + 1  # with this one
        if steps > 1 and left >= 1 and (flat or epoch * steps >= epoch + left):
            smaller = self._smaller(history, model, epoch)
            if smaller is not None:
                return smaller
        if flat or (left < 1 and not self._ends_soon(history, model)):
            return Decision(model, epoch, Verdict.STOP, flat or "it is finished")
        return Decision(model, epoch, Verdict.CONTINUE)

    def expected_epochs(self, place: int, done: int) -> float:
        return rungs.expected_epochs(self._rungs(), self.reduction, self.epochs, done)

    # -- which models begin, and go on -----------------------------------------------------------------

    def room(self, history: History, active: int, at_once: int) -> int:
        clock = history.clock
        if self._finishing(history):
            return 0
        if clock.left is None:
            return min(at_once - active, self.configurations - self._sound(history))
        wanted = self._affordable(history) - self._sound(history)
        idle = self._lines(history) - active
        if idle > wanted and not self._waits_among_best(history) and self._epochs_before_finish(history) >= WORTH:
            wanted = idle  # the models so far have ended earlier than was reckoned with
        return min(at_once - active, wanted)

    def further(self, history: History, active: int) -> Sequence[NewModel]:
        """A copy of one of the best that has ended, or that waits while the budget is running out."""
        if active >= self._lines(history):
            return ()
        copied = {history.parent(one) for one in history.models}
        for model in self._best(history, FINISHED):
            ended = not self._trains(history, model) and not (
                rungs.waits(history, model) and not self._finishing(history)
            )
            complete = len(history.epochs(model)) >= self.epochs
            if ended and model not in copied and not complete and not self._ends_soon(history, model):
                configuration = self._configuration(history, model)
                if configuration is not None:
                    return (NewModel(parent=model, configuration=configuration, from_best=True),)
        return ()

    def released(self, history: History) -> tuple[int, ...]:
        if self._finishing(history):
            return ()
        released = self._released(history)
        training = {one for one in history.models if self._trains(history, one)} | set(released)
        return (*released, *self._idle(history, training))

    def told(self, history: History) -> str:
        clock = history.clock
        if clock.epoch is None or clock.left is None:
            return ""
        if self._finishing(history):
            return f"the best models are finished with smaller learning rates in the last {clock.left:.0f} s"
        many = min(self.configurations, self._affordable(history))
        return f"an epoch takes {clock.epoch:.2g} s, so there is time for {many} configurations"

    def _released(self, history: History, asked: int | None = None, epoch: int = 0) -> tuple[int, ...]:
        models = sorted({*self._originals(history), *(() if asked is None else (asked,))})
        full = self.room(history, 0, 1) <= 0 or not self._unbegun(history)
        places = self._rungs()
        return tuple(
            rungs.released(history, models, places, self.reduction, full=full, for_all=False, asked=asked, epoch=epoch)
        )

    # -- the plan --------------------------------------------------------------------------------------

    def _affordable(self, history: History) -> int:
        """For how many configurations there is time, those that have begun and not failed included."""
        clock = history.clock
        if clock.epoch is None or clock.left is None:
            return self._lines(history)
        left = self._epochs_before_finish(history)
        if left < self.min_epochs:  # a model that begins now could not show what it is worth
            return self._sound(history)
        done = sum(len(history.epochs(model)) for model in history.models)
        return max(self._lines(history), int((done + left * clock.segments) / MEAN_EPOCHS))

    def _epochs_before_finish(self, history: History) -> float:
        """Epochs of one segment until the best are finished."""
        clock = history.clock
        if clock.epoch is None or clock.left is None:
            return 0.0
        return (clock.left - self._finishing_seconds(history)) / max(clock.epoch, 1e-9)

    def _waits_among_best(self, history: History) -> bool:
        return any(rungs.waits(history, model) for model in self._best(history))

    def _finishing_seconds(self, history: History) -> float:
        """How long before its end the budget is for the best models."""
        clock = history.clock
        if not self.finish or clock.seconds is None:
            return 0.0
        return max(self.finish * clock.seconds, min(LEAST_EPOCHS * (clock.epoch or 0.0), clock.seconds / 2))

    def _finishing(self, history: History) -> bool:
        left = history.clock.left
        return bool(self.finish) and left is not None and left <= self._finishing_seconds(history)

    def _ends_soon(self, history: History, model: int) -> bool:
        """Whether the budget ends before another epoch of the model."""
        left, epoch = history.clock.left, history.clock.epoch_of(model)
        return left is not None and epoch is not None and left < FITS * epoch

    def _epochs_left(self, history: History, model: int, epoch: int) -> int:
        """How many epochs a copy, and the copies of it, will still train.  ``epoch``: how many it has trained.

        With the models that it is a copy of, it trains no more epochs than the run has.
        """
        _, *copied, original = self._with_ancestors(history, model)
        trained = epoch + sum(len(history.epochs(one)) for one in copied)
        before = len(history.epochs(original))
        most = min(max(FEWEST_EPOCHS, before // 2), self.epochs - before) - trained
        left, seconds = history.clock.left, history.clock.epoch_of(model)
        if left is not None and seconds:
            each = seconds * self._lines(history) / history.clock.segments  # others train beside it
            most = min(most, math.floor(left / each + 1 - FITS))
        return max(0, most)

    def _smaller(self, history: History, model: int, epoch: int) -> Decision | None:
        """A copy of a model goes on in its place, with a smaller learning rate; None: that is not possible."""
        configuration = None if self._is_grown(history, model) else self._configuration(history, model)
        trained = sum(len(history.epochs(one)) for one in self._with_ancestors(history, model))
        if configuration is None or self._ends_soon(history, model) or trained >= self.epochs:
            return None
        reason = f"goes on as a copy with {configuration.chosen['learning_rate']:.2g} as its learning rate"
        copy = NewModel(parent=model, configuration=configuration, from_best=True)
        return Decision(model, epoch, Verdict.STOP, reason, (copy,))

    @staticmethod
    def _is_grown(history: History, model: int) -> bool:
        return trees.are_grown(history.configuration(model).get("architecture"))

    def _configuration(self, history: History, model: int) -> NewConfiguration | None:
        known = history.configuration(model)
        if self._is_grown(history, model):  # no rate of an optimizer: the copy of a model that waits goes on as it was
            if self._flat(history, model, len(history.epochs(model)), PATIENCE) or not self.finish:
                return None
            return NewConfiguration(*changes.texts(known["compile"], known["fit"]), chosen=known.get("chosen") or {})
        rate = known.get("compile", {}).get("optimizer", {}).get("config", {}).get("learning_rate")
        if not isinstance(rate, (int, float)) or not self.finish:
            return None  # a schedule of its own
        smaller = float(f"{rate / SMALLER:.4g}")
        texts = changes.with_rate(known["compile"], known["fit"], smaller)
        return NewConfiguration(*texts, chosen=changes.chosen(known.get("chosen"), {"learning_rate": smaller}))

    # -- models ----------------------------------------------------------------------------------------

    def _originals(self, history: History) -> list[int]:
        return [model for model in history.models if history.parent(model) is None]

    def _sound(self, history: History) -> int:
        return sum(not history.failed(model) for model in self._originals(history))

    def _unbegun(self, history: History) -> int:
        return self.configurations - len(self._originals(history))

    def _trains(self, history: History, model: int) -> bool:
        ended = history.stopped(model) or history.failed(model)
        return not ended and len(history.epochs(model)) < self.epochs

    def _best(self, history: History, least: int = 1) -> list[int]:
        """The best models that are no copies, as many as keep the segments busy, or more."""
        known = {model: scores.best(history, model, len(history.epochs(model))) for model in self._originals(history)}
        ranked = sorted((score, model) for model, score in known.items() if score < scores.WORST)
        return [model for _, model in ranked if not history.failed(model)][: max(least, self._lines(history))]

    def _lines(self, history: History) -> int:
        """How many models keep the segments busy."""
        clock = history.clock
        short = clock.epoch is not None and clock.epoch < SHORT_VISIT * clock.segments
        return 2 * clock.segments if short else clock.segments

    def _with_ancestors(self, history: History, model: int) -> list[int]:
        """A model, the model that it is a copy of, and so on."""
        line = [model]
        while (parent := history.parent(line[-1])) is not None:
            line.append(parent)
        return line

    def _flat(self, history: History, model: int, epoch: int, patience: int) -> str:
        """Why a model has stopped improving; empty: it has not."""
        known = [(score, one) for one in range(1, epoch + 1) if (score := history.score(model, one)) is not None]
        best = min(known)[1] if known else 0
        last = [score for score, one in known if one >= epoch - 1]
        if len(last) == 2 and last[0] == last[1] and self._is_grown(history, model):
            return "has all its trees"
        return f"has not improved for {epoch - best} epochs" if epoch - best >= max(patience, best // 2) else ""

    def _rungs(self) -> tuple[int, ...]:
        return rungs.epochs_of_rungs(self.min_epochs, self.reduction, self.epochs)
