"""Frozen layers in Keras: which layers count, that frozen layers keep their weights, and the order of weights."""

from __future__ import annotations

import copy
import json
from typing import Any

import keras
import numpy as np
import pytest

from cerebro_db.core.architecture import allowlist, keras_json
from cerebro_db.core.architecture.freezing import with_frozen
from cerebro_db.nn.models.build import build_model

from . import configurations as c
from .test_reading import SHAPES, TWICE, called

Json = dict[str, Any]
CELLS = {"GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"}  # no layers of a model


def built(architecture: Json) -> Any:
    return build_model(c.configuration(architecture, "mse", metrics=[]), None, seed=3)


def model_of(name: str) -> Any:
    """A model of the layer and a Dense layer; None if it takes rows of none of the shapes."""
    for shape in SHAPES[2:] if name.startswith("Random") else SHAPES[1:] if name in TWICE else SHAPES:
        rows = keras.Input(shape, name="rows")
        try:
            found = called(name, rows)
            return keras.Model(rows, keras.layers.Dense(1, name="out")(keras.layers.Flatten(name="flat")(found)))
        except Exception:  # of Keras, which has many ways to refuse a shape
            continue
    return None


@pytest.mark.tensorflow
def test_each_layer_that_trains_counts_and_all_of_it_is_frozen() -> None:
    counted, tried = set(), 0
    for name in sorted(set(allowlist.LAYERS) - CELLS):
        model = model_of(name)
        if model is None:
            continue
        tried += 1
        architecture = keras_json.architecture(model.to_json())
        trains = [one for one in model.trainable_variables if one.path.split("/")[0] != "out"]
        made = with_frozen(architecture, -1)
        assert (made != architecture) is bool(trains), name
        if trains:
            counted.add(name)
            frozen = built(made)
            assert len(frozen.trainable_variables) == 2, name
            assert len(built(with_frozen(made, 0)).trainable_variables) == len(model.trainable_variables), name
            shapes = [[one.shape for one in each.weights] for each in (model, frozen)]
            assert shapes[0] == shapes[1], name
    assert tried > 60 and {"Dense", "MultiHeadAttention", "Bidirectional", "SpectralNormalization"} < counted


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "given"),
    [("Attention", {"use_scale": True}), ("Attention", {"score_mode": "concat"}), ("AdditiveAttention", {}),
     ("AdditiveAttention", {"use_scale": False}), ("LayerNormalization", {"scale": False}),
     ("LayerNormalization", {"center": False, "scale": False}), ("GroupNormalization", {"center": False, "groups": 1}),
     ("GroupNormalization", {"center": False, "scale": False, "groups": 1}), ("Dense", {"units": 2, "use_bias": False}),
     ("TimeDistributed", {"layer": keras.Sequential([keras.layers.Dense(2, name="d")])}),
     ("TimeDistributed", {"layer": keras.Sequential([keras.layers.Flatten(name="f")])})],
)  # fmt: skip
def test_what_counts_may_depend_on_arguments(name: str, given: Json) -> None:
    rows = keras.Input((6, 4), name="rows")
    layer = getattr(keras.layers, name)(**given)
    found = layer([rows, rows]) if name in TWICE else layer(rows)
    model = keras.Model(rows, keras.layers.Dense(1, name="out")(found))
    architecture = keras_json.architecture(model.to_json())
    assert (with_frozen(architecture, -1) != architecture) is bool(layer.trainable_variables)
    assert len(built(with_frozen(architecture, -1)).trainable_variables) == 2


def nested() -> Any:
    """Bodies within bodies, with normalizations, a layer that is called twice, and one with layers in it."""
    rows = keras.Input((8, 8, 1), name="rows")
    inner = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3, name="conv"), keras.layers.BatchNormalization(name="norm")],
        name="inner",
    )
    image = keras.Input((8, 8, 1), name="image")
    body = keras.Model(image, keras.layers.Reshape((36, 2), name="steps")(inner(image)), name="body")
    steps = body(rows)
    twice = keras.layers.Dense(2, name="twice")
    found = twice(twice(steps))
    found = keras.layers.MultiHeadAttention(2, 2, name="attention")(found, found)
    found = keras.layers.Bidirectional(keras.layers.LSTM(2), name="both")(found)
    return keras.Model(rows, keras.layers.Dense(3, name="out")(found), name="whole")


@pytest.mark.tensorflow
def test_the_order_of_weights_does_not_depend_on_what_is_frozen() -> None:
    """Initial weights are given in the order of model.weights."""
    architecture = keras_json.architecture(nested().to_json())
    whole = built(architecture)
    paths = [one.path for one in whole.weights]
    assert len(set(paths)) == len(paths) == 4 + 2 + 2 + 8 + 6 + 2
    firsts = ["conv", "norm", "twice", "attention", "forward_lstm", "out"]
    for frozen in range(6):
        model = built(with_frozen(architecture, frozen))
        assert [one.path for one in model.weights] == paths
        assert [a.tobytes() for a in model.get_weights()] == [a.tobytes() for a in whole.get_weights()]
        # The trainable ones are the same list without its beginning, and without the statistics.
        trained = [one.path for one in model.trainable_variables]
        assert trained == [one.path for one in whole.trainable_variables][-len(trained) :]
        assert trained[0].split("/")[0] == firsts[frozen]
    values = [np.full(one.shape, number, "f4") for number, one in enumerate(whole.weights)]
    for frozen in (0, "inner", -1):
        model = build_model(
            c.configuration(with_frozen(architecture, frozen), "mse", metrics=[]), None, seed=3, weights=values
        )
        assert [float(np.ravel(one)[0]) for one in model.get_weights()] == list(range(len(values)))


@pytest.mark.tensorflow
def test_layers_in_a_frozen_layer_do_not_train_whatever_wrote_the_flag() -> None:
    """Keras itself trains the layers in attention and in wrappers if only the outer one has the flag."""
    architecture = copy.deepcopy(keras_json.architecture(nested().to_json()))
    flagged = {"attention", "both", "body"}
    for layer in architecture["config"]["layers"]:
        if layer["config"]["name"] in flagged:
            layer["config"]["trainable"] = False
    assert sorted(one.path for one in built(architecture).trainable_variables) == [
        "out/bias", "out/kernel", "twice/bias", "twice/kernel",
    ]  # fmt: skip
    plain = keras.models.model_from_json(json.dumps(architecture))
    assert len(plain.trainable_variables) > 4  # if Keras does it one day, build.py need not
