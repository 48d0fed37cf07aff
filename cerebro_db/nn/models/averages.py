"""The weights that a model is evaluated with, where its optimizer averages those that it trains.

With ``use_ema`` they are the moving averages, which Keras' ``fit`` puts into the model at its end.  ScheduleFreeAdamW
trains a mixture of two sequences of weights, and the one to evaluate is its averaged sequence (Defazio et al., The Road
Less Scheduled, 2024).  Keras 3.15 evaluates the mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Averages:
    """Which variables of a state hold averages, and the averages."""

    def __init__(self, optimizer: Any, state: list[Any]) -> None:
        """``optimizer``: None if the model is not compiled."""
        places = {id(variable): place for place, variable in enumerate(state)}
        self._slots: dict[int, int] = {}  # place of a weight -> place of what the optimizer has for it
        self._mixed: float | None = None  # the share of the average in the weight
        self._steps = -1
        found: list[Any] = []
        if optimizer is not None and optimizer.use_ema:
            found = optimizer._model_variables_moving_average
        elif type(optimizer).__name__ == "ScheduleFreeAdamW" and optimizer.beta_1:
            found, self._mixed = optimizer._momentums, float(optimizer.beta_1)
        for weight, slot in zip(optimizer._trainable_variables if found else (), found):
            if slot is not None:
                self._slots[places[id(weight)]] = places[id(slot)]
        if self._slots:
            self._steps = places[id(optimizer._iterations)]

    def __bool__(self) -> bool:
        return bool(self._slots)

    def __iter__(self) -> Iterator[int]:
        """The places of the averaged weights."""
        return iter(self._slots)

    def value(self, place: int, get: Callable[[int], np.ndarray]) -> np.ndarray:
        """What to evaluate in place of this weight; ``get`` reads a variable of the state."""
        weight, slot = get(place), self._slots.get(place)
        if slot is None or not int(get(self._steps)):
            return weight  # before the first step there is no average
        if self._mixed is None:
            return get(slot)
        wide = np.result_type(weight.dtype, np.float32)
        mixed, other = weight.astype(wide), get(slot).astype(wide)
        return ((mixed - (1 - self._mixed) * other) / self._mixed).astype(weight.dtype)
