"""What trees lessen: of each loss the gradients and curvatures, and the scores with which all rows begin."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.models.adapt import squash
from cerebro_db.nn.trees.bins import Array

LEAST_CURVATURE, LEAST_SHARE = 1e-6, 1e-9
NEAR = 0.05  # a distance below it, in deviations of the target, pulls less than others
SQUARES = {"mse", "meansquarederror"}
DISTANCES = {"mae", "meanabsoluteerror"}
HUBER = {"huber", "huberloss"}
OF_CLASSES = {"categoricalcrossentropy", "sparsecategoricalcrossentropy"}
OF_TWO = OF_CLASSES | {"bce", "binarycrossentropy"}


class Loss(abc.ABC):
    """``targets``: (rows, scores), in the unit of the scores; of classes, 1 where a row is of one."""

    @abc.abstractmethod
    def start(self, targets: Array, weights: Array) -> Array:
        """The scores that are best for all rows together."""

    @abc.abstractmethod
    def slopes(self, targets: Array, scores: Array) -> tuple[Array, Array]:
        """The gradients, and the curvatures: one for each score, or one for all scores of a row."""


class Distances(Loss):
    """Squared differences, or such as pull no more from a distance on."""

    def __init__(self, bend: float | Array = np.inf, pull: float = 1.0) -> None:
        self._bend, self._pull = bend, pull

    def start(self, targets: Array, weights: Array) -> Array:
        found: Array = np.average(targets, axis=0, weights=weights)
        return found if np.all(np.isinf(self._bend)) else np.array([_median(one, weights) for one in targets.T])

    def slopes(self, targets: Array, scores: Array) -> tuple[Array, Array]:
        return self._pull * np.clip(scores - targets, -self._bend, self._bend), np.ones((len(scores), 1))


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, share[-1] / 2)])


class TwoClasses(Loss):
    """Crossentropy; the score is the logarithm of the odds of the second class."""

    def start(self, targets: Array, weights: Array) -> Array:
        share = np.clip(np.average(targets, axis=0, weights=weights), LEAST_SHARE, 1 - LEAST_SHARE)
        return np.log(share / (1 - share))

    def slopes(self, targets: Array, scores: Array) -> tuple[Array, Array]:
        likely = 1 / (1 + np.exp(-np.clip(scores, -60.0, 60.0)))
        return likely - targets, np.maximum(likely * (1 - likely), LEAST_CURVATURE)


class SeveralClasses(Loss):
    """Crossentropy of three classes or more."""

    def start(self, targets: Array, weights: Array) -> Array:
        found = np.log(np.maximum(np.average(targets, axis=0, weights=weights), LEAST_SHARE))
        return found - found.mean()

    def slopes(self, targets: Array, scores: Array) -> tuple[Array, Array]:
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        likely /= likely.sum(axis=1, keepdims=True)
        return likely - targets, np.maximum(likely * (1 - likely), LEAST_CURVATURE)


def loss_of(name: str, arguments: dict[str, Any], *, classes: int, unit: Array) -> Loss:
    """The loss of that name in Keras.

    ``classes``: 0 for numbers, of which a score of 1 means ``unit``.
    """
    known = squash(name)
    plain = not {key for key in arguments if key not in ("name", "reduction", "delta", "dtype")}
    if classes == 2 and known in OF_TWO and plain:
        return TwoClasses()
    if classes > 2 and known in OF_CLASSES and plain:
        return SeveralClasses()
    if not classes and known in SQUARES:
        return Distances()
    if not classes and known in DISTANCES:
        return Distances(NEAR, 1 / NEAR)
    if not classes and known in HUBER:
        return Distances(float(arguments.get("delta", 1.0)) / np.abs(unit))
    raise ConfigurationFailed(
        f"trees cannot lessen the loss {name}",
        hint="Of classes they lessen categorical_crossentropy; of numbers mse, mae and huber.",
    )
