"""Flat configurations: each key goes to what reads it, and a key that nothing reads is an error with the nearest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from test_building import KIND, NUMBERS, layout

from cerebro_db.core import training_plan
from cerebro_db.core.architecture.sources import Kind, of_log
from cerebro_db.core.errors import BadData, CerebroError, InvalidArgument
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.vocabulary import LOSSES, METRICS, OPTIMIZERS, SCHEDULES, Entry
from cerebro_db.core.search.spaces import flat_space, read_space

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


# -- on record ---------------------------------------------------------------------------------------------

OF_TYPE = {
    "number": -0.5, "nonneg": 1e-7, "positive": 2.5, "unit": 0.25, "rate": 0.01, "flag": True, "count": 2, "index": 3,
    "axis": -1, "axes": [1, 2], "text": "it's \"a\" \\ name", "texts": ["it's", 'a "b"'], "numbers": [0.5, 1.0],
    "indices": [0, 1], "thresholds": [0.25, 0.5], "reduction": "sum", "dtype": "float32", "curve": "PR",
    "summation": "minoring", "average": "macro", "aggregation": "uniform_average",
}  # fmt: skip


def configs(entry: Entry) -> Iterator[dict[str, Any]]:
    """Arguments of an entry: those that it needs, then all, then each one alone, as a value and as null."""
    values: dict[str, Any] = {name: OF_TYPE[kind.rstrip("?!")] for name, kind in entry.arguments.items()}
    if entry.class_name == "PiecewiseConstantDecay":
        values["values"] = [0.5, 0.25, 0.125]
    needed = {name: values[name] for name in entry.required}
    yield needed
    yield {name: one for name, one in values.items() if name not in ("clipvalue", "global_clipnorm")}
    for name, value in values.items():
        yield {**needed, name: value}
        if entry.arguments[name].endswith("?"):
            yield {**needed, name: None}


def canonicals() -> Iterator[dict[str, Any]]:
    """Canonical compile parameters: all optimizers, schedules, losses and metrics with all their arguments."""
    for entry in OPTIMIZERS.entries.values():
        for config in configs(entry):
            yield params.canonical_compile(
                {"optimizer": {"class_name": entry.class_name, "config": config}, "loss": "mse"}
            )
    for entry in SCHEDULES.entries.values():
        for config in configs(entry):
            rate = {"class_name": entry.class_name, "config": config}
            optimizer = {"class_name": "SGD", "config": {"learning_rate": rate, "momentum": 0.5, "name": "mine"}}
            yield params.canonical_compile({"optimizer": optimizer, "loss": "mse", "metrics": ["mae"]})
    for vocabulary in (LOSSES, METRICS):
        for entry in vocabulary.entries.values():
            for config in configs(entry):
                one = {"class_name": entry.class_name, "config": config} if config else entry.short or entry.class_name
                measured = {"loss": one} if vocabulary is LOSSES else {"loss": "mse", "metrics": [one, "mae"]}
                yield params.canonical_compile({"optimizer": "adam", **measured})
    for several in (
        {"loss": ["mse", "mae"], "metrics": [["mae", "AUC(curve='PR')"], []], "loss_weights": [1.0, 0.5]},
        {"loss": {"a": "mse", "b": "Huber(delta=2)"}, "metrics": {"a": ["mae"], "b": []}, "loss_weights": {"a": 2.0}},
        {"loss": "mse", "weighted_metrics": []},
        {"loss": "mse", "metrics": [], "weighted_metrics": ["mae"]},
    ):
        yield params.compile_params(json.dumps({"optimizer": "SGD(lr=0.1, decay=0.5)", **several}))


FITS = [
    "", "batch_size=8", "epochs=3, shuffle=False", "class_weight={1: 2.5, 0: 1}", "steps_per_epoch=5",
    "batch_size=1, epochs=4, initial_epoch=2, shuffle='batch', class_weight={0: 1e300}, steps_per_epoch=7",
]  # fmt: skip


def test_what_is_on_record_is_read_as_the_configuration_that_it_was() -> None:
    count = 0
    for place, compiled in enumerate(canonicals()):
        fit = params.fit_params(FITS[place % len(FITS)])
        flattened = flat.flatten({"units": 64, "dropout": [0.1, 0.2]}, compiled, fit)
        assert flat.recorded(json.loads(json.dumps(flattened)), "test") == (compiled, fit)
        assert flat.of_architecture(flattened) == {"units": 64, "dropout": [0.1, 0.2]}
        assert flattened["batch_size"] and flattened["passes"] and not {"epochs", "architecture"} & set(flattened)
        # It is a configuration that users can copy, too.
        copied = flat.parts(flattened, {"units", "dropout"}, "test")
        assert copied.arch_params == {"units": 64, "dropout": [0.1, 0.2]}
        assert params.compile_params(copied.compile_text) == compiled and params.fit_params(copied.fit_text) == fit
        count += 1
    assert count > 900


def test_a_record_is_flat_and_short() -> None:
    compiled = params.compile_params("optimizer='Adam(lr=0.01)', loss='mse', metrics=['mae']")
    flattened = flat.flatten({"units": 64}, compiled, params.fit_params("batch_size=8"))
    assert flattened == {
        "units": 64, "loss": "mse", "metrics": ["mae"], "optimizer": "Adam", "learning_rate": 0.01, "batch_size": 8,
        "passes": 1,
    }  # fmt: skip
    schedule = "optimizer='SGD(lr=ExponentialDecay(0.1, 10, 0.5))', loss='mse'"
    flattened = flat.flatten({}, params.compile_params(schedule), params.fit_params("shuffle=False"))
    assert flattened["learning_rate"] == {
        "class_name": "ExponentialDecay",
        "config": {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5},
    }
    assert "metrics" not in flattened and flattened["shuffle"] is False
    assert flat.flatten({"units": 64}, {}, {}) == {"units": 64}  # of a configuration that was refused


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ([], BadData, "has to be a JSON object"),
        ({"loss": "mse"}, InvalidArgument, "optimizer is a required parameter"),
        ({"units": 1}, InvalidArgument, "cannot be empty"),
        ({"optimizer": "SGD", "loss": "mse", "learning_rate": "SGD()"}, InvalidArgument, "learning_rate"),
        ({"optimizer": "SGD", "loss": "mse", "epochs": 3}, InvalidArgument, "'epochs' is no parameter"),
        ({"optimizer": "SGD", "loss": "mse", "batch_size": 0}, InvalidArgument, "batch_size"),
        ({"optimizer": "SGD", "loss": "mse", "beta_1": 0.5}, InvalidArgument, "beta_1"),
    ],
)
def test_a_record_that_is_none_is_refused(given: Any, error: type[CerebroError], why: str) -> None:
    with pytest.raises(error) as found:
        flat.recorded(given, "parameters of t")
    assert re.match(f"parameters of t: .*{why}|parameters of t {why}", found.value.message)
