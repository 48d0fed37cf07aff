"""Our tables of names agree with the installed Keras: each entry exists and takes these arguments."""

from __future__ import annotations

import inspect
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest

from cerebro_db.core.architecture import allowlist
from cerebro_db.core.architecture.building import PINBALL
from cerebro_db.core.parameters.params import compile_params
from cerebro_db.core.parameters.vocabulary import DEFAULT_RATE, LOSSES, METRICS, OPTIMIZERS, SCHEDULES
from cerebro_db.nn.models import pinball


def taken_by(found: type) -> set[str]:
    """Argument names of a class and of the classes that take its **kwargs."""
    names = set(inspect.signature(found.__init__).parameters)
    return names.union(*(taken_by(base) for base in found.__bases__ if base is not object))


@pytest.mark.parametrize(
    ("module", "table", "also"),
    [
        (
            keras.layers,
            allowlist.LAYERS,
            # IntegerLookup writes the size of its vocabulary, and reads it as one of its **kwargs.
            {"name", "trainable", "dtype", "activity_regularizer", "rms_scaling", "data_format", "vocabulary_size"},
        ),
        (keras.initializers, allowlist.INITIALIZERS, set()),
        (keras.regularizers, allowlist.REGULARIZERS, set()),
        (keras.constraints, allowlist.CONSTRAINTS, set()),
    ],
    ids=["layers", "initializers", "regularizers", "constraints"],
)
def test_the_allow_list_has_real_classes_and_arguments(module, table, also):
    for name, arguments in table.items():
        found = getattr(module, name)
        assert isinstance(found, type)
        assert arguments - also <= taken_by(found), name


NEEDED = {
    "activation": "relu", "axes": 1, "cells": [], "cropping": 1, "dims": (2, 1), "equation": "ab,bc->ac", "factor": 0.1,
    "filters": 2, "frame_length": 4, "frame_step": 2, "fft_length": 4, "groups": 1, "head_dim": 2, "height": 4,
    "height_factor": 0.1, "width_factor": 0.1, "input_dim": 3, "kernel_size": 2, "key_dim": 2, "n": 2, "num_heads": 1,
    "num_key_value_heads": 1, "num_query_heads": 1, "output_dim": 2, "output_shape": 2, "output_size": 2,
    "pool_size": 2, "rate": 0.1, "scale": 2.0, "stddev": 0.1, "target_shape": (2,), "units": 2, "width": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(allowlist.LAYERS))
def test_what_keras_writes_about_a_layer_is_allowed(name):
    found = getattr(keras.layers, name)
    signature = inspect.signature(found.__init__).parameters
    given = {key: NEEDED[key] for key in signature if key in NEEDED and signature[key].default is inspect._empty}
    if name == "StackedRNNCells":
        given = {"cells": [keras.layers.LSTMCell(2)]}
    elif name == "RNN":
        given = {"cell": keras.layers.LSTMCell(2)}
    elif name in ("Bidirectional", "TimeDistributed", "SpectralNormalization"):
        given = {"layer": keras.layers.LSTM(2) if name == "Bidirectional" else keras.layers.Dense(2)}
    elif name == "InputLayer":
        given = {"batch_shape": (None, 2)}
    elif name == "Hashing":
        given = {"num_bins": 3}
    elif name == "IntegerLookup":
        given = {"vocabulary": [1, 2]}
    elif name == "CategoryEncoding":
        given = {"num_tokens": 3}
    elif name == "Discretization":
        given = {"bin_boundaries": [0.0, 1.0]}
    elif name == "Normalization":
        given = {"mean": 0.0, "variance": 1.0}
    model = keras.Sequential([keras.layers.Dense(1)])
    saved = json.loads(model.to_json())
    layer = json.loads(json.dumps(keras.saving.serialize_keras_object(found(**given))))
    saved["config"]["layers"] = [layer]
    allowlist.check(saved)


def test_names_without_arguments_are_known():
    for names, get in (
        (allowlist.ACTIVATIONS, keras.activations.get),
        (allowlist.INITIALIZER_NAMES, keras.initializers.get),
        (allowlist.REGULARIZER_NAMES, keras.regularizers.get),
        (allowlist.CONSTRAINT_NAMES, keras.constraints.get),
    ):
        for name in names:
            assert callable(get(name)), name


@pytest.mark.parametrize("entry", OPTIMIZERS.entries.values(), ids=lambda entry: entry.class_name)
def test_optimizers(entry):
    found = getattr(keras.optimizers, entry.class_name)
    assert set(entry.arguments) <= set(inspect.signature(found.__init__).parameters)
    default = inspect.signature(found.__init__).parameters["learning_rate"].default
    assert DEFAULT_RATE.get(entry.class_name, 0.001) == default
    made = compile_params(f"optimizer={entry.class_name}(lr=0.5), loss=mse")["optimizer"]
    assert made["class_name"] == entry.class_name
    found(**made["config"])


@pytest.mark.parametrize("entry", SCHEDULES.entries.values(), ids=lambda entry: entry.class_name)
def test_schedules(entry):
    found = getattr(keras.optimizers.schedules, entry.class_name)
    signature = inspect.signature(found.__init__).parameters
    assert set(entry.arguments) <= set(signature)
    needed = {name for name, one in signature.items() if one.default is inspect.Parameter.empty and name != "self"}
    assert needed == set(entry.required)


@pytest.mark.parametrize(
    ("vocabulary", "module"), [(LOSSES, keras.losses), (METRICS, keras.metrics)], ids=["losses", "metrics"]
)
def test_losses_and_metrics(vocabulary, module):
    own = [entry for entry in vocabulary.entries.values() if entry.class_name == PINBALL]
    for entry in own:  # ours: Keras has none
        assert entry.required == ["quantiles"] and pinball.of([0.5]).name == entry.short
    for entry in vocabulary.entries.values():
        if entry in own:
            continue
        found = getattr(module, entry.class_name)
        signature = inspect.signature(found.__init__).parameters
        assert set(entry.arguments) <= set(signature), entry.class_name
        needed = {name for name, one in signature.items() if one.default is inspect.Parameter.empty and name != "self"}
        assert needed == set(entry.required)
        if not needed:
            assert module.get(entry.short) is not None
    for name in vocabulary.spelled - {"acc", PINBALL, *(entry.short for entry in own)}:  # acc: by the output's shape
        assert module.get(name) is not None


def test_decay_means_what_it_meant():
    made = compile_params("optimizer='SGD(lr=0.5, decay=0.1)', loss=mse")["optimizer"]
    schedule = keras.optimizers.schedules.deserialize(made["config"]["learning_rate"])
    for step in (0, 1, 2, 10):
        assert float(schedule(step)) == pytest.approx(0.5 / (1 + 0.1 * step))
