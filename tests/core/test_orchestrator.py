"""Whole experiments with faults and crashes end as undisturbed ones do, and segments are kept busy.

CEREBRO_THOROUGH=5 runs five times as many.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from experiments import Experiment, lives_of, lives_on_record, random_plan, undisturbed
from fakes import (
    ORDERS,
    SEGMENTS,
    URGENCIES,
    WORKLOADS,
    AsListed,
    Clock,
    Crash,
    Dynamic,
    EvaluationsByWorkLeft,
    FakePorts,
    Faults,
    Independent,
    Log,
    Misjudged,
    counts,
    makespan,
    models,
    numbers_of,
    order_of,
    random_seconds,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import Branching, CopyTheBest, MustNotBeAsked, StopAfter, StopWorseHalf

from cerebro_db.core.events import Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Status, Train
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.policy import Decision, History, NewModel
from tests.thorough import TIMES, tries

EXPERIMENTS = tries(400)
SHARES = 2  # so that pytest-xdist can spread them
seeds = st.integers(0, 2**31 - 1)


# -- faults, crashes, timing: the same models --------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_the_models_are_the_same(share):
    found = Counter()
    for seed in range(share, EXPERIMENTS, SHARES):
        try:
            experiment = Experiment(seed).run()
        except Exception as error:
            raise AssertionError(f"Experiment({seed}).run(): {error}") from error
        found["fused"] += experiment.most_fused > 1
        found["in series"] += experiment.longest_order > 1
        for what in ("units", "crashes", "failures", "decisions", "added", "stopped", "replays"):
            found[what] += getattr(experiment, what)
    # All this did happen.
    number = EXPERIMENTS / SHARES
    assert found["units"] > 10 * number
    assert found["crashes"] > number / 2
    assert min(found["failures"], found["fused"]) > number / 10
    assert min(found["replays"], found["in series"]) > number / 20
    assert min(found["decisions"], found["added"], found["stopped"]) > number / 2


class ForgetsEvaluations(Schedule):
    def restore(self, model, hops, evaluated=(), decided=(), replicas=()):
        super().restore(model, hops, (), decided)


class ForgetsAHop(Schedule):
    def restore(self, model, hops, evaluated=(), decided=(), replicas=()):
        super().restore(model, max(0, hops - 1), evaluated, decided)


class SkipsAHop(Schedule):
    def restore(self, model, hops, evaluated=(), decided=(), replicas=()):
        super().restore(model, min(hops + (hops > 3), self.hops_of(model)), evaluated, decided)


class ForgetsDecisions(Schedule):
    """It asks again, and a model that was stopped trains again."""

    def restore(self, model, hops, evaluated=(), decided=(), replicas=()):
        super().restore(model, hops, evaluated)


class TrainsWhileEvaluated(Schedule):
    def _hopped(self, key, evaluated=()):
        super()._hopped(key, evaluated)
        if self.progress[key].waiting and self.progress[key].hops < self.hops_of(key):
            self._go_on(key)


class TriesForEver(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3, **more):
        return super().failed(unit, reason, try_again=try_again, most_tries=99)


class GivesUpAtOnce(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3, **more):
        return super().failed(unit, reason, try_again=False)


class CountsTriesTogether(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3, **more):
        tries = self.progress[unit.model].tries
        tries[unit] = max(tries.values(), default=0)
        return super().failed(unit, reason, try_again=try_again)


class FailsAll(Schedule):
    def give_up(self, key, reason):
        for other in list(self._active):
            super().give_up(other, reason)


class LeavesSegmentsIdle(Schedule):
    def take(self, segment, only=None):
        return None if len(self.busy) >= 2 else super().take(segment, only)


class TakesTheOrderAsItComes(Dynamic):
    pass


class LeavesAMemberBehind(Schedule):
    def fuse(self, unit, most=None):
        return super().fuse(unit)[:-1]


class FusesWhatHasFailed(Schedule):
    def _is_untried(self, unit):
        return isinstance(unit, Train)


class FusesAll(Schedule):
    def __init__(self, plan, *more):
        super().__init__(replace(plan, models=tuple(replace(one, group="x") for one in plan.models)), *more)


class MixesSeries(Schedule):
    def __init__(self, plan, *more):
        super().__init__(replace(plan, models=tuple(replace(one, series="x") for one in plan.models)), *more)


class LeavesAFollowUpBehind(Schedule):
    def order_with(self, unit, most=None):
        first, *others = super().order_with(unit)
        return [first, *others[:-1]]


class VisitsAllSegments(Schedule):
    def __init__(self, plan, *more):
        super().__init__(replace(plan, models=tuple(replace(one, visits=None) for one in plan.models)), *more)


class GoesOnUndecided(Schedule):
    def _epoch_ended(self, model):
        self.decides, decides = False, self.decides
        super()._epoch_ended(model)
        self.decides = decides


class DecidesBeforeTheEvaluation(Schedule):
    def _hopped(self, model, evaluated=()):
        super()._hopped(model, evaluated)
        if self.decides and self.progress[model].waiting and self.progress[model].hops % 2 == 0:
            self._epoch_ended(model)


class TrainsOnWhenStopped(Schedule):
    def decide(self, decision, added=()):
        super().decide(replace(decision, verdict=Verdict.ADD if decision.added else Verdict.CONTINUE), added)


class IgnoresAddedModels(Schedule):
    def decide(self, decision, added=()):
        super().decide(replace(decision, added=(), verdict=Verdict.CONTINUE))


class CopiesAnOlderState(Schedule):
    def _hop_to_copy(self, new):
        return max(0, super()._hop_to_copy(new) - 2)


class NumbersModelsAnew(Schedule):
    """A replay must give the added models the numbers that they had."""

    def prepared(self, decision):
        added = tuple(replace(new, model=None) for new in decision.added)
        return super().prepared(replace(decision, added=added))


class CopiesWhatIsThere(Schedule):
    """A replay must copy the recorded state, and therefore wait for it."""

    def _may_repeat(self, decision):
        return True

    def _hop_to_copy(self, new):
        return self.progress[new.parent].hops


class TrainsParentsOn(Schedule):
    def __init__(self, *more):
        super().__init__(*more)
        self._replay.holds = lambda model, hops: False


class Asks(Schedule):
    """A replay must not ask."""

    def replayed(self, model):
        return None


@pytest.mark.parametrize(
    "broken",
    [
        ForgetsEvaluations,
        ForgetsAHop,
        SkipsAHop,
        TrainsWhileEvaluated,
        TriesForEver,
        GivesUpAtOnce,
        CountsTriesTogether,
        FailsAll,
        LeavesSegmentsIdle,
        TakesTheOrderAsItComes,
        Independent,
        LeavesAMemberBehind,
        FusesWhatHasFailed,
        FusesAll,
        MixesSeries,
        LeavesAFollowUpBehind,
        VisitsAllSegments,
        ForgetsDecisions,
        GoesOnUndecided,
        DecidesBeforeTheEvaluation,
        TrainsOnWhenStopped,
        IgnoresAddedModels,
        CopiesAnOlderState,
    ],
)
def test_an_experiment_notices_a_broken_schedule(broken):
    found = 0
    for seed in range(200):
        try:
            Experiment(seed, make=broken).run()
        except (AssertionError, RuntimeError, ValueError, KeyError):
            found += 1
        if found > 1:
            return
    pytest.fail(f"{found} of 200 experiments have noticed it")


@pytest.mark.parametrize("broken", [NumbersModelsAnew, CopiesWhatIsThere, TrainsParentsOn, Asks])
def test_an_experiment_notices_a_broken_replay(broken):
    found = 0
    for seed in range(200):
        try:
            Experiment(seed, make=broken, choose_policy=lambda chance, plan: CopyTheBest()).run()
        except (AssertionError, RuntimeError, ValueError, KeyError):
            found += 1
        if found > 1:
            return
    pytest.fail(f"{found} of 200 experiments have noticed it")


def drive(plan, seconds, faults=None, chance=None, log=None, policy=None, *, replayed=()):
    log = log or Log.of(plan)
    history, decides = log.history(plan), policy is not None
    # In a replay models may wait for their copies.
    more = {"decides": decides, "thorough": not replayed}
    ports = FakePorts(plan, log, seconds, faults=faults, chance=chance, **more)
    orchestrator.run(log.schedule(plan, decides=decides, replayed=replayed), ports, policy, history)
    return ports


@settings(deadline=None, max_examples=tries(60))
@given(seeds)
def test_the_same_seed_and_the_same_durations_give_the_same_schedule(seed):
    plan = random_plan(random.Random(seed), most=9)
    one, other = (drive(plan, random_seconds(random.Random(seed), plan)) for _ in range(2))
    assert one.trace == other.trace
    for key in numbers_of(plan):
        visits = [unit.segment for _, unit in one.trace if isinstance(unit, Train) and unit.model == key]
        assert visits == order_of(plan, key) * plan.epochs


@settings(deadline=None, max_examples=tries(60))
@given(seeds, seeds)
def test_other_durations_give_the_same_visits_and_models(seed, timing):
    plan = random_plan(random.Random(seed), most=9)
    one, other = (drive(plan, random_seconds(random.Random(number), plan)) for number in (seed, timing))
    assert one.log == other.log
    for key in numbers_of(plan):
        assert one.log.states[key] == undisturbed(plan, key)
        mine = [[unit for _, unit in ports.trace if unit.model == key] for ports in (one, other)]
        assert [u for u in mine[0] if isinstance(u, Train)] == [u for u in mine[1] if isinstance(u, Train)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_crash_at_every_single_event(commits):
    """Not a sample of moments but all of them, for one plan."""
    plan = Plan(3, models((1, 2, 3)), 2, 2, {"validation": {0: 0, 1: 1}}, evaluate_every=1)
    faults = Faults(broken={3: 3}, lost=0.2)
    crash_at, chance = 0, random.Random(commits)
    while True:
        crash_at += 1
        log = Log.of(plan)
        faults.crash_at = crash_at
        try:
            drive(plan, lambda unit: 1.0 + unit.segment, faults, chance, log)
            break
        except Crash:
            faults.crash_at = -1
            drive(plan, lambda unit: 1.0, faults, chance, log)
        assert {key: states == undisturbed(plan, key) for key, states in log.states.items()} == {1: 1, 2: 1, 3: 0}
        assert len(log.states[3]) == 3 and set(log.failed) == {3}
        assert len(log.evaluations) == 2 * (2 + 2 + 1)
    assert crash_at > 40


@pytest.mark.parametrize(
    "policy", [StopAfter(1), Branching(), StopWorseHalf(), CopyTheBest(8)], ids=lambda one: one.name
)
def test_a_crash_at_every_single_event_of_a_run_with_decisions(policy):
    """Before and after the commit of each decision, too, with commits of workers on their way."""
    plan = Plan(3, models((1, 2, 3), visits={2: (1,)}), 2, 2, {"validation": {0: 0, 1: 1}}, evaluate_every=1)
    faults, crash_at, chance = Faults(broken={3: 4}, lost=0.1), 0, random.Random(1)
    while True:
        crash_at += 1
        log = Log.of(plan)
        faults.crash_at = crash_at
        try:
            drive(plan, lambda unit: 1.0 + unit.segment, faults, chance, log, policy)
            break
        except Crash:
            faults.crash_at = -1
            before = list(log.decisions)
            drive(plan, lambda unit: 1.0, faults, chance, log, policy)
            assert log.decisions[: len(before)] == before
        lives_on_record(plan, log, faults, lambda lineage: {1, 2}, decides=True)
        if policy.own_history_only:
            alone = lives_of(plan, policy, faults, lambda lineage: {1, 2})
            assert sorted(life.states for life in alone.values()) == sorted(log.states.values())
    assert crash_at > 25


@settings(deadline=None, max_examples=tries(40))
@given(seeds, seeds)
def test_a_replay_of_decisions_that_depended_on_the_timing_gives_the_same_models(seed, timing):
    plan = random_plan(random.Random(seed), most=9)
    one = drive(plan, random_seconds(random.Random(seed), plan), policy=CopyTheBest())
    replayed = one.log.decisions
    other = drive(plan, random_seconds(random.Random(timing), plan), policy=MustNotBeAsked(), replayed=replayed)
    assert sorted(other.log.decisions, key=str) == sorted(one.log.decisions, key=str)
    assert replace(other.log, decisions=[]) == replace(one.log, decisions=[])


def test_the_timing_does_matter_to_a_policy_that_compares_models():
    """Otherwise the test above would prove nothing."""
    plan = Plan(3, models(range(6)), 3, 3)
    logs = [drive(plan, random_seconds(random.Random(seed), plan), policy=CopyTheBest()).log for seed in range(5)]
    assert any(log != logs[0] for log in logs)


# -- decisions, step by step -----------------------------------------------------------------------------------


class Committed(Clock):
    """A clock that keeps its decisions, and looks at the schedule at the moment of each commit."""

    def __init__(self, fails=lambda decision: False):
        super().__init__(lambda unit: 1.0)
        self.schedule, self.decisions, self.fails = None, [], fails

    def decided(self, decisions):
        (decision,) = decisions
        assert self.schedule.awaiting().count((decision.model, decision.epoch)) == 1
        assert self.schedule.progress[decision.model].status is Status.ACTIVE
        assert not {new.model for new in decision.added} & set(self.schedule.progress)
        if self.fails(decision):
            raise RuntimeError("the disk is full")
        self.decisions.append(decision)
        return [ModelPlan(new.model, 0, new.visits) for new in decision.added]

    def configuration(self, model):
        return {"added": model}

    def run(self, plan, policy, history=None):
        self.schedule = Schedule(plan, policy.asks)
        orchestrator.run(self.schedule, self, policy, history)


class Added(CopyTheBest):
    def decide(self, history, model, epoch):
        new = (NewModel(key=1),) if len(history.models) < 3 else ()
        return Decision(model, epoch, Verdict.STOP, "replaced", new)


def test_a_decision_is_committed_before_it_takes_effect():
    ports = Committed()
    ports.run(Plan(1, models((1,)), 2, 3), Added())
    assert [(one.model, one.epoch, [new.model for new in one.added]) for one in ports.decisions] == [
        (1, 1, [2]),
        (2, 1, [3]),
        (3, 1, []),
    ]
    assert {mine.status for mine in ports.schedule.progress.values()} == {Status.STOPPED}


def test_a_decision_that_cannot_be_committed_has_no_effect():
    ports = Committed(fails=lambda decision: decision.model == 2)
    with pytest.raises(RuntimeError, match="disk is full"):
        ports.run(Plan(1, models((1,)), 2, 3), Added())
    assert len(ports.decisions) == 1 and set(ports.schedule.progress) == {1, 2}
    assert ports.schedule.awaiting() == [(2, 1)] and ports.schedule.progress[2].status is Status.ACTIVE


def test_a_policy_that_never_asks_costs_no_decision():
    ports, history = Committed(), History()
    ports.run(Plan(1, models((1, 2)), 2, 3), NeverStop(), history)
    assert ports.decisions == [] and history.models == (1, 2)
    assert history.epochs(1) == ()


def test_a_schedule_that_decides_keeps_the_decisions_of_a_policy_that_never_stops():
    plan = Plan(1, models((1, 2)), 2, 3)
    ports = Committed()
    ports.schedule = Schedule(plan, decides=True)
    orchestrator.run(ports.schedule, ports)
    assert {(one.model, one.epoch) for one in ports.decisions} == {(m, e) for m in (1, 2) for e in (1, 2, 3)}
    assert {one.verdict for one in ports.decisions} == {Verdict.CONTINUE}


def test_a_policy_that_would_never_be_asked_is_an_error():
    with pytest.raises(ValueError, match="'stop after 1 epochs' wants to be asked"):
        orchestrator.run(Schedule(Plan(1, models((1,)), 1, 1)), Clock(lambda unit: 1.0), StopAfter(1))


def test_the_policy_sees_what_is_on_record_of_complete_epochs_only():
    seen = []

    class Looks(StopAfter):
        def decide(self, history, model, epoch):
            seen.append({(one, at): history.value(one, at, "loss") for one in history.models for at in (1, 2)})
            assert history.epochs(model)[-1] == epoch and history.decision(model, epoch) is None
            assert epoch == 1 or history.decision(model, epoch - 1).verdict is Verdict.CONTINUE
            return super().decide(history, model, epoch)

    class Losses(Committed):
        def wait(self):
            return [
                replace(one, weight=1, loss=float(one.unit.hop), metrics={"accuracy": 0.5}) for one in super().wait()
            ]

    Losses().run(Plan(1, models((1, 2), {1: 0, 2: 0}), 2, 2), Looks(3))
    assert seen[0] == {(1, 1): 1.5, (1, 2): None, (2, 1): None, (2, 2): None}
    assert seen[-1] == {(1, 1): 1.5, (1, 2): 3.5, (2, 1): 1.5, (2, 2): 3.5}


def test_two_replayed_decisions_that_make_way_for_each_other():
    """Model 1 adds model 2, which model 3 copies before it has trained; nothing else is there to be done."""
    first = Decision(1, 1, Verdict.ADD, added=(NewModel(key=1, model=2),))
    second = Decision(3, 1, Verdict.ADD, added=(NewModel(parent=2, parent_hop=0, model=4),))
    ends = [Decision(model, 1, Verdict.CONTINUE) for model in (2, 4)]
    ports = Committed()
    ports.schedule = Schedule(Plan(1, models((3, 1)), 2, 1), True, [second, first, *ends])
    orchestrator.run(ports.schedule, ports, MustNotBeAsked())
    assert ports.decisions[:2] == [first, second] and len(ports.decisions) == 4
    assert ports.schedule.finished


# -- what the loop says to its ports -------------------------------------------------------------------------


class Recorded(Clock):
    """A clock on which some units fail."""

    def __init__(self, fails):
        super().__init__(lambda unit: 1.0)
        self.fails, self.said = fails, []

    def wait(self):
        ended = [unit for _, _, units, _ in sorted(self.ends) for unit in units]
        self.ends.clear()
        return [Outcome(unit, 1.0, *(self.fails(unit) or ())) for unit in ended]

    def gave_up(self, model, reason):
        self.said.append((model, reason))

    def trying_again(self, unit, reason):
        self.said.append((unit, reason))


def test_a_model_is_given_up_once_though_several_evaluations_fail():
    plan = Plan(1, models((1, 2)), 3, 1, {"validation": {0: 0, 1: 1, 2: 2}})
    ports = Recorded(lambda unit: ("bad",) if isinstance(unit, Evaluate) and unit.model == 1 else None)
    schedule = Schedule(plan)
    orchestrator.run(schedule, ports)
    assert len(ports.said) == 1 and ports.said[0][0] == 1
    assert [mine.status for mine in schedule.progress.values()] == [Status.FAILED, Status.FINISHED]


def test_three_attempts_are_two_repetitions_and_a_reason():
    ports = Recorded(lambda unit: ("killed", True) if unit.hop == 2 else None)
    orchestrator.run(Schedule(Plan(1, models((5,)), 1, 2)), ports)
    again = Train(5, 2, 2, 0)
    assert ports.said == [(again, "killed"), (again, "killed"), (5, "gave up after 3 attempts: killed")]


def test_a_model_that_fails_without_a_word_is_given_up_all_the_same():
    ports = Recorded(lambda unit: ("",))
    orchestrator.run(Schedule(Plan(1, models((5,)), 1, 1)), ports)
    assert ports.said == [(5, "")]


def test_a_schedule_that_cannot_go_on_is_an_error_and_not_a_wait():
    class Stuck(Schedule):
        def take(self, segment, only=None):
            return None

    with pytest.raises(RuntimeError, match="stuck"):
        orchestrator.run(Stuck(Plan(1, models((1,)), 1, 1)), Clock(lambda unit: 1.0))


def test_what_ports_raise_ends_the_run():
    class Cancelled(Clock):
        def wait(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orchestrator.run(Schedule(Plan(1, models((1,)), 1, 1)), Cancelled(lambda unit: 1.0))


# -- segments are kept busy: docs/scheduling.md ----------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_ring_keeps_segments_busy(workload):
    for segments in SEGMENTS if TIMES >= 5 else SEGMENTS[:-1]:  # 64 take most of the time
        for count in counts(segments):
            took = makespan(Schedule, workload, segments, count, epochs=3 if segments <= 16 else 2)
            assert took <= 1.15, (segments, count)
            if segments <= 8:
                assert took <= 1.10 * makespan(Dynamic, workload, segments, count), (segments, count)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_ring_positions_by_cost_take_no_longer_even_if_the_costs_are_misjudged(workload):
    """What counts is that models of equal cost are spread, not which cost counts as the highest."""
    for segments in (2, 4, 8):
        for count in counts(segments):
            as_listed = makespan(AsListed, workload, segments, count)
            for make in (Schedule, Misjudged):
                assert makespan(make, workload, segments, count) <= 1.03 * as_listed, (segments, count)


def test_two_slow_models_among_eight_do_not_begin_on_the_same_segment():
    assert makespan(AsListed, "two-speed", 2, 8) > 1.03
    assert makespan(Schedule, "two-speed", 2, 8) == 1.0


def test_the_simulation_tells_good_orders_from_bad():
    assert makespan(ORDERS["independent"], "equal", 16, 16) > 1.3
    assert makespan(ORDERS["one ring"], "equal", 16, 16) == 1.0


@pytest.mark.parametrize("workload", WORKLOADS)
def test_decisions_are_no_barrier(workload):
    """A model goes on as soon as it is decided about, whatever the others do."""
    for segments in (2, 4, 8):
        for count in counts(segments):
            for share in (0.0, 0.1):
                alone = makespan(Schedule, workload, segments, count, share=share)
                assert makespan(Decides, workload, segments, count, share=share) == alone


class Decides(Schedule):
    def __init__(self, plan):
        super().__init__(plan, decides=True)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_evaluations_do_not_hold_the_others_up(workload):
    for segments in (2, 4, 8, 16) if TIMES >= 5 else (2, 4, 8):
        for count in counts(segments):
            took = [makespan(make, workload, segments, count, share=0.1) for make in URGENCIES.values()]
            assert took[0] <= 1.10 * min(took), (segments, count, took)


def test_evaluations_by_work_left_would_hold_all_models_up():
    assert makespan(EvaluationsByWorkLeft, "equal", 4, 4, share=0.1) > 1.2
    assert makespan(Schedule, "equal", 4, 4, share=0.1) < 1.01


@pytest.mark.parametrize("workload", WORKLOADS)
def test_fusion_never_costs_time(workload):
    """Fused models are on one segment at a time: if too many are fused, all other segments are idle."""
    for segments in (2, 4, 8):
        for count in (*counts(segments), 16 * segments):
            alone = makespan(Schedule, workload, segments, count)
            for part in (0.2, 0.6):
                took = makespan(Schedule, workload, segments, count, most_fused=16, part=part)
                assert took <= 1.06 * alone, (segments, count, part)


def test_fusion_saves_what_it_can():
    assert makespan(Schedule, "equal", 4, 32, most_fused=16, part=0.25) < 0.5 * makespan(Schedule, "equal", 4, 32)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_series_never_cost_time(workload):
    """Models of one order reach the next segment together: if too many are, all other segments are idle."""
    for segments in (2, 4, 8):
        for count in (*counts(segments), 16 * segments):
            for order in (0.0, 0.5, 3.0):
                alone = makespan(Schedule, workload, segments, count, order=order)
                took = makespan(Schedule, workload, segments, count, order=order, series_seconds=25.0)
                assert took <= 1.06 * alone, (segments, count, order)


def test_series_save_the_cost_of_orders():
    alone, took = (makespan(Schedule, "equal", 4, 64, order=3.0, series_seconds=most) for most in (0.0, 25.0))
    assert took < 0.6 * alone
