"""A world in memory: the orchestrator's ports on a simulated clock, with seeded faults.

A model is the fold of its visits into a number, so equal numbers prove equal visits in equal order.
The log is what a database would still hold after a crash; everything else dies with the driver.
``python tests/core/fakes.py`` prints the tables of docs/scheduling.md.
"""

from __future__ import annotations

import functools
import heapq
import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from cerebro_db.core.events import Verdict
from cerebro_db.core.planning.simulation import SimulatedClock
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.ports import Ports
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions, visit_order
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Train, Unit
from cerebro_db.core.search.budget import Used
from cerebro_db.core.search.history import Figures
from cerebro_db.core.search.policy import Decision, History
from cerebro_db.core.search.request import Request

MOST_TRIES = 3
STOPS = (Verdict.STOP, Verdict.GO_ON)


def trained(state: int, epoch: int, segment: int) -> int:
    """The toy model after one more visit. (Hashes of numbers are the same in every process.)"""
    return hash((state, epoch, segment))


def initial(model: int) -> int:
    return hash((model, 0))


def initial_added(state: int, key: int) -> int:
    """How an added model without a parent begins: a function of the state of the model that was decided about."""
    return hash((state, key))


def rows_of(segment: int) -> int:
    return 10 + 3 * segment


def figures_of(unit: Unit, state: int) -> tuple[int, float, dict[str, float]]:
    """Rows, loss and metrics of a unit, from the state that a visit leaves or that an evaluation sees."""
    if isinstance(unit, Train):
        return rows_of(unit.segment), state % 1009 / 1009, {"accuracy": math.nan if state % 31 == 0 else state % 7 / 7}
    return 5 + unit.part, hash((state, unit.part)) % 1013 / 1013, {"accuracy": state % 11 / 11}


def models(
    numbers: Iterable[int],
    positions: Mapping[int, int] | None = None,
    groups: Mapping[int, str] | None = None,
    visits: Mapping[int, tuple[int, ...]] | None = None,
) -> tuple[ModelPlan, ...]:
    """Models by their numbers; without a ring position given, a model's is its place here."""
    positions, groups, visits = positions or {}, groups or {}, visits or {}
    return tuple(
        ModelPlan(number, positions.get(number, place), visits.get(number), groups.get(number))
        for place, number in enumerate(numbers)
    )


def numbers_of(plan: Plan) -> list[int]:
    return [one.model for one in plan.models]


def plan_of(plan: Plan, model: int) -> ModelPlan:
    return next(one for one in plan.models if one.model == model)


def order_of(plan: Plan, model: int) -> list[int]:
    return visits_of(plan, plan_of(plan, model))


def visits_of(plan: Plan, mine: ModelPlan) -> list[int]:
    """The segments of a model in visiting order, computed here and not by the plan."""
    return list(_visits(plan.seed, plan.segments, mine))


@functools.lru_cache(maxsize=1000)
def _visits(seed: int, segments: int, mine: ModelPlan) -> tuple[int, ...]:
    order = visit_order(seed, mine.position, segments)
    return tuple(segment for segment in order if mine.visits is None or segment in mine.visits)


class QuietPorts(Ports):
    """Nothing but units happens: nobody decides, requests or rules anything."""

    def gave_up(self, model: int, reason: str) -> None: ...

    def trying_again(self, unit: Unit, reason: str) -> None: ...

    def decided(self, decisions: Sequence[Decision]) -> Sequence[ModelPlan]:
        return []

    def configuration(self, model: int) -> Mapping[str, Any]:
        return {}

    def best_hop(self, model: int) -> int | None:
        return None

    def requests(self) -> Sequence[Request]:
        return ()

    def ruled(self, model: int, epoch: int) -> str | None:
        return None

    def used(self) -> Used:
        return Used()


class Crash(Exception):
    """The driver is gone: kill -9, a cancel, a power cut."""


@dataclass
class Log:
    """What is committed."""

    models: dict[int, ModelPlan]
    states: dict[int, list[int]]  # model -> its state before and after each hop
    evaluations: dict[tuple[int, int, str, int], int] = field(default_factory=dict)  # … -> the state it saw
    decisions: list[Decision] = field(default_factory=list)  # in the order of their commits
    configurations: dict[int, dict[str, int]] = field(default_factory=dict)  # what policies may know of a model
    failed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Log:
        return cls({one.model: one for one in plan.models}, {model: [initial(model)] for model in numbers_of(plan)})

    def plan(self, plan: Plan) -> Plan:
        """With the models that decisions have added."""
        return replace(plan, models=tuple(self.models.values()))

    def schedule(
        self,
        plan: Plan,
        make: type[Schedule] = Schedule,
        decides: bool = False,
        replayed: Iterable[Decision] = (),
    ) -> Schedule:
        """The schedule with everything that the log says is done, as the driver makes it."""
        schedule = make(self.plan(plan), decides, replayed)
        evaluated, decided = defaultdict(list), defaultdict(list)
        for model, epoch, dataset, part in self.evaluations:
            evaluated[model].append((epoch, dataset, part))
        for one in self.decisions:
            decision = Decision.from_json(json.loads(json.dumps(one.to_json())))
            assert decision == one
            if decision.model is None:
                schedule.recall(decision)
            decided[decision.model].append(decision)
        for model, states in self.states.items():
            schedule.restore(model, len(states) - 1, evaluated[model], decided[model])
        for model, reason in self.failed.items():
            schedule.give_up(model, reason)
        return schedule

    def history(self, plan: Plan) -> History:
        """The figures on record, as the driver reads them."""
        history = History()
        for model, configuration in self.configurations.items():
            history.begins(model, configuration)
        for model, states in self.states.items():
            order = visits_of(plan, self.models[model])
            for hop, state in enumerate(states[1:], 1):
                visit = Train(model, hop, (hop - 1) // len(order) + 1, order[(hop - 1) % len(order)])
                history.trained(model, visit.epoch, hop, *self._figures(visit, state))
        for (model, epoch, dataset, part), state in self.evaluations.items():
            unit = Evaluate(model, 0, epoch, 0, dataset, part)
            history.evaluated(model, epoch, dataset, part, Figures.of(*self._figures(unit, state)))
        return history

    def decided(self, model: int, epoch: int) -> bool:
        return any((one.model, one.epoch) == (model, epoch) for one in reversed(self.decisions))

    def stopped(self, model: int) -> Decision | None:
        """The decision that has stopped a model for good, or for now."""
        last = next((one for one in reversed(self.decisions) if one.model == model and one.verdict in STOPS), None)
        return last if last is not None and last.verdict is Verdict.STOP else None

    def _figures(self, unit: Unit, state: int) -> tuple[int, float, dict[str, float | None]]:
        rows, loss, metrics = figures_of(unit, state)
        return rows, loss, {name: value if math.isfinite(value) else None for name, value in metrics.items()}


@dataclass
class Faults:
    """The faults of a run. Chances are per attempt at a unit."""

    lost: float = 0.0  # the trainer or the session dies: tried again, at most twice for any unit
    broken: dict[int, int] = field(default_factory=dict)  # model -> the hop that fails for good
    killers: dict[int, int] = field(default_factory=dict)  # model -> the hop that kills its trainer, always
    broken_evaluations: set[int] = field(default_factory=set)  # models that cannot be evaluated
    crash_at: int = -1  # the driver dies at this event of the ports
    late: float = 0.0  # the chance that a call of wait finds no outcome, and the next call several


@dataclass(order=True)
class Pass:
    """One pass of a segment: a unit, or several visits that train fused."""

    ends: float
    number: int  # of two passes that end at the same time, the lower number comes first
    units: list[Unit] = field(compare=False)
    states: list[int] = field(compare=False)  # that they began with
    faults: list[tuple[str, bool] | None] | None = field(default=None, compare=False)  # None: it has not ended


class FakePorts:
    """Checks every rule of docs/architecture.md from the outside, at every event."""

    def __init__(
        self,
        plan: Plan,
        log: Log,
        seconds: Callable[[Unit], float],
        *,
        faults: Faults | None = None,
        chance: random.Random | None = None,
        thorough: bool = True,
        ahead: bool = False,
        decides: bool = False,
        pauses: random.Random | None = None,
    ) -> None:
        """``pauses``: how many segments may be busy changes all the time, as if other runs needed processors."""
        self.pauses, self.allowed = pauses, None if pauses is None else 0
        self.plan, self.log, self.seconds, self.ahead = plan, log, seconds, ahead
        self.faults, self.chance = faults or Faults(), chance or random.Random(0)
        self.thorough, self.decides = thorough, decides
        self.now = 0.0
        self.events = 0
        self.trace: list[tuple[float, Unit]] = []
        self.attempts: dict[Unit, int] = {}
        self.gone: set[int] = set()  # models that these ports have seen fail for good
        self.unruled: set[int] = set()  # models about which a rule has not answered yet
        self.most_fused = 0  # the largest number of members in one pass
        self.longest_order = 0  # the largest number of visits in one order
        self.most_evaluations = 0  # in one order
        self._free_at: dict[int, list[float]] = {}  # busy segment -> when each of its passes ends
        self._under_way: dict[int, set[Unit]] = {model: set() for model in log.models}
        self._passes: list[Pass] = []
        self._orders = {model: visits_of(plan, mine) for model, mine in log.models.items()}

    # -- ports --------------------------------------------------------------------------------------

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        self._event()
        units = [unit for group in groups for unit in group]
        segment = units[0].segment
        assert segment not in self._free_at or self.reads_ahead(segment), f"segment {segment} is double-booked"
        states = [self._started(unit) for unit in units]
        assert {unit.segment for unit in units} == {segment}
        if len(units) > 1:
            assert all(self.attempts[unit] == 1 for unit in units)
            sorts = {(unit.dataset, unit.part) if isinstance(unit, Evaluate) else "visit" for unit in units}
            assert len(sorts) == 1, f"one order has {sorts}"
            assert len(groups) == len(units) or sorts == {"visit"}, "evaluations are fused"
            assert len({unit.model for unit in units}) == len(units)
        for fused in groups:
            assert len(fused) <= self.plan.most_fused
            words = {self.log.models[unit.model].group for unit in fused}
            assert len(fused) == 1 or (len(words) == 1 and None not in words)
            self.most_fused = max(self.most_fused, len(fused))
        if len(groups) > 1:
            (series,) = {self.log.models[unit.model].series for unit in units}
            assert series and all(len(group) == 1 for group in groups)
        if isinstance(units[0], Train):
            self.longest_order = max(self.longest_order, len(groups))
        else:
            self.most_evaluations = max(self.most_evaluations, len(groups))
        queue = self._free_at.setdefault(segment, [])
        assert self.allowed is None or len(self._free_at) <= self.allowed, "more segments are busy than may be"
        took = sum(max(self.seconds(unit) for unit in group) for group in groups)
        queue.append(max([self.now, *queue]) + took)
        heapq.heappush(self._passes, Pass(queue[-1], len(self.trace), list(units), states))

    def reads_ahead(self, segment: int) -> bool:
        return self.ahead and len(self._free_at[segment]) == 1

    def segments_allowed(self) -> int | None:
        if self.pauses is not None:
            self.allowed = self.pauses.randint(0, self.plan.segments)
        return self.allowed

    def _started(self, unit: Unit) -> int:
        model, mine = unit.model, self._under_way[unit.model]
        states = self.log.states[model]
        assert model not in self.gone and model not in self.log.failed, f"{unit} of a model that was given up"
        assert not self._stopped(model), f"{unit} of a model that was stopped"
        assert unit.hop == len(states) - isinstance(unit, Evaluate), f"{unit} after {len(states) - 1} hops"
        if isinstance(unit, Train):
            assert not mine, f"model {model} is double-booked"
            assert not self.due(model), f"{unit} before {self.due(model)}"
            epoch, step = divmod(unit.hop - 1, len(self._orders[model]))
            assert unit.epoch == epoch + 1 and unit.segment == self._orders[model][step], f"{unit} is not next"
            undecided = self.decides and step == 0 and epoch > 0 and not self.log.decided(model, epoch)
            assert not undecided, f"{unit} before the decision about epoch {epoch}"
        else:
            assert self._is_due(unit), f"{unit} is not due"
            assert unit not in mine, f"{unit} twice"
        self.attempts[unit] = self.attempts.get(unit, 0) + 1
        assert self.attempts[unit] <= MOST_TRIES, f"{unit} is tried for ever"
        mine.add(unit)
        self.trace.append((self.now, unit))
        return states[-1]

    def wait(self) -> list[Outcome]:
        self._event()
        if self.allowed is not None and not self._passes:
            self.now += 1.0
            return []
        if self.thorough and self.allowed is None:
            self._no_segment_idles()
        assert self._passes, "waiting for nothing"
        if self.faults.late and self.chance.random() < self.faults.late:
            self.now = self._passes[0].ends + self.chance.random()
            return []
        self.now = max(self.now, self._passes[0].ends)
        outcomes = []
        while self._passes and self._passes[0].ends <= self.now:
            outcomes += self._end(heapq.heappop(self._passes))
        return outcomes

    def gave_up(self, model: int, reason: str) -> None:
        self._event()
        assert model not in self.log.failed, f"model {model} is given up twice"
        assert reason
        self.log.failed[model] = reason

    def trying_again(self, unit: Unit, reason: str) -> None:
        self._event()
        assert self.attempts[unit] < MOST_TRIES

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        self._event()  # a crash here: nothing is committed
        (decision,) = decisions
        model, epoch, log = decision.model, decision.epoch, self.log
        assert model is not None and epoch is not None
        order, states = self._orders[model], log.states[model]
        assert self.decides and not log.decided(model, epoch), f"asked again: {decision}"
        assert len(states) - 1 == epoch * len(order) and not self._under_way[model], f"{decision} within an epoch"
        assert not self.due(model), f"{decision} before {self.due(model)}"
        assert model not in self.gone and model not in log.failed and not self._stopped(model)
        if self.chance.random() < 0.5:  # workers commit while the driver decides
            for one in self._passes:
                if any(unit.model == new.parent for unit in one.units for new in decision.added):
                    self._commit_all(one)
        plans = []
        for nth, new in enumerate(decision.added, 1):
            assert new.model is not None and new.model not in log.models, f"there is a model {new.model} already"
            mine = log.models[model]
            # A function of the lineage, so that the visits do not depend on the timing of other models.
            plans.append(ModelPlan(new.model, mine.position + epoch + nth, new.visits, mine.group))
            if new.parent is None:
                assert new.key is not None
                start = initial_added(states[-1], new.key)
            else:
                assert new.parent_hop is not None
                theirs = log.states[new.parent]
                # A state table keeps a model's last two states.
                assert len(theirs) - 2 <= new.parent_hop <= len(theirs) - 1, f"no such state any more: {new}"
                start = theirs[new.parent_hop]
            log.states[new.model] = [start]
            log.models[new.model] = plans[-1]
            self._orders[new.model] = visits_of(self.plan, plans[-1])
            self._under_way[new.model] = set()
            log.configurations[new.model] = generation_after(log.configurations.get(model, {}))
        log.decisions.append(decision)
        self._event()  # a crash here: the decision is committed, but has had no effect
        return plans

    def configuration(self, model: int) -> Mapping[str, Any]:
        return self.log.configurations[model]

    def best_hop(self, model: int) -> int | None:
        return None

    def requests(self) -> list[Request]:
        return []

    def ruled(self, model: int, epoch: int) -> str | None:
        return None

    def used(self) -> Used:
        return Used(self.now)

    # -- the world ----------------------------------------------------------------------------------

    def due(self, model: int) -> set[Evaluate]:
        """The evaluations that must be on record before this model may go on."""
        hops = len(self.log.states[model]) - 1
        epoch, step = divmod(hops, len(self._orders[model]))
        if step or not epoch or not self.plan.evaluates_after(epoch):
            return set()
        return {
            Evaluate(model, hops, epoch, segment, dataset, part)
            for dataset, parts in self.plan.evaluations.items()
            for part, segment in parts.items()
            if (model, epoch, dataset, part) not in self.log.evaluations
        }

    def _is_due(self, unit: Evaluate) -> bool:
        return unit in self.due(unit.model)

    def _stopped(self, model: int) -> bool:
        return self.log.stopped(model) is not None

    def _event(self) -> None:
        self.events += 1
        if self.events == self.faults.crash_at:
            # The driver is gone; a worker that had come to its COMMIT gets through without it.
            for one in self._passes:
                if self.chance.random() < 0.5:
                    self._commit_all(one)
            raise Crash

    def _end(self, one: Pass) -> list[Outcome]:
        segment = one.units[0].segment
        self._free_at[segment].pop(0)
        if not self._free_at[segment]:
            del self._free_at[segment]
        for unit in one.units:
            self._under_way[unit.model].remove(unit)
        return [self._outcome(unit, fault) for unit, fault in zip(one.units, self._commit_all(one))]

    def _commit_all(self, one: Pass) -> list[tuple[str, bool] | None]:
        """In one transaction: a trainer that dies takes all with it, a loss that is nan is one model's own."""
        if one.faults is None:
            one.faults = [self._fault(unit) for unit in one.units]
            deadly = [fault for fault in one.faults if fault is not None and fault[1]]
            if deadly:
                one.faults = [deadly[0] for _ in one.units]
            for unit, state, fault in zip(one.units, one.states, one.faults):
                if fault is None:
                    self._commit(unit, state)
        return one.faults

    def _outcome(self, unit: Unit, fault: tuple[str, bool] | None) -> Outcome:
        if fault is None:
            rows, loss, metrics = figures_of(unit, self.log.states[unit.model][unit.hop])
            return Outcome(unit, seconds=self.seconds(unit), weight=rows, loss=loss, metrics=metrics)
        reason, try_again = fault
        if not try_again or self.attempts[unit] == MOST_TRIES:
            self.gone.add(unit.model)
        return Outcome(unit, error=reason, try_again=try_again)

    def _fault(self, unit: Unit) -> tuple[str, bool] | None:
        model, faults = unit.model, self.faults
        if isinstance(unit, Evaluate):
            if model in faults.broken_evaluations:
                return "cannot be evaluated", False
        elif faults.broken.get(model) == unit.hop:
            return "the loss became nan", False
        elif faults.killers.get(model) == unit.hop:
            return "the trainer was killed", True
        if faults.lost and self.attempts[unit] < MOST_TRIES and self.chance.random() < faults.lost:
            return "the session was lost", True
        return None

    def _commit(self, unit: Unit, state: int) -> None:
        states = self.log.states[unit.model]
        assert states[-1] == state, f"the state changed under {unit}"
        if isinstance(unit, Train):
            assert unit.hop == len(states), f"{unit} is committed twice"
            states.append(trained(state, unit.epoch, unit.segment))
        else:
            what = (unit.model, unit.epoch, unit.dataset, unit.part)
            assert what not in self.log.evaluations, f"{unit} is committed twice"
            self.log.evaluations[what] = state

    def _no_segment_idles(self) -> None:
        """No segment is idle while there is a unit that could run on it."""
        for model, mine in self._under_way.items():
            if model in self.gone or model in self.log.failed or self._stopped(model) or model in self.unruled:
                continue
            if any(isinstance(unit, Train) for unit in mine):
                continue
            due = self.due(model)
            if due:
                wanted = [unit.segment for unit in due - mine]
            else:
                hops, order = len(self.log.states[model]) - 1, self._orders[model]
                more = not mine and hops < self.plan.epochs * len(order)
                wanted = [order[hops % len(order)]] if more else []
            assert all(segment in self._free_at for segment in wanted), f"{model} waits for an idle segment"


def generation_after(configuration: Mapping[str, int]) -> dict[str, int]:
    return {"generation": configuration.get("generation", 0) + 1}


def random_seconds(chance: random.Random, plan: Plan) -> Callable[[Unit], float]:
    """Equal, mixed or wild costs; some segments slower than others, or not."""
    kind = chance.random()
    cost = {model: 1.0 if kind < 0.2 else chance.uniform(0.5, 6) for model in numbers_of(plan)}
    slowness = [chance.choice((1.0, 1.0, 3.0)) for _ in range(plan.segments)]
    wild = chance.getrandbits(31) if kind > 0.6 else None

    def seconds(unit: Unit) -> float:
        part = 1.0 if isinstance(unit, Train) else 0.2
        once = cost.get(unit.model, 1.0 + unit.model % 3) * slowness[unit.segment] * part
        # A function of the unit, not of the moment, so that the same experiment is the same again.
        return once if wild is None else once * ((hash((wild, unit.model, unit.hop)) % 97 + 3) / 10)

    return seconds


# -- which order keeps the segments busy? -----------------------------------------------------------------


class AsListed(Schedule):
    """One ring; a model's position is its place in the selection, whatever it costs."""

    def __init__(self, plan: Plan, *more: Any) -> None:
        listed = tuple(replace(one, position=at) for at, one in enumerate(plan.models))
        super().__init__(replace(plan, models=listed), *more)


class Misjudged(Schedule):
    """One ring; the cheapest models get the first positions."""

    def __init__(self, plan: Plan, *more: Any) -> None:
        reversed_ = tuple(replace(one, position=-one.position) for one in plan.models)
        super().__init__(replace(plan, models=reversed_), *more)


class RedrawnPerEpoch(Schedule):
    """A new ring in every epoch."""

    def next_visit(self, key: int) -> Train:
        visit, position = super().next_visit(key), self.progress[key].plan.position
        order = visit_order(derived_seed(self.plan.seed, visit.epoch), position, self.plan.segments)
        return replace(visit, segment=order[(visit.hop - 1) % self.plan.segments])


class Independent(Schedule):
    """A random order for each model."""

    def __init__(self, plan: Plan, *more: Any) -> None:
        super().__init__(plan, *more)
        for key in numbers_of(plan):
            random.Random(derived_seed(plan.seed, "independent", key)).shuffle(self.progress[key].order)
            self.restore(key, 0)


class Dynamic(Schedule):
    """No order: an idle segment takes the model with most work left that has not visited it in this epoch."""

    def __init__(self, plan: Plan, *more: Any) -> None:
        self.unvisited: dict[int, list[int]] = {}
        super().__init__(plan, *more)

    def _offer(self, unit: Unit) -> None:
        if isinstance(unit, Train):
            left = self.unvisited.setdefault(unit.model, [])
            left[:] = left or range(self.plan.segments)
            for segment in left:
                super()._offer(replace(unit, segment=segment))
        else:
            super()._offer(unit)

    def take(self, segment: int, only: Sequence[int] | None = None) -> Unit | None:
        unit = super().take(segment, only)
        if isinstance(unit, Train):
            self._withdraw(unit.model)
            self.unvisited[unit.model].remove(segment)
        return unit


class EvaluationsByWorkLeft(Schedule):
    """Evaluations are ordered like visits, by the work that their model has left."""

    def _goes_ahead(self, unit: Unit) -> bool:
        return False


class EvaluationsLast(Schedule):
    """An evaluation runs only where nothing can train."""

    def _goes_ahead(self, unit: Unit) -> bool:
        return isinstance(unit, Train)


class AllEvaluationsFirst(Schedule):
    """The last evaluations, too, go before any training."""

    def _goes_ahead(self, unit: Unit) -> bool:
        return isinstance(unit, Evaluate)


class Clock(SimulatedClock):
    """Ports that do nothing but let time pass; how long a unit takes does not depend on how many segments are at work.

    Of fused units each but the longest costs a ``part``. Each order costs ``order`` seconds beside its visits.
    """

    def __init__(self, seconds: Callable[[Unit], float], part: float = 1.0, order: float = 0.0) -> None:
        super().__init__(lambda unit, at_work: self.seconds(unit), lambda units: part, order)
        self.seconds = seconds


WORKLOADS: dict[str, Callable[[random.Random, int], list[float]]] = {
    "equal": lambda chance, count: [1.0] * count,
    "mixed": lambda chance, count: [chance.uniform(1, 6) for _ in range(count)],
    "two-speed": lambda chance, count: [6.0 if place % 4 == 3 else 1.0 for place in range(count)],
    # As a grid lists them: one architecture after the other.
    "three sizes": lambda chance, count: [(1.0, 3.0, 10.0)[3 * place // count] for place in range(count)],
}
ORDERS = {
    "one ring": Schedule,
    "misjudged": Misjudged,
    "as listed": AsListed,
    "redrawn": RedrawnPerEpoch,
    "independent": Independent,
    "dynamic": Dynamic,
}
URGENCIES = {
    "before training": Schedule,
    "the last ones too": AllEvaluationsFirst,
    "by work left": EvaluationsByWorkLeft,
    "after training": EvaluationsLast,
}
SEGMENTS = (2, 4, 8, 16, 32, 64)


def counts(segments: int) -> tuple[int, ...]:
    return max(1, segments // 2), segments, 2 * segments, 4 * segments + 1


def makespan(
    make: type[Schedule],
    workload: str,
    segments: int,
    count: int,
    *,
    seed: int = 0,
    epochs: int = 3,
    share: float = 0.0,
    most_fused: int = 1,
    part: float = 1.0,
    order: float = 0.0,
    series_seconds: float = 0.0,
) -> float:
    """How long a run takes, divided by the lower bound of all schedules without fusion.

    ``share``: the cost of evaluating one part, as a share of a visit; 0: the run evaluates nothing.
    ``most_fused``: how many models of equal cost may train in one pass. Each further member costs a ``part``.
    ``order``: the seconds that an order to a trainer costs beside its visits. An order may have visits for
    ``series_seconds``. The bound knows nothing of the cost of orders.
    """
    costs = WORKLOADS[workload](random.Random(derived_seed(seed, workload, count)), count)
    parts = {"validation": {segment: segment for segment in range(segments)}} if share else {}
    groups = {key: "any" if workload == "mixed" else str(cost) for key, cost in enumerate(costs)}
    positions = ring_positions(dict(enumerate(costs)))
    listed = tuple(replace(one, series="any") for one in models(range(count), positions, groups))
    plan = Plan(seed, listed, segments, epochs, parts, 1, most_fused=most_fused, series_seconds=series_seconds)
    clock = Clock(lambda unit: costs[unit.model] * (share if isinstance(unit, Evaluate) else 1.0), part, order)
    orchestrator.run(make(plan), clock)
    busiest_segment = epochs * sum(costs) * (1 + share)
    longest_model = epochs * max(costs) * (segments + share)  # its parts are evaluated at once
    return clock.now / max(busiest_segment, longest_model)


def table(ways: dict[str, type[Schedule]], segments: Iterable[int], *, share: float = 0.0, seeds: int = 3) -> str:
    """Mean and worst makespan over the bound, for each workload and ratio of models to segments."""
    names = ("S/2", "S", "2S", "4S + 1")
    lines = [f"| workload | C | {' | '.join(ways)} |", "|---|---|" + "---|" * len(ways)]
    for workload in WORKLOADS:
        for nth, name in enumerate(names):
            cells = []
            for make in ways.values():
                found = [
                    makespan(make, workload, s, counts(s)[nth], seed=seed, share=share)
                    for s in segments
                    for seed in range(seeds if s <= 16 else 1)
                ]
                cells.append(f"{mean(found):.2f} ({max(found):.2f})")
            lines.append(f"| {workload} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratios(segments: Iterable[int], base: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """The makespan with other settings, divided by the one with the base settings: mean and worst."""
    lines = ["| workload | S/2 | S | 2S | 4S + 1 | 16S |", "|---|---|---|---|---|---|"]
    for workload in WORKLOADS:
        cells = []
        for nth in range(5):
            found = []
            for s in segments:
                count = (*counts(s), 16 * s)[nth]
                before = makespan(Schedule, workload, s, count, **base)
                found.append(makespan(Schedule, workload, s, count, **changed) / before)
            cells.append(f"{mean(found):.2f} ({max(found):.2f})")
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("Visits:\n", table(ORDERS, SEGMENTS), "", sep="\n")
    for share in (0.1, 0.5):
        print(f"Evaluations of {share} visits per part:\n", table(URGENCIES, SEGMENTS[:-1], share=share), "", sep="\n")
    for part in (0.3, 0.8):
        print(f"Fusion, each further member costs {part}:\n")
        print(ratios(SEGMENTS[:-2], {}, {"most_fused": 16, "part": part}), "\n")
    for order in (0.0, 3.0):
        print(f"Series, each order costs {order} visits:\n")
        print(ratios(SEGMENTS[:-2], {"order": order}, {"order": order, "series_seconds": 25.0}), "\n")
