"""The budget of a run: when it is spent, no visit begins, and the models can be used as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..documents import shown
from ..records import dataclass

MOST = 1e15  # of any limit


@dataclass(frozen=True)
class Used:
    """What a run has used so far, in all of its parts: a resumed run goes on counting."""

    seconds: float = 0.0  # while it was driven
    unit_seconds: float = 0.0  # of all visits and evaluations


@dataclass(frozen=True)
class Budget:
    """``None``: no limit. ``configurations`` limits how many models there are in all, and ends no training.

    Of the models of a configuration with folds, only that on all rows counts.
    ``least_epochs``: how many epochs some model completes, whatever the limits are: a model that has none is no use.
    """

    seconds: float | None = None
    unit_hours: float | None = None
    hops: int | None = None
    configurations: int | None = None
    least_epochs: int | None = None

    @property
    def limits(self) -> bool:
        """Whether it can end the training of models."""
        return not (self.seconds is None and self.unit_hours is None and self.hops is None)

    def spent(self, used: Used, hops: int, epochs: int) -> bool:
        """Whether nothing new may begin.

        ``hops``: how many there are, those under way included.  ``epochs``: how many the model with most has completed.
        """
        if self.least_epochs is not None and epochs < self.least_epochs:
            return False
        return (
            (self.seconds is not None and used.seconds >= self.seconds)
            or (self.unit_hours is not None and used.unit_seconds >= 3600 * self.unit_hours)
            or (self.hops is not None and hops >= self.hops)
        )

    def room(self, models: int) -> int | None:
        """How many models may be added, if there are so many."""
        return None if self.configurations is None else max(0, self.configurations - models)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, value: object) -> Budget:
        """An error says which limit is no number above zero."""
        if not isinstance(value, Mapping):
            raise ValueError('a budget is a JSON object, for instance {"seconds": 600}')
        for name, limit in value.items():
            whole = name in ("hops", "configurations", "least_epochs")
            if name not in cls.__dataclass_fields__:
                raise ValueError(
                    f"a budget has no limit '{str(name)[:80]}'; it has: {', '.join(cls.__dataclass_fields__)}"
                )
            if type(limit) not in ((int,) if whole else (int, float)) or not 0 < limit <= MOST:
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"the limit '{name}' of a budget must be {kind} above 0, not {shown(limit)}")
        return cls(**value)
