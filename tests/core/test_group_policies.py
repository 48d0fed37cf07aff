"""Models of groups: a method compares those of one group, and they may begin with what that on all rows has learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro_db.core.events import Action, Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.deciding import NO_LIMIT
from cerebro_db.core.scheduling.plan import ModelPlan, Plan, Train
from cerebro_db.core.scheduling.ports import Outcome
from cerebro_db.core.scheduling.schedule import Schedule, Status
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.decision import NewConfiguration
from cerebro_db.core.search.history import History
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.policy import Decision, NewModel, Policy
from cerebro_db.core.search.request import Request
from cerebro_db.core.search.variants import UNJUDGED, Varied, missing_models, of_groups
from cerebro_plpy.runs.drive import additions
from cerebro_plpy.runs.drive.decisions import Decisions
from tests.core.fakes import Clock

SEGMENTS, GROUPS = 2, (1, 2, 3)
Key = tuple[int, "int | None"]  # of a model: configuration and group


class World(Clock):
    """Trains on a clock, with the loss of each model in a table; keeps the decisions, as the log does."""

    def __init__(self, losses: dict[Key, float], best: dict[int, int] | None = None) -> None:
        super().__init__(lambda unit: 1.0)
        self.losses, self.best, self.asked = losses, best or {}, list[tuple[float, Request]]()
        self.of: dict[int, Key] = {}
        self.unjudged: set[int | None] = set()
        self.decisions: list[Decision] = []
        self.done: list[Train] = []
        self.fails: set[tuple[int, int]] = set()  # model and hop

    def plan(self, configurations: int, groups: Sequence[int] = (), epochs: int = 2) -> Plan:
        plans = []
        for key in range(1, configurations + 1):
            for group in (None, *groups):
                number = len(plans) + 1
                self.of[number] = key, group
                plans.append(self.plan_of(number, None))
        return Plan(1, tuple(plans), SEGMENTS, epochs)

    def plan_of(self, number: int, parent: int | None) -> ModelPlan:
        _, group = self.of[number]
        visits = None if group is None else (group % SEGMENTS,)
        return ModelPlan(number, number, visits, group_number=group, starts_from=parent)

    def run(self, plan: Plan, policy: Policy, budget: Budget = NO_LIMIT, replayed: Sequence[Decision] = ()) -> Schedule:
        schedule = Schedule(plan, policy.asks, replayed)
        for decision in self.decisions:
            schedule.recall(decision)
        self.continue_with(schedule, policy, budget, repeats=bool(replayed))
        return schedule

    def continue_with(self, schedule: Schedule, policy: Policy, budget: Budget = NO_LIMIT, **more: Any) -> None:
        history = History()
        for number in self.of:
            history.begins(number, self.configuration(number))
        orchestrator.run(schedule, self, policy, history, budget, **more)

    def configuration(self, model: int) -> dict[str, Any]:
        key, group = self.of[model]
        return {"key": key, "group_number": group, **({UNJUDGED: True} if group in self.unjudged else {})}

    def wait(self) -> list[Outcome]:
        found = []
        for one in super().wait():
            unit = one.unit
            assert isinstance(unit, Train)
            if (unit.model, unit.hop) in self.fails:
                found.append(Outcome(unit, 1.0, error="bad"))
                continue
            self.done.append(unit)
            found.append(Outcome(unit, 1.0, weight=1, loss=self.losses.get(self.of[unit.model], 1.0)))
        return found

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        self.decisions += decisions
        plans = []
        for new in (new for decision in decisions for new in decision.added):
            self.of[new.model] = new.key, new.group_number
            plans.append(self.plan_of(new.model, new.parent))
        return plans

    def best_hop(self, model: int) -> int | None:
        return self.best.get(model)

    def requests(self) -> list[Request]:
        answered = {decision.request for decision in self.decisions}
        return [one for at, one in self.asked if at <= self.now and one.request not in answered]

    def ruled(self, model: int, epoch: int) -> None:
        return None

    def used(self) -> Used:
        return Used(self.now, self.now)

    def epochs(self, schedule: Schedule) -> dict[Key, int]:
        return {self.of[model]: mine.hops // len(mine.order) for model, mine in schedule.progress.items()}


def method(name: str, epochs: int, configurations: int, **given: Any) -> Policy:
    return named_methods.policy_of(
        named_methods.checked({"name": name, **given}, proposes=False), epochs, configurations
    )


def waiting(inner: Policy, configurations: int, epochs: int = 2) -> Varied:
    return Varied(inner, of_groups(GROUPS), True, epochs, configurations)


# -- comparisons -------------------------------------------------------------------------------------------------

# In each group another configuration is the best, and the losses of one group are far from those of the others.
LOSSES = {
    (key, group): 100.0 * (group or 0) + (key - (group or 0)) % 4 for key in range(1, 5) for group in (None, *GROUPS)
}
BEST = {group: min(range(1, 5), key=lambda key: LOSSES[key, group]) for group in (None, *GROUPS)}


@pytest.mark.parametrize("name", ["asha", "halving", "hyperband"])
def test_in_each_group_its_own_best_configuration_trains_to_the_end(name: str) -> None:
    world = World(LOSSES)
    policy = Varied(method(name, 4, 4, reduction=2), of_groups(GROUPS))
    found = world.epochs(world.run(world.plan(4, GROUPS, epochs=4), policy))
    assert {group: found[key, group] for group, key in BEST.items()} == dict.fromkeys(BEST, 4)
    complete = Counter(group for (_, group), epochs in found.items() if epochs == 4)
    assert len(complete) == 4 and max(complete.values()) < 4


def test_the_median_is_that_of_the_group() -> None:
    world = World(LOSSES)
    policy = Varied(method("median", 3, 4, min_models=2), of_groups(GROUPS))
    world.run(world.plan(4, GROUPS, epochs=3), policy)
    stopped = {world.of[one.model] for one in world.decisions if one.verdict is Verdict.STOP and one.model}
    # Among all models, even the best ones of the last groups are worse than the median.
    assert stopped and not stopped & {(key, group) for group, key in BEST.items()}


def test_a_failure_lets_only_models_of_its_group_go_on() -> None:
    world = World(LOSSES)
    plan = world.plan(4, GROUPS, epochs=4)
    failing = next(model for model, (key, group) in world.of.items() if (key, group) == (BEST[2], 2))
    world.fails = {(failing, 2)}
    found = world.epochs(world.run(plan, Varied(method("halving", 4, 4, reduction=2), of_groups(GROUPS))))
    assert max(found[key, 2] for key in range(1, 5)) == 4  # the second best, instead
    assert found[BEST[1], 1] == found[BEST[3], 3] == 4


def test_models_of_a_group_without_figures_are_not_compared() -> None:
    world = World(LOSSES)
    world.unjudged = {2}
    found = world.epochs(world.run(world.plan(4, GROUPS, epochs=4), Varied(method("asha", 4, 4), of_groups(GROUPS))))
    assert {found[key, 2] for key in range(1, 5)} == {4}
    assert min(found[key, 1] for key in range(1, 5)) == 1


def test_a_configuration_that_failed_on_all_rows_counts_as_failed_in_each_group() -> None:
    """Otherwise halving would wait for its models, which never begin."""
    world = World(LOSSES)
    world.fails = {(1, 1)}
    policy = waiting(method("halving", 4, 4, reduction=2), 4, epochs=4)
    found = world.epochs(world.run(world.plan(4, epochs=4), policy))
    assert (1, 1) not in found and (2, 1) in found
    assert all(max(found[key, group] for key in range(2, 5)) == 4 for group in GROUPS)


def test_a_model_that_is_missing_in_a_group_is_no_rival_with_its_loss_on_all_rows() -> None:
    history = History()
    for number in (1, 2):
        history.begins(number, {"key": number})
        history.trained(number, 1, 1, 10, 0.5, {})
        history.complete(number, 1)
    seen = history.about([1], absent=[2])
    assert seen.models == (1, 2) and seen.failed(2) and not seen.failed(1)
    assert (seen.epochs(1), seen.epochs(2)) == ((1,), ()) and history.epochs(2) == (1,)


# -- the start with the weights of the model on all rows ---------------------------------------------------------


def test_models_of_groups_begin_when_the_model_on_all_rows_has_ended() -> None:
    world = World({})
    schedule = world.run(world.plan(2), waiting(NeverStop(), 2))
    assert set(world.epochs(schedule).values()) == {2} and len(schedule.progress) == 8
    for number, (key, group) in world.of.items():
        if group is not None:
            first = next(place for place, unit in enumerate(world.done) if unit.model == number)
            last = max(place for place, unit in enumerate(world.done) if world.of[unit.model] == (key, None))
            assert last < first
    assert [len(one.added) for one in world.decisions] == [3, 3]  # one decision for a configuration
    assert {(new.key, new.parent, new.parent_hop) for one in world.decisions for new in one.added} == {
        (1, 1, 2 * SEGMENTS), (2, 2, 2 * SEGMENTS),
    }  # fmt: skip


def test_they_begin_from_the_best_state_if_it_is_kept() -> None:
    world = World({}, best={1: SEGMENTS})
    world.run(world.plan(1), waiting(NeverStop(), 1))
    assert {new.parent_hop for one in world.decisions for new in one.added} == {SEGMENTS}


def test_no_group_begins_from_a_model_that_has_failed() -> None:
    world = World({})
    world.fails = {(1, 3)}
    schedule = world.run(world.plan(2), waiting(NeverStop(), 2))
    assert sorted({key for key, group in world.epochs(schedule) if group}) == [2]


@pytest.mark.parametrize(("at", "epochs", "start"), [(0.5, 1, (1, SEGMENTS)), (0.0, 0, (None, None))])
def test_a_model_on_all_rows_that_was_stopped_gives_what_it_has(at: float, epochs: int, start: tuple[Any, Any]) -> None:
    """If it has no epoch, the groups start with random weights."""
    world = World({})
    world.asked = [(at, Request(5, Action.STOP, {"model": 1}))]
    schedule = world.run(world.plan(1, epochs=3), waiting(NeverStop(), 1, epochs=3))
    assert world.epochs(schedule) == {(1, None): epochs, **{(1, group): 3 for group in GROUPS}}
    assert {(new.parent, new.parent_hop) for one in world.decisions for new in one.added} == {start}


@pytest.mark.parametrize("action", [Action.EXTEND, Action.GO_ON])
def test_a_model_does_not_train_on_before_all_others_have_read_its_state(action: Action) -> None:
    """Its next visits would replace the state."""
    world = World({})
    detail = {"epochs": 4} if action is Action.EXTEND else {"model": 1}
    stop = [(0.0, Request(5, Action.STOP, {"model": 1}))] if action is Action.GO_ON else []
    began = (1 if stop else 2) * SEGMENTS + 0.5  # the visits of the model on all rows are over
    world.asked = [*stop, (began, Request(6, action, detail))]
    schedule = world.run(world.plan(1, epochs=2), waiting(NeverStop(), 1))
    epochs = 4 if action is Action.EXTEND else 2
    assert world.epochs(schedule) == {key: epochs for key in [(1, None), *((1, group) for group in GROUPS)]}
    last_start = max(place for place, unit in enumerate(world.done) if unit.model > 1 and unit.hop == 1)
    further = [
        place for place, unit in enumerate(world.done) if unit.model == 1 and place > SEGMENTS * len(stop or "2x")
    ]
    assert min(further) > last_start


def test_a_failed_reader_holds_nobody_up() -> None:
    world = World({})
    world.asked = [(2 * SEGMENTS + 0.5, Request(6, Action.EXTEND, {"epochs": 3}))]
    world.fails = {(number, 1) for number in (2, 3, 4)}
    schedule = world.run(world.plan(1), waiting(NeverStop(), 1))
    assert world.epochs(schedule)[1, None] == 3
    assert schedule.progress[2].status is Status.FAILED


def test_a_run_that_was_broken_off_goes_on_from_its_log() -> None:
    world = World({})
    plan = world.plan(1)
    world.run(plan, waiting(NeverStop(), 1))
    (decision,) = world.decisions
    # The log as it was when one model of a group had its first hop, and the run is extended.
    models = tuple(world.plan_of(number, None if number == 1 else 1) for number in world.of)
    schedule = Schedule(Plan(1, models, SEGMENTS, 3))
    schedule.recall(decision)
    for number, hops in ((1, 2 * SEGMENTS), (2, 1), (3, 0), (4, 0)):
        schedule.restore(number, hops)
    again = World({})
    again.of, again.decisions = dict(world.of), [decision]
    again.continue_with(schedule, waiting(NeverStop(), 1, epochs=3))
    assert set(again.epochs(schedule).values()) == {3} and again.decisions == [decision]
    first = next(place for place, unit in enumerate(again.done) if unit.model == 1)
    assert {unit.model for unit in again.done[:first] if unit.hop == 1} == {3, 4}


@pytest.mark.parametrize("best", [{}, {1: SEGMENTS, 2: SEGMENTS}])
def test_a_replay_starts_the_same_models_from_the_same_states(best: dict[int, int]) -> None:
    world = World({}, best)
    world.run(world.plan(2), waiting(NeverStop(), 2))
    again = World({})
    schedule = again.run(again.plan(2), NeverStop(), replayed=world.decisions)
    assert set(again.epochs(schedule).values()) == {2} and again.of == world.of
    assert [one.added for one in again.decisions] == [one.added for one in world.decisions]
    for decision in again.decisions:
        for new in decision.added:
            began = next(place for place, unit in enumerate(again.done) if unit.model == new.model)
            before = [unit.hop for unit in again.done[:began] if unit.model == new.parent]
            assert max(before) == new.parent_hop  # the parent has trained no further


def test_the_spent_budget_lets_no_group_begin() -> None:
    world = World({})
    schedule = world.run(world.plan(1), waiting(NeverStop(), 1), Budget(hops=2 * SEGMENTS))
    assert world.epochs(schedule) == {(1, None): 2}


@pytest.mark.parametrize("groups", [5, 10])
def test_the_spent_budget_ends_all_models_in_one_commit(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({})
    commits: list[int] = []
    decided = world.decided
    monkeypatch.setattr(world, "decided", lambda made: [commits.append(len(made)), decided(made)][1])
    schedule = world.run(world.plan(1, range(1, groups + 1)), NeverStop(), Budget(hops=SEGMENTS))
    assert len(commits) <= SEGMENTS + 1 and sum(commits) == groups + 1
    assert {mine.status for mine in schedule.progress.values()} == {Status.STOPPED}


def test_what_is_expected_counts_the_models_that_will_begin() -> None:
    policy = waiting(method("asha", 9, 2), 2, epochs=9)
    assert policy.begins == 8
    assert [policy._place_of_configuration(place) for place in range(8)] == [0, 1, 0, 0, 0, 1, 1, 1]


def test_missing_models_of_thousands_are_looked_for_once() -> None:
    history = History()
    history.begins(1, {"key": 1, "group_number": None})
    groups = of_groups(range(1, 5001))
    for place, group in enumerate(groups, 2):
        history.begins(place, {"key": 1, "group_number": group.group_number})
    assert missing_models(history, groups) == [] and history.is_whole(1)
    history.begins(6000, {"key": 2, "group_number": None})
    assert missing_models(history, groups[:2]) == [NewModel(key=2, group_number=1), NewModel(key=2, group_number=2)]


@pytest.mark.parametrize(("models", "parent", "refused"), [(50_997, None, False), (50_998, None, True),
                                                            (50_999, 1, False), (51_000, 1, True)])  # fmt: skip
def test_an_added_configuration_counts_with_the_models_of_all_groups(
    models: int, parent: int | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = SimpleNamespace(groups=[1, 2], models=range(models), source=SimpleNamespace(has_groups=True))
    decisions = Decisions.__new__(Decisions)
    nobody: Any = None
    decisions.run, decisions.recorder, decisions._functions = run, nobody, {}
    monkeypatch.setattr(additions, "refusal", lambda *_: None)
    own = NewConfiguration("", "", 1, None, {})
    request = Request(1, Action.ADD, {"new": NewModel(parent=parent, configuration=own).to_json()})
    told = decisions._refusal(request)
    assert (told is not None and told.endswith("a run with groups can have 51,000")) == refused
