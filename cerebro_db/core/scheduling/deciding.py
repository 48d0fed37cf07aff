"""Makes decisions. These decide, in this order: the replayed run, requests, the budget, the rule, the search policy.

Every decision is committed by the ports before the schedule carries it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import CerebroError
from ..events import Action, Decider, Verdict
from ..search.budget import Budget
from ..search.clock import RunClock
from ..search.policy import Decision, History, NewModel, Policy
from ..search.request import Request
from .plan import MOST_HOPS, ModelPlan
from .ports import DecisionPorts, NotYet
from .progress import ModelProgress, Status
from .schedule import Schedule

NO_LIMIT = Budget()
FREED = "a person has let it go on"
SPENT = "budget"  # the reason of models that are stopped because the budget is spent
ENDED = {
    Status.ACTIVE: "has not been stopped",
    Status.FINISHED: "has trained all its epochs",
    Status.FAILED: "has failed",
    Status.STOPPED: "is stopped already",
}


def known_of(schedule: Schedule, history: History) -> History:
    """The history with what the schedule knows."""
    for model, progress in schedule.progress.items():
        history.begins(model)
        history.complete(model, progress.epochs)
        if progress.status is Status.FAILED:
            history.fails(model)
    for decision in schedule.decisions:
        history.decided(decision)
    return history


class Deciding:
    """The decisions of one run, while it is driven."""

    def __init__(
        self,
        schedule: Schedule,
        ports: DecisionPorts,
        policy: Policy,
        history: History | None = None,
        budget: Budget = NO_LIMIT,
        *,
        repeats: bool = False,
        least_models: int = 1,
    ) -> None:
        """``history`` has the figures of the log, if the run is resumed; what the schedule knows is added here.

        ``repeats``: the run replays another one, so the policy proposes nothing.  ``least_models``: how many models
        get the least epochs of the budget: an ensemble needs two.
        """
        if policy.asks and not schedule.decides:
            raise ValueError(f"the policy '{policy.name}' wants to be asked, but the schedule awaits no decisions")
        self.schedule, self.ports, self.policy, self.budget, self.repeats = schedule, ports, policy, budget, repeats
        self.history = known_of(schedule, History() if history is None else history)
        self.least_models = least_models
        self.cut = False  # whether the budget has kept the policy from adding models
        self.unruled: set[int] = set()  # models about which the rule has not answered yet
        self._taken: set[int] = set()  # the requests that were looked at
        self._pending: dict[int, list[Request]] = {}  # model -> what takes effect at the end of its epoch
        self._nothing_at: tuple[int, int] | None = None  # how things stood when the policy proposed nothing
        self._failed = -1  # how many models had failed when the policy was asked whether others go on
        self._freed: set[int] = set()  # models that a person has let go on: only a person or the budget stops them
        for decision in schedule.decisions:
            self._note_freed(decision)

    def spent(self) -> bool:
        """Whether nothing new may begin."""
        return self._reached() and not self._lacks()

    def last_models(self) -> list[int] | None:
        """The only models that train on: a limit of the budget is reached, but too few models have the least epochs.

        They are those that are closest to them. If one fails, the next one takes its place. None: all may train.
        """
        if self.budget.least_epochs is None or not self._reached() or not self._lacks():
            return None
        self.schedule.wait_for_no_judges()
        ranked = sorted(self._behind(), key=self.schedule.advance, reverse=True)
        return ranked[: max(1, self.least_models - self._with_least_epochs())]

    def hops_left(self) -> int | None:
        return None if self.budget.hops is None else max(0, self.budget.hops - self.schedule.hops)

    def _reached(self) -> bool:
        if not self.budget.limits:
            return False
        return self.budget.reached(self.ports.used(), self.schedule.hops, self.schedule.visit_seconds)

    def _lacks(self) -> bool:
        """Whether too few models have the least epochs: none, or fewer than what follows needs, and there is time."""
        if self.budget.least_epochs is None:
            return False
        useful = self._useful()
        judged = len(useful) < len(self.schedule.progress)
        if judged and not any(one.status is Status.ACTIVE for one in useful.values()):
            return False  # what still trains says only how good models are that have ended
        done = self._with_least_epochs()
        return not done or (done < self.least_models and bool(self._behind()) and not self._over())

    def _useful(self) -> dict[int, ModelProgress]:
        """The models that may be kept: not those of folds, which say how good others are."""
        return {model: mine for model, mine in self.schedule.progress.items() if not mine.plan.is_judge}

    def _with_least_epochs(self) -> int:
        sound = (one for one in self._useful().values() if one.status is not Status.FAILED)
        return sum(not self.budget.lacks(one.epochs) for one in sound)

    def _behind(self) -> list[int]:
        """The models in training that do not have the least epochs."""
        useful = self._useful()
        trainable = [one for one in self.schedule.trainable() if one in useful]
        return [one for one in trainable if self.budget.lacks(useful[one].epochs)]

    def _over(self) -> bool:
        """Whether the budget would be spent if nothing were kept back for what follows."""
        schedule, used = self.schedule, replace(self.ports.used(), kept_back=0.0)
        return self.budget.reached(used, schedule.hops, schedule.visit_seconds)

    def attend(self) -> None:
        """Make every decision that can be made at this moment: one may make way for another."""
        self.unruled.clear()
        before = -1
        while before != (before := len(self.schedule.decisions)):
            self._attend()

    # -- within ----------------------------------------------------------------------------------

    def _attend(self) -> None:
        self._repeat()
        self._attend_requests()
        spent = self.spent()
        while awaiting := [model for model, _ in self.schedule.awaiting() if model not in self.unruled]:
            for model in awaiting:
                try:
                    self._decide(model, spent)
                except NotYet:
                    self.unruled.add(model)
            self._repeat()
        if not self.repeats and self._failed != (failed := self.schedule.failures):
            self._failed = failed
            self._look_at_clock()
            for model in self.policy.released(self.history):
                self._commit(self._released(model))
        if spent:
            self._end_idle()
        elif self.policy.proposes and not self.repeats and self.last_models() is None:
            self._propose()

    def _repeat(self) -> None:
        while decision := self.schedule.replayed_at_once():
            self._commit(decision)

    def _decide(self, model: int, spent: bool) -> None:
        """What becomes of a model that awaits a decision: the first that has something to say says it."""
        schedule, mine = self.schedule, self.schedule.progress[model]
        self.history.complete(model, mine.epochs)
        decision = schedule.replayed(model) or self._requested(model)
        complete = mine.hops >= mine.total  # there is nothing to stop
        if decision is None and spent and not complete:
            decision = self._end_of(model)
        if decision is None and schedule.undecided(model):
            reason = None if complete or model in self._freed else self.ports.ruled(model, mine.epochs)
            if reason is not None:
                decision = Decision(model, mine.epochs, Verdict.STOP, reason, by=Decider.RULE)
            else:
                decision = self._within_budget(self._of_policy(model, mine.epochs))
        if decision is not None:
            self._commit(decision)
        else:
            schedule.go_on(model)

    def _of_policy(self, model: int, epoch: int) -> Decision:
        """The policy's decision; but it cannot stop a model that a person has let go on."""
        self._look_at_clock()
        decision = self.policy.decide(self.history, model, epoch)
        if decision.verdict is not Verdict.STOP or model not in self._freed:
            return decision
        return replace(decision, verdict=Verdict.CONTINUE, reason=f"{FREED}: {decision.reason}", added=())

    def _note_freed(self, decision: Decision) -> None:
        if decision.model is not None and decision.by is Decider.REQUEST:
            if decision.verdict is Verdict.GO_ON:
                self._freed.add(decision.model)
            elif decision.verdict is Verdict.STOP:
                self._freed.discard(decision.model)

    def _propose(self) -> None:
        """Let the policy propose models until it has no more."""
        while self._nothing_at != (now := (self.schedule.active, len(self.schedule.decisions))):
            room = self._room()
            self._look_at_clock()
            for model in self.schedule.newly_ended():
                self.history.complete(model, self.schedule.progress[model].epochs)
            proposed = self.policy.propose(self.history, self.schedule.active)
            # A budget counts a configuration once, however many folds or groups it has.
            allowed = [new for place, new in enumerate(proposed) if new.variant or room is None or place < room]
            self.cut |= len(allowed) < len(proposed)
            if not allowed:
                self._nothing_at = now
            for added in self._together(allowed):
                self._commit(Decision(None, None, Verdict.ADD, self.policy.told(self.history), added))

    def _together(self, proposed: Sequence[NewModel]) -> list[tuple[NewModel, ...]]:
        """The models of each decision: one alone, or those of all folds or groups of a configuration."""
        found: list[tuple[NewModel, ...]] = []
        for key, models in itertools.groupby(proposed, lambda new: new.key if new.variant else None):
            together = tuple(models)
            if key is None:
                found += [(new,) for new in together]
                continue
            parent = together[0].parent
            hop = None if parent is None else self.ports.best_hop(parent)
            found.append(tuple(replace(new, parent_hop=hop) for new in together))
        return found

    def _look_at_clock(self) -> None:
        """Tell the policy what has been measured until now, if it decides by that."""
        if not self.policy.timed:
            return
        schedule, seconds = self.schedule, self.budget.seconds
        left = None
        if seconds is not None:
            left = self.budget.seconds_left(self.ports.used(), schedule.visit_seconds)
        self.history.clock = RunClock(
            seconds, left, schedule.plan.segments, schedule.epoch_seconds(), schedule.epoch_seconds_of_models()
        )

    def _within_budget(self, decision: Decision) -> Decision:
        """A policy's decision with as many new models as the budget has room for."""
        room = self._room() if decision.added else None
        if room is None or len(decision.added) <= room:
            return decision
        self.cut = True
        none = decision.verdict is Verdict.ADD and not room
        return replace(decision, added=decision.added[:room], verdict=Verdict.CONTINUE if none else decision.verdict)

    def _room(self) -> int | None:
        if self.budget.configurations is None:  # it is asked often, and there may be thousands of models
            return None
        return self.budget.room(sum(one.plan.on_all_rows for one in self.schedule.progress.values()))

    def _end_idle(self) -> None:
        """The budget stops the models that nothing is under way of: in one commit, for there may be thousands."""
        ends = [self.schedule.prepared(self._end_of(model)) for model in self.schedule.idle()]
        if ends:
            self.ports.decided(ends)
        for end in ends:
            self.schedule.decide(end)
            self.history.decided(end)

    def _end_of(self, model: int) -> Decision:
        """A model stops where it is, because the budget is spent."""
        mine = self.schedule.progress[model]
        hop = None if mine.at_epoch_end else mine.hops
        return Decision(model, mine.hops // len(mine.order), Verdict.STOP, SPENT, by=Decider.BUDGET, hop=hop)

    def _with_best_states(self, decision: Decision) -> Decision:
        """Copies that start from the best state of their parent are told after which hop that was left."""
        if not any(new.from_best for new in decision.added):
            return decision
        added = tuple(
            replace(new, parent_hop=self.ports.best_hop(new.parent))
            if new.from_best and new.parent is not None and new.parent_hop is None
            else new
            for new in decision.added
        )
        return replace(decision, added=added)

    def _released(self, model: int) -> Decision:
        mine = self.schedule.progress[model]
        return Decision(model, mine.hops // len(mine.order), Verdict.GO_ON, "a model that it waited for has ended")

    def _commit(self, decision: Decision) -> None:
        """Commit a decision, and carry it out. The models that it lets go on get a decision each."""
        schedule, history = self.schedule, self.history
        if decision.verdict is Verdict.STOP and decision.by in (Decider.RULE, Decider.REQUEST):
            self._failed = -1  # as after a failure, others may have waited for this model
        self._note_freed(decision)
        decision = schedule.prepared(self._with_best_states(decision))
        by = Decider.BUDGET if decision.verdict is Verdict.BUDGET else decision.by
        about_another = f"model {decision.model} has completed epoch {decision.epoch}"
        reason = decision.reason if decision.model is None else about_another
        gone_on = [
            Decision(other, mine.hops // len(mine.order), Verdict.GO_ON, reason, by=by)
            for other in decision.gone_on
            if (mine := schedule.progress[other]).status is Status.STOPPED
        ]
        decision = replace(decision, gone_on=())
        plans = self.ports.decided([decision, *gone_on])
        schedule.decide(decision, plans)
        if decision.verdict is Verdict.EXTEND:
            self.policy.extended(schedule.plan.epochs)
        for plan in plans:
            history.begins(plan.model, self.ports.configuration(plan.model))
            if plan.refused is not None:
                history.fails(plan.model)
        history.decided(decision)
        for one in gone_on:
            schedule.decide(one)
            history.decided(one)

    # -- what people request ---------------------------------------------------------------------

    def _attend_requests(self) -> None:
        """What concerns a model in training waits for the end of its epoch; everything else is done at once."""
        for request in self.ports.requests():
            if request.request in self._taken:
                continue
            self._taken.add(request.request)
            wrong = self._wrong(request)
            if wrong is not None:
                self._refuse(request, wrong)
            elif request.action in (Action.STOP, Action.ADD) and self.schedule.is_active(request.model or 0):
                self._pending.setdefault(request.model or 0, []).append(request)
                self.schedule.ask_about(request.model or 0)
            else:
                self._do(request)
        for model in [one for one in self._pending if not self.schedule.is_active(one)]:
            for request in self._pending.pop(model):
                self._do(request)

    def _requested(self, model: int) -> Decision | None:
        """The next decision that people request about a model at the end of its epoch."""
        mine, pending = self.schedule.progress[model], self._pending.get(model, [])
        epoch = mine.epochs
        while pending:
            request = pending.pop(0)
            if request.action is Action.STOP and mine.hops >= mine.total:
                self._refuse(request, f"model {model} {ENDED[Status.FINISHED]}")
                continue
            if request.action is Action.STOP:
                reason = request.reason or "at the request of a person"
                return Decision(model, epoch, Verdict.STOP, reason, by=Decider.REQUEST, request=request.request)
            full = self._full()
            if full is None:
                return self._answer(request, Verdict.ADD, model, epoch, added=(request.new,))
            self._refuse(request, full)
        return None

    def _do(self, request: Request) -> None:
        """Carry out a request that waits for nothing, or refuse it."""
        why = None
        if request.action is Action.STOP:
            why = self._ended(request)
        elif request.action is Action.GO_ON:
            why = self._cannot_go_on(request) or self._spent_text()
        elif request.action is Action.ADD:
            why = self._full()
        if why is not None:
            self._refuse(request, why)
        elif request.action is Action.GO_ON:
            assert request.model is not None
            mine = self.schedule.progress[request.model]
            self._commit(self._answer(request, Verdict.GO_ON, request.model, mine.hops // len(mine.order)))
        elif request.action is Action.ADD:
            self._commit(self._answer(request, Verdict.ADD, added=(request.new,)))
        elif request.action is Action.EXTEND:
            self._commit(self._answer(request, Verdict.EXTEND, detail={"epochs": request.epochs}))
        else:
            self.budget = request.budget
            stopped = [model for model, mine in self.schedule.progress.items() if mine.reason == SPENT]
            gone_on = () if self.spent() else tuple(stopped)
            detail = self.budget.to_json()
            self._commit(self._answer(request, Verdict.BUDGET, gone_on=gone_on, detail=detail))

    def _answer(
        self, request: Request, verdict: Verdict, model: int | None = None, epoch: int | None = None, **more: Any
    ) -> Decision:
        reason = request.reason
        return Decision(model, epoch, verdict, reason, by=Decider.REQUEST, request=request.request, **more)

    def _refuse(self, request: Request, why: str) -> None:
        self._commit(Decision(None, None, Verdict.REFUSE, why, by=Decider.REQUEST, request=request.request))

    def _wrong(self, request: Request) -> str | None:
        """Why a request is not valid in this run: users can write rows of their own."""
        try:
            request.require_sound()
            if request.action is Action.ADD and request.new.visits is not None:
                self.schedule.plan.require_visits(ModelPlan(0, 0, request.new.visits))
        except (CerebroError, ValueError) as error:
            return f"the request is not valid: {error}"
        if request.model is not None and request.model not in self.schedule.progress:
            return f"the run has no model {request.model}"
        planned = self.schedule.plan.epochs
        hops = max(len(one.order) for one in self.schedule.progress.values())  # of an epoch
        if request.action is Action.EXTEND and request.epochs <= planned:
            return f"the run is planned for {planned} epochs already"
        if request.action is Action.EXTEND and request.epochs * hops > MOST_HOPS:
            return f"{request.epochs} epochs are too many"
        return None

    def _ended(self, request: Request) -> str | None:
        assert request.model is not None
        return f"model {request.model} {ENDED[self.schedule.progress[request.model].status]}"

    def _cannot_go_on(self, request: Request) -> str | None:
        assert request.model is not None
        mine = self.schedule.progress[request.model]
        if mine.status is not Status.STOPPED:
            return f"model {request.model} {ENDED[mine.status]}"
        if mine.hops >= mine.total:
            return f"model {request.model} {ENDED[Status.FINISHED]}: extend the run"
        return None

    def _spent_text(self) -> str | None:
        return "the budget is spent: request a larger one first" if self.spent() else None

    def _full(self) -> str | None:
        if self._room() == 0:
            return f"the budget allows {self.budget.configurations} models: request a larger one first"
        return self._spent_text()
