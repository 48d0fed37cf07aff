"""Visits that keep several segments busy: when they begin, whatever else waits, fails or is broken off."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from fakes import QuietPorts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.plan import Evaluate, ModelPlan, Plan, Train, TrainJointly, Unit, segments_of
from cerebro_db.core.scheduling.ports import Outcome
from cerebro_db.core.scheduling.schedule import Schedule, Status
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.decision import Variant
from cerebro_plpy.runs.record.groups import rows_on_record, visits_of
from tests.thorough import tries

PARTS = {"training": {0: 0, 1: 1}}


class Segments(QuietPorts):
    """Any of the orders under way ends next, perhaps with a failure.  It is the log, too."""

    def __init__(self, schedule: Schedule, chance: random.Random, lost: float = 0.0, ahead: bool = False) -> None:
        self.schedule, self.chance, self.lost, self.ahead = schedule, chance, lost, ahead
        self.under_way: list[Unit] = []
        self.done: list[Unit] = []
        self.waited = 0  # times that a segment was left idle for a joint visit
        self.killed_at: int | None = None

    def start(self, groups):
        (unit,) = (unit for group in groups for unit in group)
        busy = Counter(segment for one in self.under_way for segment in segments_of(one))
        most = 1 if self.ahead and not isinstance(unit, TrainJointly) else 0
        assert all(busy[segment] <= most for segment in segments_of(unit)), f"{unit} on a busy segment"
        if isinstance(unit, Train):
            assert unit.hop == 1 + sum(isinstance(one, Train) and one.model == unit.model for one in self.done)
        self.under_way.append(unit)

    def reads_ahead(self, segment):
        mine = [unit for unit in self.under_way if segment in segments_of(unit)]
        return self.ahead and len(mine) == 1 and not isinstance(mine[0], TrainJointly)

    def wait(self):
        if self.killed_at is not None and len(self.done) >= self.killed_at:
            raise KeyboardInterrupt
        self.waited += len(self.schedule.busy) < self.schedule.plan.segments
        unit = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        if self.chance.random() < self.lost:
            return [Outcome(unit, 0.1, error="lost", try_again=True, most_tries=99)]
        self.done.append(unit)
        return [Outcome(unit, 0.1, weight=5, loss=1.0)]

    def used(self):
        return Used(seconds=0.1 * len(self.done))


def plans(chance: random.Random, segments: int, models: int) -> tuple[ModelPlan, ...]:
    found = []
    for number in range(1, models + 1):
        together = tuple(chance.sample(range(segments), chance.randint(2, segments)))
        joint = chance.random() < 0.6
        found.append(ModelPlan(number, number, together[:1], jointly=together) if joint else ModelPlan(number, number))
    return tuple(found)


def resumed(plan: Plan, done: list[Unit]) -> Schedule:
    """A schedule as a log with these units leaves it."""
    schedule = Schedule(plan)
    for one in plan.models:
        mine = [unit for unit in done if unit.model == one.model]
        evaluated = [(unit.epoch, unit.dataset, unit.part) for unit in mine if isinstance(unit, Evaluate)]
        schedule.restore(one.model, sum(isinstance(unit, Train) for unit in mine), evaluated)
    return schedule


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=tries(60))
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.booleans(), st.booleans())
def test_every_epoch_is_trained_once_and_no_segment_does_two_things(seed, segments, models, breaks, ahead):
    chance = random.Random(seed)
    plan = Plan(7, plans(chance, segments, models), segments, 3, PARTS, 1)
    done: list[Unit] = []
    while True:
        schedule = resumed(plan, done)
        ports = Segments(schedule, chance, lost=0.2, ahead=ahead)
        ports.done = list(done)
        if breaks and chance.random() < 0.7:
            ports.killed_at = len(done) + chance.randint(1, 5)
        try:
            orchestrator.run(schedule, ports)
        except KeyboardInterrupt:
            done = ports.done
            continue
        break
    assert {mine.status for mine in schedule.progress.values()} == {Status.FINISHED}
    visits = Counter((unit.model, unit.epoch) for unit in ports.done if isinstance(unit, Train))
    for one in plan.models:
        assert all(visits[one.model, epoch] == (1 if one.jointly else segments) for epoch in (1, 2, 3))
    assert {segments_of(unit) for unit in ports.done if isinstance(unit, TrainJointly)} == {
        one.jointly for one in plan.models if one.jointly
    }


def test_segments_gather_for_one_joint_visit_at_a_time():
    """Model 1 needs segments 0 and 1, model 2 segments 1 and 2; model 3 trains alone on segment 1."""
    models = (ModelPlan(1, 0, (0,), jointly=(0, 1)), ModelPlan(2, 1, (2,), jointly=(2, 1)), ModelPlan(3, 2, (1,)))
    schedule = Schedule(Plan(7, models, 3, 1))
    alone = schedule.take(1)
    assert isinstance(alone, Train) and alone.model == 3
    assert schedule.take(0) is None  # gathers: segment 1 is busy
    assert schedule.take(2) is None  # another visit gathers already
    schedule.succeeded(alone, 1.0)
    first = schedule.take(1)
    assert isinstance(first, TrainJointly) and first.segments == (0, 1)
    assert set(schedule.busy) == {0, 1}
    assert schedule.take(2) is None  # now it gathers
    schedule.succeeded(first, 1.0)
    second = schedule.take(1)
    assert isinstance(second, TrainJointly) and second.model == 2
    schedule.succeeded(second, 1.0)
    assert schedule.finished and schedule.hops == 3


def test_a_model_that_ends_lets_the_segments_go_that_wait_for_it():
    models = (ModelPlan(1, 0, (0,), jointly=(0, 1)), ModelPlan(2, 1, (1,)), ModelPlan(3, 2, (0,)))
    schedule = Schedule(Plan(7, models, 2, 5))
    alone = schedule.take(1)
    assert schedule.take(0) is None
    schedule.give_up(1, "it was stopped")
    other = schedule.take(0)
    assert (other.model, alone.model) == (3, 2)


def test_a_lost_joint_visit_frees_all_its_segments_and_comes_again():
    schedule = Schedule(Plan(7, (ModelPlan(1, 0, (1,), jointly=(1, 0)),), 2, 1))
    first = schedule.take(1)
    assert schedule.failed(first, "lost", try_again=True) and not schedule.busy and schedule.hops == 0
    assert schedule.take(0) is None and schedule.take(1) == first


@pytest.mark.parametrize(
    "budget", [Budget(hops=4), Budget(seconds=0.35, least_epochs=3), Budget(hops=2, least_epochs=2)]
)
def test_a_budget_ends_a_run_of_joint_visits(budget):
    """With a least number of epochs, one model trains on alone, even if segments gather for another one."""
    models = tuple(
        ModelPlan(number, number, (number % 2,), jointly=(number % 2, 1 - number % 2)) for number in (1, 2, 3)
    )
    schedule = Schedule(Plan(7, models, 2, 50))
    ports = Segments(schedule, random.Random(3))
    assert orchestrator.run(schedule, ports, budget=budget)
    epochs = [mine.hops for mine in schedule.progress.values()]
    assert max(epochs) >= (budget.least_epochs or 1) and sum(epochs) < 20


@pytest.mark.parametrize("visits, jointly", [(None, (0, 1)), ((0, 1), (0, 1)), ((1,), (0, 1)), ((0,), (0, 5))])
def test_a_plan_that_cannot_be_is_refused(visits, jointly):
    with pytest.raises(ValueError, match="trained by segments|outside"):
        Plan(7, (ModelPlan(1, 0, visits, jointly=jointly),), 2, 1)


def test_a_visit_whose_segments_are_idle_waits_for_no_other_visit() -> None:
    """If it needs none of the segments that gather."""
    models = (
        ModelPlan(1, 0, (0,), jointly=(0, 1)), ModelPlan(2, 1, (2,), jointly=(2, 3)), ModelPlan(3, 2, (1,))
    )  # fmt: skip
    schedule = Schedule(Plan(7, models, 4, 1))
    assert isinstance(schedule.take(1), Train) and schedule.take(0) is None
    unit = schedule.take(2)
    assert isinstance(unit, TrainJointly) and unit.model == 2


class Rows:
    """Those of a packed table: the rows of fold 2 are all on segment 1."""

    def rows_for(self, fold: int | None, group: int | None, *, trained: bool) -> dict[int, int]:
        return {0: 3} if fold == 2 else {0: 2, 1: 1}

    def rows_of_fold(self, fold: int, group: int | None) -> int:
        return 1


def test_a_fold_whose_rows_lie_on_one_segment_hops_as_ever() -> None:
    """Else its model would have the visits of the others on record, and the run could not be read."""
    rows: Any = Rows()
    assert rows_on_record(rows, None, Variant(fold=1), True)["visits"] == [0]
    assert rows_on_record(rows, None, Variant(fold=2), True)["visits"] is None
    assert "visits" not in rows_on_record(rows, None, Variant(fold=1), False)
    assert visits_of(rows, Variant(fold=2), True) is None and visits_of(rows, None, True) == (0,)
