"""Which units begin together with another one: fused in one pass, or after it in the same order to a trainer.

Visits that begin together reach the next segment together. So a segment takes only as many as leave the other segments
their share of all work: a crowd of models would leave all segments idle but one.  The same holds for evaluations: a
model trains on when the order that evaluates it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .plan import Evaluate, Train, Unit
from .ring import power_of_two

ROUNDING = 1 + 1e-9  # equal shares are equal, in whatever order they were added up

Seconds = Callable[[int], float]  # of a model


def are_alike(one: Unit, other: Unit) -> bool:
    """Whether one order to a trainer can have both: two visits, or two evaluations on the same rows."""
    if isinstance(one, Evaluate) and isinstance(other, Evaluate):
        return (one.dataset, one.part) == (other.dataset, other.part)
    return isinstance(one, Train) and isinstance(other, Train)


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


def in_series(candidates: Sequence[Unit], work: Seconds, room: float, pace: Seconds, seconds: float) -> list[Unit]:
    """The units that come after another one in the same order, which costs milliseconds however short its units are.

    Each of them has a known pace, and in all they are expected to take no more than ``seconds``.
    """
    chosen: list[Unit] = []
    for unit in candidates:
        took = pace(unit.model)
        if took and took <= seconds and work(unit.model) <= room * ROUNDING:
            seconds, room = seconds - took, room - work(unit.model)
            chosen.append(unit)
    return chosen
