"""The initial state of a model for another seed, without building the model anew.

Keras gives every initializer that has no seed one that it draws from Python's generator, in the order in which layers
are made.  So a recipe needs to know only which draw an initializer got.  Building a small model takes 0.1 s, following
the recipe a few milliseconds.  How Keras draws is no promise of Keras: a recipe is followed only after its values for
one seed were found equal to those of a model that was built with that seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

MOST_DRAWS = 4096

Makers = Mapping[int, Any]  # id of a variable -> the initializer that made its value


@contextlib.contextmanager
def observed() -> Iterator[dict[int, Any]]:
    """The initializers of the variables that are made within this context."""
    import keras

    name = "_initialize_with_initializer"  # has no public name
    kind, found = keras.Variable, {}
    own, initialize = name in vars(kind), getattr(kind, name)

    def noting(variable: Any, initializer: Any) -> None:
        found[id(variable)] = initializer
        initialize(variable, initializer)

    setattr(kind, name, noting)
    try:
        yield found
    finally:
        if own:
            setattr(kind, name, initialize)
        else:
            delattr(kind, name)


class Recipe:
    """How the values of a model's state follow from a seed."""

    def __init__(self, state: Sequence[Any], makers: Makers, values: Sequence[np.ndarray], seed: int) -> None:
        """``values``: of the state, as it was built with the seed."""
        self._values, self.seed = list(values), seed
        draws = {draw: number for number, draw in enumerate(_draws(seed, MOST_DRAWS))}
        # Place in the state; variable and initializer (None: a generator of seeds, for Dropout); number of the draw.
        self._drawn: list[tuple[int, Any, int]] = []
        for place, (variable, value) in enumerate(zip(state, values)):
            initializer = makers.get(id(variable))
            its = getattr(initializer, "seed", None)
            if type(its) is int and its in draws:
                self._drawn.append((place, (variable, initializer), draws[its]))
            elif value.shape == (2,) and value.dtype.kind in "ui" and value[1] == 0 and int(value[0]) in draws:
                self._drawn.append((place, None, draws[int(value[0])]))

    def gives(self, built: Sequence[np.ndarray], seed: int, rate: tuple[int, float]) -> bool:
        """Whether it gives what was built with a seed."""
        mine = self.values(seed, rate)
        return all(one.dtype == other.dtype and one.tobytes() == other.tobytes() for one, other in zip(mine, built))

    def values(self, seed: int, rate: tuple[int, float]) -> list[np.ndarray]:
        """The state's values.  ``rate``: the place of the learning rate, which programs leave open, and its value."""
        from keras import ops

        values = list(self._values)
        draws = _draws(seed, 1 + max((number for _, _, number in self._drawn), default=-1))
        for place, made, number in self._drawn:
            if made is None:
                values[place] = np.array([draws[number], 0], values[place].dtype)
                continue
            variable, initializer = made
            initializer.seed = draws[number]
            drawn = initializer(variable.shape, dtype=variable.dtype)
            values[place] = np.asarray(ops.convert_to_numpy(drawn))  # PyTorch's may be on a GPU
        place, rate_value = rate
        values[place] = np.array(rate_value, values[place].dtype)
        return values


def _draws(seed: int, count: int) -> list[int]:
    generator = random.Random(seed % (1 << 32))
    return [generator.randint(1, int(1e9)) for _ in range(count)]


def same_seed(one: int, other: int) -> bool:
    return one % (1 << 32) == other % (1 << 32)
