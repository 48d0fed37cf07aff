"""Model hopper parallelism: which model trains on which segment, in which order, and when.

A run has M models and S segments. In every epoch each model visits each of its segments once. The *order* of a
model's visits is a pure function of the run's seed, so a run can be repeated exactly. *When* a visit happens is decided
as segments fall idle, so no segment waits at a barrier.

These rules hold at any moment:

* A segment works on one unit at a time, or on several units of one order: visits that are fused, or visits or
  evaluations one after the other.
* A model trains on one segment at a time, because its state is in one place.
* The next epoch of a model begins only when the evaluations of its last epoch are done, because they read the state
  that training would replace.
* If the run has a policy that decides, the next epoch also waits for the decision about the last epoch.

Longer than 350 lines because all moves of the state machine share its private state.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..events import Verdict
from ..search.policy import Decision, NewModel
from . import companions
from .plan import Evaluate, ModelPlan, Plan, Train, Unit
from .progress import Progress, Spent, Status
from .replay import Replay, copies

MOST_TRIES = 3  # of a unit

U = TypeVar("U", Train, Unit)


class Schedule:
    """The state machine of a run: what is done, what is under way, and what an idle segment does next.

    ``decides``: after each epoch of a model, the last one too, nothing of the model begins until ``decide``.
    ``replayed``: the decisions of an earlier run that this run repeats.
    """

    def __init__(self, plan: Plan, decides: bool = False, replayed: Iterable[Decision] = ()) -> None:
        self.plan, self.decides = plan, decides
        self._replay = Replay(replayed)
        self.progress: dict[int, Progress] = {}
        self.busy: dict[int, set[Unit]] = {}
        self.decisions: dict[tuple[int, int], Decision] = {}  # (model, epoch) -> what is on record
        self._active: set[int] = set()
        self._awaiting: dict[int, int] = {}  # model -> the epoch that awaits its decision
        self._held: set[int] = set()  # models whose next visit waits until a replayed decision has copied their state
        # The same units as in Progress.waiting, by segment: 1,000 models are not searched for each hop.
        self._waiting: list[dict[Unit, None]] = [{} for _ in range(plan.segments)]
        self._visits, self._evaluations = Spent(), Spent()  # of all models
        for one in plan.models:
            self._add(one)

    # -- what the log says has happened ----------------------------------------------------------

    def restore(
        self,
        model: int,
        hops: int,
        evaluated: Iterable[tuple[int, str, int]] = (),
        decided: Iterable[Decision] = (),
    ) -> None:
        """Take a model up where its log ends.

        ``hops``: how many are committed. ``evaluated``: the (epoch, dataset, part) on record. ``decided``: the
        decisions on record, which are not asked for again. The plan must have the models that they added.
        """
        mine = self.progress[model]
        if not 0 <= hops <= mine.total:
            raise ValueError(f"model {model} has {hops} hops on record, of {mine.total}")
        if mine.under_way:
            raise RuntimeError(f"model {model} is under way")
        on_record = sorted(decided, key=lambda decision: decision.epoch)
        for decision in on_record:
            mine.require_fits(hops, decision, self.progress)
        self._withdraw(model)
        mine.hops = hops
        for decision in on_record:
            self._decided(decision)
        self._hopped(model, set(evaluated))

    def give_up(self, model: int, reason: str) -> None:
        """Nothing of this model begins any more. Its units under way may still end."""
        self._end(model, Status.FAILED, reason)

    # -- questions -------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self.busy and not self._active

    def hops_of(self, model: int) -> int:
        """How many hops a model has in all epochs."""
        return self.progress[model].total

    def next_visit(self, model: int) -> Train:
        mine = self.progress[model]
        epoch, step = divmod(mine.hops, len(mine.order))
        return Train(model, mine.hops + 1, epoch + 1, mine.order[step])

    def remaining(self, model: int) -> float:
        """The estimated seconds of training that a model still needs."""
        mine = self.progress[model]
        # Until the model's own pace is known: the mean of all.
        pace = mine.visits.each or self._visits.each
        return (1.0 if pace is None else pace) * (mine.total - mine.hops)

    def awaiting(self) -> list[tuple[int, int]]:
        """The (model, epoch) that await a decision, by the model's number.

        A replayed decision that copies another model's state is left out until that model has the recorded hop.
        """
        if not self._awaiting:
            return []
        return [one for one in sorted(self._awaiting.items()) if self._may_decide(*one)]

    def replayed(self, model: int, epoch: int) -> Decision | None:
        """What the earlier run that is replayed has decided, if it has."""
        return self._replay.decision(model, epoch)

    # -- moves -----------------------------------------------------------------------------------

    def take(self, segment: int) -> Unit | None:
        """Begin the most urgent unit of a segment, if there is one."""
        if not self._waiting[segment]:
            return None
        unit = max(self._waiting[segment], key=self._urgency)
        self._begin(unit)
        return unit

    def fuse(self, unit: Unit) -> list[Train]:
        """Begin, with a unit that was just taken, the visits that train fused with it in one pass."""
        beside = [other for other in self._beside(unit, "group") if isinstance(other, Train)]
        if not beside:
            return []
        room = self._share_of_work() - self.remaining(unit.model)
        return self._begin_all(companions.fused(beside, self.remaining, room, self.plan.most_fused))

    def follow_ups(self, unit: Unit) -> list[Unit]:
        """Begin, with a unit that was just taken, those that a trainer does after it in the same order.

        After a visit these are visits, and after an evaluation those of other models on the same rows.
        """
        pace = self._visit_pace if isinstance(unit, Train) else self._evaluation_pace
        left = self.plan.series_seconds - pace(unit.model)
        beside = self._beside(unit, "series") if 0 < left < self.plan.series_seconds else []
        if not beside:
            return []
        room = self._share_of_work() / 2 - self.remaining(unit.model)
        return self._begin_all(companions.in_series(beside, self.remaining, room, pace, left))

    def succeeded(self, unit: Unit, seconds: float = 0.0) -> None:
        mine = self._release(unit)
        mine.tries.pop(unit, None)
        if isinstance(unit, Train):
            mine.hops += 1
            mine.visits.add(seconds)
            self._visits.add(seconds)
            self._hopped(unit.model)
            return
        mine.evaluations.add(seconds)
        self._evaluations.add(seconds)
        if not mine.waiting and not mine.under_way:
            self._epoch_ended(unit.model)

    def failed(self, unit: Unit, reason: str, *, try_again: bool, most_tries: int = MOST_TRIES) -> bool:
        """A unit did not succeed. Returns whether it will be tried again."""
        mine = self._release(unit)
        if mine.status is not Status.ACTIVE:
            return False
        tries = mine.tries[unit] = mine.tries.get(unit, 0) + 1
        if try_again and tries < most_tries:
            self._offer(unit)
            return True
        self.give_up(unit.model, f"gave up after {tries} attempts: {reason}" if try_again else reason)
        return False

    def prepared(self, decision: Decision) -> Decision:
        """The decision as it is to be committed: each new model has its number, and its parent's hop."""
        self._require_awaited(decision)
        number = max([*self.progress, *self._replay.numbers])
        added: list[NewModel] = []
        for new in decision.added:
            if new.model is None:
                number += 1
                new = replace(new, model=number)
            if new.parent is not None:
                new = replace(new, parent_hop=self._hop_to_copy(new.parent, new.parent_hop))
            added.append(new)
        return replace(decision, added=tuple(added))

    def decide(self, decision: Decision, added: Sequence[ModelPlan] = ()) -> None:
        """A committed decision takes effect: the model goes on or stops, and the added models begin."""
        self._require_awaited(decision)
        if [new.model for new in decision.added] != [one.model for one in added]:
            raise ValueError(f"the plans of the added models do not fit the decision about model {decision.model}")
        for one in added:
            self._add(one)
        del self._awaiting[decision.model]
        self._decided(decision)
        self._go_on(decision.model)

    # -- within ----------------------------------------------------------------------------------

    def _add(self, one: ModelPlan) -> None:
        if one.model in self.progress:
            raise ValueError(f"there is a model {one.model} already")
        self.plan.require_visits(one)
        order = self.plan.order_of(one)
        self.progress[one.model] = Progress(one, order, self.plan.epochs * len(order))
        self._active.add(one.model)
        self._go_on(one.model)

    def _hopped(self, model: int, evaluated: Container[tuple[int, str, int]] = ()) -> None:
        """After the last hop of an epoch the model is evaluated, if the plan says so. Otherwise it goes on."""
        mine = self.progress[model]
        epoch, step = divmod(mine.hops, len(mine.order))
        mine.epochs = epoch if step else max(0, epoch - 1)
        if mine.status is Status.ACTIVE and step == 0 and epoch > 0 and self.plan.evaluates_after(epoch):
            for dataset, parts in self.plan.evaluations.items():
                for part, segment in parts.items():
                    if (epoch, dataset, part) not in evaluated:
                        self._offer(Evaluate(model, mine.hops, epoch, segment, dataset, part))
        if mine.waiting:
            return
        if step == 0 and epoch > 0:
            self._epoch_ended(model)
        else:
            self._go_on(model)

    def _epoch_ended(self, model: int) -> None:
        """An epoch is trained and evaluated: the model awaits a decision, if the run has a policy that decides."""
        mine = self.progress[model]
        if mine.status is not Status.FAILED:  # else an evaluation may be missing
            mine.epochs = mine.hops // len(mine.order)
        if self.decides and mine.decided < mine.epochs and mine.status is Status.ACTIVE:
            self._awaiting[model] = mine.epochs
        else:
            self._go_on(model)

    def _decided(self, decision: Decision) -> None:
        self.decisions[decision.model, decision.epoch] = decision
        self.progress[decision.model].decided = decision.epoch
        self._replay.drop(decision)
        if decision.verdict is Verdict.STOP:
            self._end(decision.model, Status.STOPPED, decision.reason)
        self._let_go()

    def _go_on(self, model: int) -> None:
        mine = self.progress[model]
        if mine.status is not Status.ACTIVE:
            return
        if mine.hops == mine.total:
            mine.status = Status.FINISHED
            self._active.discard(model)
        elif self._replay.holds(model, mine.hops):
            self._held.add(model)
        else:
            self._offer(self.next_visit(model))

    def _let_go(self) -> None:
        """Models that need not be held any more go on."""
        if not self._held:
            return
        held, self._held = self._held, set()
        for model in sorted(held):
            self._go_on(model)

    def _end(self, model: int, status: Status, reason: str) -> None:
        self._withdraw(model)
        mine = self.progress[model]
        mine.status, mine.reason = status, reason
        self._active.discard(model)
        self._replay.forget(model)
        self._let_go()

    def _may_decide(self, model: int, epoch: int) -> bool:
        """Whether the states that a replayed decision copies are there, or never will be."""
        decision = self.replayed(model, epoch)
        for parent, hop in copies(decision) if decision else ():
            theirs = self.progress.get(parent)
            if theirs is None and parent in self._replay.numbers:
                return False
            if theirs is not None and theirs.status is Status.ACTIVE and theirs.hops < hop:
                return False
        return True

    def _hop_to_copy(self, parent: int, recorded: int | None) -> int:
        """Only the state after the last hop of a model can be copied."""
        if parent not in self.progress:
            raise ValueError(f"model {parent} cannot be copied: the run has no such model")
        hops = self.progress[parent].hops
        if recorded not in (None, hops):
            raise ValueError(f"model {parent} cannot be copied after hop {recorded}: it has {hops} hops")
        return hops

    def _require_awaited(self, decision: Decision) -> None:
        if self._awaiting.get(decision.model) != decision.epoch:
            raise RuntimeError(f"model {decision.model} does not await a decision about epoch {decision.epoch}")

    def _begin(self, unit: Unit) -> None:
        mine = self.progress[unit.model]
        del self._waiting[unit.segment][unit]
        mine.waiting.remove(unit)
        mine.under_way.add(unit)
        self.busy.setdefault(unit.segment, set()).add(unit)

    def _beside(self, unit: Unit, word: str) -> list[Unit]:
        """The units like this one that wait for its segment and have the same group or series, most urgent first.

        A unit that has failed before is alone, so that it cannot fail others again.
        """
        same = getattr(self.progress[unit.model].plan, word)
        if same is None or not self._is_untried(unit):
            return []
        found = [
            other
            for other in self._waiting[unit.segment]
            if getattr(self.progress[other.model].plan, word) == same
            and companions.are_alike(unit, other)
            and self._is_untried(other)
        ]
        return sorted(found, key=self._urgency, reverse=True)

    def _share_of_work(self) -> float:
        """The seconds of work that are left, for each segment."""
        return sum(map(self.remaining, self._active)) / self.plan.segments

    def _visit_pace(self, model: int) -> float:
        """The mean seconds of a model's visits so far; 0 if it has made none."""
        return self.progress[model].visits.each or 0.0

    def _evaluation_pace(self, model: int) -> float:
        """The mean seconds of a model's evaluations so far; if there is none, of all; 0 if there is none either."""
        return self.progress[model].evaluations.each or self._evaluations.each or 0.0

    def _begin_all(self, units: list[U]) -> list[U]:
        for unit in units:
            self._begin(unit)
        return units

    def _is_untried(self, unit: Unit) -> bool:
        return unit not in self.progress[unit.model].tries

    def _offer(self, unit: Unit) -> None:
        self.progress[unit.model].waiting.add(unit)
        self._waiting[unit.segment][unit] = None

    def _withdraw(self, model: int) -> None:
        mine = self.progress[model]
        for unit in mine.waiting:
            del self._waiting[unit.segment][unit]
        mine.waiting.clear()
        self._awaiting.pop(model, None)
        self._held.discard(model)

    def _release(self, unit: Unit) -> Progress:
        units = self.busy.get(unit.segment, set())
        if unit not in units:
            raise RuntimeError(f"{unit} is not under way")
        units.remove(unit)
        if not units:
            del self.busy[unit.segment]
        mine = self.progress[unit.model]
        mine.under_way.remove(unit)
        return mine

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        """First the model with most work left, so that the longest does not end alone.

        But an evaluation that holds up a next epoch goes before any training: it is short, and its model waits for all
        parts, each of them behind a whole visit. The evaluation after the last epoch holds up nothing.
        """
        holds_up = isinstance(unit, Evaluate) and unit.epoch < self.plan.epochs
        return holds_up, self.remaining(unit.model), -self.progress[unit.model].plan.position
