"""Evaluating and predicting leave every variable of a model as it was, whatever its layers do when they are called."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from cerebro_db.core.architecture import allowlist, keras_json
from cerebro_db.core.protocol import ModelState, Origin, Predict, StateRef
from cerebro_db.nn.engines.base import open_engine
from cerebro_db.nn.orders import predictions
from cerebro_db.nn.orders.evaluations import evaluate
from cerebro_db.nn.programs import Programs
from cerebro_db.nn.rows.data import Dataset

from . import configurations as c

ROWS = 12
SHAPES = ((6,), (6, 4), (8, 8, 3), (4, 8, 8, 3))  # of a row
# Arguments with which a layer does most that it can do, and those that it must have.
GIVEN: dict[str, Any] = {
    "dropout": 0.3, "recurrent_dropout": 0.3, "rate": 0.3, "stddev": 0.3, "units": 3, "filters": 3, "kernel_size": 2,
    "num_heads": 2, "key_dim": 2, "head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1, "input_dim": 9,
    "output_dim": 3, "factor": 0.3, "height_factor": 0.3, "width_factor": 0.3, "height": 8, "width": 8, "groups": 1,
    "equation": "ab,bc->ac", "output_shape": 3, "value_range": (0.0, 1.0),
}  # fmt: skip
TWICE = ("AdditiveAttention", "Attention", "GroupQueryAttention", "MultiHeadAttention")  # a query and a value


def arguments(name: str) -> dict[str, Any]:
    known = allowlist.LAYERS[name]
    if name in ("RNN", "StackedRNNCells"):
        cell = keras.layers.GRUCell(3, dropout=0.3, recurrent_dropout=0.3)
        return {"cell": cell} if name == "RNN" else {"cells": [cell]}
    if name == "Bidirectional":
        return {"layer": keras.layers.LSTM(3, dropout=0.3, recurrent_dropout=0.3)}
    if name == "TimeDistributed":
        return {"layer": keras.layers.Dropout(0.3)}
    if name == "SpectralNormalization":
        return {"layer": keras.layers.Dense(3)}
    if name == "ActivityRegularization":
        return {"l2": 0.1}
    return {key: value for key, value in GIVEN.items() if key in known}


def called(name: str, rows: Any) -> Any:
    """The output of the layer for these rows."""
    layer = getattr(keras.layers, name)(**arguments(name))
    if name.endswith("QueryAttention") or name == "MultiHeadAttention":
        return layer(rows, rows)
    return layer([rows, rows]) if name in TWICE else layer(rows)


def writes(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the layer takes rows of this shape and has something to write."""
    rows = keras.Input(shape, name="rows")
    try:
        model = keras.Model(rows, called(name, rows))
    except Exception:  # of Keras, which has many ways to refuse a shape
        return False
    return any(one._non_trainable_variables or one._seed_generators for one in model._flatten_layers())


def layers_by_shape() -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(allowlist.LAYERS):
        shapes = SHAPES[2:] if name.startswith("Random") else SHAPES[1:] if name in TWICE else SHAPES
        shape = next((one for one in shapes if writes(name, one)), None)
        if shape is not None:
            found.setdefault(shape, []).append(name)
    return found


def beside_each_other(names: list[str], shape: tuple[int, ...]) -> keras.Model:
    """One model of all these layers: a program takes seconds to compile, and a layer in it a fraction of one."""
    rows = keras.Input(shape, name="rows")
    parts = [keras.layers.Flatten()(called(name, rows)) for name in names]
    return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Concatenate()(parts) if parts[1:] else parts[0]))


def changed(model: keras.Model, shape: tuple[int, ...], programs: Programs, folder: Path) -> list[str]:
    """The variables that are not as they were after an evaluation and a prediction."""
    configuration = c.configuration(keras_json.architecture(model.to_json()), "mse", metrics=[])
    layout = {"inputs": [c.column("rows", list(shape))], "outputs": [c.target("price", [], "real", "float32")]}
    random = np.random.default_rng(1)
    files = {}
    for column in layout["inputs"] + layout["outputs"]:
        files[column["name"]] = str(folder / column["name"])
        random.random((ROWS, *column["shape"]), "float32").tofile(files[column["name"]])
    rows = Dataset(layout, ROWS, files)
    ready = programs.ready(configuration, layout, seed=3)
    programs.load(ready, configuration, StateRef(Origin.SEED), seed=3)
    ready.token = "resident"
    before = [np.array(value) for value in ready.program.get_all()]
    state = StateRef(Origin.RESIDENT, token="resident")
    evaluate(programs, ModelState(0, state), configuration, rows, lambda: None)
    order = Predict(configuration, state, str(folder / "predictions"), handle="rows")
    predictions.predict(programs, order, rows, lambda: None)
    assert ready.token == "resident" or ready.program.volatile
    return [
        variable[0]
        for variable, one, other in zip(ready.program.variables, before, ready.program.get_all())
        if one.tobytes() != np.asarray(other).tobytes()
    ]


@pytest.mark.tensorflow
def test_every_variable_of_every_layer_is_as_it_was(tmp_path: Path) -> None:
    programs = Programs(open_engine("tensorflow", threads=None, deterministic=False))
    found = layers_by_shape()
    names = set(itertools.chain(*found.values()))
    assert {"Dropout", "GRU", "LSTM", "SimpleRNN", "RNN", "Bidirectional"} < names
    assert {"RandomZoom", "GaussianNoise", "MultiHeadAttention", "BatchNormalization"} < names
    for shape, layers in found.items():
        assert not changed(beside_each_other(layers, shape), shape, programs, tmp_path), (shape, layers)
