# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What follows the training of a run: steps on record, which whoever brings the run to its end carries out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .events import Following
from .models.member_choice import LEAST_MEMBERS, USUAL_MEMBERS
from .records import dataclass, field
from .search.budget import FollowUp

MOST_OF_BUDGET = {Following.ENSEMBLE: 0.25, Following.CALIBRATE: 0.15, Following.REFIT: 0.3}  # that is kept back
MOST_EXCESS, LEAST_EXCESS = 0.1, 2.0  # of a budget, and seconds: by so much a call may exceed it
SHARE_OF_STEPS = 0.5


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


def allowed(budget: float) -> float:
    """The seconds by which a call may exceed its budget: a tenth of it, or 2 s if that is more."""
    return max(MOST_EXCESS * budget, LEAST_EXCESS)


def excess_of_steps(budget: float) -> float:
    """The part of it that the steps may use, if what was kept back for them turns out too small."""
    return SHARE_OF_STEPS * allowed(budget)


def what_it_needs(task: Following, budget: float) -> FollowUp:
    """What a step computes.  ``budget``: the seconds of the whole call; 0: not limited.

    For the ensemble, the model tables are made, a trainer starts and builds a program, and each member predicts.  The
    program of the ensemble is another one; it is built for the calibration, and predicts what all members do.  How long
    the training on all rows takes depends on the epochs and the members that are chosen, which nobody knows before: the
    whole part of the budget is kept back for it.
    """
    if task is Following.REFIT:
        return FollowUp(firsts=0, passes=0, most=MOST_OF_BUDGET[task] * budget, whole=True)
    return FollowUp(firsts=1, passes=USUAL_MEMBERS, most=MOST_OF_BUDGET[task] * budget)


def least_models(steps: Sequence[Step]) -> int:
    """How many models these steps need."""
    return LEAST_MEMBERS if any(step.task is Following.ENSEMBLE for step in steps) else 1


def kept_back(steps: Sequence[Step]) -> float:
    """The seconds of the budget for these steps."""
    return sum(step.seconds for step in steps)
