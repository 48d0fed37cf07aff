"""Which units begin together with another one: fused in one pass, or after it in the same order to a trainer.

Visits that begin together reach the next segment together. So a segment takes only as many as leave the other segments
their share of all work: a crowd of models would leave all segments idle but one.  The same holds for evaluations: a
model trains on when the order that evaluates it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .plan import Train, Unit
from .ring import power_of_two

ROUNDING = 1 + 1e-9  # equal shares are equal, in whatever order they were added up

MOST_PASSED_OVER = 100  # candidates that do not fit; after so many, few others would

Seconds = Callable[[int], float]  # of a model


def fused(candidates: Iterable[Train], work: Seconds, room: float, most: int) -> list[Train]:
    """The visits that train fused with another one: 1, 3, 7, … of the candidates, which are sorted by urgency.

    A pass has 2, 4, 8, … members, because the step is compiled anew for each number. ``room`` is the work that they
    may have left, ``most`` the number of members.
    """
    chosen: list[Train] = []
    passed_over = 0
    for visit in candidates:
        if len(chosen) + 1 >= most or passed_over > MOST_PASSED_OVER:
            break
        if work(visit.model) <= room * ROUNDING:
            room -= work(visit.model)
            chosen.append(visit)
        else:
            passed_over += 1
    return chosen[: power_of_two(len(chosen) + 1) - 1]


def in_series(candidates: Iterable[Unit], work: Seconds, room: float, pace: Seconds, seconds: float) -> list[Unit]:
    """The units that come after another one in the same order, which costs milliseconds however short its units are.

    Each of them has a known pace, and in all they are expected to take no more than ``seconds``.
    """
    chosen: list[Unit] = []
    passed_over = 0
    for unit in candidates:
        if passed_over > MOST_PASSED_OVER:
            break
        took = pace(unit.model)
        if took and took <= seconds and work(unit.model) <= room * ROUNDING:
            seconds, room = seconds - took, room - work(unit.model)
            chosen.append(unit)
        else:
            passed_over += 1
    return chosen
