"""The parameters that a user can give to a search method, with their bounds."""

from __future__ import annotations

from typing import Any

from ..parameters.value_types import is_finite
from ..records import dataclass

MOST_EPOCHS = 2**31 - 1


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method: a number, with its bounds."""

    name: str
    default: float | int | None = None
    low: float | None = None
    high: float | None = None
    whole: bool = True
    needed: bool = False
    unset: str = ""  # what the default None means

    def problem(self, value: Any) -> str | None:
        """Why the value is not possible."""
        if not is_finite(value) or (self.whole and value != int(value)):
            return f"it must be a {'whole ' if self.whole else ''}number"
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            upto = f" and at most {self.high}" if self.high is not None else ""
            return f"it must be at least {self.low}{upto}"
        return None


MIN_EPOCHS = Parameter("min_epochs", 1, 1, MOST_EPOCHS)
RUNGS = (MIN_EPOCHS, Parameter("reduction", 3.0, 1.1, 1000, whole=False))
