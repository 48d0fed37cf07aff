"""Simulated searches: policies that do anything, people who ask for anything, budgets, faults, crashes and replays.

``python tests/core/searches.py 100000`` runs so many, each made of one number.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from fakes import (
    Crash,
    FakePorts,
    Faults,
    Log,
    initial,
    models,
    numbers_of,
    random_seconds,
    trained,
    visits_of,
)
from policies import MustNotBeAsked

from cerebro_db.core.errors import BadData
from cerebro_db.core.events import Action, Decider, Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.ports import NotYet
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Status, Train, Unit
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.policy import Decision, History, NewConfiguration, NewModel, Policy
from cerebro_db.core.search.request import Request

BAD = "no such optimizer"
MOST_MODELS = 14


class Anything(Policy):
    """Stops, adds, copies, lets go on and proposes as hashes of the history have it."""

    name = "anything"

    def __init__(self, seed: int, proposals: int, at_once: int, patience: float) -> None:
        self.seed, self.proposals, self.at_once, self.patience = seed, proposals, at_once, patience

    def _chance(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed}/{what}")

    def decide(self, history: History, model: int, epoch: int) -> Decision:
        chance = self._chance(model, epoch, history.value(model, epoch, "loss"))
        waiting = [one for one in history.models if one != model and history.stopped(one)]
        gone_on = tuple(one for one in waiting if chance.random() < 0.2)
        added = []
        if len(history.models) < MOST_MODELS and chance.random() < 0.15:
            parent = chance.choice([one for one in history.models if not history.failed(one)] or [model])
            own = None if chance.random() < 0.4 else NewConfiguration(some_parameters(chance), "")
            added.append(NewModel(parent=parent, configuration=own))
        if chance.random() > self.patience:
            return Decision(model, epoch, Verdict.STOP, "by chance", tuple(added), gone_on)
        return Decision(model, epoch, Verdict.ADD if added else Verdict.CONTINUE, "", tuple(added), gone_on)

    def propose(self, history: History, active: int) -> Sequence[NewModel]:
        begun = sum(history.configuration(one).get("proposed", False) for one in history.models)
        count = min(self.proposals - begun, self.at_once - active)
        chance = self._chance("propose", begun)
        return [NewModel(configuration=NewConfiguration(some_parameters(chance), "", 1)) for _ in range(count)]

    def released(self, history: History) -> Sequence[int]:
        waiting = [one for one in history.models if history.stopped(one)]
        return [one for one in waiting if self._chance("released", one, len(waiting)).random() < 0.3]


def model_of(request: Request) -> int | None:
    """The model whose epoch has to end before the request is carried out."""
    try:
        return request.model if request.action in (Action.STOP, Action.ADD) else None
    except BadData:
        return None


def some_parameters(chance: random.Random) -> str:
    return BAD if chance.random() < 0.1 else f"optimizer='SGD(lr={chance.random()})'"


@dataclass
class Record(Log):
    """The log of a search, and what the world outside of the driver knows."""

    requests: list[Request] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)  # of configurations that were added
    seconds: float = 0.0  # in which it was driven
    unit_seconds: float = 0.0
    last_epochs: set[int] = field(default_factory=set)  # the planned epochs, and those before they were extended
    # What follows from the decisions, as the checks need it.
    concluded: set[tuple[int, int]] = field(default_factory=set)
    stops: dict[int, Decision] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)

    def add(self, decision: Decision) -> None:
        self.decisions.append(decision)
        model, epoch = decision.model, decision.epoch
        if decision.request is not None:
            self.answered.add(decision.request)
        if model is None or epoch is None:
            return
        if decision.by in (Decider.POLICY, Decider.RULE) and decision.verdict is not Verdict.GO_ON:
            self.concluded.add((model, epoch))
        if decision.verdict is Verdict.STOP:
            self.stops[model] = decision
        elif decision.verdict is Verdict.GO_ON:
            del self.stops[model]

    def stopped(self, model: int) -> Decision | None:
        return self.stops.get(model)

    def decided(self, model: int, epoch: int) -> bool:
        return (model, epoch) in self.concluded


class SearchPorts(FakePorts):
    """Checks each decision at the moment of its commit, and each unit at its beginning."""

    plan: Plan

    def __init__(
        self, *more: Any, policy: Policy, history: History, budget: Budget, people: float, repeats: bool, **also: Any
    ):
        super().__init__(*more, **also)
        self.policy, self.history, self.budget, self.people, self.repeats = policy, history, budget, people, repeats
        self.hops = sum(len(states) - 1 for states in self.log.states.values())  # with those under way
        self.schedule: Schedule | None = None
        self.heard: set[int | None] = set()  # models that unanswered requests are about
        self.thinking: dict[tuple[int, int], int] = {}  # model, epoch -> how often its rule will not answer
        self.began = self.log.seconds

    # -- ports --------------------------------------------------------------------------------------

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        visits = sum(isinstance(unit, Train) for group in groups for unit in group)
        assert not visits or not self._spent(), "a visit begins though the budget is spent"
        last = self._reached()  # then a model trains on until it has the least epochs
        assert not last or visits <= 1, "several models train on though the budget is spent"
        self.hops += visits
        assert last or self.budget.hops is None or self.hops <= self.budget.hops, "more hops than the budget has"
        super().start(groups)

    def wait(self) -> list[Outcome]:
        if self.people and self.chance.random() < self.people:
            self.log.requests.append(self._some_request())
        if self.thorough and not self.repeats and not self._reached() and self.budget.room(len(self.log.models)) != 0:
            assert not self.policy.propose(self.history, self.schedule.active), "a model could begin"
        waited_for = [one for one, left in self.thinking.items() if left]
        for one in waited_for:
            self.thinking[one] -= 1
        if waited_for and not self._passes:
            return []
        outcomes = super().wait()
        self.hops -= sum(one.error is not None and isinstance(one.unit, Train) for one in outcomes)
        self.log.unit_seconds += sum(one.seconds for one in outcomes)
        self.log.seconds = self.began + self.now
        return outcomes

    def requests(self) -> list[Request]:
        unanswered = [one for one in self.log.requests if one.request not in self.log.answered]
        self.heard = {model_of(one) for one in unanswered}
        return unanswered

    def _started(self, unit: Unit) -> int:
        begins = isinstance(unit, Train) and (unit.hop - 1) % len(self._orders[unit.model]) == 0
        begins = begins and unit not in self.attempts
        assert not begins or unit.model not in self.heard, f"{unit} begins, though a request about it waits"
        return super()._started(unit)

    def ruled(self, model: int, epoch: int) -> str | None:
        left = self.thinking.setdefault((model, epoch), self.chance.choice((0, 0, 1, 3)))
        if left:
            self.unruled.add(model)
            raise NotYet
        self.unruled.discard(model)
        return "by a rule" if hash((self.plan.seed, model, epoch)) % 12 == 0 else None

    def used(self) -> Used:
        return Used(self.began + self.now, self.log.unit_seconds)

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        self._event()  # a crash here: nothing is committed
        for place, decision in enumerate(decisions):
            self._check(decision, place)
        if self.chance.random() < 0.5:  # workers commit while the driver decides
            parents = {new.parent for decision in decisions for new in decision.added}
            for one in self._passes:
                if any(unit.model in parents for unit in one.units):
                    self._commit_all(one)
        plans = []
        for decision in decisions:
            plans += [self._add(new, decision) for new in decision.added]
            self.log.add(decision)
            if decision.verdict is Verdict.EXTEND:
                self.plan = replace(self.plan, epochs=decision.detail["epochs"])
                self.log.last_epochs.add(self.plan.epochs)
            elif decision.verdict is Verdict.BUDGET:
                self.budget = Budget.from_document(decision.detail)
        self.requests()
        self._event()  # a crash here: the decisions are committed, but have had no effect
        return plans

    # -- the rules of decisions ------------------------------------------------------------------------

    def _check(self, decision: Decision, place: int) -> None:
        log, model, epoch = self.log, decision.model, decision.epoch
        assert not decision.gone_on, "each model that goes on has a decision of its own"
        assert decision.request is None or decision.request not in log.answered, f"answered twice: {decision}"
        # A spent budget ends all models together; else what comes after the first decision lets models go on.
        assert place == 0 or decision.verdict is Verdict.GO_ON or decision.by is Decider.BUDGET
        if model is None or epoch is None:
            return
        assert model not in self.gone and model not in log.failed, f"{decision} about a model that has failed"
        hops, visits = len(log.states[model]) - 1, len(self._orders[model])
        if decision.verdict is Verdict.GO_ON:
            assert model in log.stops, f"{decision}, but it was not stopped"
            return
        assert model not in log.stops and not self._under_way[model], f"{decision} of a model at rest, or under way"
        assert not self.due(model), f"{decision} before {self.due(model)}"
        assert hops == (epoch * visits if decision.hop is None else decision.hop), f"{decision} after {hops} hops"
        if decision.by is Decider.BUDGET:
            assert self.repeats or self._spent(), f"{decision}, but the budget is not spent"
        elif decision.by in (Decider.POLICY, Decider.RULE):
            assert epoch > 0 and (model, epoch) not in log.concluded, f"decided twice: {decision}"

    def _add(self, new: NewModel, decision: Decision) -> ModelPlan:
        log = self.log
        assert new.model is not None and new.model not in log.models, f"there is a model {new.model} already"
        own = new.configuration
        if own is not None:
            assert new.key is not None and new.key not in log.keys, f"a key is given twice: {new}"
            log.keys.add(new.key)
        assert self.repeats or self.budget.room(len(log.models)) != 0, "more models than the budget has"
        start, bad = initial(new.model), own is not None and own.compile_params == BAD
        if new.parent is not None:
            assert new.parent_hop is not None
            theirs = log.states[new.parent]
            # A state table keeps a model's last two states.
            assert len(theirs) - 2 <= new.parent_hop <= len(theirs) - 1, f"no such state any more: {new}"
            start = theirs[new.parent_hop]
        plan = ModelPlan(new.model, new.model, new.visits, refused=BAD if bad else None)
        log.states[new.model], log.models[new.model] = [start], plan
        log.configurations[new.model] = {"proposed": decision.model is None and decision.by is Decider.POLICY}
        if bad:
            log.failed[new.model] = BAD
        self._orders[new.model], self._under_way[new.model] = visits_of(self.plan, plan), set()
        return plan

    # -- the world -------------------------------------------------------------------------------------

    def _reached(self) -> bool:
        each = self.schedule.visit_seconds if self.schedule is not None else 0.0
        return self.budget.limits and self.budget.reached(self.used(), self.hops, each)

    def _spent(self) -> bool:
        known = self.schedule.progress.values() if self.schedule is not None else ()
        epochs = max((one.epochs for one in known if one.status is not Status.FAILED), default=0)
        return self._reached() and not self.budget.lacks(epochs)

    def _is_due(self, unit: Evaluate) -> bool:
        """Also after an epoch that was the last when the model came there, if the run was extended since."""
        return super()._is_due(unit) or unit.epoch in self.log.last_epochs

    def _no_segment_idles(self) -> None:
        if not self._reached() and len(self.log.last_epochs) == 1:
            super()._no_segment_idles()

    def _some_request(self) -> Request:
        chance, number = self.chance, len(self.log.requests) + 1
        model = chance.choice((*self.log.models, *self.log.models, 999))
        own = NewConfiguration(some_parameters(chance), "", 1)
        copied = NewModel(parent=model, configuration=chance.choice((None, replace(own, model_id=None))))
        action, detail = chance.choice(
            (
                (Action.STOP, {"model": model}),
                (Action.GO_ON, {"model": model}),
                (Action.GO_ON, {"model": model}),
                (Action.ADD, {"new": NewModel(configuration=own).to_json()}),
                (Action.ADD, {"new": replace(copied, visits=chance.choice((None, None, (0,), (99,)))).to_json()}),
                (Action.EXTEND, {"epochs": self.plan.epochs + chance.randint(-1, 1)}),
                (Action.BUDGET, {"hops": self.hops + chance.randint(1, 9)}),
                (Action.BUDGET, {}),
                (Action.BUDGET, {"hops": 0}),
                (chance.choice(tuple(Action)), {"nonsense": 1}),
            )
        )
        if action is Action.EXTEND and (self.faults.broken_evaluations or len(self.log.last_epochs) > 2):
            action, detail = Action.STOP, {"model": model}
        if action is Action.ADD and len(self.log.models) >= MOST_MODELS:
            action, detail = Action.STOP, {"model": model}
        return Request(number, action, detail, chance.choice(("", "because")))


@dataclass
class Search:
    """A search with everything that happens to it, made of one number."""

    seed: int
    make: type[Schedule] = Schedule
    found: Counter[str] = field(default_factory=Counter)

    def run(self) -> Counter[str]:
        chance = random.Random(self.seed)
        plan, policy, budget, faults = self._world(chance)
        log = Record.of(plan)
        log.last_epochs.add(plan.epochs)
        people = chance.choice((0, 0.05, 0.2))
        for crash in range(chance.choice((0, 1, 1, 2, 4))):
            faults.crash_at = 1 + int(chance.random() ** 2 * 4 * plan.epochs * plan.segments * (len(plan.models) + 3))
            self._drive(plan, log, faults, chance, policy, budget=budget, people=people, thorough=crash == 0)
        faults.crash_at = -1
        ended = self._drive(plan, log, faults, chance, policy, budget=budget, people=people)
        assert ended is not None, "a search without a crash did not end"
        self._check(plan, log, faults, policy)
        ended_early = [stop for stop in log.stops.values() if stop.by is Decider.BUDGET]
        if budget.least_epochs is not None and not people and ended_early:
            epochs = [(len(log.states[one]) - 1) // len(visits_of(plan, mine)) for one, mine in log.models.items()]
            assert max(epochs) >= budget.least_epochs, "the budget has ended models before one had the least epochs"
            self.found["budgets with least epochs"] += 1
        by = Counter(str(decision.by) for decision in log.decisions)
        said = Counter(f"to {decision.verdict}" for decision in log.decisions)
        within = sum(decision.hop is not None for decision in log.decisions)
        self.found.update(
            {**by, **said, "stopped within an epoch": within, "budgets": ended, "failures": len(log.failed)}
        )
        self.found["added"] += len(log.models) - len(plan.models)
        self.found["hops"] += sum(len(states) - 1 for states in log.states.values())
        if chance.random() < 0.5:
            self._replay(plan, log, faults, chance)
        return self.found

    def _world(self, chance: random.Random) -> tuple[Plan, Policy, Budget, Faults]:
        segments = chance.randint(1, 4)
        evaluations = {"validation": {part: chance.randrange(segments) for part in range(chance.randint(1, segments))}}
        policy: Policy = NeverStop()
        if chance.random() < 0.8:
            patience, proposals = chance.choice((0.6, 0.9)), chance.choice((0, 4, 8))
            policy = Anything(chance.getrandbits(31), proposals, chance.randint(1, segments + 1), patience)
        begins = chance.randint(0 if policy.proposes and policy.proposals else 1, 4)  # type: ignore[attr-defined]
        plan = Plan(
            seed=chance.getrandbits(31),
            models=models(chance.sample(range(1, 20), begins)),
            segments=segments,
            epochs=chance.randint(1, 3),
            evaluations=evaluations if chance.random() < 0.4 else {},
            evaluate_every=chance.randint(0, 1),
        )
        if begins and chance.random() < 0.2:  # visits that begin together
            crowd = tuple(ModelPlan(number, number, group="a", series="x") for number in range(1, 9))
            plan = replace(plan, models=crowd, most_fused=chance.choice((1, 4)), series_seconds=100.0)
            begins = len(crowd)
        limits: dict[str, Any] = {}
        if chance.random() < 0.3:
            name = chance.choice(("seconds", "unit_hours", "hops", "configurations"))
            most = begins + 1 + chance.randint(0, 6) if name == "configurations" else chance.randint(1, 30)
            limits[name] = most / 3600 if name == "unit_hours" else most
            if name != "configurations" and chance.random() < 0.5:
                limits["least_epochs"] = chance.randint(1, plan.epochs)
        faults = Faults(lost=chance.choice((0, 0, 0.1)), late=chance.choice((0, 0, 0.3)))
        for model in (*numbers_of(plan), *range(20, 26)):
            fate = chance.random()
            if fate < 0.05:
                faults.broken[model] = chance.randint(1, plan.epochs * segments)
            elif fate < 0.08:
                faults.killers[model] = chance.randint(1, plan.epochs * segments)
            elif fate < 0.10:
                faults.broken_evaluations.add(model)
        return plan, policy, Budget(**limits), faults

    def _drive(
        self,
        plan: Plan,
        log: Record,
        faults: Faults,
        chance: random.Random,
        policy: Policy,
        *,
        budget: Budget,
        people: float,
        replayed: Iterable[Decision] = (),
        repeats: bool = False,
        thorough: bool = True,
    ) -> bool | None:
        """Whether the budget has ended the search; None: the driver has crashed."""
        plan = replace(plan, epochs=max(log.last_epochs))
        history = log.history(plan)
        for decision in log.decisions:
            budget = Budget.from_document(decision.detail) if decision.verdict is Verdict.BUDGET else budget
        ports = SearchPorts(
            plan, log, random_seconds(chance, plan), faults=faults, chance=chance, policy=policy, history=history,
            budget=budget, people=people, repeats=repeats, decides=policy.asks,
            thorough=thorough and self.seed % 3 == 0 and not repeats, ahead=self.seed % 2 == 1,
        )  # fmt: skip
        schedule = ports.schedule = log.schedule(plan, self.make, policy.asks, replayed)
        try:
            spent = orchestrator.run(schedule, ports, policy, history, budget, repeats=repeats)
        except Crash:
            self.found["crashes"] += 1
            return None
        finally:
            log.seconds = ports.began + ports.now
        assert set(schedule.progress) == set(log.models)
        assert not ports.requests(), "a request has no answer"
        for model, mine in schedule.progress.items():
            status, reason = Status.FINISHED, None
            if model in log.failed:
                status, reason = Status.FAILED, log.failed[model]
            elif model in log.stops:
                status, reason = Status.STOPPED, log.stops[model].reason
            assert (mine.status, mine.reason) == (status, reason), f"model {model}"
        return spent

    def _check(self, plan: Plan, log: Record, faults: Faults, policy: Policy) -> None:
        """The history of each model is one line, from where it began to where it had to end."""
        plan = replace(plan, epochs=max(log.last_epochs))
        added = {new.model: new for decision in log.decisions for new in decision.added}
        assert set(log.models) == set(numbers_of(plan)) | set(added)
        for model, mine in log.models.items():
            order, states = visits_of(plan, mine), log.states[model]
            hops, new = len(states) - 1, added.get(model)
            start = initial(model)
            if new is not None and new.parent is not None:
                start = log.states[new.parent][new.parent_hop]
            for hop in range(hops + 1):
                assert states[hop] == start, f"model {model} has left its line at hop {hop}"
                start = trained(start, hop // len(order) + 1, order[hop % len(order)])
            stop, evaluated = log.stops.get(model), model in faults.broken_evaluations
            if model in log.failed:
                broken = (faults.broken.get(model), faults.killers.get(model))
                assert hops + 1 in broken or evaluated or mine.refused, f"model {model} has failed without need"
            elif stop is not None:
                assert hops == (stop.epoch * len(order) if stop.hop is None else stop.hop), f"{stop} after {hops} hops"
            else:
                assert hops == plan.epochs * len(order), f"model {model} has {hops} hops"
            if policy.asks:
                # Whoever has trained on was decided about before.
                assert all((model, epoch) in log.concluded for epoch in range(1, -(-hops // len(order)))), model
            for (other, epoch, _, _), state in log.evaluations.items():
                assert other != model or state == states[epoch * len(order)]
        assert {new.key for new in added.values() if new.configuration} == log.keys

    def _replay(self, plan: Plan, log: Record, faults: Faults, chance: random.Random) -> None:
        """The same models come of the recorded decisions, whatever the timing is."""
        again = Record.of(plan)
        again.last_epochs.add(plan.epochs)
        for crashes in (chance.random() < 0.5, False):
            faults.crash_at = chance.randint(1, 200) if crashes else -1
            more = {"replayed": log.decisions, "repeats": True}
            self._drive(plan, again, faults, chance, NoPolicy(), budget=Budget(), people=0.0, **more)
        assert again.states == log.states and again.models == log.models
        assert again.failed == log.failed and again.stops.keys() == log.stops.keys()
        self.found["replays"] += 1


class NoPolicy(MustNotBeAsked):
    asks = False


def searched(seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        try:
            found += Search(seed).run()
        except Exception as error:
            raise AssertionError(f"Search({seed}).run(): {error}") from error
    return found


def main(count: int) -> None:
    began, found, share = time.monotonic(), Counter[str](), 500
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        shares = [range(at, min(at + share, count)) for at in range(0, count, share)]
        for done, part in zip(shares, pool.map(searched, shares)):
            found += part
            if not done.stop % 10_000 or done.stop == count:
                print(f"{done.stop} searches in {time.monotonic() - began:.0f} s", flush=True)
    for what, times in sorted(found.items()):
        print(f"{times:>10} {what}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
