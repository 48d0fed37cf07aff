"""The method paced: how many models begin at which speed, what keeps segments busy, and how the best are finished."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import Clock
from simulated_search import Simulation
from test_search_methods import SPACE, search

from cerebro_db.core.architecture import trees
from cerebro_db.core.parameters import params
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.plan import Evaluate, ModelPlan, Plan, Train
from cerebro_db.core.scheduling.ports import Outcome
from cerebro_db.core.scheduling.schedule import Schedule
from cerebro_db.core.search.budget import Budget, Used
from cerebro_db.core.search.policy import Decision
from cerebro_db.core.search.spaces.read_space import read
from tests.thorough import tries

BUDGET = 60.0


def loss(point: dict[str, Any], epochs: int) -> float:
    """It falls with the epochs, to a level that a smaller learning rate lowers."""
    return 1 / (1 + epochs) + point["learning_rate"] / 10


def paced(seconds: float | None, each: Any, epochs: int = 729, seed: int = 0, **more: Any) -> Simulation:
    policy = search("paced", more.pop("configurations", 24), epochs, **more.pop("given", {}))
    speed = each if callable(each) else lambda now: each
    return Simulation(
        policy, more.pop("loss", loss), epochs, segments=2, seed=seed, seconds=seconds, epoch_seconds=speed, **more
    ).run()


def originals(done: Simulation) -> list[int]:
    return [model for model in done.history.models if done.history.parent(model) is None]


def line(done: Simulation, model: int) -> list[int]:
    """A model, its parent, and so on."""
    parent = done.history.parent(model)
    return [model] if parent is None else [model, *line(done, parent)]


def rate(done: Simulation, model: int) -> float:
    return float(done.history.configuration(model)["compile"]["optimizer"]["config"]["learning_rate"])


@pytest.mark.parametrize("seed", range(tries(1)))
def test_slower_epochs_mean_fewer_configurations_and_the_best_gets_most_of_the_time(seed: int) -> None:
    runs = {each: paced(BUDGET, each, seed=seed) for each in (0.05, 1.0, 5.0, 15.0)}
    begun = [len(originals(done)) for done in runs.values()]
    assert begun[0] == 24 and begun == sorted(begun, reverse=True) and begun[-1] == 2
    for each, done in runs.items():
        longest = max(sum(len(done.history.epochs(one)) for one in line(done, model)) for model in done.history.models)
        assert longest >= 0.5 * BUDGET / each or longest >= 27, f"{each} s: the longest has {longest} epochs"


def test_what_asha_does_with_the_same_slow_epochs_is_worse() -> None:
    """24 epochs in all, as a busy machine gave a table of hotel prices: ASHA with a plan for an idle one takes 8."""
    found = {"asha": 0.0, "paced": 0.0}
    for name in found:
        for seed in range(10):
            policy = search(name, 8, 81, 4, min_epochs=3)
            each = BUDGET * 2 / 24
            done = Simulation(
                policy, loss, 81, segments=2, seed=seed, seconds=BUDGET, epoch_seconds=lambda now, each=each: each
            ).run()
            found[name] += done.best / 10
    assert found["paced"] < 0.8 * found["asha"]


@pytest.mark.parametrize("seed", range(tries(1)))
def test_the_plan_follows_a_speed_that_changes(seed: int) -> None:
    slower = paced(BUDGET, lambda now: 0.3 if now < 5 else 3.0, seed=seed)
    faster = paced(BUDGET, lambda now: 3.0 if now < 5 else 0.3, seed=seed)
    assert len(originals(slower)) <= 12 and len(originals(faster)) >= 18
    # None begins when it could no longer show what it is worth, or in the time for the best.
    first = [next(now for now, one in faster.epochs_begun if one == model) for model in originals(faster)]
    assert 5 < max(first) < 0.75 * BUDGET - 3 * 0.3


@pytest.mark.parametrize("seed", range(tries(1)))
@pytest.mark.parametrize("each", [0.2, 1.0, 5.0])
def test_the_last_part_of_the_budget_finishes_the_best_with_smaller_learning_rates(each: float, seed: int) -> None:
    done = paced(BUDGET, each, seed=seed)
    copies = [model for model in done.history.models if done.history.parent(model) is not None]
    assert copies
    for model in copies:
        parent = done.history.parent(model)
        assert parent is not None and rate(done, model) == pytest.approx(rate(done, parent) / 3, rel=0.01)
        assert len(line(done, model)) <= 4
        # The copy has everything else of its parent's configuration.
        mine, theirs = done.history.configuration(model), done.history.configuration(parent)
        assert mine["fit"] == theirs["fit"] and mine["compile"]["loss"] == theirs["compile"]["loss"]
    late = {model for now, model in done.epochs_begun if now > BUDGET * 0.75 + 2 * each}
    assert late and all(done.history.parent(model) is not None for model in late)
    scores = {
        score: model
        for model in done.history.models
        for epoch in done.history.epochs(model)
        if (score := done.history.score(model, epoch)) is not None
    }
    best = scores[min(scores)]
    assert best in copies


@pytest.mark.parametrize("seed", range(tries(1)))
def test_no_segment_is_idle_before_the_budget_is_spent(seed: int) -> None:
    done = paced(BUDGET, 2.0, seed=seed)
    assert done.now >= BUDGET - 2.0 and done.idle <= 0.05 * 2 * BUDGET


def test_a_search_ends_early_when_nothing_improves_any_more() -> None:
    done = paced(600.0, 0.1, loss=lambda point, epochs: point["learning_rate"] + max(0, 5 - epochs))
    assert len(originals(done)) == 24 and done.now < 300
    assert any("has not improved for" in one.reason for one in done.decisions)
    assert any(done.history.parent(model) is not None for model in done.history.models), "the best are finished anyway"


def test_where_time_is_left_more_models_are_finished_than_segments_need_from_their_best_states() -> None:
    """A model that ends because it has not improved for ten epochs is past its best state."""
    done = paced(600.0, 0.1, loss=lambda point, epochs: point["learning_rate"] + abs(epochs - 8) / 100)
    copies = [new for one in done.decisions for new in one.added if new.parent is not None]
    parents = {new.parent for new in copies} & set(originals(done))
    assert len(parents) == 6 > 2 * 2 and done.now < 600
    assert all(new.from_best for new in copies)
    ranked = sorted(originals(done), key=lambda model: done.points[model]["learning_rate"])
    assert ranked[0] in parents and not parents & set(ranked[-6:])
    assert max(len(done.history.epochs(model)) for model in parents) > 9, "no one of the best waits for ever"


def test_without_a_budget_all_configurations_begin_and_the_best_are_finished() -> None:
    done = paced(None, 1.0, 81, loss=lambda point, epochs: loss(point, min(20, epochs)))
    assert len(originals(done)) == 24
    assert any(done.history.parent(model) is not None for model in done.history.models)


def test_a_learning_rate_schedule_of_the_users_is_left_alone() -> None:
    schedule = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.01, "decay_steps": 100}}
    space = read(
        {"compile": {"loss": "mse", "learning_rate": schedule, "weight_decay": {"uniform": [0, 1]},
                     "optimizer": "AdamW"}}, {7: None})  # fmt: skip
    done = paced(BUDGET, 1.0, given={"space": space}, loss=lambda point, epochs: 1 / epochs)
    assert all(done.history.parent(model) is None for model in done.history.models) and done.now >= BUDGET - 2


@pytest.mark.parametrize("seed", range(tries(4)))
def test_failures_leave_nothing_waiting_for_ever(seed: int) -> None:
    done = paced(BUDGET, 1.0, seed=seed, failures=0.2)
    assert done.now >= 0.75 * BUDGET or len(originals(done)) == 24


def test_a_model_and_its_copies_train_no_more_epochs_than_the_run_has() -> None:
    for epochs in (2, 6, 40):
        done = paced(BUDGET, 1.0, epochs)
        for model in done.history.models:
            assert sum(len(done.history.epochs(one)) for one in line(done, model)) <= epochs


def test_nothing_is_finished_if_the_user_says_so() -> None:
    done = paced(BUDGET, 1.0, given={"finish": 0})
    assert all(done.history.parent(model) is None for model in done.history.models)


def test_the_texts_of_a_copy_can_be_read_again() -> None:
    done = paced(BUDGET, 1.0)
    added = [new for one in done.decisions for new in one.added if new.parent is not None]
    for new in added:
        assert new.configuration is not None
        compiled = params.compile_params(new.configuration.compile_params)
        assert compiled["optimizer"]["config"]["learning_rate"] == new.configuration.chosen["learning_rate"]
    assert added and SPACE.size() is None


class Driven(Clock):
    """The loop of the driver over segments whose first visits to a model also build a program."""

    def __init__(self, visit: float, building: float) -> None:
        super().__init__(lambda unit: self._seconds(unit))
        self.visit, self.building = visit, building
        self.decisions: list[Decision] = []
        self.configurations: dict[int, dict[str, Any]] = {}
        self.built: set[int] = set()
        self.visits = 0

    def _seconds(self, unit: Any) -> float:
        if isinstance(unit, Evaluate):
            return self.visit / 10
        first = unit.segment not in self.built
        self.built.add(unit.segment)
        return self.visit + (self.building if first else 0.0)

    def wait(self) -> list[Outcome]:
        found = super().wait()
        self.visits += sum(isinstance(one.unit, Train) for one in found)
        return [replace(one, weight=1, loss=self._loss(one.unit.model, one.unit.epoch)) for one in found]

    def _loss(self, model: int, epoch: int) -> float:
        return loss(self.configurations[model]["chosen"], epoch)

    def decided(self, decisions: Any) -> list[ModelPlan]:
        self.decisions += decisions
        plans = []
        for new in (new for decision in decisions for new in decision.added):
            own = new.configuration
            self.configurations[new.model] = {
                "compile": params.compile_params(own.compile_params), "fit": params.fit_params(own.fit_params),
                "chosen": own.chosen,
            }  # fmt: skip
            plans.append(ModelPlan(new.model, new.model))
        return plans

    def configuration(self, model: int) -> dict[str, Any]:
        return self.configurations[model]

    def requests(self) -> list[Any]:
        return []

    def ruled(self, model: int, epoch: int) -> None:
        return None

    def used(self) -> Used:
        return Used(self.now, 0.0)


def driven(visit: float, building: float = 0.0, seconds: float = BUDGET) -> Driven:
    world, policy = Driven(visit, building), search("paced", 24, 729, 4)
    plan = Plan(1, (), 2, 729, {"validation": {0: 0, 1: 1}}, evaluate_every=1)
    assert orchestrator.run(Schedule(plan, True), world, policy, budget=Budget(seconds=seconds)) is True
    assert seconds * 0.9 <= world.now <= seconds + 2 * visit
    return world


@pytest.mark.parametrize("building", [0.0, 8.0])
def test_the_driver_measures_and_the_plan_follows(building: float) -> None:
    """Also where the first visits take long because they build programs."""
    begun = {}
    for visit in (0.02, 0.4, 4.0):
        world = driven(visit, building)
        added = [new for one in world.decisions for new in one.added]
        begun[visit] = sum(new.parent is None for new in added)
        assert any(new.parent is not None for new in added), "the best are finished"
    assert begun[0.02] == 24 and 2 < begun[0.4] < 24 and begun[4.0] == 2


def test_the_log_says_by_what_speed_a_configuration_began() -> None:
    world = driven(0.4)
    reasons = [one.reason for one in world.decisions if one.model is None]
    assert reasons[0] == "" and len(reasons) > 2
    assert all("an epoch takes" in reason or "are finished" in reason for reason in reasons[2:]), reasons


def test_the_first_configuration_of_each_architecture_has_the_middle_of_all_else() -> None:
    several = read({"architecture": [7, 8], "compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}},
                    "fit": {"batch_size": {"choice": [16, 32, 64]}}}, {7: None, 8: None})  # fmt: skip
    for space, firsts in ((SPACE, 1), (several, 2)):
        done = paced(BUDGET, 1.0, given={"space": space})
        points = [done.history.configuration(model)["chosen"] for model in originals(done)]
        rates = [point["learning_rate"] for point in points]
        assert rates[:firsts] == [pytest.approx(1e-2)] * firsts and len(rates) > firsts
        assert not any(rate == pytest.approx(1e-2) for rate in rates[firsts:]), "all others are random"
        assert {point["batch_size"] for point in points[:firsts] if firsts == 2} <= {32}
    (point,) = (done.history.configuration(originals(done)[0])["chosen"],)
    assert point["batch_size"] == 32
    labels = {done.history.configuration(model)["chosen"]["architecture"] for model in originals(done)[:2]}
    assert labels == {7, 8}


def test_random_points_alone_and_those_of_others_stay_as_they_are() -> None:
    """Only a method that fills a budget of seconds begins with the middle."""
    for name in ("random", "asha"):
        done = Simulation(search(name, 6, 3), loss, 3, segments=2, seed=0).run()
        first = done.history.configuration(originals(done)[0])["chosen"]
        assert first["learning_rate"] != pytest.approx(1e-2)


def test_a_small_space_has_no_point_twice() -> None:
    small = read({"compile": {"loss": "mse", "learning_rate": {"choice": [0.1, 0.01, 0.001]}}}, {7: None})
    done = paced(BUDGET, 0.1, given={"space": small})
    rates = [done.history.configuration(model)["chosen"]["learning_rate"] for model in originals(done)]
    assert sorted(rates) == [0.001, 0.01, 0.1]


TREES = {"config": {"layers": [{"class_name": "Embedding", "name": f"{trees.LEAVES}_1"}]}}


@pytest.mark.parametrize("seconds", [BUDGET, 20.0, None])
def test_trees_go_on_until_they_are_complete_and_have_no_learning_rate(seconds: float | None) -> None:
    """Their loss stays what it is once all trees are there; then they end, and no copy of them begins."""

    def of_trees(point: dict[str, Any], epochs: int) -> float:
        return 1 / (1 + min(epochs, 9)) + point["learning_rate"] / 10

    done = paced(seconds, 0.5, loss=of_trees, architecture=TREES)
    assert max(done.trained.values()) == 10 and "has all its trees" in [one.reason for one in done.decisions]
    for model in done.history.models:
        parent = done.history.parent(model)
        if parent is not None:  # it had waited
            assert rate(done, model) == rate(done, parent) and len(done.history.epochs(parent)) < 9
