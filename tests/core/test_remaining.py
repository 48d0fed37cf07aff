"""The estimate of the time that is left, on simulated runs: within a third from the tenth second on."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cerebro_db.core.scheduling import orchestrator, remaining
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.plan import Evaluate, ModelPlan, Plan, Train, Unit
from cerebro_db.core.scheduling.remaining import BegunUnit, RunPace
from cerebro_db.core.scheduling.schedule import Schedule
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.named_methods import Proposals
from cerebro_db.core.search.policy import Decision, History, Policy
from cerebro_db.core.search.spaces.read_space import read

START = 4.0  # seconds from the start of a run to its first unit
BETWEEN = 0.03  # seconds from the end of a unit to the begin of the next one of its segment
SEGMENTS = 2
Build = Callable[[int, int, set[int]], float]  # of a model, its hop, and the models that the segment has built
SPACE = read({"compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}}}, {7: None})


@dataclass
class Simulated:
    """A run on a simulated clock.  ``told``: moments, and what the estimate was."""

    policy: Policy
    models: int
    epochs: int
    visit: Callable[[int], float]
    build: Build = lambda model, hop, built: 0.0
    budget: Budget = Budget()
    evaluations: float = 0.0  # seconds of one
    seed: int = 0
    told: list[tuple[float, float | None]] = field(default_factory=list)

    def run(self) -> Simulated:
        self.chance = random.Random(self.seed)
        self.now, self.busy, self.next_beat = START, [], START + 1
        self.free = dict.fromkeys(range(SEGMENTS), START)
        self.built: dict[int, set[int]] = {segment: set() for segment in range(SEGMENTS)}
        self.pace, self.unit_seconds = RunPace(), 0.0
        numbers = range(1, self.models + 1)
        plan = Plan(
            seed=1, segments=SEGMENTS, epochs=self.epochs, models=tuple(ModelPlan(one, one) for one in numbers),
            evaluate_every=1 if self.evaluations else 0,
            evaluations={"validation": {0: 0, 1: 1}} if self.evaluations else {},
        )  # fmt: skip
        self.schedule = Schedule(plan, self.policy.asks)
        self.begins = self.policy.begins
        orchestrator.run(self.schedule, self, self.policy, History(), self.budget)
        return self

    # -- ports ----------------------------------------------------------------------------------------------------

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        for unit in [unit for group in groups for unit in group]:
            segment, building = unit.segment, 0.0
            seconds = self.evaluations
            if isinstance(unit, Train):
                building = self.build(unit.model, unit.hop, self.built[segment])
                self.built[segment].add(unit.model)
                seconds = self.visit(unit.model) * self.chance.uniform(0.8, 1.25)
            began = max(self.now, self.free[segment]) + BETWEEN
            self.free[segment] = began + seconds + building
            heapq.heappush(self.busy, (self.free[segment], id(unit), unit, began, building))

    def wait(self) -> list[Outcome]:
        ends, _, unit, began, building = self.busy[0]
        while self.next_beat < ends:
            self._beat(self.next_beat)
            self.next_beat += 1
        heapq.heappop(self.busy)
        self.now = ends
        self.pace.add(unit, ends - began, building)
        self.unit_seconds += ends - began
        loss = (unit.model * 7919 % 101) / 101 + 1 / unit.epoch
        return [Outcome(unit, ends - began, None, False, 100, loss)]

    def _beat(self, now: float) -> None:
        under_way = [
            BegunUnit(unit, now - began, min(1.0, (now - began) / (ends - began)) if not building else 0.0)
            for ends, _, unit, began, building in self.busy
        ]
        left = remaining.seconds_left(
            self.schedule, self.policy, self.pace, under_way=under_way, elapsed=now - START,
            budget=self.budget, used=self.used(now), begins=self.begins,
        )  # fmt: skip
        self.told.append((now, left))

    def used(self, now: float | None = None) -> Used:
        return Used(self.now if now is None else now, self.unit_seconds)

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        return [ModelPlan(new.model, new.model) for one in decisions for new in one.added]

    def configuration(self, model: int) -> dict[str, Any]:
        return {"chosen": {"lr": model}}

    def reads_ahead(self, segment: int) -> bool:
        return False

    def segments_allowed(self) -> int | None:
        return None

    def requests(self) -> list[Any]:
        return []

    def ruled(self, model: int, epoch: int) -> None:
        return None


def searching(name: str, epochs: int, configurations: int, **more: Any) -> Policy:
    spec = named_methods.checked({"name": name, **more}, proposes=True)
    return named_methods.policy_of(spec, epochs, configurations, Proposals(SPACE, 1, 4, lambda *_: []))


RUNS = {
    # The trainer of each segment compiles once for all models, and each model's own building is short.
    "one program": Simulated(NeverStop(), 8, 6, lambda m: 1.0, lambda m, hop, built: 0.05 if built else 15.0),
    # Every model is another program, and compiling takes ten times as long as a visit.
    "a program each": Simulated(NeverStop(), 8, 12, lambda m: 1.0, lambda m, hop, built: 0.0 if m in built else 10.0),
    "visits of many lengths": Simulated(
        NeverStop(), 6, 8, lambda m: 0.5 * m, lambda m, hop, built: 0.0 if m in built else 2.0
    ),
    "a single model": Simulated(NeverStop(), 1, 30, lambda m: 1.0, lambda m, hop, built: 0.0 if m in built else 5.0),
    "long visits, few of them": Simulated(NeverStop(), 4, 5, lambda m: 20.0),
    "evaluations": Simulated(NeverStop(), 4, 30, lambda m: 0.5, evaluations=0.5),
    "short visits": Simulated(NeverStop(), 20, 30, lambda m: 0.05),
    "asha": Simulated(
        searching("asha", 81, 24, min_epochs=3), 0, 81, lambda m: 0.2, lambda m, hop, built: 0.0 if m in built else 0.3
    ),
    "halving": Simulated(searching("halving", 27, 27, min_epochs=3), 0, 27, lambda m: 0.2),
    "hyperband": Simulated(searching("hyperband", 27, 40), 0, 27, lambda m: 0.2),
    "random": Simulated(searching("random", 20, 20), 0, 20, lambda m: 0.1, evaluations=0.05),
    "budget": Simulated(
        searching("asha", 81, 24, min_epochs=3), 0, 81, lambda m: 1.0, budget=Budget(seconds=45, least_epochs=1)
    ),
    "long visits and a budget": Simulated(NeverStop(), 6, 50, lambda m: 6.0, budget=Budget(seconds=60)),
    "hops": Simulated(NeverStop(), 6, 500, lambda m: 1.0, budget=Budget(hops=60)),
    "unit-hours": Simulated(NeverStop(), 6, 500, lambda m: 1.0, budget=Budget(unit_hours=80 / 3600)),
}


# Seconds after the tenth until the first visits have ended that are known to build no more than others.
UNKNOWN = {"one program": 13, "a program each": 20, "visits of many lengths": 2, "a single model": 8}


@pytest.mark.parametrize("name", RUNS)
def test_the_estimate_is_within_a_third_from_the_tenth_second_on(name: str) -> None:
    simulated = RUNS[name].run()
    assert simulated.now > 20, "too short to say anything"
    units = [told for moment, told in simulated.told if moment >= 10]
    first = next(place for place, told in enumerate(units) if told is not None)
    assert first <= UNKNOWN.get(name, 0), f"no estimate until {first} s after the tenth second"
    slack = 4.0 + simulated.visit(1) / 3  # near the end, a visit more or less
    wrong = [
        (moment, told, simulated.now - moment)
        for moment, told in simulated.told
        if moment >= 10 + first
        and (told is None or abs(told - (simulated.now - moment)) > max(slack, (simulated.now - moment) / 3))
    ]
    assert len(wrong) <= len(simulated.told) // 30, f"at, said, right: {wrong[:5]} … of {len(simulated.told)}"


def test_a_method_that_stops_models_is_expected_to() -> None:
    asha = searching("asha", 81, 24, min_epochs=3)
    assert asha.begins == 24
    assert asha.expected_epochs(0, 0) == pytest.approx(3 + 6 / 3 + 18 / 9 + 54 / 27)
    assert asha.expected_epochs(0, 9) == pytest.approx(27 + 54 / 3)
    assert asha.expected_epochs(0, 27) == 81
    assert NeverStop().expected_epochs(0, 5) > 10**9 and NeverStop().begins is None


def test_an_evaluation_is_no_visit() -> None:
    pace = RunPace()
    pace.add(Evaluate(1, 1, 1, 0, "validation", 0), 2.0, 0.0)
    assert pace.visits.each is None and pace.evaluations.each == 2.0 and pace.seconds == 2.0


def test_a_budget_is_no_estimate() -> None:
    """Nothing was measured yet, and most runs end long before their budget."""
    simulated = RUNS["long visits and a budget"].run()
    unknown: Any = {"under_way": [], "elapsed": 1.0, "budget": Budget(seconds=180), "used": Used(1.0, 0.0)}
    assert remaining.seconds_left(simulated.schedule, simulated.policy, RunPace(), **unknown) is None
