"""What the model of a group knows of its group's numbers: the layers that building.py adds with group_statistics.

Numbers are packed with the mean and deviation of all rows.  A model for a group that starts with random weights puts
those of its group into these layers before its first visit, and they are a part of its state from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebro_db.core.architecture.graph import INPUTS_OF_GROUP, OUTPUTS_OF_GROUP

ROWS_AT_ONCE = 1 << 16
# Of the deviation of all rows.  Numbers that hardly differ within a group would else be blown up, also those of rows
# that the model has not seen.
LEAST_DEVIATION = 0.05


def layers(model: Any) -> Iterator[tuple[Any, Any, bool]]:
    """The layers, each with the input or output of the model that it measures, and whether it is an output."""
    for layer in model._flatten_layers(include_self=False):
        if layer.name.startswith(INPUTS_OF_GROUP):
            yield from ((layer, tensor, False) for tensor in model.inputs if tensor is layer.input)
    for tensor in model.outputs:
        last = tensor._keras_history.operation
        if len(getattr(last, "_inbound_nodes", ())) == 1 and last._inbound_nodes[0].parent_nodes:
            layer = last._inbound_nodes[0].parent_nodes[0].operation
            if layer.name.startswith(OUTPUTS_OF_GROUP):
                yield layer, tensor, True


def of_inputs(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the variance of each number, over the steps of windows too."""
    mean, variance = _moments(values, rows)
    deviation = np.where(variance > 0, np.maximum(np.sqrt(variance), LEAST_DEVIATION), 1.0)
    return mean.astype(np.float32), (deviation**2).astype(np.float32)


def of_target(values: np.ndarray, rows: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The deviation and the mean; ``deviation``: that of all rows, which stays if all values are equal."""
    mean, variance = _moments(values, rows)
    return np.where(variance > 0, np.sqrt(variance), deviation).astype(np.float32), mean.astype(np.float32)


def _moments(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In two passes: the square of a mean that is far from 0 has no digits left for a small variance."""
    width = values.shape[-1]
    parts = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]

    def average(of: Any) -> np.ndarray:
        total, count = np.zeros(width), 0
        for part in parts:
            taken = of(values[part].reshape(-1, width).astype(np.float64))
            total, count = total + taken.sum(axis=0), count + len(taken)
        return total / count

    mean = average(lambda taken: taken)
    return mean, average(lambda taken: (taken - mean) ** 2)
