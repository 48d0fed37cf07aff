"""A number of a configuration as a variable that Keras can use in the number's place.  (Imports the framework.)"""

from __future__ import annotations

from typing import Any

import keras


class NumberVariable(keras.Variable):
    """A positive number, whose value may change after the code that uses it was compiled.

    Keras tests such a number before it computes (``if self.momentum != 0``).  The test runs while the code is traced,
    when there is no value, and has the same result for every positive number.  ``1 - number`` is rounded from the
    number itself, as from a Python float, and not from the number in float32.
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
