"""What each search method does, on simulated segments; the contract of all of them is in test_search_policies.py."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from simulated_search import Simulation

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.history import Figures
from cerebro_db.core.search.methods.hyperband import Hyperband
from cerebro_db.core.search.methods.rungs import PASSES, WAITS, epochs_of_rungs, waits
from cerebro_db.core.search.methods.tpe import RUNNING
from cerebro_db.core.search.named_methods import Proposals
from cerebro_db.core.search.policy import Decision, History, Objective, Policy, Verdict
from cerebro_db.core.search.spaces.read_space import read
from tests import reference

SPACE = read({"compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}}}, {7: None})
WIDE = read(
    {
        "compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}, "momentum": {"uniform": [0, 0.99]}},
        "fit": {"batch_size": {"choice": [16, 32, 64, 128]}},
    },
    {7: None},
)


def loss(point: dict[str, Any], epochs: int) -> float:
    """Learning rate 0.01 is best; each factor of ten away from it is worse by one.  It falls with the epochs."""
    return abs(math.log10(point["learning_rate"]) + 2) + 1 / epochs


def random_suggestions(dimensions: Any, seed: int, number: int, trials: Any, count: int) -> list[dict[str, Any]]:
    return [SPACE.drawn(seed + 1, number + place) for place in range(count)]


def search(name: str, configurations: int | None = 27, epochs: int = 9, at_once: int = 6, **given: Any) -> Policy:
    space = given.pop("space", SPACE)
    spec = named_methods.checked({"name": name, **given}, proposes=True)
    return named_methods.policy_of(spec, epochs, configurations, Proposals(space, 3, at_once, random_suggestions))


def stopping(name: str, models: int, epochs: int = 9, **given: Any) -> Policy:
    return named_methods.policy_of(named_methods.checked({"name": name, **given}, proposes=False), epochs, models)


def lengths(done: Simulation) -> dict[int, int]:
    """How many models have trained so many epochs."""
    found: dict[int, int] = {}
    for model in done.history.models:
        epochs = len(done.history.epochs(model))
        found[epochs] = found.get(epochs, 0) + 1
    return dict(sorted(found.items(), reverse=True))


RATES = [{"learning_rate": 10 ** (-4 + place / 7)} for place in range(27)]


def test_where_the_rungs_are() -> None:
    assert epochs_of_rungs(1, 3, 27) == (1, 3, 9)
    assert epochs_of_rungs(1, 3, 30) == (1, 3, 9, 27)
    assert epochs_of_rungs(2, 2, 9) == (2, 4, 8)
    assert epochs_of_rungs(1, 1.3, 5) == (1, 2, 3, 4), "no two rungs at one epoch"
    assert epochs_of_rungs(5, 3, 5) == ()


def test_random_search_trains_every_configuration_to_its_end() -> None:
    done = Simulation(search("random"), loss, 9).run()
    assert lengths(done) == {9: 27} and done.most_active == 6
    assert len({point["learning_rate"] for point in done.points.values()}) == 27


def test_a_grid_is_tried_point_by_point() -> None:
    space = read(
        {
            "compile": {"loss": "mse", "learning_rate": {"log_uniform": [0.001, 0.1], "points": 3}},
            "fit": {"batch_size": {"choice": [8, 16]}},
        },
        {7: None},
    )
    done = Simulation(search("grid", None, space=space), loss, 2, seed=1).run()
    tried = [(round(point["learning_rate"], 9), point["batch_size"]) for point in done.points.values()]
    assert tried == [(0.001, 8), (0.001, 16), (0.01, 8), (0.01, 16), (0.1, 8), (0.1, 16)]
    assert len(Simulation(search("grid", 4, space=space), loss, 2).run().points) == 4


def test_no_point_is_tried_twice_and_a_small_space_ends_the_search() -> None:
    space = read({"compile": {"loss": "mse"}, "fit": {"batch_size": {"choice": [8, 16, 32]}}}, {7: None})
    done = Simulation(search("random", 20, space=space), lambda point, epochs: 1.0, 2).run()
    assert sorted(point["batch_size"] for point in done.points.values()) == [8, 16, 32]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_points_have_one_of_each_architecture(seed: int) -> None:
    space = read(
        {"architecture": [7, 8, 9], "compile": {"loss": "mse", "learning_rate": {"log_uniform": [1e-4, 1]}}},
        {7: None, 8: None, 9: None},
    )
    policy = named_methods.policy_of(
        named_methods.checked("random", proposes=True), 1, 12, Proposals(space, seed, 2, random_suggestions)
    )
    done = Simulation(policy, loss, 1, seed=seed).run()
    tried = [point["architecture"] for _, point in sorted(done.points.items())]
    assert sorted(tried[:3]) == [7, 8, 9] and len(tried) == 12


@pytest.mark.parametrize("seed", range(5))
def test_successive_halving_lets_a_third_of_each_rung_go_on(seed) -> None:
    done = Simulation(search("halving"), loss, 9, seed=seed).run()
    assert lengths(done) == {9: 3, 3: 6, 1: 18}
    finished = {model for model in done.history.models if len(done.history.epochs(model)) == 9}
    assert finished == set(sorted(done.points, key=lambda model: loss(done.points[model], 1))[:3])
    assert all(waits(done.history, model) for model in done.history.models if model not in finished)


@pytest.mark.parametrize(
    ("reduction", "models", "go_on"),
    [
        (1.5, 20, {1: 13, 2: 8, 3: 5, 4: 3, 5: 2, 8: 1}),  # floor(floor(20 / 1.5^k) / 1.5)
        (2.5, 20, {1: 8, 2: 3, 6: 1}),
        (1.1, 4, {1: 3, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1, 8: 1}),
    ],
)
def test_how_many_go_on_where_a_rung_leaves_a_broken_number(reduction, models, go_on) -> None:
    policy = search("halving", models, reduction=reduction, bracket=models)
    done = Simulation(policy, loss, 9).run()
    trained = [len(done.history.epochs(model)) for model in done.history.models]
    assert {rung: sum(epochs > rung for epochs in trained) for rung in go_on} == go_on


def test_halving_in_brackets_begins_new_models_while_others_wait() -> None:
    whole = Simulation(search("halving", 54, bracket=9, at_once=4), loss, 9, segments=4).run()
    assert lengths(whole) == {9: 6, 3: 12, 1: 36}
    assert whole.idle_before_the_last_began == 0


@pytest.mark.parametrize("seed", range(5))
def test_asha_trains_about_as_much_as_halving_and_waits_for_nobody(seed) -> None:
    done = Simulation(search("asha"), loss, 9, seed=seed).run()
    found = lengths(done)
    assert 3 <= found[9] <= 5 and 16 <= found[1] <= 18
    assert done.units <= 27 * 9 / 3, "at most a third of what the grid takes"
    best = min(done.points, key=lambda model: loss(done.points[model], 1))
    assert len(done.history.epochs(best)) == 9


@pytest.mark.parametrize("name", ["asha", "halving", "hyperband"])
@pytest.mark.parametrize("models", [1, 2, 3, 5])
def test_few_models_are_not_all_left_waiting(name, models) -> None:
    done = Simulation(stopping(name, models), loss, 9, fixed=RATES[:models]).run()
    assert lengths(done).get(9, 0) >= 1


@pytest.mark.parametrize("name", ["asha", "halving", "hyperband"])
@pytest.mark.parametrize("seed", range(20))
def test_models_that_fail_leave_nobody_waiting_for_them(name, seed) -> None:
    done = Simulation(search(name), loss, 9, seed=seed, failures=0.15).run()
    assert len(done.history.models) == 27
    left = [model for model in done.history.models if not done.history.failed(model)]
    assert not done.policy.released(done.history)
    for model in left:
        assert len(done.history.epochs(model)) == 9 or waits(done.history, model)


def test_a_model_that_a_person_has_stopped_does_not_go_on() -> None:
    policy, history = stopping("asha", 3, 9), History()
    for model, value in ((1, 0.1), (2, 0.2), (3, 0.3)):
        history.begins(model)
        history.trained(model, 1, 1, 5, value, {})
    history.complete(1, 1)
    history.decided(Decision(1, 1, Verdict.STOP, "enough of it"))
    history.complete(2, 1)
    history.decided(policy.decide(history, 2, 1))
    assert waits(history, 2)
    history.complete(3, 1)
    assert policy.decide(history, 3, 1).gone_on == (), "the best of three is model 1, which shall not go on"


def test_a_decision_at_a_rung_says_which_rung() -> None:
    """The view cerebro.leaderboard reads the number, also of models that do not wait."""
    done = Simulation(search("asha"), loss, 9).run()
    for decision in done.decisions:
        if decision.epoch in (1, 3) and decision.verdict in (Verdict.STOP, Verdict.CONTINUE):
            begins = WAITS if decision.verdict is Verdict.STOP else PASSES
            assert decision.reason.startswith(f"{begins} {1 if decision.epoch == 1 else 2}")
        elif decision.verdict is Verdict.CONTINUE:
            assert not decision.reason


def test_hyperband_has_brackets_from_many_short_models_to_few_long_ones() -> None:
    policy = named_methods.policy_of(named_methods.checked("hyperband", proposes=False), 81, 400)
    assert isinstance(policy, Hyperband)
    found = [(bracket.size, bracket.rungs) for bracket in policy.brackets()][:5]
    assert found == [(81, (1, 3, 9, 27)), (34, (3, 9, 27)), (15, (9, 27)), (8, (27,)), (5, ())]
    small = named_methods.policy_of(named_methods.checked("hyperband", proposes=False), 9, 11)
    assert isinstance(small, Hyperband)
    assert [(bracket.size, bracket.rungs) for bracket in small.brackets()] == [(6, (1, 3)), (3, (3,)), (2, ())]


def test_planned_brackets_end_where_they_are_planned_to_end() -> None:
    brackets = [[9, [1, 4, 13]], [3, [3, 12]], [3, [9]]]
    policy = named_methods.policy_of({"name": named_methods.PLANNED, "brackets": brackets, "reduction": 3}, 13, 15)
    done = Simulation(policy, loss, 13, fixed=RATES[:15]).run()
    assert lengths(done) == {13: 1, 12: 1, 9: 3, 4: 2, 3: 2, 1: 6}
    trained = {model: len(done.history.epochs(model)) for model in done.history.models}
    assert max(list(trained)[:9], key=lambda model: trained[model]) == 9  # its rate is the best of these nine
    reasons = {done.history.decision(model, trained[model]).reason for model in list(trained)[12:]}  # type: ignore[union-attr]
    assert reasons == {"the last round of its bracket ends after epoch 9"}


def test_hyperband_trains_less_than_all() -> None:
    done = Simulation(search("hyperband", 64), loss, 9).run()
    assert len(done.history.models) == 64 and done.units < 64 * 9 / 2


def test_median_stopping_stops_the_worse_half_early() -> None:
    order = random.Random(2).sample(RATES, len(RATES))
    done = Simulation(stopping("median", 27), loss, 9, fixed=order).run()
    stopped = [model for model in done.history.models if done.history.stopped(model)]
    assert 5 <= len(stopped) <= 20 and done.units < 27 * 9 * 0.9
    best = min(done.points, key=lambda model: loss(done.points[model], 1))
    assert best not in stopped
    decision = next(one for one in done.decisions if one.verdict is Verdict.STOP)
    assert "the median of" in decision.reason


LOSS = Objective()


def told(*losses: float | None, objective: Objective = LOSS) -> History:
    history = History(objective)
    for epoch, value in enumerate(losses, 1):
        history.trained(1, epoch, epoch, 5, math.nan if value is None else value, {"auc": value or 0.0})
        history.complete(1, epoch)
    return history


@pytest.mark.parametrize(
    ("losses", "stops"),
    [
        ((5.0, 4.0, 3.0, 2.0), False),
        ((5.0, 4.0, 4.0, 4.0), True),
        ((5.0, 4.0, 4.5, 3.9), False),
        ((5.0, 4.0, 4.5, 4.1), True),
        ((None, None, None, None), True),
        ((None, None, None, 3.0), False),
        ((5.0, 4.0, 4.0), False),
    ],
)
def test_patience_ends_when_nothing_got_better(losses, stops) -> None:
    policy = stopping("patience", 1, patience=2)
    assert policy.decide(told(*losses), 1, len(losses)).verdict is (Verdict.STOP if stops else Verdict.CONTINUE)


def test_patience_counts_only_what_is_enough_better() -> None:
    history = told(5.0, 4.95, 4.9, 4.86)
    assert stopping("patience", 1, patience=2).decide(history, 1, 4).verdict is Verdict.CONTINUE
    assert stopping("patience", 1, patience=2, min_delta=0.1).decide(history, 1, 4).verdict is Verdict.STOP


def test_patience_does_not_count_epochs_without_an_evaluation() -> None:
    history = History(Objective("val_loss"))
    for epoch in range(1, 8):
        history.trained(1, epoch, epoch, 5, 1.0, {})
        if epoch == 1:
            history.evaluated(1, epoch, "validation", 0, Figures.of(5, 0.5, {}))
        history.complete(1, epoch)
    assert stopping("patience", 1, patience=2).decide(history, 1, 7).verdict is Verdict.CONTINUE


@pytest.mark.parametrize(("direction", "stops"), [("max", False), ("min", True)])
def test_a_threshold_is_in_the_objectives_own_direction(direction, stops) -> None:
    history = told(1.0, 0.9, objective=Objective("auc", direction))
    decision = stopping("threshold", 1, value=0.8).decide(history, 1, 2)
    assert (decision.verdict is Verdict.STOP) == stops
    if stops:
        assert decision.reason == "auc 0.9 after epoch 2; the threshold is 0.8"


def test_a_threshold_stops_what_has_no_finite_value() -> None:
    decision = stopping("threshold", 1, value=3).decide(told(None), 1, 1)
    assert decision.verdict is Verdict.STOP and "no finite loss" in decision.reason


def test_evolution_finds_better_points_than_chance() -> None:
    def error(point: dict[str, Any], epochs: int) -> float:
        return loss(point, epochs) + abs(point["momentum"] - 0.9) + abs(point["batch_size"] - 64) / 64

    def best(name: str, **given: Any) -> float:
        runs = [Simulation(search(name, 80, 2, space=WIDE, **given), error, 2, seed=seed).run() for seed in range(3)]
        return sum(run.best for run in runs) / 3

    assert best("evolution", population=12) < best("random") - 0.02


def test_a_child_of_evolution_differs_in_one_value() -> None:
    done = Simulation(search("evolution", 40, 2, space=WIDE, population=8), loss, 2).run()
    for model in range(20, 41):
        mine = done.points[model]
        nearest = min(sum(mine[key] != other[key] for key in mine) for m, other in done.points.items() if m < model)
        assert nearest == 1


def test_pbt_replaces_the_worst_by_changed_copies_of_the_best() -> None:
    done = Simulation(search("pbt", 8, 6, interval=2), loss, 6).run()
    added = [one for one in done.decisions if one.verdict is Verdict.STOP and one.added]
    assert added and all(one.reason.startswith("replaced by a changed copy of model ") for one in added)
    for decision in added:
        (child,) = decision.added
        assert child.parent is not None and child.configuration is not None
        old, new = done.points[child.parent], child.configuration.chosen
        assert new["learning_rate"] / old["learning_rate"] == pytest.approx(1.2) or new["learning_rate"] / old[
            "learning_rate"
        ] == pytest.approx(1 / 1.2)
        assert child.configuration.model_id is None and child.configuration.architecture is None
    assert done.units == 8 * 6, "each place trains as long as it would have trained undisturbed"
    assert done.best < Simulation(search("random", 8, 6, at_once=8), loss, 6).run().best + 0.1


def test_pbt_replaces_no_larger_share_than_its_quantile() -> None:
    """Of all models that were compared, with scores that are chance: 20 models, of which the worst 5 are replaced."""
    chance = random.Random(1)
    policy = search("pbt", 20, 40, quantile=0.25)
    done = Simulation(policy, lambda point, epochs: chance.random(), 40, segments=4).run()
    replaced = sum(1 for one in done.decisions if one.added)
    assert 0.2 < replaced / done.units < 0.3


def test_pbt_changes_numbers_only() -> None:
    space = read(
        {
            "architecture": [1, 2],
            "arch_params": {"width": {"integer": [8, 64]}},
            "compile": {
                "loss": {"choice": ["mse", "mae"]},
                "optimizer": {"choice": ["SGD", {"class_name": "Adam", "config": {"beta_1": {"uniform": [0.8, 0.9]}}}]},
                "learning_rate": {"log_uniform": [1e-3, 1]},
            },
            "fit": {"batch_size": {"choice": [8, 16, 32]}},
        },
        {1: {"units": "$width"}, 2: {"units": "$width"}},
    )
    changed = set()
    for number in range(50):
        point = space.drawn(1, number)
        other = space.explored(point, random.Random(number), 1.3)
        assert space.has(other) and set(other) == set(point)
        changed |= {name for name in point if point[name] != other[name]}
    assert changed == {"learning_rate", "beta_1", "batch_size"}


def test_tpe_asks_for_suggestions_once_it_has_seen_enough() -> None:
    asked: list[tuple[int, int, int, int]] = []

    def suggest(dimensions: Any, seed: int, number: int, trials: Any, count: int) -> list[dict[str, Any]]:
        running = sum(trial.state == RUNNING for trial in trials)
        asked.append((number, count, len(trials) - running, running))
        assert [one["name"] for one in dimensions] == ["learning_rate"]
        assert all(trial.score is not None for trial in trials if trial.state != RUNNING)
        return random_suggestions(dimensions, seed, number, trials, count)

    spec = named_methods.checked({"name": "tpe", "startup": 5}, proposes=True)
    policy = named_methods.policy_of(spec, 2, 15, Proposals(SPACE, 3, 4, suggest))
    done = Simulation(policy, loss, 2).run()
    assert len(done.history.models) == 15 and asked[0][2] == 5
    assert all(ended + running == number for number, _, ended, running in asked)


@pytest.mark.parametrize(
    ("given", "proposes", "said"),
    [
        ("ash", True, "there is no search method 'ash'"),
        ("random", False, "it proposes configurations, which cerebro.search"),
        (3, True, "is a name or an object with a name"),
        ({"reduction": 3}, True, "is a name or an object with a name"),
        ({"name": "asha", "reductions": 3}, True, "has no parameter 'reductions'"),
        ({"name": "asha", "reduction": 1}, True, "it must be at least 1.1"),
        ({"name": "asha", "min_epochs": 1.5}, True, "it must be a whole number"),
        ({"name": "asha", "sampler": "pbt"}, True, "'pbt' cannot be the sampler of 'asha'"),
        ({"name": "asha", "sampler": "random"}, False, "has no parameter 'sampler'"),
        ("threshold", False, "needs 'value'"),
        ({"name": "patience", "patience": True}, False, "it must be a whole number"),
    ],
)
def test_a_wrong_method_is_refused(given, proposes, said) -> None:
    with pytest.raises(InvalidArgument) as caught:
        named_methods.checked(given, proposes=proposes)
    assert said in caught.value.message


def test_which_methods_need_optuna() -> None:
    def needs(given: Any) -> bool:
        return named_methods.needs_optuna(named_methods.checked(given, proposes=True))

    assert needs("tpe") and needs({"name": "hyperband", "sampler": "tpe"})
    assert not any(map(needs, ("random", "asha", "evolution", "pbt")))


def test_the_reason_of_a_wait_says_so() -> None:
    history = told(1.0)
    history.begins(2)
    decision = stopping("halving", 2).decide(history, 1, 1)
    assert decision.reason == f"{WAITS} 1: 1 of 2 models have reached epoch 1"


def test_the_page_describes_every_method() -> None:
    page = reference.SEARCH_PAGE.read_text(encoding="utf-8")
    assert reference.with_methods(page) == page, "python -m tests.reference writes it again"
    for name in named_methods.METHODS:
        assert f"| `{name}` |" in page
