"""Whole experiments with faults and crashes end as the undisturbed ones do; and segments are kept busy.

CEREBRO_EXPERIMENTS=100000 runs more of them; by default there are 20,000, in some 20 seconds.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
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
    Experiment,
    FakePorts,
    Faults,
    Independent,
    Log,
    Misjudged,
    counts,
    makespan,
    order_of,
    random_plan,
    random_seconds,
    undisturbed,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_db.core import orchestrator
from cerebro_db.core.orchestrator import Outcome
from cerebro_db.core.schedule import Evaluate, Plan, Schedule, Status, Train

EXPERIMENTS = int(os.environ.get("CEREBRO_EXPERIMENTS", "20000"))
SHARES = 8  # so that pytest-xdist can spread them
seeds = st.integers(0, 2**31 - 1)


# -- faults, crashes, timing: the same models --------------------------------------------------------------


@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_the_models_are_the_same(share):
    units = crashes = failures = together = 0
    for seed in range(share, EXPERIMENTS, SHARES):
        try:
            experiment = Experiment(seed).run()
        except Exception as error:
            raise AssertionError(f"Experiment({seed}).run(): {error}") from error
        units += experiment.units
        crashes += experiment.crashes
        failures += experiment.failures
        together += experiment.together > 1
    # Something did happen.
    assert crashes > EXPERIMENTS / SHARES / 2
    assert failures > EXPERIMENTS / SHARES / 10
    assert together > EXPERIMENTS / SHARES / 10
    assert units > 10 * EXPERIMENTS / SHARES


class ForgetsEvaluations(Schedule):
    def restore(self, key, hops, evaluated=()):
        super().restore(key, hops)


class ForgetsAHop(Schedule):
    def restore(self, key, hops, evaluated=()):
        super().restore(key, max(0, hops - 1), evaluated)


class SkipsAHop(Schedule):
    def restore(self, key, hops, evaluated=()):
        super().restore(key, min(hops + (hops > 3), self.hops_each), evaluated)


class TrainsWhileEvaluated(Schedule):
    def _hopped(self, key, evaluated=()):
        super()._hopped(key, evaluated)
        if self.progress[key].waiting and self.progress[key].hops < self.hops_each:
            self._go_on(key)


class TriesForEver(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3):
        return super().failed(unit, reason, try_again=try_again, most_tries=99)


class GivesUpAtOnce(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3):
        return super().failed(unit, reason, try_again=False)


class CountsTriesTogether(Schedule):
    def failed(self, unit, reason, *, try_again, most_tries=3):
        tries = self.progress[unit.configuration].tries
        tries[unit] = max(tries.values(), default=0)
        return super().failed(unit, reason, try_again=try_again)


class FailsAll(Schedule):
    def give_up(self, key, reason):
        for other in list(self._active):
            super().give_up(other, reason)


class LeavesSegmentsIdle(Schedule):
    def take(self, segment):
        return None if len(self.busy) >= 2 else super().take(segment)


class TakesTheOrderAsItComes(Dynamic):
    pass


class LeavesACompanionBehind(Schedule):
    def companions(self, unit):
        return super().companions(unit)[:-1]


class DragsOthersAlongAgain(Schedule):
    def _is_untried_visit(self, unit):
        return isinstance(unit, Train)


class ThinksAllAlike(Schedule):
    def __init__(self, plan):
        super().__init__(replace(plan, alike=dict.fromkeys(plan.configurations, "x")))


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
    ],
)
def test_an_experiment_notices_a_broken_schedule(broken):
    found = 0
    for seed in range(200):
        try:
            Experiment(seed, make=broken).run()
        except (AssertionError, RuntimeError, ValueError, KeyError):
            found += 1
    assert found > 1


def drive(plan, seconds, faults=None, chance=None, log=None):
    log = log or Log.of(plan)
    ports = FakePorts(plan, log, seconds, faults=faults, chance=chance)
    orchestrator.run(log.schedule(plan), ports)
    return ports


@settings(deadline=None, max_examples=300)
@given(seeds)
def test_the_same_seed_and_the_same_durations_give_the_same_schedule(seed):
    plan = random_plan(random.Random(seed), most=9)
    one, other = (drive(plan, random_seconds(random.Random(seed), plan)) for _ in range(2))
    assert one.trace == other.trace
    for key in plan.configurations:
        visits = [unit.segment for _, unit in one.trace if isinstance(unit, Train) and unit.configuration == key]
        assert visits == order_of(plan, key) * plan.epochs


@settings(deadline=None, max_examples=300)
@given(seeds, seeds)
def test_other_durations_give_the_same_visits_and_models(seed, timing):
    plan = random_plan(random.Random(seed), most=9)
    one, other = (drive(plan, random_seconds(random.Random(number), plan)) for number in (seed, timing))
    assert one.log == other.log
    for key in plan.configurations:
        assert one.log.states[key] == undisturbed(plan, key)
        mine = [[unit for _, unit in ports.trace if unit.configuration == key] for ports in (one, other)]
        assert [u for u in mine[0] if isinstance(u, Train)] == [u for u in mine[1] if isinstance(u, Train)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_crash_at_every_single_event(commits):
    """Not a sample of moments but all of them, for one plan."""
    plan = Plan(3, (1, 2, 3), 2, 2, {"validation": {0: 0, 1: 1}}, evaluate_every=1)
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

    def gave_up(self, configuration, reason):
        self.said.append((configuration, reason))

    def trying_again(self, unit, reason):
        self.said.append((unit, reason))


def test_a_configuration_is_given_up_once_though_several_evaluations_fail():
    plan = Plan(1, (1, 2), 3, 1, {"validation": {0: 0, 1: 1, 2: 2}})
    ports = Recorded(lambda unit: ("bad",) if isinstance(unit, Evaluate) and unit.configuration == 1 else None)
    schedule = Schedule(plan)
    orchestrator.run(schedule, ports)
    assert len(ports.said) == 1 and ports.said[0][0] == 1
    assert [mine.status for mine in schedule.progress.values()] == [Status.FAILED, Status.FINISHED]


def test_three_attempts_are_two_repetitions_and_a_reason():
    ports = Recorded(lambda unit: ("killed", True) if unit.hop == 2 else None)
    orchestrator.run(Schedule(Plan(1, (5,), 1, 2)), ports)
    again = Train(5, 2, 2, 0)
    assert ports.said == [(again, "killed"), (again, "killed"), (5, "gave up after 3 attempts: killed")]


def test_a_configuration_that_fails_without_a_word_is_given_up_all_the_same():
    ports = Recorded(lambda unit: ("",))
    orchestrator.run(Schedule(Plan(1, (5,), 1, 1)), ports)
    assert ports.said == [(5, "")]


def test_a_schedule_that_cannot_go_on_is_an_error_and_not_a_wait():
    class Stuck(Schedule):
        def take(self, segment):
            return None

    with pytest.raises(RuntimeError, match="stuck"):
        orchestrator.run(Stuck(Plan(1, (1,), 1, 1)), Clock(lambda unit: 1.0))


def test_what_ports_raise_ends_the_run():
    class Cancelled(Clock):
        def wait(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orchestrator.run(Schedule(Plan(1, (1,), 1, 1)), Cancelled(lambda unit: 1.0))


# -- segments are kept busy: docs/scheduling.md ----------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_ring_keeps_segments_busy(workload):
    for segments in SEGMENTS:
        for count in counts(segments):
            took = makespan(Schedule, workload, segments, count, epochs=3 if segments <= 16 else 2)
            assert took <= 1.15, (segments, count)
            if segments <= 8:
                assert took <= 1.10 * makespan(Dynamic, workload, segments, count), (segments, count)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_who_enters_by_cost_waits_no_longer_even_if_the_costs_are_misjudged(workload):
    """What counts is that those of one kind are spread, not which kind is said to cost most."""
    for segments in (2, 4, 8):
        for count in counts(segments):
            as_listed = makespan(AsListed, workload, segments, count)
            for make in (Schedule, Misjudged):
                assert makespan(make, workload, segments, count) <= 1.03 * as_listed, (segments, count)


def test_two_slow_ones_among_eight_do_not_begin_on_the_same_segment():
    assert makespan(AsListed, "two-speed", 2, 8) > 1.03
    assert makespan(Schedule, "two-speed", 2, 8) == 1.0


def test_the_simulation_tells_good_orders_from_bad():
    assert makespan(ORDERS["independent"], "equal", 16, 16) > 1.3
    assert makespan(ORDERS["one ring"], "equal", 16, 16) == 1.0


@pytest.mark.parametrize("workload", WORKLOADS)
def test_evaluations_do_not_hold_the_others_up(workload):
    for segments in (2, 4, 8, 16):
        for count in counts(segments):
            took = [makespan(make, workload, segments, count, share=0.1) for make in URGENCIES.values()]
            assert took[0] <= 1.10 * min(took), (segments, count, took)


def test_evaluations_that_wait_their_turn_would_hold_everybody_up():
    assert makespan(EvaluationsByWorkLeft, "equal", 4, 4, share=0.1) > 1.2
    assert makespan(Schedule, "equal", 4, 4, share=0.1) < 1.01


@pytest.mark.parametrize("workload", WORKLOADS)
def test_training_together_never_costs_time(workload):
    """Whoever is fused is on one segment at a time: too many of them, and all others are idle."""
    for segments in (2, 4, 8):
        for count in (*counts(segments), 16 * segments):
            alone = makespan(Schedule, workload, segments, count)
            for part in (0.2, 0.6):
                took = makespan(Schedule, workload, segments, count, together=16, part=part)
                assert took <= 1.06 * alone, (segments, count, part)


def test_training_together_saves_what_it_can():
    assert makespan(Schedule, "equal", 4, 32, together=16, part=0.25) < 0.5 * makespan(Schedule, "equal", 4, 32)
