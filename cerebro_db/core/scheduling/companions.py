"""Which visits begin together with another one: fused in one pass, or after it in the same order to a trainer.

Visits that begin together reach the next segment together. So a segment takes only as many as leave the other segments
their share of all work: a crowd of models would leave all segments idle but one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .plan import Train
from .ring import power_of_two

ROUNDING = 1 + 1e-9  # equal shares are equal, in whatever order they were added up

Seconds = Callable[[int], float]  # of a model


def fused(candidates: Sequence[Train], work: Seconds, room: float, most: int) -> list[Train]:
    """The visits that train fused with another one: 1, 3, 7, … of the candidates, which are sorted by urgency.

    A pass has 2, 4, 8, … members, because the step is compiled anew for each number. ``room`` is the work that they
    may have left, ``most`` the number of members.
    """
    chosen: list[Train] = []
    for visit in candidates:
        if work(visit.model) <= room * ROUNDING and len(chosen) + 1 < most:
            room -= work(visit.model)
            chosen.append(visit)
    return chosen[: power_of_two(len(chosen) + 1) - 1]


def in_series(candidates: Sequence[Train], work: Seconds, room: float, pace: Seconds, seconds: float) -> list[Train]:
    """The visits that train after another one in the same order, which costs milliseconds however short its visits are.

    Each of them has a known pace, and in all they are expected to take no more than ``seconds``.
    """
    chosen: list[Train] = []
    for visit in candidates:
        took = pace(visit.model)
        if took and took <= seconds and work(visit.model) <= room * ROUNDING:
            seconds, room = seconds - took, room - work(visit.model)
            chosen.append(visit)
    return chosen
