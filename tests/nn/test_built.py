"""Keras builds the architectures that are made for packed tables, and their outputs have the shapes of the targets."""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy as np
import pytest

from cerebro_db.core.architecture import building, keras_json
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.windows import Windows
from tests.core.test_building import EDGES, EVERY, KIND, NUMBERS, PRICE, layout, windowed

WHOLE = layout(EVERY, KIND, PRICE)
OF_WINDOWS = replace(layout(list(map(windowed, EVERY)), KIND, PRICE), windows=Windows((), ("at",), 20, 10, "last"))


@pytest.mark.parametrize(
    ("kind", "packed"),
    [(kind, WHOLE) for kind in building.PARAMETERS if kind not in ("trees", "cnn_lstm")]
    + [(kind, OF_WINDOWS) for kind in building.PARAMETERS if kind not in ("cnn", "trees")],
    ids=lambda one: one if isinstance(one, str) else "windows" if one is OF_WINDOWS else "rows",
)
def test_keras_builds_it(kind: str, packed: Layout) -> None:
    read = keras_json.architecture(json.dumps(building.architecture(kind, packed, None, "test")))
    model = keras.Model.from_config(read["config"])
    kinds, prices = model({one.name: np.ones((3, *one.shape[1:]), one.dtype) for one in model.inputs})
    assert (tuple(kinds.shape), tuple(prices.shape)) == ((3, 3), (3, 1))
    np.testing.assert_allclose(np.sum(np.asarray(kinds), axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_number_goes_through_its_bins(precision: str) -> None:
    """The layers compute the piecewise-linear encoding.  The largest numbers that packing makes stay finite."""
    built = building.architecture("mlp", layout([NUMBERS], PRICE), {"bins": 4, "embedding": 0}, "test")
    whole = keras.Model.from_config(computed_in(keras_json.architecture(json.dumps(built)), precision)["config"])
    model = keras.Model(whole.inputs, whole.get_layer("re_lu_1").output)
    ages = np.array([-100, -2, -1.25, -0.5, -0.1, 0, 0.25, 0.5, 1, 2, 100], "float32")
    rows = np.zeros((len(ages), 5), "float32")
    rows[:, 0] = ages
    found = np.asarray(model({"numbers": rows}), "float32").reshape(len(ages), 4, 5)
    wanted = [np.interp(ages, [low, high], [0, 1]) for low, high in zip(EDGES, EDGES[1:])]
    np.testing.assert_allclose(found[:, :, 0], np.stack(wanted, axis=1), atol=1e-5 if precision == "float32" else 0.01)
    assert not found[:, :, 1].any()  # an indicator of NULL has no bins
