"""The budget of a run: when it is spent, no visit begins, and the models can be used as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from ..codec import Within
from ..documents import shown
from ..records import dataclass, field

MOST = 1e15  # of any limit
MOST_SLOWER = 3.0  # times; a single slow evaluation is no measure


@dataclass(frozen=True)
class Used:
    """What a run has used so far, in all of its parts: a resumed run goes on counting."""

    seconds: float = 0.0  # while it was driven
    unit_seconds: float = 0.0  # of all visits and evaluations
    kept_back: float = 0.0  # what the call will need after the run


@dataclass(frozen=True)
class MachineSpeed:
    """What a run has measured of this machine, as busy as it is: by that, what follows the run is expected to take."""

    building: float = 0.0  # seconds of the slowest first visit of a model to a segment
    evaluation: float = 0.0  # of a model on all rows for validation: as the first ones took
    recent: float = 0.0  # as the last ones took
    models: int = 0  # that have completed an epoch, without copies of others: as many can join an ensemble

    @property
    def slower(self) -> float:
        """How many times slower the machine has become: evaluations read the same rows again and again."""
        if self.evaluation <= 0:
            return 1.0
        return min(MOST_SLOWER, max(1.0, self.recent / self.evaluation))


@dataclass
class FollowUp:
    """What a call computes after its run: how much, and how long that is expected to take.

    The run measures on this machine what that takes.  So a slow or busy machine keeps more of a budget back than a
    fast one.
    """

    firsts: Annotated[int, Within(0, 1000)]  # what takes as long as building a program
    passes: Annotated[int, Within(0, 1000)]  # over all rows for validation: one of each model, and at most so many
    most: Annotated[float, Within(0, MOST)]  # seconds that are kept back for it
    whole: bool = False  # all of them, whatever is measured
    seconds: float = field(default=0.0, init=False)  # as it was expected last; 0 before anything is measured

    def expect(self, measured: MachineSpeed) -> float:
        """The seconds, by what the run has measured so far."""
        building = self.firsts * measured.building * measured.slower
        passing = min(self.passes, measured.models) * max(measured.evaluation, measured.recent)
        self.seconds = self.most if self.whole else min(self.most, building + passing)
        return self.seconds


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

    def lacks(self, epochs: int) -> bool:
        """Whether no model has the least epochs.  ``epochs``: how many the model with most has completed."""
        return self.least_epochs is not None and epochs < self.least_epochs

    def reached(self, used: Used, hops: int, visit: float = 0.0) -> bool:
        """Whether one of its limits is.

        ``hops``: how many there are, those under way included.  ``visit``: the seconds of a visit.
        """
        seconds_left = self.seconds_left(used, visit)
        return (
            (seconds_left is not None and seconds_left <= 0)
            or (self.unit_hours is not None and used.unit_seconds >= 3600 * self.unit_hours)
            or (self.hops is not None and hops >= self.hops)
        )

    def seconds_left(self, used: Used, visit: float = 0.0) -> float | None:
        """How long visits may still begin; None: seconds are not limited.

        A visit that begins is completed.  So the last one begins where it is expected to end in time.
        """
        return None if self.seconds is None else self.seconds - used.kept_back - visit - used.seconds

    def room(self, models: int) -> int | None:
        """How many models may be added, if there are so many."""
        return None if self.configurations is None else max(0, self.configurations - models)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_document(cls, value: object) -> Budget:
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
