"""The state machine alone: whatever is begun and ended in whatever order, the rules of hopping hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from fakes import Clock, Independent, RedrawnPerEpoch, evaluations_of, order_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db.core import orchestrator
from cerebro_db.core.schedule import Evaluate, Plan, Schedule, Status, Train, Unit, entries, visit_order

quick = settings(deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**31 - 1)


@st.composite
def plans(draw, most_units=80):
    """1..40 configurations, 1..16 segments, 1..5 epochs, but not all of them large at once."""
    segments = draw(st.integers(1, 16))
    count = draw(st.integers(1, min(40, max(1, most_units // segments))))
    epochs = draw(st.integers(1, min(5, max(1, most_units // (segments * count)))))
    seed, parts = draw(seeds), draw(st.integers(0, 5))
    places = random.Random(seed).choices(range(segments), k=parts)
    configurations = range(7, 7 + count)
    return Plan(
        seed=seed,
        configurations=tuple(configurations),
        segments=segments,
        epochs=epochs,
        evaluations={"training": dict(enumerate(places[:2])), "validation": dict(enumerate(places[2:]))},
        evaluate_every=draw(st.integers(0, 3)),
        enters=draw(st.sampled_from([{}, entries({key: key % 3 for key in configurations if key % 4})])),
    )


@dataclass
class Walk:
    """A schedule driven at random, without any orchestrator: it may even leave segments idle.

    Its own bookkeeping of what is begun and done, against which every step is checked.
    """

    plan: Plan
    chance: random.Random
    lost: float = 0.0  # the chance that a unit fails, to be tried again
    doomed: frozenset[int] = frozenset()  # configurations whose every unit fails from some moment on
    done: list[Unit] = field(default_factory=list)  # the log
    tries: dict[Unit, int] = field(default_factory=dict)

    def go(self, schedule: Schedule, most: int = 10**9) -> Schedule:
        """Until the end, or until the log has ``most`` units."""
        plan, chance, busy = self.plan, self.chance, {}
        stopped = set()
        orders = {key: order_of(plan, key) for key in plan.configurations}
        hops = {key: 0 for key in plan.configurations}
        evaluated = set()
        for unit in self.done:
            if isinstance(unit, Train):
                hops[unit.configuration] += 1
            else:
                evaluated.add(unit)
        while not schedule.finished and len(self.done) < most:
            ready = [other for other in range(plan.segments) if other not in busy and schedule.candidates(other)]
            assert busy or ready, "stuck"
            if ready and (not busy or chance.random() < 0.6):
                segment = chance.choice(ready)
                unit = schedule.take(segment)
                assert unit is not None
                key = unit.configuration
                theirs = [other for other in busy.values() if other.configuration == key]
                assert unit.segment == segment and key not in stopped
                due = set(evaluations_of(plan, key, hops[key])) - evaluated
                if isinstance(unit, Train):
                    assert not theirs and not due and unit.hop == hops[key] + 1
                    epoch, step = divmod(hops[key], plan.segments)
                    assert (unit.epoch, segment) == (epoch + 1, orders[key][step])
                else:
                    assert unit in due - set(theirs) and unit.hop == hops[key]
                    assert not any(isinstance(other, Train) for other in theirs)
                busy[segment] = unit
                continue
            segment = chance.choice(list(busy))
            unit = busy.pop(segment)
            key = unit.configuration
            tries = self.tries[unit] = self.tries.get(unit, 0) + 1
            assert tries <= 3
            if key in self.doomed and hops[key] >= key % (plan.segments * plan.epochs):
                again = schedule.failed(unit, "doomed", try_again=True)
                assert again == (tries < 3 and key not in stopped)
                if not again:
                    stopped.add(key)
            elif tries < 3 and chance.random() < self.lost:
                assert schedule.failed(unit, "lost", try_again=True) == (key not in stopped)
            else:
                schedule.succeeded(unit, chance.random())
                self.done.append(unit)
                if isinstance(unit, Train):
                    hops[key] += 1
                else:
                    evaluated.add(unit)
        return schedule

    def restored(self) -> Schedule:
        schedule = Schedule(self.plan)
        for key in self.plan.configurations:
            mine = [unit for unit in self.done if unit.configuration == key]
            hops = sum(isinstance(unit, Train) for unit in mine)
            schedule.restore(key, hops, [(u.epoch, u.dataset, u.part) for u in mine if isinstance(u, Evaluate)])
        return schedule

    def check_all_done(self, without: frozenset[int] = frozenset()) -> None:
        """Each configuration met each segment once per epoch and was evaluated when it should be: once."""
        plan = self.plan
        for key in plan.configurations:
            if key in without:
                continue
            mine = [unit for unit in self.done if unit.configuration == key]
            visits = [(unit.epoch, unit.segment) for unit in mine if isinstance(unit, Train)]
            epochs = range(1, plan.epochs + 1)
            assert visits == [(epoch, segment) for epoch in epochs for segment in order_of(plan, key)]
            evaluations = [unit for unit in mine if isinstance(unit, Evaluate)]
            assert len(evaluations) == len(set(evaluations))
            assert set(evaluations) == set(evaluations_of(plan, key, plan.epochs * plan.segments))


# -- the order of visits -------------------------------------------------------------------------------


@settings(quick, max_examples=1000)
@given(seeds, st.integers(0, 40), st.integers(1, 64))
def test_an_order_is_a_rotation_of_the_runs_ring(seed, place, segments):
    order, ring = visit_order(seed, place, segments), visit_order(seed, 0, segments)
    assert sorted(order) == list(range(segments))
    start = ring.index(order[0])
    assert order == ring[start:] + ring[:start]
    assert order == visit_order(seed, place, segments) == visit_order(seed, place + segments, segments)
    # Configurations that go at the same pace never want the same segment.
    others = [visit_order(seed, other, segments) for other in range(min(segments, 8))]
    for step in range(segments):
        assert len({other[step] for other in others}) == len(others)


def test_another_seed_gives_another_ring():
    rings = {tuple(visit_order(seed, 0, 8)) for seed in range(1000)}
    assert len(rings) > 950
    assert len({visit_order(seed, 0, 8)[0] for seed in range(1000)}) == 8


@settings(quick, max_examples=500)
@given(st.dictionaries(st.integers(0, 99), st.integers(0, 3), max_size=40), st.sets(st.integers(0, 50)), seeds)
def test_those_of_one_cost_begin_on_as_many_segments_as_there_are(costs, taken, seed):
    segments = random.Random(seed).randint(1, 8)
    found = entries(costs)
    assert sorted(found.values()) == list(range(len(costs)))
    assert [costs[key] for key in sorted(found, key=found.get)] == sorted(costs.values(), reverse=True)
    for cost in set(costs.values()):
        begin = Counter(visit_order(seed, found[key], segments)[0] for key in costs if costs[key] == cost)
        assert len(begin) == min(segments, sum(begin.values())) and max(begin.values()) - min(begin.values()) <= 1
    # The same again, with equals in the order in which they came; and where somebody is already there is no room.
    assert entries(costs) == found
    assert entries(dict.fromkeys(costs, 1)) == {key: entry for entry, key in enumerate(costs)}
    later = entries(costs, taken)
    assert not taken & set(later.values()) and sorted(later, key=later.get) == sorted(found, key=found.get)


# -- the rules, whatever happens when -------------------------------------------------------------------


@settings(quick, max_examples=3000)
@given(plans(), seeds, st.sampled_from([0.0, 0.1, 0.5]))
def test_each_configuration_meets_each_segment_once_per_epoch(plan, seed, lost):
    walk = Walk(plan, random.Random(seed), lost)
    schedule = walk.go(Schedule(plan))
    walk.check_all_done()
    assert {mine.status for mine in schedule.progress.values()} == {Status.FINISHED}


@settings(quick, max_examples=100)
@given(plans(most_units=1500), seeds)
def test_also_when_there_is_much_of_everything(plan, seed):
    walk = Walk(plan, random.Random(seed))
    walk.go(Schedule(plan))
    walk.check_all_done()


@settings(quick, max_examples=2500)
@given(plans(), seeds, st.data())
def test_who_fails_fails_alone(plan, seed, data):
    doomed = frozenset(data.draw(st.sets(st.sampled_from(plan.configurations), max_size=4)))
    walk = Walk(plan, random.Random(seed), 0.1, doomed)
    schedule = walk.go(Schedule(plan))
    walk.check_all_done(without=doomed)
    for key, mine in schedule.progress.items():
        assert mine.status is (Status.FAILED if key in doomed else Status.FINISHED)
        assert (mine.reason == "gave up after 3 attempts: doomed") == (key in doomed)


@settings(quick, max_examples=3500)
@given(plans(), seeds, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_schedule_goes_on_from_any_prefix_of_its_log(plan, seed, cuts):
    """The log is all that is kept: what was under way is begun again, what was done is not."""
    walk = Walk(plan, random.Random(seed), 0.1)
    total = len(plan.configurations) * len(evaluations_of(plan, plan.configurations[0], plan.epochs * plan.segments))
    total += len(plan.configurations) * plan.segments * plan.epochs
    for cut in sorted(cuts):
        walk.go(walk.restored(), most=int(cut * total))
        walk.tries.clear()
    schedule = walk.go(walk.restored())
    assert schedule.finished
    assert len(walk.done) == total
    walk.check_all_done()


@settings(quick, max_examples=300)
@given(plans(), seeds, st.integers(1, 3))
def test_a_finished_run_can_be_given_more_epochs(plan, seed, more):
    walk = Walk(plan, random.Random(seed))
    walk.go(Schedule(plan))
    before = len(walk.done)
    walk.plan = replace(plan, epochs=plan.epochs + more)
    walk.go(walk.restored())
    hops = [unit for unit in walk.done[before:] if isinstance(unit, Train)]
    assert len(hops) == more * plan.segments * len(plan.configurations)
    assert len(walk.done) == len(set(walk.done))


@pytest.mark.parametrize("order", [RedrawnPerEpoch, Independent])
def test_a_walk_notices_another_order(order):
    plan = Plan(1, (1, 2, 3), 5, 2)
    with pytest.raises(AssertionError):
        Walk(plan, random.Random(1)).go(order(plan))


# -- single decisions ----------------------------------------------------------------------------------


def test_tries_are_counted_for_each_unit_by_itself():
    """Three parts that fail once each are three accidents, not a configuration that cannot be evaluated."""
    plan = Plan(1, (1,), 3, 1, {"validation": {0: 0, 1: 1, 2: 2}})
    schedule = Schedule(plan)
    schedule.restore(1, 3)
    for _ in range(2):
        for unit in [schedule.take(segment) for segment in range(3)]:
            assert schedule.failed(unit, "lost", try_again=True)
    # and what succeeds elsewhere does not excuse the one that always fails
    first, second, third = (schedule.take(segment) for segment in range(3))
    schedule.succeeded(first)
    schedule.succeeded(second)
    assert not schedule.failed(third, "lost", try_again=True)
    assert schedule.progress[1].reason == "gave up after 3 attempts: lost"


def test_a_try_that_succeeds_clears_the_count_for_the_next_hop():
    schedule = Schedule(Plan(1, (1,), 1, 5))
    for _ in range(5):
        for _ in range(2):
            assert schedule.failed(schedule.take(0), "lost", try_again=True)
        schedule.succeeded(schedule.take(0))
    assert schedule.finished and schedule.progress[1].status is Status.FINISHED


def test_what_cannot_succeed_is_not_tried_again():
    schedule = Schedule(Plan(1, (1,), 1, 1))
    assert not schedule.failed(schedule.take(0), "the loss became nan", try_again=False)
    assert schedule.progress[1].reason == "the loss became nan"
    assert schedule.finished and schedule.take(0) is None


def test_what_is_under_way_when_a_configuration_is_given_up_may_end_either_way():
    plan = Plan(1, (1,), 3, 2, {"validation": {0: 0, 1: 1, 2: 2}}, evaluate_every=1)
    schedule = Schedule(plan)
    schedule.restore(1, 3)
    units = [schedule.take(segment) for segment in range(3)]
    schedule.failed(units[0], "bad", try_again=False)
    assert not schedule.finished
    schedule.succeeded(units[1])
    assert not schedule.failed(units[2], "worse", try_again=True)
    assert schedule.finished and schedule.progress[1].reason == "bad"


def test_an_evaluation_that_holds_up_an_epoch_goes_before_training():
    """Else each part waits for a whole visit of somebody else, and its configuration for all of them."""
    plan = Plan(1, (1, 2), 1, 2, {"validation": {0: 0}}, evaluate_every=1)
    schedule = Schedule(plan)
    schedule.restore(2, 1)
    schedule.restore(1, 0)  # has more left to do
    assert isinstance(schedule.take(0), Evaluate)


def test_the_last_evaluation_lets_training_go_first():
    plan = Plan(1, (1, 2), 1, 2, {"validation": {0: 0}})
    schedule = Schedule(plan)
    schedule.restore(1, 2)
    assert schedule.candidates(0) == [Train(2, 1, 1, 0), Evaluate(1, 2, 2, 0, "validation", 0)]
    assert schedule.take(0) == Train(2, 1, 1, 0)


def test_the_longest_goes_first_once_its_pace_is_known():
    schedule = Schedule(Plan(1, (1, 2), 1, 5))
    assert schedule.remaining(1) == schedule.remaining(2) == 5  # nothing known: one second each
    schedule.succeeded(schedule.take(0), 2.0)
    assert schedule.remaining(1) == 8 and schedule.remaining(2) == 10  # like the other, until it is known better
    schedule.succeeded(schedule.take(0), 6.0)
    assert schedule.remaining(2) == 24
    assert schedule.take(0).configuration == 2


def test_what_waits_anyway_trains_along_if_it_is_alike():
    kinds = {1: "mlp", 2: "cnn", 3: "mlp", 4: "mlp", 5: "mlp"}
    schedule = Schedule(Plan(1, (1, 2, 3, 4, 5, 6), 1, 2, alike=kinds, most_together=3))
    first = schedule.take(0)
    others = schedule.companions(first)
    assert [first, *others] == [Train(1, 1, 1, 0), Train(3, 1, 1, 0)], "three would be one more size to compile"
    for unit in (first, *others):
        assert 0 in schedule.busy
        schedule.succeeded(unit, 1.0)
    assert 0 not in schedule.busy


def test_what_failed_together_is_tried_again_alone():
    schedule = Schedule(Plan(1, (1, 2), 1, 1, alike={1: "mlp", 2: "mlp"}, most_together=2))
    first = schedule.take(0)
    for unit in (first, *schedule.companions(first)):
        assert schedule.failed(unit, "the trainer died", try_again=True)
    assert schedule.companions(schedule.take(0)) == []


def test_segments_keep_their_share_of_the_work():
    alike = dict.fromkeys(range(8), "mlp")
    schedule = Schedule(Plan(1, tuple(range(8)), 4, 1, alike=alike, most_together=16))
    for segment in range(4):
        assert len(schedule.companions(schedule.take(segment))) == 1


def test_evaluations_are_done_one_by_one():
    plan = Plan(1, (1, 2), 1, 1, {"validation": {0: 0}}, alike={1: "mlp", 2: "mlp"}, most_together=2)
    schedule = Schedule(plan)
    schedule.restore(1, 1)
    schedule.restore(2, 1)
    unit = schedule.take(0)
    assert isinstance(unit, Evaluate) and schedule.companions(unit) == []


@pytest.mark.parametrize(("configurations", "epochs"), [((), 3), ((), 0), ((1, 2), 0)])
def test_nothing_to_do_is_done(configurations, epochs):
    schedule = Schedule(Plan(1, configurations, 2, epochs, {"validation": {0: 1}}, evaluate_every=1))
    assert schedule.finished
    assert {mine.status for mine in schedule.progress.values()} <= {Status.FINISHED}
    orchestrator.run(schedule, Clock(lambda unit: 1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"segments": 0},
        {"epochs": -1},
        {"evaluate_every": -1},
        {"most_together": 0},
        {"configurations": (1, 1)},
        {"evaluations": {"validation": {0: 2}}},
    ],
)
def test_a_plan_that_cannot_end_is_refused(wrong):
    with pytest.raises(ValueError):
        Plan(**{"seed": 1, "configurations": (1,), "segments": 2, "epochs": 1, **wrong})


def test_a_log_that_does_not_fit_the_plan_is_refused():
    schedule = Schedule(Plan(1, (1,), 2, 2))
    for hops in (-1, 5):
        with pytest.raises(ValueError):
            schedule.restore(1, hops)
    schedule.take(schedule.next_visit(1).segment)
    with pytest.raises(RuntimeError):
        schedule.restore(1, 1)


def test_a_unit_is_taken_once_and_ends_once():
    schedule = Schedule(Plan(1, (1, 2), 1, 1))
    unit, next_one = schedule.take(0), schedule.take(0)
    assert unit != next_one and schedule.busy == {0: {unit, next_one}} and schedule.take(0) is None
    schedule.succeeded(unit)
    assert schedule.busy == {0: {next_one}}
    with pytest.raises(RuntimeError):
        schedule.succeeded(unit)


def test_a_thousand_configurations_are_no_burden():
    """64,000 hops take half a second; looking at every configuration for every hop took 87."""
    chance = random.Random(1)
    costs = [chance.uniform(1, 6) for _ in range(1000)]
    schedule = Schedule(Plan(1, tuple(range(1000)), 64, 1))
    started = time.process_time()
    orchestrator.run(schedule, Clock(lambda unit: costs[unit.configuration]))
    assert time.process_time() - started < 10
