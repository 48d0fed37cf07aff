"""Simulated searches with everything that can happen to them."""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from fakes import Clock, models
from policies import StopAfter
from searches import Search, searched

from cerebro_db.core.events import Action, Decider, Following, Verdict
from cerebro_db.core.following import Step, allowed, excess_of_steps, kept_back, what_it_needs
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.deciding import NO_LIMIT, Deciding
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule, Status, Train
from cerebro_db.core.search import budget as budgets
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.methods.asha import Asha
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.methods.threshold import Threshold
from cerebro_db.core.search.policy import Decision, NewConfiguration, NewModel, Policy
from cerebro_db.core.search.request import Request
from tests.thorough import tries

SEARCHES = tries(160)
SHARES = 2  # so that pytest-xdist can spread them
EVERYTHING = (
    "crashes", "replays", "failures", "budgets", "budgets with least epochs", "stopped within an epoch", "policy",
    "rule", "request", "budget",
    *(f"to {verdict}" for verdict in Verdict),
)  # fmt: skip


@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_the_history_of_each_model_is_one_line(share):
    count = SEARCHES // SHARES
    found = searched(range(share * count, (share + 1) * count))
    assert found["hops"] > 10 * count and found["added"] > count
    assert all(found[what] > count / 100 for what in EVERYTHING), found


def _trains_on(self, decision, added=()):
    ends = decision.verdict is Verdict.STOP and decision.by is Decider.POLICY
    verdict = Verdict.ADD if decision.added else Verdict.CONTINUE
    DECIDE(self, replace(decision, verdict=verdict) if ends else decision, added)


def _stays_at_rest(self, decision, added=()):
    if decision.verdict is not Verdict.GO_ON:
        DECIDE(self, decision, added)


def _gives_a_key_twice(self, decision):
    self._highest_key = 0
    return PREPARED(self, decision)


def _stops_within_a_unit(self):
    return sorted(self._active)


DECIDE, PREPARED = Schedule.decide, Schedule.prepared
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "a stopped model trains on": (Schedule, "decide", _trains_on),
    "a model that goes on does not": (Schedule, "decide", _stays_at_rest),
    "a key is given twice": (Schedule, "prepared", _gives_a_key_twice),
    "models are stopped within a unit": (Schedule, "idle", _stops_within_a_unit),
    "the run is not extended": (Schedule, "_extend", lambda self, epochs: None),
    "nobody asks at the end of the epoch": (Schedule, "ask_about", lambda self, model: None),
    "a replay does not wait for its copies": (Schedule, "_may_repeat", lambda self, decision: True),
    "a replay does not hold parents": (Schedule, "_let_go", lambda self: None),
    "the budget is ignored": (Deciding, "spent", lambda self: False),
    "the number of configurations is ignored": (Deciding, "_room", lambda self: None),
    "nothing is proposed": (Deciding, "_propose", lambda self: None),
    "requests are not heard": (Deciding, "_attend_requests", lambda self: None),
    "orders have more hops than the budget": (Deciding, "hops_left", lambda self: None),
    "nobody waits for the least epochs": (Deciding, "_lacks", lambda self: False),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_search_notices_what_is_broken(what, monkeypatch):
    monkeypatch.setattr(*BROKEN[what])
    failed = 0
    for seed in range(400):
        try:
            Search(seed).run()
        except (AssertionError, RuntimeError, ValueError, KeyError):
            failed += 1
        if failed > 2:
            return
    raise AssertionError(f"not noticed: {what}")


# -- step by step ------------------------------------------------------------------------------------------------


class World(Clock):
    """A clock on which people ask for things at certain moments, and which keeps the decisions."""

    def __init__(self, asked=(), fails=(), ruled=None):
        super().__init__(lambda unit: 1.0)
        self.asked, self.fails, self.rule = list(asked), fails, ruled or (lambda model, epoch: None)
        self.decisions, self.trained = [], Counter()
        self.schedule, self.builds = None, lambda unit: 0.0

    def run(self, plan, policy=None, budget=NO_LIMIT, least_models=1):
        policy = policy or NeverStop()
        self.schedule = Schedule(plan, policy.asks)
        return orchestrator.run(self.schedule, self, policy, budget=budget, least_models=least_models)

    def wait(self) -> list[Outcome]:
        outcomes = [replace(one, building=self.builds(one.unit)) for one in super().wait()]
        self.trained.update(one.unit.model for one in outcomes if isinstance(one.unit, Train))
        return [replace(one, error="bad") if (one.unit.model, one.unit.hop) in self.fails else one for one in outcomes]

    def decided(self, decisions):
        self.decisions += decisions
        return [
            ModelPlan(new.model, new.model, new.visits, refused="bad" if new.key == 99 else None)
            for decision in decisions
            for new in decision.added
        ]

    def requests(self):
        answered = {decision.request for decision in self.decisions}
        return [request for at, request in self.asked if at <= self.now and request.request not in answered]

    def ruled(self, model, epoch):
        return self.rule(model, epoch)

    def used(self) -> Used:
        return Used(self.now, self.now)

    def told(self):
        return [(one.model, one.epoch, str(one.verdict), one.reason) for one in self.decisions]

    def statuses(self):
        return {model: (mine.status, mine.reason) for model, mine in self.schedule.progress.items()}


def asks(number, action, reason="", **detail):
    return Request(number, action, detail, reason)


OWN = NewConfiguration("loss='mse'", "", 1)


def test_a_stop_takes_effect_at_the_end_of_the_epoch_in_which_it_is_requested():
    world = World([(1.0, asks(7, Action.STOP, "too slow", model=2))])
    world.run(Plan(1, models((1, 2)), 2, 3))
    assert world.told() == [(2, 1, "stop", "too slow")] and world.decisions[0].request == 7
    assert world.trained == {1: 6, 2: 2}


def test_a_model_that_has_not_begun_its_next_epoch_is_stopped_at_once():
    world = World([(0.0, asks(1, Action.STOP, model=2))])
    world.run(Plan(1, models((1, 2)), 1, 3))
    assert world.told() == [(2, 0, "stop", "at the request of a person")]
    assert world.trained == {1: 3}


def test_a_stopped_model_goes_on_where_it_was():
    world = World([(1.0, asks(1, Action.STOP, model=2)), (4.0, asks(2, Action.GO_ON, "after all", model=2))])
    world.run(Plan(1, models((1, 2)), 2, 3))
    assert world.told() == [(2, 1, "stop", "at the request of a person"), (2, 1, "go on", "after all")]
    assert world.trained == {1: 6, 2: 6}
    assert world.statuses() == {1: (Status.FINISHED, None), 2: (Status.FINISHED, None)}


class StopsTwo(Policy):
    name = "stops two"

    def decide(self, history, model, epoch):
        return Decision(model, epoch, Verdict.STOP, "far off") if model == 2 else super().decide(history, model, epoch)


@pytest.mark.parametrize("how", ["rule", "policy"])
def test_what_a_person_lets_go_on_is_stopped_by_people_and_budgets_only(how):
    def world(*asked):
        return World(asked, ruled=(lambda model, epoch: "far off" if model == 2 else None) if how == "rule" else None)

    plan, policy = Plan(1, models((1, 2)), 1, 4), StopsTwo() if how == "policy" else StopAfter(9)
    go_on, stop = (3.0, asks(1, Action.GO_ON, "after all", model=2)), (5.0, asks(2, Action.STOP, "enough", model=2))
    first = world(go_on)
    first.run(plan, policy)
    told = [one for one in first.told() if one[0] == 2]
    assert [one[2] for one in told] == ["stop", "go on", *["continue"] * 3] and first.trained == {1: 4, 2: 4}
    assert how == "rule" or told[2][3] == "a person has let it go on: far off"
    stopped = world(go_on, stop)
    stopped.run(plan, policy)
    assert stopped.statuses()[2] == (Status.STOPPED, "enough") and 1 < stopped.trained[2] < 4
    again = world()  # a session that resumes the run knows it from the log
    again.schedule = Schedule(plan, True)
    for model, epochs in ((1, 4), (2, 1)):
        mine = [one for one in first.decisions if one.model == model and (one.epoch or 0) <= epochs]
        again.schedule.restore(model, epochs, decided=mine)
    orchestrator.run(again.schedule, again, policy)
    assert again.statuses()[2] == (Status.FINISHED, None)


def test_what_has_trained_all_its_epochs_is_not_stopped():
    """It would be called stopped, and could not go on."""
    world = World([(2.5, asks(7, Action.STOP, "too slow", model=1))])
    world.run(Plan(1, models((1,)), 1, 3))
    assert world.told() == [(None, None, "refuse", "model 1 has trained all its epochs")]
    assert world.statuses() == {1: (Status.FINISHED, None)}
    world = World(ruled=lambda model, epoch: "bad" if epoch == 3 else None)
    world.run(Plan(1, models((1,)), 1, 3), StopAfter(9))
    assert world.statuses() == {1: (Status.FINISHED, None)}


def test_a_clone_of_a_model_in_training_begins_at_the_end_of_its_epoch_and_others_at_once():
    clone = NewModel(parent=1, configuration=replace(OWN, model_id=None))
    world = World(
        [(0.5, asks(1, Action.ADD, new=clone.to_json())), (0.5, asks(2, Action.ADD, new=NewModel(1).to_json()))]
    )
    world.run(Plan(1, models((1,)), 2, 2))
    assert [(one.model, one.epoch, [new.parent_hop for new in one.added]) for one in world.decisions] == [
        (None, None, [None]),
        (1, 1, [2]),
    ]
    assert world.trained == {1: 4, 2: 4, 3: 4}
    assert world.decisions[1].added[0].key == 1, "the first key that is free"


def test_a_clone_of_a_finished_model_begins_at_once():
    world = World([(3.0, asks(1, Action.ADD, new=NewModel(parent=2).to_json()))])
    world.run(Plan(1, models((1, 2), visits={2: (0,)}), 2, 2))
    assert world.decisions[0].added[0].parent_hop == 2 and world.trained == {1: 4, 2: 2, 3: 4}


def test_a_run_is_extended_while_it_goes_on():
    world = World([(3.5, asks(1, Action.EXTEND, epochs=4))])
    world.run(Plan(1, models((1, 2), visits={2: (0,)}), 2, 2))
    assert world.trained == {1: 8, 2: 4} and world.schedule.plan.epochs == 4


def test_a_policy_goes_by_the_epochs_of_an_extended_run():
    """As it does after a resume: the second epoch is not the last one any more."""
    world = World([(0.5, asks(1, Action.EXTEND, epochs=4))])
    world.run(Plan(1, models((1,)), 1, 2), Threshold(epochs=2, value=0.5, min_epochs=2))
    assert world.told()[-1][:3] == (1, 2, "stop") and world.trained == {1: 2}


def test_a_refused_configuration_is_a_failed_model_and_the_run_goes_on():
    bad = replace(NewModel(configuration=OWN), key=None).to_json()
    world = World([(0.5, asks(1, Action.ADD, new=bad)), (0.5, asks(2, Action.ADD, new=NewModel(99).to_json()))])
    world.run(Plan(1, models((1,)), 1, 2))
    assert world.statuses() == {1: (Status.FINISHED, None), 2: (Status.FINISHED, None), 3: (Status.FAILED, "bad")}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (asks(1, Action.STOP, model=9), "the run has no model 9"),
        (asks(1, Action.STOP, model=2), "model 2 has trained all its epochs"),
        (asks(1, Action.GO_ON, model=1), "model 1 has not been stopped"),
        (asks(1, Action.GO_ON, model=3), "model 3 has failed"),
        (asks(1, Action.GO_ON), "the request is not valid: its model has to be a whole number, not null"),
        (asks(1, Action.GO_ON, model="1"), "its model has to be a whole number"),
        (asks(1, Action.ADD, new={}), "needs the key of a configuration"),
        (asks(1, Action.ADD, new={"parent": 9}), "the run has no model 9"),
        (asks(1, Action.ADD, new={"parent": "9"}), "parent has to be a whole number"),
        (asks(1, Action.ADD, new={"key": 1, "visits": [7]}), "outside 0..1"),
        (asks(1, Action.EXTEND, epochs=3), "planned for 3 epochs already"),
        (asks(1, Action.EXTEND, epochs=2**31), "its epochs has to be from 1 to"),
        (asks(1, Action.EXTEND, epochs=2**31 - 1), "are too many"),
        (asks(1, Action.EXTEND, epochs="many"), "its epochs has to be a whole number"),
        (asks(1, Action.BUDGET, hops=0), "'hops' of a budget must be a whole number above 0"),
        (asks(1, Action.BUDGET, beers=2), "no limit 'beers'"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_answered_and_changes_nothing(request_, said):
    world = World([(4.5, request_)], fails={(3, 1)})
    world.run(Plan(1, models((1, 2, 3), visits={2: (0,)}), 2, 3))
    ((model, _, verdict, reason),) = world.told()
    assert (model, verdict) == (None, "refuse") and said in reason and world.decisions[0].request == 1
    assert world.trained == {1: 6, 2: 3, 3: 1}


def test_a_rule_stops_a_model_before_the_policy_is_asked():
    world = World(ruled=lambda model, epoch: "no better than chance" if model == 2 else None)
    world.run(Plan(1, models((1, 2)), 1, 3), StopAfter(2))
    assert (2, 1, "stop", "no better than chance") in world.told() and world.trained == {1: 2, 2: 1}
    assert {one.by for one in world.decisions if one.model == 2} == {Decider.RULE}


class Keeps(Policy):
    """Proposes models until so many have begun, at most some at once."""

    name = "keeps"

    def __init__(self, most, at_once):
        self.most, self.at_once = most, at_once

    def propose(self, history, active):
        return [NewModel(configuration=OWN)] * min(self.most - len(history.models), self.at_once - active)


def test_models_are_proposed_as_others_end_and_no_segment_idles():
    world = World(fails={(2, 1)})
    assert world.run(Plan(1, (), 2, 2), Keeps(5, 2)) is False
    assert world.trained == {1: 4, 2: 1, 3: 4, 4: 4, 5: 4}
    assert [new.key for one in world.decisions for new in one.added] == [1, 2, 3, 4, 5]
    assert world.now <= 10, "2 segments, 17 visits"


def test_the_number_of_configurations_is_limited():
    world = World()
    assert world.run(Plan(1, models((1,)), 1, 1), Keeps(9, 2), Budget(configurations=3)) is True
    assert world.trained == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(
    "budget", [Budget(hops=5), Budget(seconds=3.5), Budget(unit_hours=2.5 / 3600)], ids=lambda one: str(one.to_json())
)
def test_nothing_begins_when_the_budget_is_spent(budget):
    world = World()
    assert world.run(Plan(1, models((1, 2)), 2, 3), budget=budget) is True
    assert sum(world.trained.values()) == 6 - (budget.hops == 5)
    assert set(world.statuses().values()) == {(Status.STOPPED, "budget")}
    assert {(one.epoch, one.hop) for one in world.decisions} <= {(1, 3), (1, None)}


def test_one_model_has_the_epochs_that_a_budget_asks_for_before_it_is_spent():
    world = World()
    assert world.run(Plan(1, models((1, 2)), 2, 9), budget=Budget(seconds=0.5, least_epochs=2)) is True
    assert max(world.trained.values()) == 4 and set(world.statuses().values()) == {(Status.STOPPED, "budget")}


def test_the_seconds_are_over_so_only_the_model_closest_to_its_first_epoch_trains_on():
    """The others keep their places, in case that it fails: then the next one trains on."""
    budget, four = Budget(seconds=0.5, least_epochs=1), Plan(1, models((1, 2, 3, 4)), 3, 9)
    world = World()
    assert world.run(four, budget=budget) is True
    # Each segment has begun a visit before the seconds were over; one of these three models makes two more.
    assert sorted(world.trained.values()) == [1, 1, 3] and world.now <= 4
    (first,) = [model for model, hops in world.trained.items() if hops == 3]
    again = World(fails={(first, 1)})
    assert again.run(four, budget=budget) is True
    assert max(again.trained.values()) == 3 and again.statuses()[first][0] is Status.FAILED
    assert {mine.epochs for mine in again.schedule.progress.values()} == {0, 1}


def test_the_last_visit_begins_where_it_is_expected_to_end_in_time():
    """It is completed whatever it takes."""
    world = World()
    assert world.run(Plan(1, models((1,)), 1, 99), budget=Budget(seconds=30.9)) is True
    assert world.now == 30, "at 30 s, less than a visit of one second is left"
    longer = World()
    assert longer.run(Plan(1, models((1,)), 1, 99), budget=Budget(seconds=31.1)) is True
    assert longer.now == 31


def test_what_a_visit_builds_is_not_expected_of_the_next_one():
    world = World()
    world.seconds = lambda unit: 9.0 if unit.hop == 1 else 1.0
    world.builds = lambda unit: 8.0 if unit.hop == 1 else 0.0
    assert world.run(Plan(1, models((1,)), 1, 99), budget=Budget(seconds=20.9)) is True
    assert world.now == 20


class Busy(World):
    """A machine on which everything takes longer from some moment on, and what follows the run, too."""

    BUILDING = 1.5  # seconds, at the beginning

    def __init__(self, seed, slower, steps):
        super().__init__()
        self.chance, self.slower, self.steps = random.Random(seed), slower, steps
        self.evaluations = []
        self.seconds = self.cost

    @property
    def busy(self):
        return self.slower if self.now > 20 else 1.0

    def cost(self, unit):
        return self.busy * (0.1 if isinstance(unit, Evaluate) else 1.5) * self.chance.uniform(0.5, 1.5)

    def wait(self):
        found = super().wait()
        self.evaluations += [one.seconds for one in found if isinstance(one.unit, Evaluate)]
        return found

    def used(self):
        early = statistics.median(self.evaluations[:9] or [0.0])
        measured = budgets.MachineSpeed(self.BUILDING, 2 * early, 2 * self.schedule.evaluation_seconds, 8)
        return Used(self.now, kept_back=sum(one.needs.expect(measured) for one in self.steps))


@pytest.mark.parametrize("seed", range(tries(3)))
@pytest.mark.parametrize("slower", [0.2, 1.0, 3.0])
def test_a_budget_holds_with_what_follows_the_run_on_a_machine_that_becomes_busy(seed, slower):
    budget = 60.0
    steps = [Step(task, what_it_needs(task, budget)) for task in (Following.ENSEMBLE, Following.CALIBRATE)]
    world = Busy(seed, slower, steps)
    plan = Plan(1, models(range(1, 5)), 2, 999, {"validation": {0: 0, 1: 1}}, evaluate_every=1)
    assert world.run(plan, budget=Budget(seconds=budget)) is True
    # The ensemble and the calibration as the machine does them: a trainer, two programs, eight members twice.
    takes = world.busy * (2.5 * world.BUILDING + 2 * 8 * 2 * 0.1)
    assert 0.8 * budget <= world.now + takes <= budget + allowed(budget)
    assert kept_back(steps) <= 0.4 * budget


# Of calls with 20,000 rows on two processors, with one to thirteen processes on them: what the run has measured in the
# end, and how long the model tables with the ensemble, and the calibration took.
RECORDED = [
    ((0.26, 0.04, 0.07, 5), 0.99, 0.25),
    ((0.43, 0.04, 0.07, 5), 1.64, 0.37),
    ((0.95, 0.09, 0.10, 4), 1.90, 0.86),
    ((0.98, 0.12, 0.16, 2), 1.57, 1.35),
    ((1.20, 0.13, 0.13, 2), 2.48, 1.08),
    ((0.90, 0.12, 0.15, 4), 2.16, 0.71),
    ((0.85, 0.13, 0.17, 4), 2.68, 1.06),
    ((0.93, 0.13, 0.12, 4), 2.83, 1.28),
    ((1.58, 1.00, 1.04, 2), 2.78, 0.80),
]


@pytest.mark.parametrize(("measured", "ensemble", "calibration"), RECORDED)
def test_what_follows_a_run_is_expected_by_what_the_run_has_measured(measured, ensemble, calibration):
    steps = [what_it_needs(task, 60.0) for task in (Following.ENSEMBLE, Following.CALIBRATE)]
    expected = sum(one.expect(budgets.MachineSpeed(*measured)) for one in steps)
    assert ensemble + calibration - allowed(20.0) <= expected <= 2 * (ensemble + calibration) + 1
    assert expected == sum(one.seconds for one in steps), "the last expectation is kept"


def test_what_is_kept_back_has_limits():
    ensemble, calibration = (what_it_needs(task, 20.0) for task in (Following.ENSEMBLE, Following.CALIBRATE))
    assert ensemble.expect(budgets.MachineSpeed()) == calibration.expect(budgets.MachineSpeed()) == 0.0
    few, many = budgets.MachineSpeed(0.5, 0.1, 0.1, 2), budgets.MachineSpeed(0.5, 0.1, 0.1, 99)
    assert (ensemble.expect(few), calibration.expect(few)) == pytest.approx((0.7, 0.7))
    assert (ensemble.expect(many), calibration.expect(many)) == pytest.approx((1.3, 1.3)), "of at most eight members"
    # Never more than a share of the budget, and one slow evaluation is no measure of the machine.
    slow = budgets.MachineSpeed(9.0, 0.1, 5.0, 8)
    assert (ensemble.expect(slow), calibration.expect(slow)) == (5.0, 3.0) and slow.slower == 3.0
    assert budgets.MachineSpeed(evaluation=0.2, recent=0.1).slower == budgets.MachineSpeed(recent=1.0).slower == 1.0


def test_a_training_on_all_rows_gets_its_whole_part_of_the_budget():
    refit = what_it_needs(Following.REFIT, 20.0)
    assert refit.expect(budgets.MachineSpeed()) == refit.expect(budgets.MachineSpeed(0.5, 0.1, 0.1, 2)) == 6.0


@pytest.mark.parametrize("least_models", [1, 2])
def test_an_ensemble_has_two_models_before_a_short_budget_ends(least_models):
    """The second model trains beside the first, and its segment would be idle otherwise."""
    budget, three = Budget(seconds=0.5, least_epochs=1), Plan(1, models((1, 2, 3)), 2, 9)
    world = World()
    assert world.run(three, budget=budget, least_models=least_models) is True
    assert sorted(world.trained.values()) == {1: [1, 2], 2: [2, 2]}[least_models] and world.now == 2
    # If the first has the least epochs and the time is over, the second one is no reason to go on.
    alone = World()
    assert alone.run(Plan(1, models((1, 2, 3)), 1, 9), budget=budget, least_models=least_models) is True
    assert list(alone.trained.values()) == [1] and alone.now == 1
    # What is kept back for the ensemble is no reason to end before there are two models for it.
    kept = World()
    kept.used = lambda: Used(kept.now, kept_back=7.0)
    longer = replace(budget, seconds=5.0)
    assert kept.run(Plan(1, models((1, 2, 3)), 1, 9), budget=longer, least_models=least_models) is True
    assert list(kept.trained.values()) == [1] * least_models


def test_a_call_may_exceed_a_budget_by_a_tenth_or_two_seconds():
    assert [allowed(budget) for budget in (5.0, 20.0, 60.0)] == [2.0, 2.0, 6.0]
    assert [excess_of_steps(budget) for budget in (5.0, 20.0, 60.0)] == [1.0, 1.0, 3.0]


def test_models_that_the_budget_has_stopped_go_on_with_a_larger_one():
    world = World([(2.5, asks(1, Action.BUDGET, "more", hops=9))])
    assert world.run(Plan(1, models((1, 2), visits={2: (0,)}), 1, 9), budget=Budget(hops=2)) is True
    assert sum(world.trained.values()) == 2, "the run has ended before the request came"
    again = World([(0.0, asks(1, Action.BUDGET, "more", hops=9))])
    again.schedule = Schedule(world.schedule.plan)
    for model in (1, 2):
        again.schedule.restore(model, 1, decided=[one for one in world.decisions if one.model == model])
    assert orchestrator.run(again.schedule, again, budget=Budget(hops=2)) is True
    assert again.told()[:3] == [(None, None, "budget", "more"), (1, 1, "go on", "more"), (2, 1, "go on", "more")]
    assert sum(again.trained.values()) == 7


@pytest.mark.parametrize("how", ["failed", "rule", "request"])
def test_a_policy_lets_models_go_on_when_another_has_ended_before_its_time(how):
    class Rung(Policy):
        name = "rung"

        def decide(self, history, model, epoch):
            return (
                Decision(model, epoch, Verdict.STOP, "waits") if epoch == 1 else super().decide(history, model, epoch)
            )

        def released(self, history):
            ended = history.failed(2) or any(one.model == 2 for one in world.decisions)
            return [one for one in history.models if one == 1 and history.stopped(one)] if ended else []

    world = World(
        [(1.0, asks(1, Action.STOP, "enough", model=2))] if how == "request" else [],
        {(2, 2)} if how == "failed" else (),
        (lambda model, epoch: "bad" if model == 2 else None) if how == "rule" else None,
    )
    world.run(Plan(1, models((1, 2)), 2, 2), Rung())
    assert (1, 1, "go on", "a model that it waited for has ended") in world.told()
    assert world.statuses()[1] == (Status.FINISHED, None)


class ProposesUnderAsha(Policy):
    """Three times as many models at once as there are segments, of which ASHA stops most."""

    name = "proposing asha"

    def __init__(self, epochs, at_once):
        self.asha, self.at_once = Asha(epochs, 10**6), at_once

    def decide(self, history, model, epoch):
        return self.asha.decide(history, model, epoch)

    def propose(self, history, active):
        return [NewModel(configuration=OWN)] * (self.at_once - active)


class Measured(World):
    """Models of mixed cost, each with a quality of its own; adds up how long segments are busy."""

    def __init__(self, seed):
        super().__init__()
        chance = random.Random(seed)
        costs = [chance.uniform(1, 6) for _ in range(97)]
        self.seconds = lambda unit: costs[unit.model % 97]
        self.qualities = [chance.random() for _ in range(97)]
        self.busy = 0.0

    def wait(self) -> list[Outcome]:
        outcomes = super().wait()
        self.busy += sum(one.seconds for one in outcomes)
        return [
            replace(one, weight=1, loss=self.qualities[one.unit.model % 97] + 1 / one.unit.epoch) for one in outcomes
        ]


@pytest.mark.parametrize("segments", [2, 4, 8])
@pytest.mark.parametrize("seed", range(tries(1)))
def test_segments_stay_busy_though_most_models_are_stopped(segments, seed):
    world = Measured(seed)
    plan = Plan(seed, (), segments, 27)
    assert world.run(plan, ProposesUnderAsha(27, 3 * segments), Budget(hops=400 * segments)) is True
    assert sum(str(one.verdict) == "stop" and one.by is Decider.POLICY for one in world.decisions) > 20
    assert world.busy / (segments * world.now) >= 0.95


def test_a_model_that_goes_on_has_a_reason_of_its_own():
    """And not that of the model whose decision it goes on with."""
    world = Measured(1)
    world.run(Plan(1, (), 2, 9), ProposesUnderAsha(9, 6), Budget(hops=200))
    reasons = {one.reason for one in world.decisions if one.verdict is Verdict.GO_ON}
    assert reasons and all(re.fullmatch(r"model \d+ has completed epoch \d+", reason) for reason in reasons)
