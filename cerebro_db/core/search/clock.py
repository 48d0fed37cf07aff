"""What the driver has measured of a run's time: the part of the history that only timed policies read."""

from __future__ import annotations

from collections.abc import Mapping

from ..records import dataclass, field


@dataclass(frozen=True)
class RunClock:
    """The time of a run at the moment of a decision.  None: not limited, or not known yet."""

    seconds: float | None = None  # of the budget
    left: float | None = None  # until the last visit may begin
    segments: int = 1
    epoch: float | None = None  # seconds of a typical model's epoch: all its visits and evaluations
    epochs: Mapping[int, float] = field(default_factory=dict)  # the same of single models

    def epoch_of(self, model: int) -> float | None:
        return self.epochs.get(model, self.epoch)
