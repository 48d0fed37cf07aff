"""Flat configurations: each key goes to what reads it, and a key that nothing reads is an error with the nearest."""

from __future__ import annotations

from typing import Any

import pytest
from test_building import KIND, NUMBERS, layout

from cerebro_db.core import training_plan
from cerebro_db.core.architecture.sources import Kind, of_log
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.search import flat_space, read_space

LAYOUT = layout([NUMBERS], KIND)


def test_each_key_goes_to_what_reads_it() -> None:
    given = {"architecture": "mlp", "units": 64, "optimizer": "adam", "learning_rate": 0.1, "loss": "mse",
             "batch_size": 8, "passes": 3, "class_weight": {"0": 2.0}}  # fmt: skip
    found = flat.parts(given, {"units"}, "test")
    assert found.arch_params == {"units": 64}
    assert found.compile == {"optimizer": "adam", "learning_rate": 0.1, "loss": "mse"}
    assert found.fit == {"batch_size": 8, "epochs": 3, "class_weight": {"0": 2.0}}
    assert params.compile_params(found.compile_text)["optimizer"]["config"] == {"learning_rate": 0.1}
    assert params.fit_params(found.fit_text)["epochs"] == 3


@pytest.mark.parametrize(
    ("key", "hint"),
    [("lerning_rate", "learning_rate"), ("unit", "units"), ("batchsize", "batch_size"), ("epochs", "passes")],
)
def test_an_unknown_key_is_told_with_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=key) as error:
        flat.parts({key: 1}, {"units"}, "test")
    assert hint in str(error.value.hint)


def test_parameters_of_architectures_have_names_of_their_own() -> None:
    flat.require_parameters({"width", "depth"}, "test")
    for kind in training_plan.building.PARAMETERS.values():
        flat.require_parameters(kind, "test")
    with pytest.raises(InvalidArgument, match="'momentum' has the name of a parameter of training"):
        flat.require_parameters({"momentum"}, "test")


def test_defaults_are_only_for_what_is_left_out() -> None:
    defaults = training_plan.defaults(LAYOUT, 1000, 1)
    assert training_plan.completed({}, defaults) == defaults
    sgd = training_plan.completed({"optimizer": "SGD", "loss": "mse", "units": None}, defaults)
    assert "weight_decay" not in sgd and "metrics" not in sgd and "units" not in sgd and sgd["batch_size"]


def test_a_kind_is_built_with_all_its_parameters() -> None:
    kind = Kind("mlp", {"layers": 1, "dropout": "$drop"}, "test", LAYOUT)
    assert kind.needed == {"drop"} and "units" in kind.parameters and "layers" not in kind.parameters
    made = kind.made({"units": 5, "drop": 0.5})
    assert made == Kind("mlp", {}, "test", LAYOUT).made({"layers": 1, "units": 5, "dropout": 0.5})
    again = of_log(kind.written, LAYOUT, "test")
    assert isinstance(again, Kind) and again.made({"units": 5, "drop": 0.5}) == made


def test_a_dimension_has_the_name_that_the_user_wrote() -> None:
    kinds: dict[Any, Any] = {"mlp": Kind("mlp", {}, "test", LAYOUT), "resnet": Kind("resnet", {}, "test", LAYOUT)}
    given = {"passes": {"choice": [1, 2]}, "layers": {"integer": [1, 2]}, "loss": "categorical_crossentropy"}
    space = read_space.read(flat_space.parted(given, kinds, "test"), kinds)
    points = list(space.grid())
    assert {frozenset(point) for point in points} == {
        frozenset({"architecture", "passes", "layers"}),
        frozenset({"architecture", "passes"}),
    }
    assert [point["architecture"] for point in points] == ["mlp"] * 4 + ["resnet"] * 2
    assert [space.configuration(point).fit_params for point in points[:2]] == ["epochs=1", "epochs=1"]
    assert space.configuration(points[-1]).model_id == 2
