"""Whole experiments in memory: the orchestrator's ports on a simulated clock, with seeded faults.

A model is the fold of its visits into a number, so equal numbers prove equal visits in equal order.
The log is what a database would still hold after a crash; everything else dies with the driver.
``python tests/core/fakes.py`` prints the tables of docs/scheduling.md.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from cerebro_db.core import orchestrator
from cerebro_db.core.orchestrator import Outcome
from cerebro_db.core.schedule import Evaluate, Plan, Schedule, Status, Train, Unit, derived_seed, entries, visit_order

MOST_TRIES = 3


def trained(state: int, epoch: int, segment: int) -> int:
    """The toy model after one more visit.  (Hashes of numbers are the same in every process.)"""
    return hash((state, epoch, segment))


def initial(key: int) -> int:
    return hash((key, 0))


def order_of(plan: Plan, key: int) -> list[int]:
    return visit_order(plan.seed, plan.enters.get(key, plan.configurations.index(key)), plan.segments)


def undisturbed(plan: Plan, key: int) -> list[int]:
    """The states of a configuration that one process trains, all by itself: before and after each hop."""
    states = [initial(key)]
    for epoch in range(1, plan.epochs + 1):
        for segment in order_of(plan, key):
            states.append(trained(states[-1], epoch, segment))
    return states


class Crash(Exception):
    """The driver is gone: kill -9, a cancel, a power cut."""


@dataclass
class Log:
    """What is committed."""

    states: dict[int, list[int]]  # configuration -> its state before and after each hop
    evaluations: dict[tuple[int, int, str, int], int] = field(default_factory=dict)  # … -> the state it saw
    failed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Log:
        return cls({key: [initial(key)] for key in plan.configurations})

    def schedule(self, plan: Plan, make: type[Schedule] = Schedule) -> Schedule:
        """The schedule with everything that the log says is done, as the driver makes it."""
        schedule = make(plan)
        evaluated = defaultdict(list)
        for key, epoch, dataset, part in self.evaluations:
            evaluated[key].append((epoch, dataset, part))
        for key, states in self.states.items():
            schedule.restore(key, len(states) - 1, evaluated[key])
        for key, reason in self.failed.items():
            schedule.give_up(key, reason)
        return schedule


@dataclass
class Faults:
    """What goes wrong, and when.  Chances are per attempt at a unit."""

    lost: float = 0.0  # the trainer or the session dies: tried again, at most twice for any unit
    broken: dict[int, int] = field(default_factory=dict)  # configuration -> the hop that says no
    killers: dict[int, int] = field(default_factory=dict)  # configuration -> the hop that kills its trainer, always
    broken_evaluations: set[int] = field(default_factory=set)  # configurations that cannot be evaluated
    crash_at: int = -1  # the driver dies at this event of the ports
    late: float = 0.0  # the chance that a look finds nothing, and the next one several ends at once


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
    ) -> None:
        self.plan, self.log, self.seconds, self.ahead = plan, log, seconds, ahead
        self.faults, self.chance = faults or Faults(), chance or random.Random(0)
        self.thorough = thorough
        self.now = 0.0
        self.events = 0
        self.trace: list[tuple[float, Unit]] = []
        self.attempts: dict[Unit, int] = {}
        self.gone: set[int] = set()  # configurations that were given up before our eyes
        self.together = 0  # how many trained in one pass, at most
        self._free_at: dict[int, list[float]] = {}  # busy segment -> when each of what it was given ends
        self._under_way: dict[int, set[Unit]] = {key: set() for key in plan.configurations}
        # When, tie-break, what trains together, and the states that they began with.
        self._ends: list[tuple[float, int, list[Unit], list[int]]] = []
        self._orders = {key: order_of(plan, key) for key in plan.configurations}

    # -- ports --------------------------------------------------------------------------------------

    def start(self, units: Sequence[Unit]) -> None:
        self._event()
        segment = units[0].segment
        assert segment not in self._free_at or self.reads_ahead(segment), f"segment {segment} is double-booked"
        states = [self._started(unit) for unit in units]
        assert len(units) <= self.plan.most_together and {unit.segment for unit in units} == {segment}
        if len(units) > 1:
            assert all(isinstance(unit, Train) and self.attempts[unit] == 1 for unit in units)
            (kind,) = {self.plan.alike[unit.configuration] for unit in units}
            assert len({unit.configuration for unit in units}) == len(units) and kind
        self.together = max(self.together, len(units))
        queue = self._free_at.setdefault(segment, [])
        queue.append(max([self.now, *queue]) + max(self.seconds(unit) for unit in units))
        heapq.heappush(self._ends, (queue[-1], len(self.trace), list(units), states))

    def reads_ahead(self, segment: int) -> bool:
        return self.ahead and len(self._free_at[segment]) == 1

    def _started(self, unit: Unit) -> int:
        key, mine = unit.configuration, self._under_way[unit.configuration]
        states = self.log.states[key]
        assert key not in self.gone and key not in self.log.failed, f"{unit} of a configuration that was given up"
        assert unit.hop == len(states) - isinstance(unit, Evaluate), f"{unit} after {len(states) - 1} hops"
        if isinstance(unit, Train):
            assert not mine, f"configuration {key} is double-booked"
            assert not self.due(key), f"{unit} before {self.due(key)}"
            epoch, step = divmod(unit.hop - 1, self.plan.segments)
            assert unit.epoch == epoch + 1 and unit.segment == self._orders[key][step], f"{unit} is not next"
        else:
            assert unit in self.due(key), f"{unit} is not due"
            assert unit not in mine, f"{unit} twice"
        self.attempts[unit] = self.attempts.get(unit, 0) + 1
        assert self.attempts[unit] <= MOST_TRIES, f"{unit} is tried for ever"
        mine.add(unit)
        self.trace.append((self.now, unit))
        return states[-1]

    def wait(self) -> list[Outcome]:
        self._event()
        if self.thorough:
            self._nobody_idles()
        if self.faults.late and self.chance.random() < self.faults.late:
            self.now = self._ends[0][0] + self.chance.random()
            return []
        assert self._ends, "waiting for nothing"
        self.now = max(self.now, self._ends[0][0])
        outcomes = []
        while self._ends and self._ends[0][0] <= self.now:
            _, _, units, states = heapq.heappop(self._ends)
            outcomes += self._end(units, states)
        return outcomes

    def gave_up(self, configuration: int, reason: str) -> None:
        self._event()
        assert configuration not in self.log.failed, f"configuration {configuration} is given up twice"
        assert reason
        self.log.failed[configuration] = reason

    def trying_again(self, unit: Unit, reason: str) -> None:
        self._event()
        assert self.attempts[unit] < MOST_TRIES

    # -- the world ----------------------------------------------------------------------------------

    def due(self, key: int) -> set[Evaluate]:
        """The evaluations that must be on record before this configuration may go on."""
        hops = len(self.log.states[key]) - 1
        epoch, step = divmod(hops, self.plan.segments)
        if step or not epoch or not self.plan.evaluates_after(epoch):
            return set()
        return {
            Evaluate(key, hops, epoch, segment, dataset, part)
            for dataset, parts in self.plan.evaluations.items()
            for part, segment in parts.items()
            if (key, epoch, dataset, part) not in self.log.evaluations
        }

    def _event(self) -> None:
        self.events += 1
        if self.events == self.faults.crash_at:
            # The driver is gone; a worker that had come to its COMMIT gets through without it.
            for _, _, units, states in self._ends:
                if self.chance.random() < 0.5:
                    self._commit_all(units, states, [self._fault(unit) for unit in units])
            raise Crash

    def _end(self, units: list[Unit], states: list[int]) -> list[Outcome]:
        segment = units[0].segment
        self._free_at[segment].pop(0)
        if not self._free_at[segment]:
            del self._free_at[segment]
        for unit in units:
            self._under_way[unit.configuration].remove(unit)
        faults = self._commit_all(units, states, [self._fault(unit) for unit in units])
        return [self._outcome(unit, fault) for unit, fault in zip(units, faults)]

    def _commit_all(
        self, units: list[Unit], states: list[int], faults: list[tuple[str, bool] | None]
    ) -> list[tuple[str, bool] | None]:
        """In one transaction: a trainer that dies takes all with it, a loss that is nan is one configuration's own."""
        deadly = [fault for fault in faults if fault is not None and fault[1]]
        if deadly:
            return [deadly[0] for _ in units]
        for unit, state, fault in zip(units, states, faults):
            if fault is None:
                self._commit(unit, state)
        return faults

    def _outcome(self, unit: Unit, fault: tuple[str, bool] | None) -> Outcome:
        if fault is None:
            return Outcome(unit, seconds=self.seconds(unit))
        reason, try_again = fault
        if not try_again or self.attempts[unit] == MOST_TRIES:
            self.gone.add(unit.configuration)
        return Outcome(unit, error=reason, try_again=try_again)

    def _fault(self, unit: Unit) -> tuple[str, bool] | None:
        key, faults = unit.configuration, self.faults
        if isinstance(unit, Evaluate):
            if key in faults.broken_evaluations:
                return "cannot be evaluated", False
        elif faults.broken.get(key) == unit.hop:
            return "the loss became nan", False
        elif faults.killers.get(key) == unit.hop:
            return "the trainer was killed", True
        if faults.lost and self.attempts[unit] < MOST_TRIES and self.chance.random() < faults.lost:
            return "the session was lost", True
        return None

    def _commit(self, unit: Unit, state: int) -> None:
        states = self.log.states[unit.configuration]
        assert states[-1] == state, f"the state changed under {unit}"
        if isinstance(unit, Train):
            assert unit.hop == len(states), f"{unit} is committed twice"
            states.append(trained(state, unit.epoch, unit.segment))
        else:
            what = (unit.configuration, unit.epoch, unit.dataset, unit.part)
            assert what not in self.log.evaluations, f"{unit} is committed twice"
            self.log.evaluations[what] = state

    def _nobody_idles(self) -> None:
        """No segment is idle while there is a unit that could run on it."""
        for key, mine in self._under_way.items():
            if key in self.gone or key in self.log.failed:
                continue
            due = self.due(key)
            if due:
                wanted = [unit.segment for unit in due - mine]
            else:
                hops = len(self.log.states[key]) - 1
                more = not mine and hops < self.plan.epochs * self.plan.segments
                wanted = [self._orders[key][hops % self.plan.segments]] if more else []
            assert all(segment in self._free_at for segment in wanted), f"{key} waits for an idle segment"


# -- experiments ----------------------------------------------------------------------------------------


def random_plan(chance: random.Random, *, most: int = 6) -> Plan:
    segments = chance.randint(1, most - 1)
    evaluations = {
        name: {part: chance.randrange(segments) for part in range(chance.randint(0, segments))}
        for name in ("training", "validation")
        if chance.random() < 0.5
    }
    configurations = tuple(chance.sample(range(100), chance.randint(1, most)))
    return Plan(
        seed=chance.getrandbits(31),
        configurations=configurations,
        segments=segments,
        epochs=chance.randint(1, 3),
        evaluations=evaluations,
        evaluate_every=chance.randint(0, 2),
        enters=chance.choice(({}, entries({key: chance.randint(1, 3) for key in configurations}, {0, 2}))),
        alike={key: chance.choice("ab") for key in configurations if chance.random() < 0.8},
        most_together=chance.choice((1, 1, 2, 4)),
    )


def random_seconds(chance: random.Random, plan: Plan) -> Callable[[Unit], float]:
    """Equal, mixed or wild costs; some segments slower than others, or not."""
    kind = chance.random()
    cost = {key: 1.0 if kind < 0.2 else chance.uniform(0.5, 6) for key in plan.configurations}
    slowness = [chance.choice((1.0, 1.0, 3.0)) for _ in range(plan.segments)]
    wild = chance.getrandbits(31) if kind > 0.6 else None

    def seconds(unit: Unit) -> float:
        once = cost[unit.configuration] * slowness[unit.segment] * (1.0 if isinstance(unit, Train) else 0.2)
        # A function of the unit, not of the moment, so that the same experiment is the same again.
        return once if wild is None else once * ((hash((wild, unit.configuration, unit.hop)) % 97 + 3) / 10)

    return seconds


@dataclass
class Experiment:
    """A run with all that befalls it, made of one number; and what is left of it at the end."""

    seed: int
    make: type[Schedule] = Schedule
    units: int = 0
    crashes: int = 0
    failures: int = 0
    together: int = 0

    def run(self) -> Experiment:
        chance = random.Random(self.seed)
        plan = random_plan(chance)
        log = Log.of(plan)
        hops = plan.epochs * plan.segments
        faults = Faults(lost=chance.choice((0, 0, 0.05, 0.3)), late=chance.choice((0, 0, 0.3)))
        for key in plan.configurations:
            fate = chance.random()
            if fate < 0.05:
                faults.broken[key] = chance.randint(1, hops)
            elif fate < 0.10:
                faults.killers[key] = chance.randint(1, hops)
            elif fate < 0.13:
                faults.broken_evaluations.add(key)
        for crash in range(chance.choice((0, 1, 1, 2, 4))):
            faults.crash_at = 1 + int(chance.random() ** 2 * 3 * hops * len(plan.configurations))
            self._drive(plan, log, faults, chance, thorough=crash == 0)
        faults.crash_at = -1
        assert self._drive(plan, log, faults, chance), "a run without a crash did not end"
        stops = {key: hops_of_a_failure(plan, faults, key) for key in plan.configurations}
        self.failures = sum(stop is not None for stop in stops.values())
        self._check(plan, log, faults, stops)
        if chance.random() < 0.1:
            # A finished run is given more epochs.
            already = set(log.evaluations)
            plan = replace(plan, epochs=plan.epochs + chance.randint(1, 2))
            assert self._drive(plan, log, faults, chance)
            self._check(plan, log, faults, stops, already)
        return self

    def _drive(self, plan: Plan, log: Log, faults: Faults, chance: random.Random, thorough: bool = True) -> bool:
        ports = FakePorts(
            plan,
            log,
            random_seconds(chance, plan),
            faults=faults,
            chance=chance,
            thorough=thorough and self.seed % 4 == 0,  # to look for idle segments takes as long as all the rest
            ahead=self.seed % 2 == 1,
        )
        schedule = log.schedule(plan, self.make)
        try:
            orchestrator.run(schedule, ports)
        except Crash:
            self.crashes += 1
            return False
        finally:
            self.units += len(ports.trace)
            self.together = max(self.together, ports.together)
        for key, mine in schedule.progress.items():
            assert mine.status is (Status.FAILED if key in log.failed else Status.FINISHED)
            assert mine.reason == log.failed.get(key)
        return True

    def _check(
        self,
        plan: Plan,
        log: Log,
        faults: Faults,
        stops: dict[int, int | None],
        already: Iterable[tuple[int, int, str, int]] = (),
    ) -> None:
        """All is as in an undisturbed run, but that the configurations that had to fail have failed."""
        expected = set(already)
        for key, stop in stops.items():
            states, alone = log.states[key], undisturbed(plan, key)
            hops = len(alone) - 1 if stop is None else stop
            assert states == alone[: hops + 1], f"configuration {key} did not train as it would alone"
            assert (key in log.failed) == (stop is not None), f"configuration {key}: {log.failed.get(key)}"
            if key not in faults.broken_evaluations:
                expected |= {(key, e.epoch, e.dataset, e.part) for e in evaluations_of(plan, key, hops)}
        assert set(log.evaluations) == expected
        for (key, epoch, _, _), state in log.evaluations.items():
            assert state == log.states[key][epoch * plan.segments], f"configuration {key}, epoch {epoch}: another state"


def evaluations_of(plan: Plan, key: int, hops: int) -> list[Evaluate]:
    """All evaluations of a configuration in its first hops."""
    return [
        Evaluate(key, epoch * plan.segments, epoch, segment, dataset, part)
        for epoch in range(1, hops // plan.segments + 1)
        if plan.evaluates_after(epoch)
        for dataset, parts in plan.evaluations.items()
        for part, segment in parts.items()
    ]


def hops_of_a_failure(plan: Plan, faults: Faults, key: int) -> int | None:
    """After how many hops these faults end a configuration; None: it finishes."""
    stops = [fate[key] - 1 for fate in (faults.broken, faults.killers) if key in fate]
    if key in faults.broken_evaluations:
        stops += [unit.hop for unit in evaluations_of(plan, key, plan.epochs * plan.segments)[:1]]
    return min(stops, default=None)


# -- which order keeps the segments busy? -----------------------------------------------------------------


class AsListed(Schedule):
    """One ring, which each enters at its place in the selection, whatever it costs."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(replace(plan, enters={}))


class Misjudged(Schedule):
    """One ring, which those enter first that cost least."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(replace(plan, enters={key: -entry for key, entry in plan.enters.items()}))


class RedrawnPerEpoch(Schedule):
    """A new ring in every epoch."""

    def next_visit(self, key: int) -> Train:
        visit, enters = super().next_visit(key), self.progress[key].enters
        order = visit_order(derived_seed(self.plan.seed, visit.epoch), enters, self.plan.segments)
        return replace(visit, segment=order[(visit.hop - 1) % self.plan.segments])


class Independent(Schedule):
    """A random order of its own for each configuration."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        for key in plan.configurations:
            random.Random(derived_seed(plan.seed, "independent", key)).shuffle(self._orders[key])
            self.restore(key, 0)


class Dynamic(Schedule):
    """No order: an idle segment takes the configuration with most work left that has not been there this epoch."""

    def __init__(self, plan: Plan) -> None:
        self.unvisited: dict[int, list[int]] = {}
        super().__init__(plan)

    def _offer(self, unit: Unit) -> None:
        if isinstance(unit, Train):
            left = self.unvisited.setdefault(unit.configuration, [])
            left[:] = left or range(self.plan.segments)
            for segment in left:
                super()._offer(replace(unit, segment=segment))
        else:
            super()._offer(unit)

    def take(self, segment: int) -> Unit | None:
        unit = super().take(segment)
        if isinstance(unit, Train):
            self._withdraw(self.progress[unit.configuration])
            self.unvisited[unit.configuration].remove(segment)
        return unit


class EvaluationsByWorkLeft(Schedule):
    """Evaluations wait their turn like visits, as the configuration's remaining work has it."""

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        return False, *super()._urgency(unit)[1:]


class EvaluationsLast(Schedule):
    """An evaluation runs only where nothing can train."""

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        return isinstance(unit, Train), *super()._urgency(unit)[1:]


class AllEvaluationsFirst(Schedule):
    """The last evaluations, too, go before any training."""

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        return isinstance(unit, Evaluate), *super()._urgency(unit)[1:]


class Clock:
    """Ports that do nothing but let time pass; of units that train together each but the longest costs a part."""

    def __init__(self, seconds: Callable[[Unit], float], part: float = 1.0) -> None:
        self.seconds, self.part, self.now, self.begun = seconds, part, 0.0, 0
        self.ends: list[tuple[float, int, list[Unit], float]] = []

    def start(self, units: Sequence[Unit]) -> None:
        self.begun += 1
        costs = [self.seconds(unit) for unit in units]
        took = max(costs) + self.part * (sum(costs) - max(costs))
        heapq.heappush(self.ends, (self.now + took, self.begun, list(units), took))

    def wait(self) -> list[Outcome]:
        self.now, _, units, took = heapq.heappop(self.ends)
        return [Outcome(unit, seconds=took / len(units)) for unit in units]

    def reads_ahead(self, segment: int) -> bool:
        return False

    def gave_up(self, configuration: int, reason: str) -> None: ...

    def trying_again(self, unit: Unit, reason: str) -> None: ...


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
    together: int = 1,
    part: float = 1.0,
) -> float:
    """How long a run takes, over the least that any schedule could take (without training together).

    ``share``: what the evaluation of one part costs, of a visit; 0: there is none.
    ``together``: how many of one cost may train in one pass, in which each further one costs a ``part``.
    """
    costs = WORKLOADS[workload](random.Random(derived_seed(seed, workload, count)), count)
    parts = {"validation": {segment: segment for segment in range(segments)}} if share else {}
    alike = {key: "any" if workload == "mixed" else str(cost) for key, cost in enumerate(costs)}
    enters = entries(dict(enumerate(costs)))
    plan = Plan(seed, tuple(range(count)), segments, epochs, parts, 1, enters, alike, together)
    clock = Clock(lambda unit: costs[unit.configuration] * (share if isinstance(unit, Evaluate) else 1.0), part)
    orchestrator.run(make(plan), clock)
    busiest_segment = epochs * sum(costs) * (1 + share)
    longest_configuration = epochs * max(costs) * (segments + share)  # its parts are evaluated at once
    return clock.now / max(busiest_segment, longest_configuration)


def table(ways: dict[str, type[Schedule]], segments: Iterable[int], *, share: float = 0.0, seeds: int = 3) -> str:
    """Mean and worst makespan over the bound, for each workload and ratio of configurations to segments."""
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


def fused(segments: Iterable[int], *, part: float, together: int = 16) -> str:
    """The makespan with training together, over the one without."""
    lines = ["| workload | S/2 | S | 2S | 4S + 1 | 16S |", "|---|---|---|---|---|---|"]
    for workload in WORKLOADS:
        cells = []
        for nth in range(5):
            found = []
            for s in segments:
                count = (*counts(s), 16 * s)[nth]
                alone = makespan(Schedule, workload, s, count)
                found.append(makespan(Schedule, workload, s, count, together=together, part=part) / alone)
            cells.append(f"{mean(found):.2f} ({max(found):.2f})")
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("Visits:\n", table(ORDERS, SEGMENTS), "", sep="\n")
    for share in (0.1, 0.5):
        print(f"Evaluations of {share} visits per part:\n", table(URGENCIES, SEGMENTS[:-1], share=share), "", sep="\n")
    for part in (0.3, 0.8):
        print(f"Together, each further one costs {part}:\n", fused(SEGMENTS[:-2], part=part), "", sep="\n")
