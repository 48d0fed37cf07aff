# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What follows the training of a run: steps on record, which whoever brings the run to its end carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .events import Following
from .records import dataclass, field
from .search.budget import FollowUp


@dataclass(frozen=True)
class Step:
    """One thing to do with the model tables.  Each is done once after each training."""

    task: Following
    needs: Optional[FollowUp] = None  # what the budget keeps back for it; None: nothing
    arguments: Mapping[str, Any] = field(default_factory=dict)  # read by what carries it out

    @property
    def seconds(self) -> float:
        """How long it is expected to take, within what the budget may keep back for it."""
        return 0.0 if self.needs is None else self.needs.seconds


def kept_back(steps: Sequence[Step]) -> float:
    """The seconds of the budget for these steps."""
    return sum(step.seconds for step in steps)
