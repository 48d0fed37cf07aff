"""What cerebro.train decides: for any target, number of rows and budget a plan that a search can carry out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_building import CODES, IMAGE, KIND, NUMBERS, PRICE, TEXT, VECTOR, layout

from cerebro_db.core import training_plan
from cerebro_db.core.architecture import reading
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.parameters import params
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.search import read_space
from cerebro_db.core.training_plan import Plan, Wishes


def plan(rows: int = 1000, seconds: float | None = 600, *outputs: Any, validated: bool = True, **wishes: Any) -> Plan:
    inputs = [NUMBERS, CODES, TEXT, IMAGE]
    found = layout(inputs, *(outputs or (KIND,)))
    return training_plan.planned(found, rows, 2, seconds, validated, Wishes(**wishes), "test")


@pytest.mark.parametrize("rows", [10, 150, 5_000, 100_000, 10_000_000])
@pytest.mark.parametrize("outputs", [(KIND,), (PRICE,), (KIND, PRICE), (VECTOR,)], ids=len)
def test_every_point_of_the_space_can_be_trained(rows: int, outputs: tuple[Any, ...]) -> None:
    made = plan(rows, 600, *outputs)
    architectures = {place: built for place, (_, built) in enumerate(made.architectures, 1)}
    space = read_space.read({**made.space, "architecture": list(architectures)}, architectures)
    space.check({})
    for point in space.probes():
        drawn = space.configuration(point)
        built = reading.architecture(drawn.architecture or json.dumps(architectures[drawn.model_id]))
        compiled = reading.for_outputs(params.compile_params(drawn.compile_params), built)
        assert made.objective.removeprefix("val_") in reported(compiled, reading.outputs(built))
    assert made.told(600)


def test_more_rows_in_the_same_time_mean_fewer_models_and_fewer_repeats() -> None:
    plans = [plan(rows) for rows in (150, 5_000, 100_000, 1_000_000, 10_000_000)]
    assert plans[0].configurations == training_plan.CONFIGURATIONS and plans[0].epochs == training_plan.EPOCHS
    for fewer, more in zip(plans, plans[1:]):
        assert more.configurations <= fewer.configurations and more.passes <= fewer.passes
        assert more.space["fit"]["batch_size"]["choice"] >= fewer.space["fit"]["batch_size"]["choice"]
    assert plans[0].passes > 1 and plans[-1].passes == 1
    assert 1 <= plans[-1].configurations < 10 and plans[-1].epochs >= 1
    assert plan(10_000_000, 5).configurations == 1
    assert plan(10_000_000, None).configurations == training_plan.CONFIGURATIONS


def test_each_decision_can_be_overridden() -> None:
    made = plan(
        architectures={"mlp": {"units": 7, "layers": 2}},
        space={"fit": {"batch_size": 64}, "compile": {"optimizer": "SGD"}},
        method="random",
        epochs=3,
        configurations=2,
        objective="val_auc",
    )
    assert [kind for kind, _ in made.architectures] == ["mlp"] and '"units": 7' in json.dumps(made.architectures)
    assert made.space["fit"]["batch_size"] == 64 and made.space["compile"]["optimizer"] == "SGD"
    assert "learning_rate" in made.space["compile"] and "auc" in made.space["compile"]["metrics"]
    assert made.space["arch_params"] == {}  # no architecture asks for one
    assert (made.method, made.epochs, made.configurations, made.objective) == ("random", 3, 2, "val_auc")


def test_a_method_that_stops_no_model_is_not_said_to_stop_some() -> None:
    assert any("asha stops the worse ones early" in line for line in plan().told(600))
    assert not any("stops" in line for line in plan(method="grid").told(600))


@pytest.mark.parametrize(("rows", "dropouts"), [(1000, [0.5, 0.3]), (100_000, [0.1, 0.3])])
def test_little_time_means_one_program(rows: int, dropouts: list[float]) -> None:
    assert plan(rows, 30).space["arch_params"] == {"units": 128, "dropout": dropouts[0]}
    assert plan(rows, 600).space["arch_params"] == {"units": {"choice": [128, 256]}, "dropout": {"choice": dropouts}}


def test_few_rows_are_learned_slowly() -> None:
    few, many = (plan(rows).space["compile"]["learning_rate"]["log_uniform"] for rows in (1000, 1001))
    assert few[0] == many[0] and few[1] < many[1]


def test_without_rows_for_validation_the_training_loss_decides() -> None:
    assert plan(validated=False).objective == "loss" and plan().objective == "val_loss"


@pytest.mark.parametrize("space", [{"batch_size": 64}, {"fit": 64}])
def test_parts_of_a_space_are_checked(space: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="is not a part of a space"):
        plan(space=space)


@pytest.mark.parametrize(
    ("output", "objective", "says"),
    [(PRICE, "val_auc", "a number"), (PRICE, "accuracy", "a number"), (KIND, "val_r2", "a class")],
)
def test_an_objective_must_fit_the_target(output: Any, objective: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the target is {says}") as error:
        plan(1000, 600, output, objective=objective)
    assert error.value.hint
    assert plan(1000, 600, PRICE, objective="val_r2").objective == "val_r2"
