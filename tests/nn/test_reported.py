"""The names under which results are reported: what core says of compile parameters, against what Keras does."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.parameters.params import compile_params
from cerebro_db.core.parameters.reported import LARGER_IS_BETTER, NUMBERED, reported
from cerebro_db.core.parameters.vocabulary import METRICS
from cerebro_db.nn import metric_states
from cerebro_db.nn.models.build import build_model

from . import configurations as c
from .test_metric_states import OF_CLASSES, OF_NUMBERED_CLASSES, OF_NUMBERS, OF_TWO_CLASSES

ONE = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=3, activation="softmax"))
TWO = c.two_by_two()


def by_keras(architecture: c.Json, compiled: c.Json) -> set[str]:
    model = build_model({"architecture": architecture, "compile": compiled, "fit": {}}, None, 1)
    outputs = [np.zeros((2, output.shape[-1]), "float32") for output in model.outputs]
    y = outputs[0] if len(outputs) == 1 else outputs
    model._compile_loss(y, y)
    if model._compile_metrics is not None:
        model._compile_metrics.build(y, y)
    return set(metric_states.by_name(model))


def names(architecture: c.Json, **compiled: Any) -> tuple[set[str], set[str]]:
    canonical = compile_params(json.dumps({"optimizer": "SGD", **compiled}))
    canonical = keras_json.for_outputs(canonical, architecture)
    return by_keras(architecture, canonical), set(reported(canonical, keras_json.outputs(architecture)))


@pytest.mark.parametrize("name", sorted(METRICS.entries))
def test_every_metric(name: str) -> None:
    """Once by its name and twice as an object with arguments, so that Keras has to number some."""
    every = [*OF_CLASSES, *OF_NUMBERED_CLASSES, *OF_TWO_CLASSES, *OF_NUMBERS]
    config = next({**one["config"], "name": None} for one in every if one["class_name"] == name)
    config.pop("name")
    objects = [{"class_name": name, "config": {**config, "dtype": "float32"}} for _ in range(2)]
    entry = METRICS.entries[name]
    simple = [] if entry.required else [entry.short]
    for metrics in ([objects[0]], [*simple, *objects], [*objects, *simple]):
        given, said = names(ONE, loss="mse", metrics=metrics, weighted_metrics=[objects[0]])
        assert said == given


def test_every_class_is_known() -> None:
    assert not (LARGER_IS_BETTER | NUMBERED) - set(METRICS.entries)


@pytest.mark.parametrize(
    "compiled",
    [
        {"metrics": ["accuracy", "acc", "mse", "mae", "mean_squared_error"]},
        {"metrics": [{"class_name": "AUC", "config": {"name": "area"}}, "auc", {"class_name": "AUC", "config": {}}]},
        {"metrics": ["accuracy"], "weighted_metrics": ["accuracy", "accuracy", "mae"]},
        {"metrics": []},
        {"metrics": {"out": ["mae", "top_3_accuracy"]}},
    ],
    ids=str,
)
def test_one_output(compiled: dict[str, Any]) -> None:
    given, said = names(ONE, **{"loss": "mse", **compiled})
    assert said == given


@pytest.mark.parametrize(
    "compiled",
    [
        {"metrics": ["mae"]},
        {"metrics": [["mae", "auc"], ["auc"]]},
        {"metrics": {"mood": ["accuracy", {"class_name": "AUC", "config": {"curve": "PR"}}]}},
        {"metrics": {"mood": ["mae"], "price": ["mae", "mae"]}, "weighted_metrics": [["mae"], None]},
        {"loss": {"mood": "mae", "price": "mse"}},
        {"loss": ["mse", None]},
    ],
    ids=str,
)
def test_two_outputs(compiled: dict[str, Any]) -> None:
    given, said = names(TWO, **{"loss": ["mse", "categorical_crossentropy"], **compiled})
    assert said == given
