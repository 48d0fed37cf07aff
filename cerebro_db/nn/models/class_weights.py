"""Weights of the rows of a batch: by the class of their target, and as they were packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed


def by_number(class_weight: dict[Any, float] | None) -> np.ndarray | None:
    """Weights by class number, with a 1.0 at the end for all other classes."""
    if not class_weight:
        return None
    try:
        weights = {int(label): float(weight) for label, weight in class_weight.items()}
    except (TypeError, ValueError, AttributeError):
        raise ConfigurationFailed("class_weight has to be a dict from class numbers to weights") from None
    if min(weights) < 0 or max(weights) >= 1 << 20:
        raise ConfigurationFailed(f"class_weight names class {min(weights)}..{max(weights)}; classes count from 0")
    table = np.ones(max(weights) + 2, "float32")
    for label, weight in weights.items():
        table[label] = weight
    return table


def of_batch(of_rows: Any, target: Any, weights: np.ndarray | None) -> Any:
    """The sample weights of a batch; None: all rows weigh the same.  ``of_rows``: its packed weights, if any."""
    from keras import ops

    steps = (-1,) if of_rows is None or of_rows.shape[1] == 1 else (-1, of_rows.shape[1])
    known = None if of_rows is None else ops.reshape(of_rows, steps)
    if weights is None:
        return known
    of_classes = sample_weights(target, weights)
    return of_classes if known is None else of_classes * known


def sample_weights(target: Any, weights: np.ndarray) -> Any:
    """The sample weights that Keras' fit makes of class_weight (fit makes them in NumPy, for all rows at once)."""
    from keras import ops

    if len(target.shape) > 1:
        target = ops.squeeze(target, -1) if target.shape[-1] == 1 else ops.argmax(target, axis=-1)
    labels = ops.cast(ops.round(target), "int32")
    others = len(weights) - 1
    labels = ops.where(ops.logical_or(labels < 0, labels > others), others, labels)
    return ops.take(ops.convert_to_tensor(weights), labels, axis=0)
