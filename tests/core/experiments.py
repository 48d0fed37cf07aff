"""Whole runs with seeded faults and crashes, made of one number each, and what they must come to.

What a model must come to is computed here by training it alone, in one process, without any schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fakes import (
    Crash,
    FakePorts,
    Faults,
    Log,
    figures_of,
    generation_after,
    initial,
    initial_added,
    models,
    numbers_of,
    order_of,
    random_seconds,
    trained,
    visits_of,
)
from policies import Branching, CopyTheBest, MustNotBeAsked, StopAfter, StopWorseHalf

from cerebro_db.core.events import Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.ring import ring_positions
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Status, Train
from cerebro_db.core.search.history import Figures
from cerebro_db.core.search.policy import Decision, History, NewModel

Lineage = tuple[int, ...]  # a model of the plan; of an added one also the epoch and the place, of each generation


def random_plan(chance: random.Random, *, most: int = 6) -> Plan:
    # Visits share an order only where many models wait for few segments.
    crowded = chance.random() < 0.15
    segments = chance.randint(1, 2) if crowded else chance.randint(1, most - 1)
    evaluations = {
        name: {part: chance.randrange(segments) for part in range(chance.randint(0, segments))}
        for name in ("training", "validation")
        if chance.random() < 0.5
    }
    numbers = tuple(chance.sample(range(100), chance.randint(most, most + 4) if crowded else chance.randint(1, most)))
    few = chance.choice((0, 0, 0.5))  # how many visit only some segments
    plan = Plan(
        seed=chance.getrandbits(31),
        segments=segments,
        epochs=chance.randint(1, 3),
        evaluations=evaluations,
        evaluate_every=chance.randint(0, 2),
        models=models(
            numbers,
            chance.choice(({}, ring_positions({key: chance.randint(1, 3) for key in numbers}, {0, 2}))),
            {key: chance.choice("ab") for key in numbers if chance.random() < 0.8},
            {key: some_of(chance, segments) for key in numbers if chance.random() < few},
        ),
        most_fused=chance.choice((1, 1, 2, 4)),
    )
    if not crowded:
        return plan
    in_series = tuple(replace(one, series=chance.choice(("x", "x", "x", "y", None))) for one in plan.models)
    seconds, most_fused = chance.choice((10.0, 100.0)), chance.choice((1, 1, 4))
    return replace(plan, models=in_series, epochs=3, most_fused=most_fused, series_seconds=seconds)


def some_of(chance: random.Random, segments: int) -> tuple[int, ...]:
    return tuple(chance.sample(range(segments), chance.randint(1, segments)))


# -- what must come of a model ----------------------------------------------------------------------------


def undisturbed(plan: Plan, model: int) -> list[int]:
    """The states of a model that one process trains, all by itself: before and after each hop."""
    states = [initial(model)]
    for epoch in range(1, plan.epochs + 1):
        for segment in order_of(plan, model):
            states.append(trained(states[-1], epoch, segment))
    return states


def evaluations_of(plan: Plan, model: int, hops: int) -> list[Evaluate]:
    """All evaluations of a model in its first hops."""
    visits = len(order_of(plan, model))
    return [
        Evaluate(model, epoch * visits, epoch, segment, dataset, part)
        for epoch in range(1, hops // visits + 1)
        if plan.evaluates_after(epoch)
        for dataset, parts in plan.evaluations.items()
        for part, segment in parts.items()
    ]


@dataclass
class Life:
    """What becomes of one model that one process trains, all by itself."""

    states: list[int]
    failed: bool = False
    evaluations: dict[tuple[int, str, int], int] = field(default_factory=dict)  # (epoch, dataset, part) -> the state
    decisions: list[Decision] = field(default_factory=list)


def live(
    plan: Plan,
    mine: ModelPlan,
    start: int,
    faults: Faults,
    evaluates_after: Collection[int],
    decide: Callable[[int, Life], Decision] | None,
) -> Life:
    life, order = Life([start]), visits_of(plan, mine)
    for epoch in range(1, plan.epochs + 1):
        for segment in order:
            if len(life.states) in (faults.broken.get(mine.model), faults.killers.get(mine.model)):
                life.failed = True
                return life
            life.states.append(trained(life.states[-1], epoch, segment))
        parts = [(epoch, name, part) for name, parts in plan.evaluations.items() for part in parts]
        if epoch in evaluates_after and parts:
            if mine.model in faults.broken_evaluations:
                life.failed = True
                return life
            life.evaluations.update(dict.fromkeys(parts, life.states[-1]))
        if decide is not None:
            life.decisions.append(decide(epoch, life))
            if life.decisions[-1].verdict is Verdict.STOP:
                return life
    return life


EvaluatesAfter = Callable[[Lineage], Collection[int]]  # the epochs of a model


def lives_on_record(plan: Plan, log: Log, faults: Faults, evaluates_after: EvaluatesAfter, decides: bool) -> None:
    """Check that all models of a log have become what they become alone, with the decisions on record."""
    added = {new.model: (decision, new) for decision in log.decisions for new in decision.added}
    on_record = {(decision.model, decision.epoch): decision for decision in log.decisions}
    assert len(on_record) == len(log.decisions), "decided twice"
    lives: dict[int, Life] = {}
    names = lineages(log)
    assert set(log.models) == set(numbers_of(plan)) | set(added) == set(log.states)
    for model, mine in log.models.items():  # a parent is there before its copies
        start = initial(model)
        if model in added:
            decision, new = added[model]
            if new.parent is None:
                at = decision.epoch * len(visits_of(plan, log.models[decision.model]))
                start = initial_added(lives[decision.model].states[at], new.key)
            else:
                start = lives[new.parent].states[new.parent_hop]
        decide = (lambda epoch, life, model=model: on_record[model, epoch]) if decides else None
        life = lives[model] = live(plan, mine, start, faults, evaluates_after(names[model]), decide)
        assert log.states[model] == life.states, f"model {model} did not train as it would alone"
        assert (model in log.failed) == life.failed, f"model {model}: {log.failed.get(model)}"
        mine_on_record = {(e, d, p): state for (m, e, d, p), state in log.evaluations.items() if m == model}
        assert mine_on_record == life.evaluations, f"the evaluations of model {model}"
        decisions = [decision for decision in log.decisions if decision.model == model]
        assert decisions == life.decisions, f"the decisions about model {model}"


def lives_of(plan: Plan, policy: Any, faults: Faults, evaluates_after: EvaluatesAfter) -> dict[Lineage, Life]:
    """Every model and what its decisions add, each trained alone: of a policy that looks at no other model."""
    lives: dict[Lineage, Life] = {}
    to_do: list[tuple[Lineage, ModelPlan, int, dict[str, int]]] = [
        ((one.model,), one, initial(one.model), {}) for one in plan.models
    ]
    for lineage, mine, start, configuration in to_do:
        history = History()
        history.begins(mine.model, configuration)
        visits = visits_of(plan, mine)

        def decide(epoch, life, history=history, mine=mine, visits=visits):
            for hop in range((epoch - 1) * len(visits) + 1, epoch * len(visits) + 1):
                visit = Train(mine.model, hop, epoch, visits[(hop - 1) % len(visits)])
                history.trained(mine.model, epoch, hop, *figures_of(visit, life.states[hop]))
            for (at, dataset, part), state in life.evaluations.items():
                unit = Evaluate(mine.model, 0, at, 0, dataset, part)
                history.evaluated(mine.model, at, dataset, part, Figures.of(*figures_of(unit, state)))
            history.complete(mine.model, epoch)
            return policy.decide(history, mine.model, epoch)

        life = lives[lineage] = live(plan, mine, start, faults, evaluates_after(lineage), decide)
        for decision in life.decisions:
            end = life.states[decision.epoch * len(visits)]
            for nth, new in enumerate(decision.added, 1):
                assert new.parent in (None, mine.model)
                begin = end if new.parent is not None else initial_added(end, new.key)
                number = 1000 + len(to_do)
                child = ModelPlan(number, mine.position + decision.epoch + nth, new.visits, mine.group)
                to_do.append(((*lineage, decision.epoch, nth), child, begin, generation_after(configuration)))
    return lives


def lineages(log: Log) -> dict[int, Lineage]:
    found: dict[int, Lineage] = {}
    added = {new.model: (one, nth) for one in log.decisions for nth, new in enumerate(one.added, 1)}
    for model in log.models:
        if model in added:
            decision, nth = added[model]
            found[model] = (*found[decision.model], decision.epoch, nth)
        else:
            found[model] = (model,)
    return found


def nameless(decision: Decision) -> tuple[Any, ...]:
    """A decision without the numbers of models, which depend on the timing."""

    def one(new: NewModel) -> tuple[Any, ...]:
        key = new.key if new.configuration is None else None
        return key, new.configuration, new.visits, new.parent == decision.model

    return decision.epoch, decision.verdict, decision.reason, [one(new) for new in decision.added]


# -- experiments ------------------------------------------------------------------------------------------


def random_policy(chance: random.Random, plan: Plan) -> Any:
    kind = chance.choice(("none", "none", "none", "none", "none", "own", "own", "others"))
    if kind == "none":
        return None
    if kind == "own":
        return chance.choice((StopAfter(chance.randint(1, plan.epochs)), Branching(), Branching("val_loss")))
    return chance.choice((StopWorseHalf(), CopyTheBest()))


@dataclass
class Experiment:
    """A run with everything that happens to it, made of one number."""

    seed: int
    make: type[Schedule] = Schedule
    choose_policy: Callable[[random.Random, Plan], Any] = random_policy
    units: int = 0
    crashes: int = 0
    failures: int = 0
    most_fused: int = 0
    longest_order: int = 0
    most_evaluations: int = 0
    decisions: int = 0
    added: int = 0
    stopped: int = 0
    replays: int = 0

    def run(self) -> Experiment:
        chance = random.Random(self.seed)
        plan = random_plan(chance)
        policy = self.choose_policy(chance, plan)
        faults = Faults(lost=chance.choice((0, 0, 0.05, 0.3)), late=chance.choice((0, 0, 0.3)))
        for model in numbers_of(plan):
            fate, hops = chance.random(), plan.epochs * len(order_of(plan, model))
            if fate < 0.05:
                faults.broken[model] = chance.randint(1, hops)
            elif fate < 0.10:
                faults.killers[model] = chance.randint(1, hops)
            elif fate < 0.13:
                faults.broken_evaluations.add(model)
        log = self._through_crashes(plan, faults, chance, policy)
        at_first = {epoch for epoch in range(plan.epochs + 1) if plan.evaluates_after(epoch)}
        self._check(plan, log, faults, lambda lineage: at_first, policy)
        self.failures = len(log.failed)
        self.decisions = len(log.decisions)
        self.added = sum(len(one.added) for one in log.decisions)
        self.stopped = sum(one.verdict is Verdict.STOP for one in log.decisions)
        if policy is not None and chance.random() < (0.3 if policy.own_history_only else 0.9):
            self.replays += 1
            again = self._through_crashes(plan, faults, chance, MustNotBeAsked(), log.decisions)
            assert again.states == log.states and again.models == log.models
            assert (
                sorted(again.decisions, key=str) == sorted(log.decisions, key=str)
                and again.evaluations == log.evaluations
            )
            assert again.failed == log.failed
        if chance.random() < 0.1:
            # A finished run is given more epochs.
            longer = replace(plan, epochs=plan.epochs + chance.randint(1, 2))
            more = {epoch for epoch in range(longer.epochs + 1) if longer.evaluates_after(epoch)}
            later = {epoch for epoch in more if epoch > plan.epochs}
            names = set(lineages(log).values())
            assert self._drive(longer, log, faults, chance, policy)
            self._check(longer, log, faults, lambda one: at_first | later if one in names else more, policy)
        return self

    def _through_crashes(
        self, plan: Plan, faults: Faults, chance: random.Random, policy: Any, replayed: Iterable[Decision] = ()
    ) -> Log:
        log = Log.of(plan)
        hops = plan.epochs * plan.segments
        for crash in range(chance.choice((0, 1, 1, 2, 4))):
            faults.crash_at = 1 + int(chance.random() ** 2 * 3 * hops * len(plan.models))
            self._drive(plan, log, faults, chance, policy, replayed=replayed, thorough=crash == 0)
        faults.crash_at = -1
        assert self._drive(plan, log, faults, chance, policy, replayed=replayed), "a run without a crash did not end"
        return log

    def _drive(
        self,
        plan: Plan,
        log: Log,
        faults: Faults,
        chance: random.Random,
        policy: Any,
        *,
        replayed: Iterable[Decision] = (),
        thorough: bool = True,
    ) -> bool:
        history = History() if policy is None else log.history(plan)
        ports = FakePorts(
            plan,
            log,
            random_seconds(chance, plan),
            faults=faults,
            chance=chance,
            # To look for idle segments takes as long as all the rest. A replay lets models wait for their copies.
            thorough=thorough and self.seed % 4 == 0 and not replayed,
            ahead=self.seed % 2 == 1,
            decides=policy is not None,
            pauses=random.Random(self.seed) if self.seed % 3 == 0 else None,
        )
        schedule = log.schedule(plan, self.make, policy is not None, replayed)
        try:
            orchestrator.run(schedule, ports, policy, history)
        except Crash:
            self.crashes += 1
            return False
        finally:
            self.units += len(ports.trace)
            self.most_fused = max(self.most_fused, ports.most_fused)
            self.longest_order = max(self.longest_order, ports.longest_order)
            self.most_evaluations = max(self.most_evaluations, ports.most_evaluations)
        stops = {one.model: one.reason for one in log.decisions if one.verdict is Verdict.STOP}
        for model, mine in schedule.progress.items():
            status, reason = Status.FINISHED, None
            if model in log.failed:
                status, reason = Status.FAILED, log.failed[model]
            elif model in stops:
                status, reason = Status.STOPPED, stops[model]
            assert (mine.status, mine.reason) == (status, reason), f"model {model}"
        assert set(schedule.progress) == set(log.models)
        return True

    def _check(self, plan: Plan, log: Log, faults: Faults, evaluates_after: EvaluatesAfter, policy: Any) -> None:
        """All is as in undisturbed runs of each model alone, but that models that had to fail have failed."""
        lives_on_record(plan, log, faults, evaluates_after, policy is not None)
        if policy is None:
            for model in numbers_of(plan):
                states = undisturbed(plan, model)
                assert log.states[model] == states[: len(log.states[model])]
        elif policy.own_history_only:
            lives, names = lives_of(plan, policy, faults, evaluates_after), lineages(log)
            assert set(names.values()) == set(lives), "other models were added than in an undisturbed run"
            for model, lineage in names.items():
                assert log.states[model] == lives[lineage].states, f"model {model}: {lineage}"
                decided = [one for one in log.decisions if one.model == model]
                assert list(map(nameless, decided)) == list(map(nameless, lives[lineage].decisions))
