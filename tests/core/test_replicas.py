"""A model whose replicas train at the same time: what the schedule offers, whatever fails or is broken off."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fakes import QuietPorts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db.core.events import Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.plan import Average, Evaluate, ModelPlan, Plan, Train, TrainReplica, Unit
from cerebro_db.core.scheduling.ports import Outcome
from cerebro_db.core.scheduling.schedule import Schedule, Status
from cerebro_db.core.search.policy import Decision, NewModel
from tests.thorough import tries

PARTS = {"training": {0: 0, 1: 1}}


def plan_of(visits: tuple[int, ...] = (0, 1, 2, 0), epochs: int = 2, evaluate_every: int = 1) -> Plan:
    models = (ModelPlan(1, 0, visits, averages=True),)
    return Plan(7, models, 1 + max(visits), epochs, PARTS, evaluate_every)


class Segments(QuietPorts):
    """Runs units at random: any of those under way ends next, perhaps with a failure.  It is the log, too."""

    def __init__(self, schedule: Schedule, chance: random.Random, lost: float = 0.0) -> None:
        self.schedule, self.chance, self.lost = schedule, chance, lost
        self.under_way: list[Unit] = []
        self.done: list[Unit] = []
        self.most_at_once = 0
        self.killed_at: int | None = None  # when so many units are done

    def start(self, groups):
        (unit,) = (unit for group in groups for unit in group)  # replicas are never fused, nor in series
        self.under_way.append(unit)
        self.require_sound()

    def require_sound(self) -> None:
        committed = {unit.hop for unit in self.done if isinstance(unit, Train)}
        segments = [unit.segment for unit in self.under_way]
        assert len(set(segments)) == len(segments)
        training = [unit for unit in self.under_way if isinstance(unit, Train)]
        if not training:
            return
        assert len(training) == len(self.under_way), "no evaluation while replicas train"
        self.most_at_once = max(self.most_at_once, len(training))
        assert len({unit.epoch for unit in training}) == 1
        for unit in training:
            if isinstance(unit, Average):
                assert training == [unit] and committed >= set(unit.averaged)
            else:
                assert isinstance(unit, TrainReplica)
                average = unit.start  # of the epoch before
                assert average in committed or average == 0
        assert len({unit.start for unit in training}) == 1

    def reads_ahead(self, segment):
        return False

    def wait(self):
        if self.killed_at is not None and len(self.done) >= self.killed_at:
            raise KeyboardInterrupt
        unit = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        if self.chance.random() < self.lost:
            return [Outcome(unit, 0.1, error="lost", try_again=True, most_tries=99)]
        self.done.append(unit)
        return [Outcome(unit, 0.1, weight=5)]

    def decided(self, decisions):
        raise AssertionError("nothing is decided here")


def resumed(plan: Plan, done: list[Unit]) -> Schedule:
    """A schedule as a log with these units leaves it."""
    schedule = Schedule(plan)
    hops = {unit.hop for unit in done if isinstance(unit, Train)}
    averages = {unit.hop for unit in done if isinstance(unit, Average)}
    replicas = {hop for hop in hops if hop > max(averages, default=0)}
    evaluated = [(unit.epoch, unit.dataset, unit.part) for unit in done if isinstance(unit, Evaluate)]
    schedule.restore(1, len(hops), evaluated, replicas=replicas)
    return schedule


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=tries(40))
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 4), st.booleans())
def test_each_epoch_trains_every_replica_once_and_then_averages(seed, segments, epochs, breaks):
    chance = random.Random(seed)
    some = sorted(chance.sample(range(segments), chance.randint(2, segments)))
    plan = replace(plan_of((*range(segments), 0), epochs), models=(ModelPlan(1, 3, (*some, some[0]), averages=True),))
    done: list[Unit] = []
    while True:
        ports = Segments(resumed(plan, done), chance, lost=0.2)
        ports.done = list(done)
        if breaks and chance.random() < 0.7:  # the driver is killed after some units; those under way are lost
            ports.killed_at = len(done) + chance.randint(1, 5)
        try:
            orchestrator.run(ports.schedule, ports)
        except KeyboardInterrupt:
            done = ports.done
            continue
        break
    hops = [unit for unit in ports.done if isinstance(unit, Train)]
    per_epoch = len(some) + 1
    assert sorted(hop.hop for hop in hops) == list(range(1, epochs * per_epoch + 1))
    for epoch in range(1, epochs + 1):
        mine = [hop for hop in hops if hop.epoch == epoch]
        assert sorted(hop.segment for hop in mine[:-1]) == some and isinstance(mine[-1], Average)
        assert mine[-1].segment == some[0] and list(mine[-1].averaged) == sorted(hop.hop for hop in mine[:-1])
        assert {hop.start for hop in mine[:-1]} == {(epoch - 1) * per_epoch}
    evaluations = {unit for unit in ports.done if isinstance(unit, Evaluate)}
    assert evaluations == {
        Evaluate(1, e * per_epoch, e, at, "training", at) for e in range(1, epochs + 1) for at in (0, 1)
    }
    assert ports.schedule.progress[1].status is Status.FINISHED


def test_all_segments_train_at_the_same_time():
    ports = Segments(Schedule(plan_of((*range(8), 0))), random.Random(1))
    orchestrator.run(ports.schedule, ports)
    assert ports.most_at_once == 8


def test_a_replica_that_fails_fails_the_model():
    schedule = Schedule(plan_of())
    units = [schedule.take(segment) for segment in range(3)]
    assert all(isinstance(unit, TrainReplica) for unit in units)
    assert not schedule.failed(units[1], "the loss became nan", try_again=False)
    schedule.succeeded(units[0])
    schedule.succeeded(units[2])
    assert schedule.finished and schedule.progress[1].status is Status.FAILED


def test_a_decision_within_an_epoch_knows_the_state_of_the_last_average():
    """The budget may end between the replicas: the model's state is that of the epoch before."""
    schedule = Schedule(plan_of(evaluate_every=2))
    for _ in range(4):
        units = [unit for segment in range(3) if (unit := schedule.take(segment)) is not None]
        for unit in units:
            schedule.succeeded(unit)
        if schedule.progress[1].hops == 4:
            break
    first = schedule.take(1)
    assert first is not None and first.hop == 6
    schedule.succeeded(first)
    mine = schedule.progress[1]
    assert (mine.hops, mine.own_hop, mine.replicas) == (5, 4, {6})
    decision = Decision(None, None, Verdict.ADD, added=(NewModel(key=1, parent=1),))
    assert schedule.prepared(decision).added[0].parent_hop == 4


@pytest.mark.parametrize(
    ("visits", "match"), [(None, "on which segment"), ((0,), "one segment or more"), ((0, 0, 1), "each once")]
)
def test_a_plan_without_a_segment_to_average_on_is_refused(visits, match):
    with pytest.raises(ValueError, match=match):
        Plan(1, (ModelPlan(1, 0, visits, averages=True),), 2, 1)
