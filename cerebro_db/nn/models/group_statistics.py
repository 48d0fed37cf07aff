"""What the model of a group knows of its group's numbers: the layers that building.py adds with group_statistics.

Numbers are packed with the mean and deviation of all rows.  A model for a group that starts with random weights puts
those of its group into these layers before its first visit, and they are a part of its state from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cerebro_db.core.architecture.graph import SCALED, TARGET_OF_GROUP, measures_group

BYTES_AT_ONCE = 8 << 20  # of packed values
# Numbers that hardly differ within a group would else be blown up, also those of rows that the model has not seen.
LEAST_DEVIATION = 0.05


def layers(model: Any) -> Iterator[tuple[Any, Any, bool]]:
    """The layers, each with the input or output of the model that it measures, and whether it is an output."""
    for tensor in model.inputs:
        for layer in model.layers:
            if _is_one(layer) and layer.input is tensor:
                yield layer, tensor, False
    for tensor in model.outputs:
        last, node, _ = tensor._keras_history
        read = last._inbound_nodes[node].input_tensors  # by the last layer
        for layer in model.layers:
            if _is_one(layer) and any(one is layer.output for one in read):
                yield layer, tensor, True


def any_layer(model: Any) -> bool:
    return next(layers(model), None) is not None


def _is_one(layer: Any) -> bool:
    """A user's own model may have layers of these names."""
    if not measures_group(layer.name) or layer.trainable or len(layer._inbound_nodes) != 1:
        return False
    if layer.name.startswith(TARGET_OF_GROUP):
        return type(layer).__name__ == "EinsumDense" and layer.equation == SCALED and layer.bias is not None
    return type(layer).__name__ == "BatchNormalization" and not layer.center and not layer.scale


def of_inputs(values: np.ndarray, rows: np.ndarray, listen: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the variance of each number, over the steps of windows too."""
    mean, variance = _moments(values, rows, listen)
    deviation = np.where(variance > 0, np.maximum(np.sqrt(variance), LEAST_DEVIATION), 1.0)
    return mean.astype(np.float32), (deviation**2).astype(np.float32)


def of_target(
    values: np.ndarray, rows: np.ndarray, deviation: np.ndarray, listen: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """The deviation and the mean; ``deviation``: that of all rows, which stays if all values are equal."""
    mean, variance = _moments(values, rows, listen)
    return np.where(variance > 0, np.sqrt(variance), deviation).astype(np.float32), mean.astype(np.float32)


def _moments(values: np.ndarray, rows: np.ndarray, listen: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
    """In two passes: the square of a mean that is far from 0 has no digits left for a small variance."""
    width = values.shape[-1]
    at_once = max(1, BYTES_AT_ONCE // max(1, values[:1].nbytes))
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]

    def average(of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        total, count = np.zeros(width), 0
        for part in parts:
            known = values[part].reshape(-1, width).astype(np.float64)
            taken = of(known[~np.isnan(known).any(axis=1)])  # a step of a target may be without a value
            total, count = total + taken.sum(axis=0), count + len(taken)
            listen()
        return total / count

    mean = average(lambda taken: taken)
    return mean, average(lambda taken: (taken - mean) ** 2)
