"""What cerebro.train decides: for any target, number of rows and budget a plan that a search can carry out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from test_building import CODES, IMAGE, KIND, NUMBERS, OLD_NUMBERS, PRICE, TEXT, VECTOR, layout, variable

from cerebro_db.core import training_plan
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.packing.preparation import AsIs, OneHot
from cerebro_db.core.parameters import params
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.search import proposing
from cerebro_db.core.search.proposing import random_points
from cerebro_db.core.search.spaces import flat_space, read_space
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.training_plan import TrainingPlan, Wishes
from tests.core import shop


def plan(
    rows: int = 1000, seconds: float | None = 600, *outputs: Any, validated: bool = True, **wishes: Any
) -> TrainingPlan:
    inputs = [NUMBERS, CODES, TEXT, IMAGE]
    found = layout(inputs, *(outputs or (KIND,)))
    given = wishes.pop("architectures", {"mlp": {}})
    architectures = {kind: Kind(kind, fixed, "test", found) for kind, fixed in given.items()}
    return training_plan.planned(found, rows, 2, seconds, validated, Wishes(architectures, **wishes))


@pytest.mark.parametrize("rows", [10, 150, 5_000, 100_000, 10_000_000])
@pytest.mark.parametrize("outputs", [(KIND,), (PRICE,), (KIND, PRICE), (VECTOR,)], ids=len)
def test_every_point_of_the_space_can_be_trained(rows: int, outputs: tuple[Any, ...]) -> None:
    made = plan(rows, 600, *outputs)
    architectures: dict[Any, Any] = {
        kind: Kind(kind, {}, "test", layout([NUMBERS, CODES, TEXT, IMAGE], *outputs)) for kind in made.architectures
    }
    space = read_space.read(flat_space.parted(made.space, architectures, "test"), architectures)
    space.check({})
    for point in space.probes():
        drawn = space.configuration(point)
        assert drawn.architecture is not None
        built = keras_json.architecture(drawn.architecture)
        compiled = keras_json.for_outputs(params.compile_params(drawn.compile_params), built)
        assert made.objective.removeprefix("val_") in reported(compiled, keras_json.outputs(built))
    assert made.told(600)


def test_a_plan_without_a_method_leaves_the_numbers_to_the_measured_speed() -> None:
    for rows in (150, 10_000_000):
        made = plan(rows)
        assert made.method == {"name": "paced", "min_epochs": 3}
        assert made.configurations == training_plan.CONFIGURATIONS
        assert made.epochs == training_plan.EPOCHS_IN_BUDGET * made.portions
        assert any("depends on the speed of the first visits" in line for line in made.told(600))
    assert plan(1000, None).epochs == training_plan.EPOCHS
    few = plan(configurations=2, epochs=2)
    assert (few.configurations, few.epochs, few.method["min_epochs"]) == (2, 2, 2)


def test_more_rows_in_the_same_time_mean_fewer_models_and_fewer_repeats() -> None:
    plans = [plan(rows, method="asha", short=False) for rows in (150, 5_000, 100_000, 1_000_000, 10_000_000)]
    assert plans[0].configurations == training_plan.CONFIGURATIONS and plans[0].epochs == training_plan.EPOCHS
    for fewer, more in zip(plans, plans[1:]):
        assert more.configurations <= fewer.configurations and more.passes <= fewer.passes
        assert more.space["batch_size"]["choice"] >= fewer.space["batch_size"]["choice"]
    assert plans[0].passes > 1 and plans[-1].passes == 1
    assert 1 <= plans[-1].configurations < 10 and plans[-1].epochs >= 1
    assert plan(10_000_000, 5, method="asha", short=False).configurations == 1
    assert plan(10_000_000, None, method="asha").configurations == training_plan.CONFIGURATIONS


@pytest.mark.parametrize("method", [None, "asha"])
def test_epochs_are_shorter_where_few_passes_fit_into_the_budget(method: str | None) -> None:
    made = plan(10_000_000, 360, method=method)
    assert made.visit_rows is not None and made.visit_rows >= training_plan.LEAST_VISIT_ROWS
    assert made.configurations >= 8 and 360 / made.epoch_seconds >= 8 * training_plan.MEAN_EPOCHS
    assert any(f"of {made.visit_rows:,} rows of each segment" in line for line in made.told(360))
    longer = plan(10_000_000, 3600, method=method)
    assert longer.visit_rows is None or longer.visit_rows > 9 * made.visit_rows
    for whole in (
        plan(10_000, 360, method=method),  # an epoch is short
        plan(10_000_000, None, method=method),
        plan(10_000_000, 360, method=method, epochs=3),  # the user means passes over the rows
        plan(10_000_000, 360, method="random"),  # which stops nothing
        plan(10_000_000, 360, method=method, short=False),
    ):
        assert whole.visit_rows is None and whole.portions == 1
    given = plan(10_000_000, 360, method=method, visit_rows=1_000_000)
    assert (given.visit_rows, given.portions) == (1_000_000, 5)


def test_each_decision_can_be_overridden() -> None:
    made = plan(
        architectures={"mlp": {"units": 7, "layers": 2}},
        space={"batch_size": 64, "optimizer": "SGD"},
        method="random",
        epochs=3,
        configurations=2,
        objective="val_auc",
    )
    assert made.architectures == ["mlp"]
    assert made.space["batch_size"] == 64 and made.space["optimizer"] == "SGD"
    assert "learning_rate" in made.space and "auc" in made.space["metrics"]
    assert "units" not in made.space and "dropout" in made.space  # the architecture has a value for one
    assert (made.method, made.epochs, made.configurations, made.objective) == ("random", 3, 2, "val_auc")


def test_a_method_that_stops_no_model_is_not_said_to_stop_some() -> None:
    assert any("asha stops the worse ones early" in line for line in plan(method="asha").told(600))
    assert any("paced stops the worse ones early" in line for line in plan().told(600))
    assert not any("stops" in line for line in plan(method="grid").told(600))


@pytest.mark.parametrize(("rows", "dropouts"), [(1000, [0.5, 0.3]), (100_000, [0.1, 0.3])])
def test_little_time_means_one_program(rows: int, dropouts: list[float]) -> None:
    def tried(seconds: int) -> list[Any]:
        space = plan(rows, seconds).space
        return [space["units"], space["dropout"]]

    assert tried(30) == [128, dropouts[0]]
    assert tried(600) == [{"choice": [128, 256]}, {"choice": dropouts}]


def test_an_mlp_reads_the_bins_of_numbers_if_rows_are_many() -> None:
    assert plan(1001, 600).space["bins"] == plan(1001, 30).space["bins"] == 16
    assert "bins" not in plan(1000, 600).space
    assert plan(1001, space={"bins": {"choice": [0, 8]}}).space["bins"] == {"choice": [0, 8]}
    assert "bins" not in plan(1001, architectures={"mlp": {"bins": 4}}).space  # the architecture has a value
    both = plan(1001, architectures={"mlp": {}, "resnet": {}}).space["bins"]
    assert both == {"choice": [16], "when": {"architecture": "mlp"}}


@pytest.mark.parametrize("inputs", [[CODES, TEXT], [OLD_NUMBERS, CODES]], ids=["none", "without edges"])
def test_a_table_without_numbers_that_have_edges_has_no_bins(inputs: list[Variable]) -> None:
    packed = layout(inputs, KIND)
    wishes = Wishes({"mlp": Kind("mlp", {}, "test", packed)})
    assert "bins" not in training_plan.planned(packed, 100_000, 2, 600, True, wishes).space


def test_few_rows_are_learned_slowly() -> None:
    few, many = (plan(rows).space["learning_rate"]["log_uniform"] for rows in (1000, 1001))
    assert few[0] == many[0] and few[1] < many[1]


def test_without_rows_for_validation_the_training_loss_decides() -> None:
    assert plan(validated=False).objective == "loss" and plan().objective == "val_loss"


def test_what_a_plan_tries_of_an_mlp_holds_for_no_other_architecture() -> None:
    space = plan(architectures={"mlp": {}, "resnet": {}}).space
    assert space["units"] == {"choice": [128, 256], "when": {"architecture": "mlp"}}
    assert "units" not in plan(architectures={"resnet": {}}).space


@pytest.mark.parametrize(
    ("output", "objective", "says"),
    [(PRICE, "val_auc", "a number"), (PRICE, "accuracy", "a number"), (KIND, "val_r2", "a class")],
)
def test_an_objective_must_fit_the_target(output: Any, objective: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the target is {says}") as error:
        plan(1000, 600, output, objective=objective)
    assert error.value.hint
    assert plan(1000, 600, PRICE, objective="val_r2").objective == "val_r2"


def test_trees_try_what_an_optimizer_has_not() -> None:
    alone = plan(architectures={"trees": {}}).space
    assert "depth" in alone and not {"learning_rate", "batch_size"} & {
        name for name, one in alone.items() if isinstance(one, dict)
    }
    assert "depth" not in plan(architectures={"trees": {"depth": 3}}).space
    both = plan(architectures={"trees": {}, "mlp": {}}).space
    assert both["learning_rate"]["when"] == {"architecture": ["mlp"]}


def test_trees_of_many_classes_and_columns_are_shallow_or_not_tried() -> None:
    def of(columns: int, classes: int) -> tuple[bool, Any]:
        kind = variable("kind", OneHot(SqlType("text"), tuple(map(str, range(classes)))), (classes,), "int16")
        found = layout([variable("numbers", AsIs(), (columns,))], kind)
        made = Wishes({"trees": Kind("trees", {}, "test", found)})
        space = training_plan.planned(found, 1000, 2, 600, True, made).space
        return "trees" in training_plan.usual_architectures(found), space["depth"]["choice"]

    assert of(100, 2) == (True, [6, 4, 8])
    assert of(100, 10) == (True, [6, 4])
    assert of(40, 100) == (True, [4])
    assert of(50, 100) == (False, [4])


def of_shop(packed: Any = shop.SHOP, seconds: float | None = 600, **wishes: Any) -> TrainingPlan:
    given = wishes.pop("architectures", {kind: {} for kind in training_plan.usual_architectures(packed)})
    architectures = {kind: Kind(kind, fixed, "test", packed) for kind, fixed in given.items()}
    return training_plan.planned(packed, 5000, 2, seconds, True, Wishes(architectures, **wishes))


def space_of(made: TrainingPlan, packed: Any = shop.SHOP) -> Any:
    architectures: dict[Any, Any] = {kind: Kind(kind, {}, "test", packed) for kind in made.architectures}
    return read_space.read(flat_space.parted(made.space, architectures, "test"), architectures)


def test_a_search_decides_what_is_read_of_related_tables() -> None:
    made = of_shop()
    assert made.architectures == ["mlp", "trees"]
    assert made.space["related"] == {"choice": list(training_plan.WAYS), "when": {"architecture": "mlp"}}
    assert made.space["encoder"] == {
        "choice": list(training_plan.ENCODERS),
        "when": {"architecture": "mlp", "related": ["both", "neighbourhoods"]},
    }
    space = space_of(made)
    for point in space.probes():
        assert keras_json.architecture(space.configuration(point).architecture)
    assert made.told(600) and "related both or aggregates or neighbourhoods" in "".join(made.told(600))
    assert "related" not in plan().space and "encoder" not in plan().space
    assert of_shop(seconds=60).space["encoder"]["choice"] == ["attention"]
    # A network of the latest rows would have no time for a few epochs.
    assert of_shop(seconds=5).space["related"]["choice"] == ["aggregates"]
    assert "encoder" not in of_shop(seconds=5).space


@pytest.mark.parametrize("middles", [False, True])  # as paced has them
@pytest.mark.parametrize("seed", range(5))
def test_the_first_configurations_read_related_tables_in_each_way(middles: bool, seed: int) -> None:
    """Aggregates by a network and by trees, and then the latest rows with them and alone."""
    space = space_of(of_shop())
    points = random_points(space, seed, SimpleNamespace(models=[]), 0, 6)  # type: ignore[arg-type]
    if middles:
        points = proposing._with_middles(space, points)
    assert [(one["architecture"], one.get("related")) for one in points[:4]] == [
        ("mlp", "aggregates"), ("trees", None), ("mlp", "both"), ("mlp", "neighbourhoods")
    ]  # fmt: skip
    assert "encoder" not in points[0] and "encoder" in points[2] and "encoder" in points[3]


@pytest.mark.parametrize(
    ("wishes", "related", "encoder"),
    [
        ({"space": {"related": "aggregates"}}, "aggregates", None),
        ({"space": {"related": "neighbourhoods"}}, "neighbourhoods", {}),
        ({"space": {"related": {"choice": ["none", "both"]}}}, {"choice": ["none", "both"]}, {"related": ["both"]}),
        ({"space": {"related": {"choice": ["none", "aggregates"]}}}, {"choice": ["none", "aggregates"]}, None),
        ({"architectures": {"mlp": {"related": "both"}}}, None, {}),
        ({"architectures": {"mlp": {"encoder": "gru"}}}, {"choice": list(training_plan.WAYS)}, None),
    ],
)
def test_what_is_decided_is_no_dimension(wishes: Any, related: Any, encoder: Any) -> None:
    made = of_shop(**{"architectures": {"mlp": {}}, **wishes})
    assert made.space.get("related") == related
    found = made.space.get("encoder")
    assert found is None if encoder is None else found.get("when", {}) == encoder
    architectures: dict[Any, Any] = {"mlp": Kind("mlp", wishes.get("architectures", {}).get("mlp", {}), "t", shop.SHOP)}
    space = read_space.read(flat_space.parted(made.space, architectures, "test"), architectures)
    for point in space.probes():
        assert keras_json.architecture(space.configuration(point).architecture)


def test_rows_without_neighbourhoods_have_nothing_to_decide() -> None:
    assert not {"related", "encoder"} & set(of_shop(shop.without_neighbourhoods()).space)
