"""Cross-validation without a database: layouts with folds, the models of each fold, and what a plan makes of folds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from test_building import KIND, NUMBERS, layout

from cerebro_db.core import training_plan
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.layout import DataSet, Layout, Partition, Variable
from cerebro_db.core.packing.preparation import Fold
from cerebro_db.core.scheduling.schedule import Evaluate, ModelPlan, Plan, Schedule
from cerebro_db.core.search.decision import NewConfiguration, NewModel
from cerebro_db.core.search.history import History
from cerebro_db.core.search.methods.grid import GridSearch
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.methods.random_search import RandomSearch
from cerebro_db.core.search.policy import Decision, Verdict
from cerebro_db.core.search.proposing import Proposing, proposed
from cerebro_db.core.search.spaces.read_space import read
from cerebro_db.core.search.spaces.space import Space
from cerebro_db.core.search.variants import Varied, missing_models, of_folds
from cerebro_db.core.training_plan import Wishes

FOLD = Variable("__fold__", "uint8", (1,), ("id",), Fold(3))
PARTS = (Partition(0, 10, 1, 100, "a" * 64, (4, 6, 0)), Partition(1, 5, 1, 50, "b" * 64, (1, 1, 3)))
FOLDED = Layout((NUMBERS,), (KIND,), 15, PARTS, fold=FOLD)


# -- layouts ---------------------------------------------------------------------------------------------------


def test_a_layout_with_folds_survives_json() -> None:
    document = json.loads(json.dumps(FOLDED.to_json()))
    assert Layout.from_json(document) == FOLDED and FOLDED.folds == 3
    rows = DataSet("t", FOLDED)
    assert rows.folds == 3 and [rows.rows_of_fold(fold) for fold in (1, 2, 3)] == [5, 7, 3]
    assert rows.variables == ["numbers", "kind", "__fold__"]
    assert rows.for_trainer["fold"] == [{"name": "__fold__", "dtype": "uint8", "shape": [1], "kind": "fold"}]


def test_a_layout_without_folds_is_what_it_was() -> None:
    layout = replace(FOLDED, fold=None, partitions=tuple(replace(one, folds=()) for one in PARTS))
    document = layout.to_json()
    assert set(document) == {"inputs", "outputs", "rows", "partitions"}
    assert set(document["partitions"][0]) == {"key", "rows", "buffers", "bytes", "sha256"}
    assert DataSet("t", layout).folds == 0 and set(DataSet("t", layout).for_trainer) == {"inputs", "outputs"}


@pytest.mark.parametrize("folds", [[4, 6], [4, 5, 0], [10], [4, 6, 0, 0], [-1, 11, 0], "all", None])
def test_rows_of_folds_that_do_not_add_up_are_refused(folds: Any) -> None:
    document = FOLDED.to_json()
    document["partitions"][0]["folds"] = folds
    with pytest.raises(BadData):
        Layout.from_json(document)


@pytest.mark.parametrize("count", [0, 1, 101, 2.5, True])
def test_a_number_of_folds_is_checked(count: Any) -> None:
    document = FOLDED.to_json()
    document["fold"]["preparation"]["folds"] = count
    with pytest.raises(BadData, match="folds has to be (from 2 to 100|a whole number)"):
        Layout.from_json(document)


# -- the models of a configuration -----------------------------------------------------------------------------


def begun(policy: Varied, history: History, active: int = 0) -> list[tuple[int, int | None]]:
    """Let a policy propose until it has no more, and give the models their numbers and keys as a run does."""
    found: list[tuple[int, int | None]] = []
    while new := policy.propose(history, active + len(found)):
        for one in new:
            number = len(history.models) + 1
            key = one.key or 1 + max((key for key, _ in found), default=0)
            told: dict[str, Any] = {"key": key, "fold": one.fold}
            like = [history.configuration(model) for model in history.models]
            chosen = one.configuration.chosen if one.configuration else None
            told["chosen"] = chosen or next(its["chosen"] for its in like if its["key"] == key)
            history.begins(number, told)
            found.append((key, one.fold))
    return found


def space() -> Space:
    document = {
        "architecture": [1],
        "compile": {"loss": "mse", "optimizer": "SGD", "learning_rate": {"choice": [0.1, 0.2, 0.3, 0.4]}},
        "fit": {"batch_size": 8},
    }
    return read(document, {1: {"class_name": "Sequential", "config": {"layers": []}}})


@pytest.mark.parametrize("sampler", [GridSearch, lambda space: RandomSearch(space, 7)], ids=["grid", "random"])
def test_a_search_makes_each_configuration_once_with_all_its_folds(sampler: Any) -> None:
    history = History()
    policy = Varied(Proposing(NeverStop(), sampler(space()), 4, 100), of_folds(3))
    found = begun(policy, history)
    assert found == [
        *[(key, None) for key in (1, 2, 3, 4)],
        *[(key, fold) for key in (1, 2, 3, 4) for fold in (1, 2, 3)],
    ]
    points = proposed(history).values()
    assert len(points) == 4 == len({json.dumps(point, sort_keys=True) for point in points})
    assert policy.name in ("grid", "random") and policy.proposes


def test_as_many_configurations_train_at_once_as_the_search_wants() -> None:
    """A sampler counts configurations: all models of one begin together, and the next when only some of them train."""
    history = History()
    policy = Varied(Proposing(NeverStop(), GridSearch(space()), 4, 2), of_folds(3))
    assert [key for key, _ in begun(policy, history)] == [1, 2, *[1] * 3, *[2] * 3]
    assert not policy.propose(history, 8)
    assert len(policy.propose(history, 7)) == 1  # a model of the two configurations has ended, and a segment is free


def test_what_people_add_gets_its_folds_and_copies_do_not() -> None:
    history, folds = History(), of_folds(2)
    for model, fold in enumerate((None, 1, 2), 1):
        history.begins(model, {"key": 1, "fold": fold})
    assert missing_models(history, folds) == []
    assert history.is_whole(1) and not history.is_whole(2)
    history.begins(4, {"key": 2, "fold": None})  # added by a person
    history.begins(5, {"key": 3, "fold": 1})  # a copy of model 2 with another learning rate
    history.decided(Decision(2, 1, Verdict.ADD, added=(NewModel(parent=2, key=3, model=5),)))
    assert missing_models(history, folds) == [NewModel(key=2, fold=1), NewModel(key=2, fold=2)]
    history.fails(4)
    assert missing_models(history, folds) == []


def test_a_model_of_a_fold_that_fails_is_not_made_again() -> None:
    history = History()
    for model, fold in enumerate((None, 1, 2, 3), 1):
        history.begins(model, {"key": 1, "fold": fold})
    policy = Varied(NeverStop(), of_folds(3))
    for failed in (3, 2, 1):
        history.fails(failed)
        assert not policy.propose(history, 4 - failed)


def test_a_new_model_of_a_fold_survives_json() -> None:
    one = NewModel(key=4, fold=2, model=9)
    assert NewModel.from_json(json.loads(json.dumps(one.to_json()))) == one
    other = NewModel(configuration=NewConfiguration("c", "f", 1))
    assert "fold" not in other.to_json() and NewModel.from_json(other.to_json()) == other


def test_only_the_models_of_folds_are_evaluated() -> None:
    plan = Plan(
        seed=1,
        models=tuple(ModelPlan(number, number, fold=fold, evaluated=fold is not None) for number, fold in
                     enumerate((None, 1, 2), 1)),
        segments=2, epochs=2, evaluations={"validation": {0: 0, 1: 1}}, evaluate_every=1,
    )  # fmt: skip
    schedule, units = Schedule(plan), []
    while not schedule.finished:
        for segment in range(plan.segments):
            while (unit := schedule.take(segment)) is not None:
                units.append(unit)
                schedule.succeeded(unit)
    evaluated = [unit for unit in units if isinstance(unit, Evaluate)]
    assert len(units) - len(evaluated) == 3 * 2 * 2
    assert {unit.model for unit in evaluated} == {2, 3} and len(evaluated) == 2 * 2 * 2


# -- cerebro.train ---------------------------------------------------------------------------------------------


def plan(seconds: float | None, folds: int = 5, **wishes: Any) -> training_plan.TrainingPlan:
    fold = replace(FOLD, preparation=Fold(folds))
    found = replace(layout([NUMBERS], KIND), fold=fold)
    asked = Wishes({"mlp": Kind("mlp", {}, "test", found)}, **wishes)
    return training_plan.planned(found, 1000, 2, seconds, True, asked)


def test_a_plan_with_folds_stops_no_model_early() -> None:
    made = plan(None)
    assert made.method == "random" and made.objective == "val_loss"
    assert (made.configurations, made.epochs) == (training_plan.CONFIGURATIONS, training_plan.EPOCHS_WITH_FOLDS)
    told = " ".join(made.told(None))
    assert "once for each of 5 folds" in told and "early" not in told


def test_the_budget_of_a_plan_pays_for_the_models_of_all_folds() -> None:
    for seconds in (1, 10, 60, 600, 6000):
        for folds in (2, 10):
            made = plan(seconds, folds)
            assert made.configurations >= training_plan.LEAST_WITH_FOLDS and made.epochs >= 1
            spent = made.configurations * made.epochs * (folds + 1) * made.epoch_seconds
            assert spent <= seconds or made.epochs == 1, made
    assert plan(60, 10).configurations <= plan(60, 2).configurations
    fixed = plan(60, configurations=2, epochs=3)
    assert (fixed.configurations, fixed.epochs) == (2, 3)
