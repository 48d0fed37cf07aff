"""The weights of a model whose adapters become part of the weights of its layers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebro_db.core.architecture.adapters import layers
from cerebro_db.core.errors import CorruptState, InvalidArgument
from cerebro_db.core.protocol import MergeAdapters
from cerebro_db.nn.models import build


def merge(order: MergeAdapters, listen: Callable[[], None]) -> None:
    """Write the weights of the layers over those of the model, one array after the other."""
    import keras  # only now: the trainer chooses the backend first

    layout = {"inputs": [{"shape": shape} for shape in order.shapes], "outputs": []}
    model, merging = build.build_to_merge(order.architecture, layout)
    variables = layers.weights(model)
    path = order.state.path
    if path is None:
        raise InvalidArgument("the weights of the model were not received")
    wanted, found = 4 * sum(map(_elements, variables)), os.path.getsize(path)
    if found != wanted:
        raise CorruptState(f"the weights have {found:,} bytes, and the architecture needs {wanted:,}")
    with open(path, "rb") as file:
        for variable in variables:
            value = np.fromfile(file, "<f4", _elements(variable)).reshape(variable.shape)
            build.give_value(variable, value.astype(str(variable.dtype), copy=False))
    for one in merging:
        one()
        listen()
    with open(path, "wb") as file:
        for variable in variables[: layers.of_layers(variables)]:
            keras.ops.convert_to_numpy(variable).astype("<f4", copy=False).tofile(file)


def _elements(variable: Any) -> int:
    return math.prod(map(int, variable.shape))
