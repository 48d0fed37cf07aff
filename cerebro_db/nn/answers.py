"""What a model says of rows, written to files as an order wants to have it: float32, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np


def write(path: str, values: np.ndarray) -> dict[str, Any]:
    """The values as they are."""
    values.astype("<f4", copy=False).tofile(path)
    return {"shape": list(values.shape[1:])}


def write_best(path: str, values: np.ndarray, labels: int, most: int | None) -> dict[str, Any]:
    """First the best class of each row, then the second best of each row and so on; then as many probabilities.

    One unit for two classes gives the probability of the second.
    """
    probabilities = values.reshape(len(values), -1)
    if labels == 2 and probabilities.shape[1] == 1:
        probabilities = np.hstack([1 - probabilities, probabilities])
    classes = ranked(probabilities, most)
    chosen = np.take_along_axis(probabilities, classes, 1)
    np.stack([classes.T, chosen.T]).astype("<f4").tofile(path)
    return {"ranks": classes.shape[1]}


def ranked(values: np.ndarray, most: int | None) -> np.ndarray:
    """The best classes of each row in the order of SQL's ``value DESC, class``: NaN comes before all numbers."""
    if most == 1:
        return values.argmax(1)[:, None]  # which finds NaN first, too, and of equals the first
    return np.lexsort((-values, ~np.isnan(values)), axis=1)[:, :most]
