"""Model hopper parallelism: which model trains on which segment, in which order, and when.

A run has M models and S segments. In every epoch each model visits each of its segments once. The *order* of a
model's visits is a pure function of the run's seed, so a run can be repeated exactly. *When* a visit happens is decided
as segments fall idle, so no segment waits at a barrier.

These rules hold at any moment:

* A segment works on one unit at a time, or on several units of one order: visits that are fused, or visits or
  evaluations one after the other.
* A model trains on one segment at a time, because its state is in one place. Only if its plan says that it averages,
  replicas of it train on all its segments at the same time, and the hop after them averages their states.
* A joint visit keeps all its segments busy. It begins at once if all of them are idle. Else those that are idle wait
  for the others; one joint visit gathers its segments at a time, so two of them never wait for each other.
* The next epoch of a model begins only when the evaluations of its last epoch are done, because they read the state
  that training would replace.
* If the run has a policy that decides, the next epoch also waits for the decision about the last epoch.
* A model whose stored state others start from does not train on before they have their first hop or have ended.
* A model whose epochs are judged by the models of its folds begins an epoch when they have ended that epoch, or have
  ended. So its own commit of the epoch can say whether the state is the best one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ..events import Decider, Verdict
from ..search.policy import Decision, NewModel
from . import companions
from .companions import Chain
from .plan import Evaluate, ModelPlan, Plan, Train, TrainJointly, Unit, segments_of
from .progress import ModelProgress, Recent, Spent, Status
from .replay import Replay, copies, keys, point
from .waiting import WaitingUnits, WorkLeft, WorkOfModel

MOST_TRIES = 3  # of a unit

U = TypeVar("U", Train, Unit)


class Schedule:
    """The state machine of a run: what is done, what is under way, and what an idle segment does next.

    ``decides``: after each epoch of a model, the last one too, nothing of the model begins until ``decide``.
    ``replayed``: the decisions of an earlier run that this run repeats. ``highest_key``: of the configurations so far.
    """

    def __init__(
        self, plan: Plan, decides: bool = False, replayed: Iterable[Decision] = (), highest_key: int = 0
    ) -> None:
        self.plan, self.decides = plan, decides
        self._replay, self._highest_key, self._highest_model = Replay(replayed), highest_key, 0
        self.progress: dict[int, ModelProgress] = {}
        self.busy: dict[int, set[Unit]] = {}
        self._gathering: TrainJointly | None = None  # the joint visit for which idle segments wait
        self.decisions: list[Decision] = []  # on record
        self.hops = 0  # of all models, committed or under way
        self.failures = 0  # models that have failed
        self._active: set[int] = set()
        self._awaiting: dict[int, int] = {}  # model -> the epoch that awaits its decision
        self._asked: set[int] = (
            set()
        )  # models that await a decision at the end of their epoch, whether or not others do
        # Models whose next visit waits until a replayed decision has copied their state, or others have read it.
        self._held: set[int] = set()
        self._readers: dict[int, set[int]] = {}  # model -> the active models that will start from its stored state
        # The models of folds, and the model on all rows that waits for them, of those that folds judge.
        self._judges: dict[str, set[int]] = {}
        self._judged: dict[str, int] = {}
        self._waits_for_judges = True
        self._ended: list[int] = []  # models on all rows that have ended since somebody asked
        self._waiting = [WaitingUnits() for _ in range(plan.segments)]  # the units of ModelProgress.waiting, by segment
        self._work = WorkLeft()  # of the active models
        self._visits, self._evaluations = Spent(), Spent()  # of all models
        self._recent, self._recent_evaluations = Recent(), Recent()
        self._visits_of: dict[str, Spent] = {}  # of the models of a sort
        self._evaluations_of: dict[str, Spent] = {}
        for one in plan.models:
            self._add(one)

    # -- what the log says has happened ----------------------------------------------------------

    def restore(
        self,
        model: int,
        hops: int,
        evaluated: Iterable[tuple[int, str, int]] = (),
        decided: Iterable[Decision] = (),
        replicas: Iterable[int] = (),
    ) -> None:
        """Take a model up where its log ends.

        ``hops``: how many are committed; ``replicas``: those of them that the next average needs. ``evaluated``: the
        (epoch, dataset, part) on record. ``decided``: the decisions on record about this model, in their order, which
        are not asked for again. The plan must have the models that they added.
        """
        mine = self.progress[model]
        if not 0 <= hops <= mine.total:
            raise ValueError(f"model {model} has {hops} hops on record, of {mine.total}")
        if mine.under_way:
            raise RuntimeError(f"model {model} is under way")
        on_record = list(decided)
        mine.require_fits(hops, on_record, self.progress)
        self._withdraw(model)
        self.hops += hops - mine.hops
        mine.hops, mine.replicas = hops, set(replicas)
        self._reads(model)
        self._changed(model)
        for decision in on_record:
            self._decided(decision)
        self._hopped(model, set(evaluated))

    def recall(self, decision: Decision) -> None:
        """Take up a decision on record about the run as a whole. The plan has its effects already."""
        self._decided(decision)

    def give_up(self, model: int, reason: str) -> None:
        """Nothing of this model begins any more. Its units under way may still end."""
        self._end(model, Status.FAILED, reason)

    # -- questions -------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self.busy and not self._active

    @property
    def active(self) -> int:
        """How many models train or wait."""
        return len(self._active)

    def is_active(self, model: int) -> bool:
        return model in self._active

    def units_waiting(self, segment: int) -> int:
        """How many units wait for a segment."""
        return len(self._waiting[segment])

    def could_keep_busy(self) -> int:
        """The number of segments that work or have units to do."""
        return sum(segment in self.busy or bool(waiting) for segment, waiting in enumerate(self._waiting))

    def idle(self) -> list[int]:
        """The active models that would train on, and of which nothing is under way, nor an evaluation still to come."""
        return [
            model
            for model in sorted(self._active)
            if not (mine := self.progress[model]).under_way
            and mine.hops < mine.total
            and not any(isinstance(unit, Evaluate) for unit in mine.waiting)
        ]

    def newly_ended(self) -> list[int]:
        """The models on all rows that have finished, failed or stopped since the last call."""
        found, self._ended = self._ended, []
        return found

    def trainable(self) -> list[int]:
        """The active models that wait for a segment, or of which something is under way."""
        return [model for model in sorted(self._active) if (mine := self.progress[model]).waiting or mine.under_way]

    def advance(self, model: int) -> tuple[int, int]:
        """How far a model is; of two that are equally far, the one with the first ring position is further."""
        mine = self.progress[model]
        visits = sum(isinstance(unit, Train) for unit in mine.under_way)
        return mine.hops + visits, -mine.plan.position

    @property
    def visit_seconds(self) -> float:
        """How long visits that begin now on all segments keep them busy, with the evaluations of their models.

        It is the mean of the last ones, without building: a machine can become slower.  0 before the first.
        """
        parts = sum(map(len, self.plan.evaluations.values())) if self.plan.evaluate_every else 0
        return self._recent.mean + parts * self._recent_evaluations.mean

    @property
    def evaluation_seconds(self) -> float:
        """What evaluating a model on one part of the rows for validation has taken lately; 0 before the first."""
        return self._recent_evaluations.mean

    def epoch_seconds(self) -> float | None:
        """What an epoch of a model takes one segment, evaluations included; None before the first visit."""
        return self._epoch_seconds(self._recent.typical, self.plan.segments)

    def epoch_seconds_of_models(self) -> dict[int, float]:
        """The same of each active model of which enough is known."""
        found = {}
        for model in self._active:
            mine = self.progress[model]
            if mine.visits.units > len(mine.order):  # the first visits may have built programs
                found[model] = self._epoch_seconds(mine.recent.typical, len(mine.order)) or 0.0
        return found

    def _epoch_seconds(self, visit: float | None, visits: int) -> float | None:
        if visit is None:
            return None
        parts = sum(map(len, self.plan.evaluations.values())) if self.plan.evaluate_every else 0
        return visits * visit + parts * (self._recent_evaluations.typical or 0.0) / max(1, self.plan.evaluate_every)

    def hops_of(self, model: int) -> int:
        """How many hops a model has in all epochs."""
        return self.progress[model].total

    def next_visit(self, model: int) -> Train:
        mine = self.progress[model]
        epoch, step = divmod(mine.hops, len(mine.order))
        if mine.plan.jointly:
            return TrainJointly(model, mine.hops + 1, epoch + 1, mine.order[step], mine.plan.jointly)
        return Train(model, mine.hops + 1, epoch + 1, mine.order[step])

    def next_hops(self, model: int) -> list[Train]:
        """The next visit; or, of a model that averages, everything that can be done before the next average."""
        mine = self.progress[model]
        return mine.replicas_to_train() if mine.plan.averages else [self.next_visit(model)]

    def remaining(self, model: int) -> float:
        """The estimated seconds of training that a model still needs."""
        return self._left(model).at(self._pace)

    def awaiting(self) -> list[tuple[int, int]]:
        """The (model, epoch) that await a decision, by the model's number.

        A replayed decision that copies another model's state is left out until that model has the recorded hop.
        """
        if not self._awaiting:
            return []
        return [one for one in sorted(self._awaiting.items()) if self._may_decide(one[0])]

    def undecided(self, model: int) -> bool:
        """Whether the policy has not decided about the last epoch of a model."""
        return self.decides and self.progress[model].decided < self.progress[model].epochs

    def replayed(self, model: int) -> Decision | None:
        """What the earlier run that is replayed has decided at this point of a model's training, if it has."""
        mine = self.progress[model]
        return self._replay.due(model, mine.hops, len(mine.order))

    def replayed_at_once(self) -> Decision | None:
        """A decision of the earlier run that waits for the end of no epoch and can be repeated now."""
        for decision in self._replay.about_the_run():
            if self._may_repeat(decision):
                return decision
        for decision in self._replay.going_on():
            if decision.model in self.progress and self.progress[decision.model].status is Status.STOPPED:
                return decision
        return None

    # -- moves -----------------------------------------------------------------------------------

    def take(self, segment: int, only: Sequence[int] | None = None) -> Unit | None:
        """Begin the most urgent unit of a segment, if there is one.  ``only``: no other models may train.

        None, too, if the segment waits until all segments of a joint visit are idle.
        """
        if self._gathering is not None and only is not None and self._gathering.model not in only:
            self._gathering = None
        if self._gathering is not None and segment in self._gathering.segments:
            unit: Unit | None = self._gathering
        else:
            visits = None if only is None else [unit for one in only for unit in self.progress[one].waiting]
            unit = self._waiting[segment].most_urgent(self._pace, visits)
        if isinstance(unit, TrainJointly) and not self._gathered(unit):
            return None
        if unit is not None:
            self._begin(unit)
        return unit

    def _gathered(self, visit: TrainJointly) -> bool:
        """Whether all segments of a joint visit are idle.  If not, those that are will wait for the others."""
        idle = not any(segment in self.busy for segment in visit.segments)
        if self._gathering is None:
            self._gathering = None if idle else visit
            return idle
        return idle and (self._gathering == visit or not {*visit.segments} & {*self._gathering.segments})

    def fuse(self, unit: Unit, most: int | None = None) -> list[Train]:
        """Begin, with a unit that was just taken, the visits that train fused with it in one pass: at most so many."""
        beside = (other for other in self._beside(unit, "group") if isinstance(other, Train))
        room = self._share_of_work() - self.remaining(unit.model)
        members = self.plan.most_fused if most is None else min(self.plan.most_fused, most + 1)
        return self._begin_all(companions.fused(beside, self.remaining, room, members))

    def order_with(self, unit: Unit, most: int | None = None) -> list[list[Unit]]:
        """Begin, with a unit that was just taken, what a trainer does after it in the same order: chain by chain.

        First come further units of its model, if all of them are on this segment; then units of other models: after a
        visit other visits, and after an evaluation evaluations on the same rows.  ``most``: further visits.
        """
        visits = None if most is None or isinstance(unit, Evaluate) else most + 1
        first = self._chain(unit, self.plan.series_seconds, visits)
        chains, left = [first], self.plan.series_seconds - first.seconds
        if first.seconds > 0 and left > 0:
            room = self._share_of_work() / 2 - self.remaining(unit.model)
            beside = self._beside(unit, "series")
            further = None if visits is None else visits - first.visits
            chains += companions.in_series(beside, self._chain, self.remaining, room, left, further)
        for chain in chains:
            for one in chain.units:
                if one != unit:
                    self._begin(one)
        return [chain.units for chain in chains]

    def succeeded(self, unit: Unit, seconds: float = 0.0, building: float = 0.0) -> None:
        """``building``: the part of the seconds that a further visit will not take."""
        mine = self._release(unit)
        mine.tries.pop(unit, None)
        if isinstance(unit, Train):
            mine.has_hopped(unit)
            mine.visits.add(seconds)
            mine.recent.add(seconds)
            self._visits.add(seconds)
            self._recent.add(max(0.0, seconds - building))
            if mine.plan.sort is not None:
                self._visits_of.setdefault(mine.plan.sort, Spent()).add(seconds)
            self._changed(unit.model)
            self._reads(unit.model)
            self._hopped(unit.model)
            return
        mine.evaluations.add(seconds)
        self._evaluations.add(seconds)
        self._recent_evaluations.add(seconds)
        if mine.plan.sort is not None:
            self._evaluations_of.setdefault(mine.plan.sort, Spent()).add(seconds)
        if not mine.waiting and not mine.under_way:
            self._epoch_ended(unit.model)

    def cut(self, unit: Unit) -> None:
        """An order has ended before this unit began, at one before it of the same model."""
        self._release(unit)
        self.hops -= isinstance(unit, Train)

    def failed(
        self, unit: Unit, reason: str, *, try_again: bool, most_tries: int = MOST_TRIES, counts: bool = True
    ) -> bool:
        """A unit did not succeed. Returns whether it will be tried again, alone.

        ``counts``: whether it was one of its tries; it does not count if a unit after it in its chain may have failed.
        """
        mine = self._release(unit)
        self.hops -= isinstance(unit, Train)
        if mine.status is not Status.ACTIVE:
            return False
        tries = mine.tries[unit] = mine.tries.get(unit, 0) + counts
        if try_again and tries < most_tries:
            self._offer(unit)
            return True
        self.give_up(unit.model, f"gave up after {tries} attempts: {reason}" if try_again else reason)
        return False

    def set_apart(self, model: int) -> None:
        """From now on each unit of a model has an order of its own.

        Its state turned out to be large, or it goes on with another engine than the plan says.
        """
        mine = self.progress[model]
        mine.plan = replace(mine.plan, group=None, series=None, most_chained=0)

    def ask_about(self, model: int) -> None:
        """A model awaits a decision at the end of its epoch: at once, if it has not begun the next one."""
        mine = self.progress[model]
        self._asked.add(model)
        if mine.at_epoch_end and not mine.under_way and mine.waiting == set(self.next_hops(model)):
            self._take_back(model)
            self._go_on(model)

    def wait_for_no_judges(self) -> None:
        """From now on models begin epochs that the models of their folds have not ended."""
        if self._waits_for_judges:
            self._waits_for_judges = False
            self._let_go()

    def go_on(self, model: int) -> None:
        """A model that awaits a decision goes on without."""
        del self._awaiting[model]
        self._asked.discard(model)
        self._go_on(model)

    def prepared(self, decision: Decision) -> Decision:
        """The decision as it is to be committed: each new model has its number and its key, and its parent's hop."""
        self._require_awaited(decision)
        number = max([self._highest_model, *self._replay.numbers])
        key = max([self._highest_key, *self._replay.keys])
        added: list[NewModel] = []
        for new in decision.added:
            if new.model is None:
                number += 1
                new = replace(new, model=number)
            if new.key is None and new.configuration is not None:
                key += 1
                new = replace(new, key=key)
            if new.parent is not None:
                new = replace(new, parent_hop=self._hop_to_copy(new))
            added.append(new)
        return replace(decision, added=tuple(added))

    def decide(self, decision: Decision, added: Sequence[ModelPlan] = ()) -> None:
        """A committed decision takes effect: the model goes on or stops, and the added models begin."""
        self._require_awaited(decision)
        if [new.model for new in decision.added] != [one.model for one in added]:
            raise ValueError(f"the plans of the added models do not fit the decision about model {decision.model}")
        for one in added:
            self._add(one)
        if decision.verdict is Verdict.EXTEND:
            self._extend(int(decision.detail["epochs"]))
        if decision.model is not None and decision.concludes:
            self._awaiting.pop(decision.model, None)
            self._asked.discard(decision.model)
        self._decided(decision)
        if decision.model is None:
            return
        if decision.verdict is Verdict.GO_ON and self.progress[decision.model].at_epoch_end:
            self._epoch_ended(decision.model)  # perhaps the policy was not asked before it was stopped
        elif decision.concludes or decision.verdict is Verdict.GO_ON:
            self._go_on(decision.model)

    # -- within ----------------------------------------------------------------------------------

    def _add(self, one: ModelPlan) -> None:
        if one.model in self.progress:
            raise ValueError(f"there is a model {one.model} already")
        self.plan.require_visits(one)
        order = self.plan.order_of(one)
        mine = self.progress[one.model] = ModelProgress(one, order, self.plan.epochs * len(order))
        self._highest_model = max(self._highest_model, one.model)
        if one.judged is not None and one.is_judge:
            self._judges.setdefault(one.judged, set()).add(one.model)
        elif one.judged is not None:
            self._judged[one.judged] = one.model
        if one.refused is not None:
            mine.status, mine.reason = Status.FAILED, one.refused
            self.failures += 1
            return
        self._becomes(one.model, Status.ACTIVE)
        self._go_on(one.model)
        self._has_judged(one.model)

    def _extend(self, epochs: int) -> None:
        """All models that have neither failed nor been stopped train on until they have so many epochs."""
        self.plan = replace(self.plan, epochs=epochs)
        for model, mine in self.progress.items():
            mine.total = epochs * len(mine.order)
            self._changed(model)
            if mine.status is Status.FINISHED:
                self._becomes(model, Status.ACTIVE)
                self._epoch_ended(model)

    def _hopped(self, model: int, evaluated: Container[tuple[int, str, int]] = ()) -> None:
        """After the last hop of an epoch the model is evaluated, if the plan says so. Otherwise it goes on."""
        mine = self.progress[model]
        epoch, step = divmod(mine.hops, len(mine.order))
        mine.epochs = epoch if step else max(0, epoch - 1)
        self._has_judged(model)
        if mine.under_way and not mine.plan.averages:
            return  # the same order goes on with this model
        ended = mine.status is Status.ACTIVE and step == 0 and epoch > 0
        if ended and self.plan.evaluates_after(epoch):
            for dataset, part, segment in self.plan.evaluations_of(mine.plan):
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
            self._has_judged(model)
        if mine.status is Status.ACTIVE and self.undecided(model):
            self._awaiting[model] = mine.epochs
        else:
            self._go_on(model)

    def _decided(self, decision: Decision) -> None:
        self.decisions.append(decision)
        repeated = self._replay.drop(decision)
        self._highest_key = max([self._highest_key, *keys(decision)])
        model = decision.model
        if model is not None:
            mine = self.progress[model]
            if decision.by in (Decider.POLICY, Decider.RULE) and decision.verdict is not Verdict.GO_ON:
                mine.decided = max(mine.decided, decision.epoch or 0)
            if decision.verdict is Verdict.STOP:
                self._end(model, Status.STOPPED, decision.reason, forget=not repeated)
            elif decision.verdict is Verdict.GO_ON:
                self._becomes(model, Status.ACTIVE)
        self._let_go()

    def _go_on(self, model: int) -> None:
        mine = self.progress[model]
        if mine.status is not Status.ACTIVE:
            return
        if self._replay.due(model, mine.hops, len(mine.order)) or (model in self._asked and mine.at_epoch_end):
            self._awaiting[model] = mine.hops // len(mine.order)
        elif mine.hops >= mine.total:
            self._becomes(model, Status.FINISHED)
            self._replay.forget(model)
            self._let_go()
        elif self._replay.holds(model, mine.hops) or self._readers.get(model) or self._is_unjudged(mine):
            self._held.add(model)
        else:
            for hop in self.next_hops(model):
                if hop not in mine.under_way:
                    self._offer(hop)

    def _is_unjudged(self, mine: ModelProgress) -> bool:
        """Whether models of its folds have yet to end the epoch that a model is to begin, or is in."""
        if not mine.plan.judges or mine.plan.judged is None or not self._waits_for_judges:
            return False
        judges = [self.progress[number] for number in self._judges.get(mine.plan.judged, ())]
        epoch = mine.hops // len(mine.order) + 1
        return len(judges) < mine.plan.judges or any(
            one.status is Status.ACTIVE and one.epochs < epoch for one in judges
        )

    def _has_judged(self, model: int) -> None:
        """A model of a fold has ended an epoch: perhaps the model that waits for it goes on."""
        plan = self.progress[model].plan
        if plan.judged is None or not plan.is_judge:
            return
        waiting = self._judged.get(plan.judged)
        if waiting in self._held:
            self._held.discard(waiting)
            self._go_on(waiting)

    def _let_go(self) -> None:
        """Models that need not be held any more go on."""
        if not self._held:
            return
        held, self._held = self._held, set()
        for model in sorted(held):
            self._go_on(model)

    def _end(self, model: int, status: Status, reason: str, *, forget: bool = True) -> None:
        self._withdraw(model)
        mine = self.progress[model]
        self.failures += status is Status.FAILED and mine.status is not status
        self._becomes(model, status, reason)
        if forget:
            self._replay.forget(model)
        self._let_go()

    def _becomes(self, model: int, status: Status, reason: str | None = None) -> None:
        mine = self.progress[model]
        mine.status, mine.reason = status, reason
        if status is Status.ACTIVE:
            self._active.add(model)
        else:
            self._active.discard(model)
            if mine.plan.on_all_rows:
                self._ended.append(model)
        self._reads(model)
        self._changed(model)

    def _reads(self, model: int) -> None:
        """Whether a model still has to read the stored state that it starts from."""
        mine = self.progress[model]
        if mine.plan.starts_from is None:
            return
        readers = self._readers.setdefault(mine.plan.starts_from, set())
        if mine.status is Status.ACTIVE and not mine.hops:
            readers.add(model)
        else:
            readers.discard(model)
            if not readers:
                self._let_go()

    def _changed(self, model: int) -> None:
        """What a model has left to do has changed, and with it how urgent its units are."""
        if model in self._active:
            self._work.set(model, self._left(model))
        else:
            self._work.drop(model)
        for unit in self.progress[model].waiting:
            self._waiting[unit.segment].remove(unit)
            self._wait(unit)

    def _may_decide(self, model: int) -> bool:
        decision = self.replayed(model)
        return decision is None or self._may_repeat(decision)

    def _may_repeat(self, decision: Decision) -> bool:
        """Whether the states that a replayed decision copies are there, or never will be."""
        for parent, hop in copies(decision):
            theirs = self.progress.get(parent)
            if theirs is None and parent in self._replay.numbers:
                return False
            if theirs is None or theirs.hops >= hop:
                continue
            if theirs.status is Status.ACTIVE or (theirs.status is Status.STOPPED and self._replay.expects(parent)):
                return False
        return True

    def _hop_to_copy(self, new: NewModel) -> int:
        """The last state of a model is copied, or the best one, if that is wanted and kept."""
        parent, recorded = new.parent, new.parent_hop
        if parent not in self.progress:
            raise ValueError(f"model {parent} cannot be copied: the run has no such model")
        hops = self.progress[parent].own_hop
        may_be_best = new.from_best or new.variant is not None
        if may_be_best and recorded is not None and 0 < recorded <= hops:
            return recorded
        if recorded not in (None, hops):
            raise ValueError(f"model {parent} cannot be copied after hop {recorded}: it has {hops} hops")
        return hops

    def _require_awaited(self, decision: Decision) -> None:
        model = decision.model
        if model is None:
            return
        mine = self.progress.get(model)
        if decision.verdict is Verdict.GO_ON:
            if mine is None or mine.status is not Status.STOPPED:
                raise RuntimeError(f"model {model} cannot go on: it was not stopped")
        elif decision.by is Decider.BUDGET:
            if (
                mine is None
                or model not in self._active
                or mine.under_way
                or point(decision, len(mine.order)) != mine.hops
            ):
                raise RuntimeError(f"model {model} cannot be stopped at this point: {decision}")
        elif self._awaiting.get(model) != decision.epoch:
            raise RuntimeError(f"model {model} does not await a decision about epoch {decision.epoch}")

    def _begin(self, unit: Unit) -> None:
        mine = self.progress[unit.model]
        if unit in mine.waiting:  # else a unit before it in the same order is under way
            self._waiting[unit.segment].remove(unit)
            mine.waiting.remove(unit)
        mine.under_way.add(unit)
        self.hops += isinstance(unit, Train)
        for segment in segments_of(unit):
            self.busy.setdefault(segment, set()).add(unit)
        self._forget_gathering(unit)

    def _beside(self, unit: Unit, word: str) -> Iterator[Unit]:
        """The units like this one that wait for its segment and have the same group or series, most urgent first.

        A unit that has failed before is alone, so that it cannot fail others again.
        """
        same = getattr(self.progress[unit.model].plan, word)
        if same is not None and self._is_untried(unit):
            yield from filter(self._is_untried, self._waiting[unit.segment].like(unit, word, same, self._pace))

    def _chain(self, unit: Unit, seconds: float, visits: int | None) -> Chain:
        """A unit, and what else its model can do in an order with so many seconds and visits left.

        A decision about the model comes between two orders.  A unit that has failed before is alone.
        """
        mine = self.progress[unit.model]
        pace = self._visit_pace(unit.model) if isinstance(unit, Train) else self._evaluation_pace(unit.model)
        stays = mine.plan.most_chained > 0
        if not isinstance(unit, Train) or not stays or not self._is_untried(unit):
            return Chain([unit], pace, stays)
        units = self.plan.epoch_of(mine.plan, unit)
        if not pace:
            return Chain(units, 0.0, stays)
        took, visit, epochs = self._epoch_pace(units), unit, 1
        most = mine.plan.most_chained if visits is None else min(visits, mine.plan.most_chained)
        while epochs < most and self._goes_on_after(visit):
            visit = Train(visit.model, visit.hop + 1, visit.epoch + 1, visit.segment)
            epoch = self.plan.epoch_of(mine.plan, visit)
            took += self._epoch_pace(epoch)
            if took > seconds:
                return Chain(units, took - self._epoch_pace(epoch), stays)
            units, epochs = units + epoch, epochs + 1
        return Chain(units, took, stays)

    def _epoch_pace(self, units: Sequence[Unit]) -> float:
        """The seconds of a visit and the evaluations after it."""
        model = units[0].model
        return self._visit_pace(model) + (len(units) - 1) * self._evaluation_pace(model)

    def _goes_on_after(self, visit: Train) -> bool:
        """Whether nothing decides about a model, nor copies its state, between this visit and its next one."""
        mine = self.progress[visit.model]
        if self.decides or visit.hop >= mine.total or visit.model in self._asked:
            return False
        due = self._replay.due(visit.model, visit.hop, len(mine.order))
        return due is None and not self._replay.holds(visit.model, visit.hop) and not self._readers.get(visit.model)

    def _share_of_work(self) -> float:
        """The seconds of work that are left, for each segment."""
        return self._work.at(self._pace) / self.plan.segments

    @property
    def _pace(self) -> float:
        """The seconds of a hop of a model that has none yet: the mean of all."""
        return self._visits.each or 1.0

    def _left(self, model: int) -> WorkOfModel:
        mine = self.progress[model]
        hops, pace = mine.total - mine.hops, mine.visits.each
        return WorkOfModel(seconds=hops * pace) if pace else WorkOfModel(hops=hops)

    def _visit_pace(self, model: int) -> float:
        """The mean seconds of a model's visits so far; if there is none, of its sort's; 0 if there is none either."""
        mine = self.progress[model]
        of_sort = self._visits_of.get(mine.plan.sort or "")
        return mine.visits.each or (of_sort and of_sort.each) or 0.0

    def _evaluation_pace(self, model: int) -> float:
        """The mean seconds of a model's evaluations so far; if there is none, of its sort's, or of all; else 0."""
        mine = self.progress[model]
        of_sort = self._evaluations_of.get(mine.plan.sort or "")
        return mine.evaluations.each or (of_sort and of_sort.each) or self._evaluations.each or 0.0

    def _forget_gathering(self, unit: Unit) -> None:
        """It begins, or is not to begin any more."""
        if unit == self._gathering:
            self._gathering = None

    def _begin_all(self, units: list[U]) -> list[U]:
        for unit in units:
            self._begin(unit)
        return units

    def _is_untried(self, unit: Unit) -> bool:
        return unit not in self.progress[unit.model].tries

    def _offer(self, unit: Unit) -> None:
        mine = self.progress[unit.model]
        if unit not in mine.waiting:
            mine.waiting.add(unit)
            self._wait(unit)

    def _wait(self, unit: Unit) -> None:
        plan = self.progress[unit.model].plan
        self._waiting[unit.segment].add(unit, self._left(unit.model), plan, self._goes_ahead(unit))

    def _goes_ahead(self, unit: Unit) -> bool:
        """Whether a unit is more urgent than those of models with more work left.

        An evaluation that holds up a next epoch is: it is short, and its model waits for all parts, each of them behind
        a whole visit. The evaluation after the last epoch holds up nothing.
        """
        return isinstance(unit, Evaluate) and unit.epoch < self.plan.epochs

    def _withdraw(self, model: int) -> None:
        """Nothing of a model waits any more."""
        self._take_back(model)
        self._awaiting.pop(model, None)
        self._asked.discard(model)

    def _take_back(self, model: int) -> None:
        mine = self.progress[model]
        for unit in mine.waiting:
            self._waiting[unit.segment].remove(unit)
            self._forget_gathering(unit)
        mine.waiting.clear()
        self._held.discard(model)

    def _release(self, unit: Unit) -> ModelProgress:
        for segment in segments_of(unit):
            units = self.busy.get(segment, set())
            if unit not in units:
                raise RuntimeError(f"{unit} is not under way")
            units.remove(unit)
            if not units:
                del self.busy[segment]
        mine = self.progress[unit.model]
        mine.under_way.remove(unit)
        return mine
