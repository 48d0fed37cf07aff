"""Keras builds the architectures that are made for packed tables, and their outputs have the shapes of the targets."""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy as np
import pytest

from cerebro_db.core.architecture import building, reading
from cerebro_db.core.layout import Layout
from cerebro_db.core.windows import Windows
from tests.core.test_building import EVERY, KIND, PRICE, layout, windowed

WHOLE = layout(EVERY, KIND, PRICE)
OF_WINDOWS = replace(layout(list(map(windowed, EVERY)), KIND, PRICE), windows=Windows((), ("at",), 20, 10, "last"))


@pytest.mark.parametrize(
    ("kind", "packed"),
    [(kind, WHOLE) for kind in building.PARAMETERS]
    + [(kind, OF_WINDOWS) for kind in building.PARAMETERS if kind != "cnn"],
    ids=lambda one: one if isinstance(one, str) else "windows" if one is OF_WINDOWS else "rows",
)
def test_keras_builds_it(kind: str, packed: Layout) -> None:
    read = reading.architecture(json.dumps(building.architecture(kind, packed, None, "test")))
    model = keras.Model.from_config(read["config"])
    kinds, prices = model({one.name: np.ones((3, *one.shape[1:]), one.dtype) for one in model.inputs})
    assert (tuple(kinds.shape), tuple(prices.shape)) == ((3, 3), (3, 1))
    np.testing.assert_allclose(np.sum(np.asarray(kinds), axis=1), 1, rtol=1e-5)
