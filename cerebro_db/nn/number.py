"""A number of a configuration as a variable that Keras takes for the number.  (Imports the framework.)"""

from __future__ import annotations

from typing import Any

import keras


class Number(keras.Variable):
    """A positive number.  Its value may change after what computes with it has been compiled.

    What Keras asks of such a number before it computes (``if self.momentum != 0``) has the same answer
    for every positive one, and is asked while there is no value to look at.  ``1 - number`` is rounded
    from the number itself, as it would be from a Python float, and not from the rounded number.
    """

    def __init__(self, number: float) -> None:
        super().__init__(number, dtype="float32", trainable=False, autocast=False, name="number")
        self.complement = keras.Variable(
            1.0 - number, dtype="float32", trainable=False, autocast=False, name="complement"
        )

    def put(self, number: float) -> None:
        self.assign(number)
        self.complement.assign(1.0 - number)

    def __rsub__(self, other: Any) -> Any:
        return self.complement.value if type(other) in (int, float) and other == 1 else super().__rsub__(other)

    def __bool__(self) -> bool:
        return True

    def __gt__(self, other: Any) -> Any:
        return True if type(other) in (int, float) and other == 0 else super().__gt__(other)

    def __ne__(self, other: Any) -> Any:
        return True if type(other) in (int, float) and other == 0 else super().__ne__(other)

    __hash__ = keras.Variable.__hash__
