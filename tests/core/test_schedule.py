"""The state machine alone: whatever is begun and ended in whatever order, the rules of hopping hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from experiments import evaluations_of, some_of
from fakes import Clock, Independent, RedrawnPerEpoch, models, numbers_of, order_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db.core.events import Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions, visit_order
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Status, Train, Unit
from cerebro_db.core.search.policy import Decision, NewModel
from tests.thorough import tries

quick = settings(deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**31 - 1)


@st.composite
def plans(draw, most_units=80):
    """1..40 models, 1..16 segments, 1..5 epochs, but not all of them large at once."""
    segments = draw(st.integers(1, 16))
    count = draw(st.integers(1, min(40, max(1, most_units // segments))))
    epochs = draw(st.integers(1, min(5, max(1, most_units // (segments * count)))))
    seed, parts = draw(seeds), draw(st.integers(0, 5))
    places = random.Random(seed).choices(range(segments), k=parts)
    numbers = range(7, 7 + count)
    positions = draw(st.sampled_from([{}, ring_positions({key: key % 3 for key in numbers if key % 4})]))
    some = draw(st.sampled_from([0, 0, 0.5])) if segments > 1 else 0  # how many visit only some segments
    chance = random.Random(seed)
    visits = {key: some_of(chance, segments) for key in numbers if chance.random() < some}
    return Plan(
        seed=seed,
        models=models(numbers, positions, visits=visits),
        segments=segments,
        epochs=epochs,
        evaluations={"training": dict(enumerate(places[:2])), "validation": dict(enumerate(places[2:]))},
        evaluate_every=draw(st.integers(0, 3)),
    )


@dataclass
class Walk:
    """A schedule driven at random, without any orchestrator: it may even leave segments idle.

    Its own bookkeeping of what is begun and done, against which every step is checked.
    """

    plan: Plan
    chance: random.Random
    lost: float = 0.0  # the chance that a unit fails, to be tried again
    doomed: frozenset[int] = frozenset()  # models whose every unit fails from some moment on
    done: list[Unit] = field(default_factory=list)  # the log
    tries: dict[Unit, int] = field(default_factory=dict)
    decides: bool = False  # whether each epoch of each model ends with a decision, made at random
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)

    def go(self, schedule: Schedule, most: int = 10**9) -> Schedule:
        """Until the end, or until the log has ``most`` units."""
        plan, chance, busy = self.plan, self.chance, {}
        stopped = set()
        orders = {key: order_of(plan, key) for key in numbers_of(plan)}
        hops = {key: 0 for key in numbers_of(plan)}
        evaluated = set()
        for unit in self.done:
            if isinstance(unit, Train):
                hops[unit.model] += 1
            else:
                evaluated.add(unit)
        while not schedule.finished and len(self.done) < most:
            ready = [other for other in range(plan.segments) if other not in busy and schedule._waiting[other]]
            awaiting = schedule.awaiting()
            assert awaiting == self.undecided(hops, evaluated, busy, stopped)
            assert busy or ready or awaiting, "stuck"
            if awaiting and (not (busy or ready) or chance.random() < 0.3):
                for added in self.decide(schedule, *chance.choice(awaiting)):
                    hops[added], orders[added] = 0, order_of(self.plan, added)
                plan = self.plan
                continue
            if ready and (not busy or chance.random() < 0.6):
                segment = chance.choice(ready)
                unit = schedule.take(segment)
                assert unit is not None
                key = unit.model
                theirs = [other for other in busy.values() if other.model == key]
                assert unit.segment == segment and key not in stopped and not self.stopped(key)
                due = set(evaluations_of(plan, key, hops[key])) - evaluated
                if isinstance(unit, Train):
                    assert not theirs and not due and unit.hop == hops[key] + 1
                    epoch, step = divmod(hops[key], len(orders[key]))
                    assert (unit.epoch, segment) == (epoch + 1, orders[key][step])
                    assert not self.decides or step or not epoch or (key, epoch) in self.decisions
                else:
                    assert unit in due - set(theirs) and unit.hop == hops[key]
                    assert not any(isinstance(other, Train) for other in theirs)
                busy[segment] = unit
                continue
            segment = chance.choice(list(busy))
            unit = busy.pop(segment)
            key = unit.model
            tries = self.tries[unit] = self.tries.get(unit, 0) + 1
            assert tries <= 3
            if key in self.doomed and hops[key] >= key % (len(orders[key]) * plan.epochs):
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

    def undecided(self, hops, evaluated, busy, failed) -> list[tuple[int, int]]:
        """The models whose epoch is trained and evaluated, but not decided about."""
        found = []
        for key, done in hops.items() if self.decides else ():
            epoch, step = divmod(done, len(order_of(self.plan, key)))
            if step or not epoch or key in failed or (key, epoch) in self.decisions:
                continue
            due = set(evaluations_of(self.plan, key, done)) - evaluated
            if not due and all(unit.model != key for unit in busy.values()):
                found.append((key, epoch))
        return sorted(found)

    def decide(self, schedule: Schedule, model: int, epoch: int) -> list[int]:
        """Make a decision at random. Returns the numbers of the added models."""
        chance, plan = self.chance, self.plan
        stops, added = chance.random() < 0.2, []
        if chance.random() < 0.2 and len(plan.models) < 30:
            for _ in range(chance.randint(1, 2)):
                parent = chance.choice((None, model, *numbers_of(plan)))
                visits = some_of(chance, plan.segments) if chance.random() < 0.5 else None
                added.append(NewModel(key=1, parent=parent, visits=visits))
        verdict = Verdict.STOP if stops else Verdict.ADD if added else Verdict.CONTINUE
        decision = schedule.prepared(Decision(model, epoch, verdict, "chance" if stops else "", tuple(added)))
        assert schedule.awaiting().count((model, epoch)) == 1, "a decision takes effect only when it is committed"
        new = tuple(ModelPlan(one.model, chance.randrange(9), one.visits) for one in decision.added)
        for one in decision.added:
            assert (one.parent_hop is None) == (one.parent is None)
            done = [unit for unit in self.done if unit.model == one.parent and isinstance(unit, Train)]
            assert one.parent_hop in (None, len(done))
        self.plan = replace(plan, models=(*plan.models, *new))
        self.decisions[model, epoch] = decision
        schedule.decide(decision, new)
        status = schedule.progress[model].status
        assert (status is Status.STOPPED) == stops and (model, epoch) not in schedule.awaiting()
        return [one.model for one in new]

    def stopped(self, model: int) -> bool:
        return any(key == model and one.verdict is Verdict.STOP for (key, _), one in self.decisions.items())

    def restored(self) -> Schedule:
        schedule = Schedule(self.plan, self.decides)
        for key in numbers_of(self.plan):
            mine = [unit for unit in self.done if unit.model == key]
            hops = sum(isinstance(unit, Train) for unit in mine)
            evaluated = [(u.epoch, u.dataset, u.part) for u in mine if isinstance(u, Evaluate)]
            decided = [one for (other, _), one in self.decisions.items() if other == key]
            schedule.restore(key, hops, evaluated, decided)
        return schedule

    def check_all_done(self, without: frozenset[int] = frozenset()) -> None:
        """Each model met each of its segments once per epoch and was evaluated when it should be: once."""
        plan = self.plan
        for key in numbers_of(plan):
            if key in without:
                continue
            mine = [unit for unit in self.done if unit.model == key]
            visits = [(unit.epoch, unit.segment) for unit in mine if isinstance(unit, Train)]
            decided = [epoch for other, epoch in self.decisions if other == key]
            last = decided[-1] if self.stopped(key) else plan.epochs
            assert decided == (list(range(1, last + 1)) if self.decides else [])
            epochs = range(1, last + 1)
            assert visits == [(epoch, segment) for epoch in epochs for segment in order_of(plan, key)]
            evaluations = [unit for unit in mine if isinstance(unit, Evaluate)]
            assert len(evaluations) == len(set(evaluations))
            assert set(evaluations) == set(evaluations_of(plan, key, last * len(order_of(plan, key))))


# -- the order of visits -------------------------------------------------------------------------------


@settings(quick, max_examples=tries(200))
@given(seeds, st.integers(0, 40), st.integers(1, 64))
def test_an_order_is_a_rotation_of_the_runs_ring(seed, place, segments):
    order, ring = visit_order(seed, place, segments), visit_order(seed, 0, segments)
    assert sorted(order) == list(range(segments))
    start = ring.index(order[0])
    assert order == ring[start:] + ring[:start]
    assert order == visit_order(seed, place, segments) == visit_order(seed, place + segments, segments)
    # Models of the same pace never want the same segment.
    others = [visit_order(seed, other, segments) for other in range(min(segments, 8))]
    for step in range(segments):
        assert len({other[step] for other in others}) == len(others)


def test_the_order_of_a_seed_never_changes():
    """Runs are resumed and replayed by later versions, so these very orders must come out."""
    assert visit_order(1, 0, 8) == [1, 2, 6, 5, 3, 7, 4, 0]
    assert visit_order(8, 2, 3) == [0, 1, 2]
    assert visit_order(2**31 - 1, 5, 16) == [15, 4, 13, 7, 5, 9, 6, 11, 3, 8, 12, 14, 2, 1, 10, 0]
    assert visit_order(0, -4, 4) == [0, 3, 1, 2]
    assert derived_seed(1, "rows", 0, 1) == 171713561715622010


def test_a_models_own_segments_are_visited_in_the_order_of_the_ring():
    plan = Plan(1, models((5, 6), positions={5: 3}, visits={5: (0, 2, 7)}), 8, 2)
    ring = [1, 2, 6, 5, 3, 7, 4, 0]
    assert plan.order_of(plan.models[0]) == [7, 0, 2] and plan.order_of(plan.models[1]) == ring[1:] + ring[:1]
    schedule = Schedule(plan)
    assert schedule.hops_of(5) == 6 and schedule.hops_of(6) == 16
    visits = []
    while schedule.progress[5].status is Status.ACTIVE:
        visits.append(schedule.next_visit(5))
        schedule.restore(5, len(visits))
    assert [(one.epoch, one.segment) for one in visits] == [(1, 7), (1, 0), (1, 2), (2, 7), (2, 0), (2, 2)]


def test_another_seed_gives_another_ring():
    rings = {tuple(visit_order(seed, 0, 8)) for seed in range(1000)}
    assert len(rings) > 950
    assert len({visit_order(seed, 0, 8)[0] for seed in range(1000)}) == 8


@settings(quick, max_examples=tries(100))
@given(st.dictionaries(st.integers(0, 99), st.integers(0, 3), max_size=40), st.sets(st.integers(0, 50)), seeds)
def test_models_of_one_cost_begin_on_as_many_segments_as_there_are(costs, taken, seed):
    segments = random.Random(seed).randint(1, 8)
    found = ring_positions(costs)
    assert sorted(found.values()) == list(range(len(costs)))
    assert [costs[key] for key in sorted(found, key=found.get)] == sorted(costs.values(), reverse=True)
    for cost in set(costs.values()):
        begin = Counter(visit_order(seed, found[key], segments)[0] for key in costs if costs[key] == cost)
        assert len(begin) == min(segments, sum(begin.values())) and max(begin.values()) - min(begin.values()) <= 1
    # The same again; models of equal cost in their order; and no position is given twice.
    assert ring_positions(costs) == found
    assert ring_positions(dict.fromkeys(costs, 1)) == {key: entry for entry, key in enumerate(costs)}
    later = ring_positions(costs, taken)
    assert not taken & set(later.values()) and sorted(later, key=later.get) == sorted(found, key=found.get)


# -- the rules, whatever happens when -------------------------------------------------------------------


@settings(quick, max_examples=tries(300))
@given(plans(), seeds, st.sampled_from([0.0, 0.1, 0.5]))
def test_each_model_meets_each_of_its_segments_once_per_epoch(plan, seed, lost):
    walk = Walk(plan, random.Random(seed), lost)
    schedule = walk.go(Schedule(plan))
    walk.check_all_done()
    assert {mine.status for mine in schedule.progress.values()} == {Status.FINISHED}


@settings(quick, max_examples=tries(20))
@given(plans(most_units=1500), seeds)
def test_also_when_there_is_much_of_everything(plan, seed):
    walk = Walk(plan, random.Random(seed))
    walk.go(Schedule(plan))
    walk.check_all_done()


@settings(quick, max_examples=tries(240))
@given(plans(), seeds, st.data())
def test_a_model_that_fails_fails_alone(plan, seed, data):
    doomed = frozenset(data.draw(st.sets(st.sampled_from(numbers_of(plan)), max_size=4)))
    walk = Walk(plan, random.Random(seed), 0.1, doomed)
    schedule = walk.go(Schedule(plan))
    walk.check_all_done(without=doomed)
    for key, mine in schedule.progress.items():
        assert mine.status is (Status.FAILED if key in doomed else Status.FINISHED)
        assert (mine.reason == "gave up after 3 attempts: doomed") == (key in doomed)


@settings(quick, max_examples=tries(300))
@given(plans(), seeds, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_schedule_goes_on_from_any_prefix_of_its_log(plan, seed, cuts):
    """The log is all that is kept: what was under way is begun again, what was done is not."""
    walk = Walk(plan, random.Random(seed), 0.1)
    hops = {key: plan.epochs * len(order_of(plan, key)) for key in numbers_of(plan)}
    total = sum(len(evaluations_of(plan, key, hops[key])) + hops[key] for key in hops)
    for cut in sorted(cuts):
        walk.go(walk.restored(), most=int(cut * total))
        walk.tries.clear()
    schedule = walk.go(walk.restored())
    assert schedule.finished
    assert len(walk.done) == total
    walk.check_all_done()


@settings(quick, max_examples=tries(80))
@given(plans(), seeds, st.sampled_from([0.0, 0.1]), st.lists(st.floats(0, 1), max_size=3))
def test_every_epoch_has_one_decision_that_holds_from_any_prefix_of_the_log(plan, seed, lost, cuts):
    """Stopped models never train again, added models train all their epochs, and nothing is decided twice."""
    walk = Walk(plan, random.Random(seed), lost, decides=True)
    hops = plan.epochs * sum(len(order_of(plan, key)) for key in numbers_of(plan))
    for cut in sorted(cuts):
        walk.go(walk.restored(), most=int(cut * hops))
        walk.tries.clear()
    schedule = walk.go(walk.restored())
    assert schedule.finished and sorted(schedule.decisions, key=str) == sorted(walk.decisions.values(), key=str)
    walk.check_all_done()
    assert set(schedule.progress) == set(numbers_of(walk.plan))
    for key, mine in schedule.progress.items():
        assert mine.status is (Status.STOPPED if walk.stopped(key) else Status.FINISHED)
        assert mine.reason == ("chance" if walk.stopped(key) else None)


@settings(quick, max_examples=tries(60))
@given(plans(), seeds)
def test_models_that_fail_leave_the_decisions_about_others_alone(plan, seed):
    doomed = frozenset(numbers_of(plan)[::3])
    walk = Walk(plan, random.Random(seed), 0.1, doomed, decides=True)
    schedule = walk.go(Schedule(plan, True))
    walk.check_all_done(without=doomed)
    assert schedule.finished and not schedule.awaiting()
    for key in doomed:
        assert schedule.progress[key].status is (Status.STOPPED if walk.stopped(key) else Status.FAILED)


@settings(quick, max_examples=tries(60))
@given(plans(), seeds, st.integers(1, 3))
def test_a_finished_run_can_be_given_more_epochs(plan, seed, more):
    walk = Walk(plan, random.Random(seed))
    walk.go(Schedule(plan))
    before = len(walk.done)
    walk.plan = replace(plan, epochs=plan.epochs + more)
    walk.go(walk.restored())
    hops = [unit for unit in walk.done[before:] if isinstance(unit, Train)]
    assert len(hops) == more * sum(len(order_of(plan, key)) for key in numbers_of(plan))
    assert len(walk.done) == len(set(walk.done))


@pytest.mark.parametrize("order", [RedrawnPerEpoch, Independent])
def test_a_walk_notices_another_order(order):
    plan = Plan(1, models((1, 2, 3)), 5, 2)
    with pytest.raises(AssertionError):
        Walk(plan, random.Random(1)).go(order(plan))


# -- single decisions ----------------------------------------------------------------------------------


def test_tries_are_counted_for_each_unit_by_itself():
    """Three parts that fail once each are three accidents, not a model that cannot be evaluated."""
    plan = Plan(1, models((1,)), 3, 1, {"validation": {0: 0, 1: 1, 2: 2}})
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
    schedule = Schedule(Plan(1, models((1,)), 1, 5))
    for _ in range(5):
        for _ in range(2):
            assert schedule.failed(schedule.take(0), "lost", try_again=True)
        schedule.succeeded(schedule.take(0))
    assert schedule.finished and schedule.progress[1].status is Status.FINISHED


def test_a_loss_that_says_nothing_about_the_model_is_tried_more_often():
    schedule = Schedule(Plan(1, models((1,)), 1, 1))
    for _ in range(9):
        assert schedule.failed(schedule.take(0), "the segment restarted", try_again=True, most_tries=10)
    assert not schedule.failed(schedule.take(0), "the trainer died", try_again=True)
    assert schedule.progress[1].reason == "gave up after 10 attempts: the trainer died"


def test_what_cannot_succeed_is_not_tried_again():
    schedule = Schedule(Plan(1, models((1,)), 1, 1))
    assert not schedule.failed(schedule.take(0), "the loss became nan", try_again=False)
    assert schedule.progress[1].reason == "the loss became nan"
    assert schedule.finished and schedule.take(0) is None


def test_what_is_under_way_when_a_model_is_given_up_may_end_either_way():
    plan = Plan(1, models((1,)), 3, 2, {"validation": {0: 0, 1: 1, 2: 2}}, evaluate_every=1)
    schedule = Schedule(plan)
    schedule.restore(1, 3)
    units = [schedule.take(segment) for segment in range(3)]
    schedule.failed(units[0], "bad", try_again=False)
    assert not schedule.finished
    schedule.succeeded(units[1])
    assert not schedule.failed(units[2], "worse", try_again=True)
    assert schedule.finished and schedule.progress[1].reason == "bad"


def test_an_evaluation_that_holds_up_an_epoch_goes_before_training():
    """Else each part waits for a whole visit of another model, and its own model for all parts."""
    plan = Plan(1, models((1, 2)), 1, 2, {"validation": {0: 0}}, evaluate_every=1)
    schedule = Schedule(plan)
    schedule.restore(2, 1)
    schedule.restore(1, 0)  # has more left to do
    assert isinstance(schedule.take(0), Evaluate)


def test_the_last_evaluation_lets_training_go_first():
    plan = Plan(1, models((1, 2)), 1, 2, {"validation": {0: 0}})
    schedule = Schedule(plan)
    schedule.restore(1, 2)
    assert list(schedule._waiting[0]) == [Train(2, 1, 1, 0), Evaluate(1, 2, 2, 0, "validation", 0)]
    assert schedule.take(0) == Train(2, 1, 1, 0)


def test_the_model_with_most_work_left_goes_first_once_its_pace_is_known():
    schedule = Schedule(Plan(1, models((1, 2)), 1, 5))
    assert schedule.remaining(1) == schedule.remaining(2) == 5  # nothing known: one second each
    schedule.succeeded(schedule.take(0), 2.0)
    assert schedule.remaining(1) == 8 and schedule.remaining(2) == 10  # like the other, until it is known better
    schedule.succeeded(schedule.take(0), 6.0)
    assert schedule.remaining(2) == 24
    assert schedule.take(0).model == 2


def test_visits_of_one_group_that_wait_for_the_segment_train_fused():
    groups = {1: "mlp", 2: "cnn", 3: "mlp", 4: "mlp", 5: "mlp"}
    schedule = Schedule(Plan(1, models((1, 2, 3, 4, 5, 6), groups=groups), 1, 2, most_fused=3))
    first = schedule.take(0)
    others = schedule.fuse(first)
    assert [first, *others] == [Train(1, 1, 1, 0), Train(3, 1, 1, 0)], "three would be one more size to compile"
    for unit in (first, *others):
        assert 0 in schedule.busy
        schedule.succeeded(unit, 1.0)
    assert 0 not in schedule.busy


def test_visits_that_failed_fused_are_tried_again_alone():
    schedule = Schedule(Plan(1, models((1, 2), groups={1: "mlp", 2: "mlp"}), 1, 1, most_fused=2))
    first = schedule.take(0)
    for unit in (first, *schedule.fuse(first)):
        assert schedule.failed(unit, "the trainer died", try_again=True)
    assert schedule.fuse(schedule.take(0)) == []


def test_segments_keep_their_share_of_the_work():
    groups = dict.fromkeys(range(8), "mlp")
    schedule = Schedule(Plan(1, models(range(8), groups=groups), 4, 1, most_fused=16))
    for segment in range(4):
        assert len(schedule.fuse(schedule.take(segment))) == 1


def test_evaluations_are_done_one_by_one():
    plan = Plan(1, models((1, 2), groups={1: "mlp", 2: "mlp"}), 1, 1, {"validation": {0: 0}}, most_fused=2)
    schedule = Schedule(plan)
    schedule.restore(1, 1)
    schedule.restore(2, 1)
    unit = schedule.take(0)
    assert isinstance(unit, Evaluate) and schedule.fuse(unit) == []


@pytest.mark.parametrize(("numbers", "epochs"), [((), 3), ((), 0), ((1, 2), 0)])
def test_nothing_to_do_is_done(numbers, epochs):
    schedule = Schedule(Plan(1, models(numbers), 2, epochs, {"validation": {0: 1}}, evaluate_every=1))
    assert schedule.finished
    assert {mine.status for mine in schedule.progress.values()} <= {Status.FINISHED}
    orchestrator.run(schedule, Clock(lambda unit: 1.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"segments": 0},
        {"epochs": -1},
        {"evaluate_every": -1},
        {"most_fused": 0},
        {"models": models((1, 1))},
        {"evaluations": {"validation": {0: 2}}},
        {"models": models((1,), visits={1: ()})},
        {"models": models((1,), visits={1: (0, 0)})},
        {"models": models((1,), visits={1: (1, 2)})},
    ],
)
def test_a_plan_that_cannot_end_is_refused(wrong):
    with pytest.raises(ValueError):
        Plan(**{"seed": 1, "models": models((1,)), "segments": 2, "epochs": 1, **wrong})


def test_a_log_that_does_not_fit_the_plan_is_refused():
    schedule = Schedule(Plan(1, models((1,)), 2, 2))
    for hops in (-1, 5):
        with pytest.raises(ValueError):
            schedule.restore(1, hops)
    schedule.take(schedule.next_visit(1).segment)
    with pytest.raises(RuntimeError):
        schedule.restore(1, 1)


def test_a_unit_is_taken_once_and_ends_once():
    schedule = Schedule(Plan(1, models((1, 2)), 1, 1))
    unit, next_one = schedule.take(0), schedule.take(0)
    assert unit != next_one and schedule.busy == {0: {unit, next_one}} and schedule.take(0) is None
    schedule.succeeded(unit)
    assert schedule.busy == {0: {next_one}}
    with pytest.raises(RuntimeError):
        schedule.succeeded(unit)


# -- decisions ---------------------------------------------------------------------------------------------


def deciding(count=1, segments=1, epochs=2, evaluations=None, replayed=()):
    plan = Plan(1, models(range(1, count + 1)), segments, epochs, evaluations or {}, evaluate_every=1)
    return Schedule(plan, decides=True, replayed=replayed)


def go_on(model, epoch):
    return Decision(model, epoch, Verdict.CONTINUE)


def stop(model, epoch):
    return Decision(model, epoch, Verdict.STOP, "enough")


def copy(about, epoch, parent, **more):
    return Decision(about, epoch, Verdict.ADD, added=(NewModel(parent=parent, **more),))


def done(schedule, *segments):
    """Take and end the next unit of each of these segments."""
    for segment in segments:
        schedule.succeeded(schedule.take(segment))


def test_a_model_waits_for_its_decision_and_the_others_do_not():
    schedule = deciding(count=2)
    done(schedule, 0)
    assert schedule.awaiting() == [(1, 1)]
    done(schedule, 0)
    assert schedule.awaiting() == [(1, 1), (2, 1)] and schedule.take(0) is None and not schedule.finished
    schedule.decide(go_on(2, 1))
    assert schedule.awaiting() == [(1, 1)] and schedule.take(0) == Train(2, 2, 2, 0)


def test_the_decision_comes_after_all_evaluations_of_the_epoch():
    schedule = deciding(segments=2, evaluations={"training": {0: 0}, "validation": {0: 0, 1: 1}})
    done(schedule, *schedule.progress[1].order)
    for segment in (0, 0, 1):
        assert schedule.awaiting() == []
        done(schedule, segment)
    assert schedule.awaiting() == [(1, 1)]


def test_the_last_epoch_awaits_a_decision_too():
    schedule = deciding(epochs=1)
    done(schedule, 0)
    assert schedule.awaiting() == [(1, 1)] and not schedule.finished
    schedule.decide(go_on(1, 1))
    assert schedule.finished and schedule.progress[1].status is Status.FINISHED


def test_a_schedule_that_does_not_decide_never_waits():
    schedule = Schedule(Plan(1, models((1,)), 1, 2))
    done(schedule, 0)
    assert schedule.awaiting() == [] and schedule.take(0) == Train(1, 2, 2, 0)


def test_a_stopped_model_has_a_reason_and_nothing_to_do():
    schedule = deciding()
    done(schedule, 0)
    schedule.decide(stop(1, 1))
    assert schedule.finished and schedule.take(0) is None
    assert (schedule.progress[1].status, schedule.progress[1].reason) == (Status.STOPPED, "enough")


def test_added_models_get_the_next_numbers_and_train_all_epochs():
    schedule = deciding(count=2, epochs=2)
    done(schedule, 0, 0)
    added = (NewModel(parent=2), NewModel(key=7, visits=(0,)))
    decision = schedule.prepared(Decision(1, 1, Verdict.STOP, "enough", added))
    assert [(new.model, new.parent_hop) for new in decision.added] == [(3, 1), (4, None)]
    assert set(schedule.progress) == {1, 2} and schedule.awaiting() == [(1, 1), (2, 1)], "nothing has changed yet"
    schedule.decide(decision, models((3, 4)))
    assert schedule.progress[1].status is Status.STOPPED
    assert schedule.next_visit(3) == Train(3, 1, 1, 0) and schedule.hops_of(3) == schedule.hops_of(4) == 2


def test_a_decision_that_is_not_awaited_is_refused():
    schedule = deciding(count=2)
    done(schedule, 0)
    for wrong in (go_on(2, 1), go_on(1, 2), go_on(9, 1)):
        with pytest.raises(RuntimeError, match="does not await"):
            schedule.prepared(wrong)
        with pytest.raises(RuntimeError, match="does not await"):
            schedule.decide(wrong)
    schedule.decide(go_on(1, 1))
    with pytest.raises(RuntimeError, match="does not await"):
        schedule.decide(go_on(1, 1))


def test_a_copy_of_what_is_not_there_is_refused():
    schedule = deciding(count=2)
    done(schedule, 0)
    with pytest.raises(ValueError, match="no such model"):
        schedule.prepared(copy(1, 1, parent=9))
    with pytest.raises(ValueError, match="after hop 3: it has 0 hops"):
        schedule.prepared(copy(1, 1, parent=2, parent_hop=3))


def test_a_copy_may_start_from_an_earlier_state_that_is_kept_as_the_best():
    schedule = deciding(count=2, segments=1, epochs=3)
    done(schedule, 0, 0)
    added = schedule.prepared(copy(2, 1, parent=2, parent_hop=1, from_best=True)).added
    assert [new.parent_hop for new in added] == [1]
    schedule.decide(go_on(2, 1))
    done(schedule, 0)
    assert schedule.prepared(copy(2, 2, parent=2, from_best=True)).added[0].parent_hop == 2, "none is kept"
    assert schedule.prepared(copy(2, 2, parent=2, parent_hop=1, from_best=True)).added[0].parent_hop == 1
    with pytest.raises(ValueError, match="after hop 1: it has 2 hops"):
        schedule.prepared(copy(2, 2, parent=2, parent_hop=1))
    with pytest.raises(ValueError, match="after hop 3: it has 2 hops"):
        schedule.prepared(copy(2, 2, parent=2, parent_hop=3, from_best=True))


@pytest.mark.parametrize("added", [(), models((4,)), models((3, 4)), models((1,))])
def test_plans_that_do_not_fit_the_decision_change_nothing(added):
    schedule = deciding()
    done(schedule, 0)
    decision = replace(copy(1, 1, parent=1, model=3, parent_hop=1))
    with pytest.raises(ValueError, match="do not fit"):
        schedule.decide(decision, added)
    assert set(schedule.progress) == {1} and schedule.awaiting() == [(1, 1)]


def test_a_number_is_given_once():
    schedule = deciding()
    done(schedule, 0)
    with pytest.raises(ValueError, match="already"):
        schedule.decide(copy(1, 1, parent=1, model=1, parent_hop=1), models((1,)))


@pytest.mark.parametrize(
    ("hops", "decided", "said"),
    [
        (1, [go_on(2, 1)], "given for model 1"),
        (1, [go_on(1, 2)], "has trained only 1"),
        (1, [go_on(1, 0)], "has trained only 1"),
        (2, [stop(1, 1)], "has 2 hops"),
        (1, [copy(1, 1, parent=1, model=5, parent_hop=1)], "model 5, which the plan does not have"),
    ],
)
def test_decisions_that_do_not_fit_the_log_are_refused(hops, decided, said):
    schedule = deciding(count=2)
    with pytest.raises(ValueError, match=said):
        schedule.restore(1, hops, decided=decided)


def test_decisions_on_record_are_not_awaited_again():
    schedule = deciding(count=3)
    schedule.restore(1, 1, decided=[go_on(1, 1)])
    schedule.restore(2, 1, decided=[stop(2, 1)])
    schedule.restore(3, 1)
    assert schedule.awaiting() == [(3, 1)]
    assert schedule.progress[2].status is Status.STOPPED and schedule.next_visit(1) == Train(1, 2, 2, 0)


def test_epochs_from_before_the_policy_are_not_decided_about_afterwards():
    """A run without decisions is resumed with a policy: the policy is asked about the current epoch only."""
    schedule = deciding(count=2, epochs=4)
    schedule.restore(1, 3)
    assert schedule.awaiting() == [(1, 3)]


def test_a_model_that_was_stopped_stays_so_when_the_run_gets_more_epochs():
    plan = Plan(1, models((1, 2)), 1, 3)
    for decides in (True, False):
        schedule = Schedule(plan, decides)
        schedule.restore(1, 2, decided=[go_on(1, 1), stop(1, 2)])
        schedule.restore(2, 2, decided=[go_on(2, 1), go_on(2, 2)])
        assert schedule.take(0) == Train(2, 3, 3, 0) and schedule.take(0) is None


def test_a_model_that_is_given_up_awaits_nothing():
    schedule = deciding()
    done(schedule, 0)
    schedule.give_up(1, "its state is damaged")
    assert schedule.awaiting() == [] and schedule.finished


def test_the_epochs_of_a_model_that_could_not_be_evaluated_are_not_complete():
    schedule = deciding(segments=2, evaluations={"validation": {0: 0, 1: 1}})
    done(schedule, *schedule.progress[1].order)
    first, second = schedule.take(0), schedule.take(1)
    schedule.failed(first, "bad", try_again=False)
    schedule.succeeded(second)
    assert schedule.progress[1].epochs == 0 and schedule.awaiting() == []


# -- replays: the decisions of an earlier run ------------------------------------------------------------


def test_a_replayed_copy_waits_for_the_recorded_hop_and_the_parent_waits_for_the_copy():
    """In the earlier run model 2 was copied after its first hop, when model 1 had an epoch."""
    replayed = [copy(1, 1, parent=2, model=3, parent_hop=1), go_on(2, 1)]
    fast = deciding(count=2, epochs=2, replayed=replayed)
    one, two = fast.take(0), fast.take(0)
    fast.succeeded(one)
    assert fast.awaiting() == [], "model 2 has no hop yet"
    fast.succeeded(two)
    assert fast.awaiting() == [(1, 1), (2, 1)]
    assert fast.prepared(fast.replayed(1)) == replayed[0]
    slow = deciding(count=2, epochs=2, replayed=replayed)
    one, two = slow.take(0), slow.take(0)
    slow.succeeded(two)
    slow.decide(slow.replayed(2))
    assert slow.take(0) is None, "model 2 trained beyond the hop that is to be copied"
    slow.succeeded(one)
    slow.decide(slow.prepared(slow.replayed(1)), models((3,)))
    assert slow.replayed(1) is None
    assert {slow.take(0), slow.take(0), slow.take(0)} == {Train(1, 2, 2, 0), Train(2, 2, 2, 0), Train(3, 1, 1, 0)}


def test_a_replayed_copy_that_is_on_record_holds_no_model():
    replayed = [copy(1, 1, parent=2, model=3, parent_hop=0)]
    for order in ((1, 2), (2, 1)):
        schedule = Schedule(Plan(1, models((1, 2, 3)), 1, 2), True, replayed)
        assert {unit.model for unit in schedule._waiting[0]} == {1, 3}
        for model in order:
            schedule.restore(model, 1 if model == 1 else 0, decided=replayed if model == 1 else ())
        assert {unit.model for unit in schedule._waiting[0]} == {1, 2, 3}


def test_a_parent_is_free_when_the_copy_will_never_come():
    """In the replay model 1 fails. It would have added model 3, which would have copied model 2."""
    replayed = [copy(1, 1, parent=1, model=3, parent_hop=1), copy(3, 1, parent=2, model=4, parent_hop=0)]
    schedule = deciding(count=2, replayed=replayed)
    unit = schedule.take(0)
    assert unit.model == 1 and schedule.take(0) is None
    schedule.failed(unit, "bad", try_again=False)
    assert schedule.take(0) == Train(2, 1, 1, 0)


def test_a_copy_of_a_parent_that_has_failed_too_early_is_an_error():
    schedule = deciding(count=2, replayed=[copy(1, 1, parent=2, model=3, parent_hop=1)])
    one, two = schedule.take(0), schedule.take(0)
    schedule.succeeded(one)
    schedule.failed(two, "bad", try_again=False)
    assert schedule.awaiting() == [(1, 1)]
    with pytest.raises(ValueError, match="model 2 cannot be copied after hop 1: it has 0 hops"):
        schedule.prepared(schedule.replayed(1))


def test_new_decisions_of_a_replay_leave_the_recorded_numbers_free():
    schedule = deciding(count=2, replayed=[copy(2, 1, parent=2, model=7, parent_hop=1)])
    done(schedule, 0)
    assert [new.model for new in schedule.prepared(copy(1, 1, parent=1)).added] == [8]


def test_a_thousand_models_are_no_burden():
    """64,000 hops take half a second; looking at every model for every hop took 87."""
    chance = random.Random(1)
    costs = [chance.uniform(1, 6) for _ in range(1000)]
    schedule = Schedule(Plan(1, models(range(1000)), 64, 1))
    started = time.process_time()
    orchestrator.run(schedule, Clock(lambda unit: costs[unit.model]))
    assert time.process_time() - started < 10


@quick
@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_a_model_that_folds_judge_begins_an_epoch_when_they_have_ended_it(seed, folds, segments, epochs):
    """Whatever order they begin in, fail or are restored in; and nothing waits for ever."""
    chance = random.Random(seed)
    numbers = [(None, 1), *((fold, fold + 1) for fold in range(1, folds + 1))]
    judged = [
        ModelPlan(number, number, fold=fold, judged="1", judges=0 if fold else folds, evaluated=fold is not None)
        for fold, number in numbers
    ]
    chance.shuffle(judged)
    parts = {"validation": {0: 0}}
    plan = Plan(seed=seed, models=tuple(judged), segments=segments, epochs=epochs, evaluations=parts, evaluate_every=1)
    schedule, busy = Schedule(plan), []
    stopped = chance.choice([None, 2])
    while not schedule.finished:
        idle = [segment for segment in range(segments) if segment not in schedule.busy]
        for segment in chance.sample(idle, len(idle)):
            unit = schedule.take(segment)
            if unit is None:
                continue
            busy.append(unit)
            if unit.model == 1:
                assert all(
                    schedule.progress[number].epochs >= unit.epoch or schedule.progress[number].status is Status.FAILED
                    for _, number in numbers[1:]
                )
        assert busy, "a model waits for ever"
        unit = busy.pop(chance.randrange(len(busy)))
        if unit.model == stopped:
            schedule.failed(unit, "gone", try_again=False)
        else:
            schedule.succeeded(unit)
        if chance.random() < 0.2 and not busy:  # a driver goes on from the log
            after = Schedule(plan)
            for number, mine in chance.sample(sorted(schedule.progress.items()), len(schedule.progress)):
                if mine.status is Status.FAILED:
                    after.give_up(number, "gone")
                    continue
                evaluated = [(epoch, "validation", 0) for epoch in range(1, mine.epochs + 1)]
                after.restore(number, mine.hops, evaluated)
            schedule = after
    assert schedule.progress[1].epochs == epochs


def test_a_model_waits_for_folds_that_are_not_added_yet_unless_nothing_is_to_judge_it():
    whole = ModelPlan(1, 0, judged="1", judges=1)
    schedule = Schedule(Plan(seed=1, models=(whole,), segments=1, epochs=1))
    assert schedule.take(0) is None and schedule.trainable() == []
    schedule.wait_for_no_judges()
    assert schedule.take(0) == Train(1, 1, 1, 0)


def test_a_model_that_stays_has_all_its_units_on_one_segment() -> None:
    """It has as many visits as a model that hops, whose rows the caller knows by their numbers."""
    stays = tuple(ModelPlan(model, model, stays_on=model % 3) for model in range(1, 5))
    plan = Plan(7, (*stays, ModelPlan(5, 5)), segments=3, epochs=2, evaluations={"validation": {0: 0, 1: 1, 2: 2}})
    schedule, found = Schedule(plan), []
    while not schedule.finished:
        begun = [unit for segment in range(3) if (unit := schedule.take(segment)) is not None]
        assert begun
        found += begun
        for unit in begun:
            schedule.succeeded(unit, 1.0)
    for model in range(1, 5):
        mine = [unit for unit in found if unit.model == model]
        assert [unit.hop for unit in mine if isinstance(unit, Train)] == list(range(1, 7))
        assert {unit.segment for unit in mine} == {model % 3} and len(mine) == 6 + 3
    assert {unit.segment for unit in found if unit.model == 5} == {0, 1, 2}
    for wrong in ({"stays_on": 3}, {"stays_on": 0, "most_chained": 2, "visits": (0,)}):
        with pytest.raises(ValueError, match="model 1 cannot stay on segment"):
            Plan(7, (ModelPlan(1, 1, **wrong),), segments=3, epochs=2)
