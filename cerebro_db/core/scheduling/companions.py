"""Which units begin together with another one: fused in one pass, or after it in the same order to a trainer.

Visits that begin together reach the next segment together. So a segment takes only as many as leave the other segments
their share of all work: a crowd of models would leave all segments idle but one.  The same holds for evaluations: a
model trains on when the order that evaluates it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..records import dataclass
from .plan import Train, Unit
from .ring import power_of_two

ROUNDING = 1 + 1e-9  # equal shares are equal, in whatever order they were added up

MOST_PASSED_OVER = 100  # candidates that do not fit; after so many, few others would
MOST_TOO_LONG = 10  # candidates that take longer than what is left of an order; most models take about as long

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


@dataclass(frozen=True)
class Chain:
    """Units of one model that an order has one after the other: most often a single one."""

    units: list[Unit]
    seconds: float  # that they are expected to take; 0: nothing is known
    stays: bool  # whether the model trains on this segment alone, so it cannot crowd another one

    @property
    def visits(self) -> int:
        return sum(isinstance(unit, Train) for unit in self.units)


def in_series(
    candidates: Iterable[Unit],
    chain: Callable[[Unit, float, int | None], Chain],
    work: Seconds,
    room: float,
    seconds: float,
    most: int | None = None,
) -> list[Chain]:
    """The chains that come after another one in the same order, which costs milliseconds however short its units are.

    Each of them has a known pace, and in all they are expected to take no more than ``seconds``.  ``chain``: what an
    order may have of the model of a unit, if it has so many seconds and visits left.  ``most``: visits.
    """
    chosen: list[Chain] = []
    passed_over = too_long = 0
    for unit in candidates:
        if passed_over > MOST_PASSED_OVER or too_long > MOST_TOO_LONG or most is not None and most <= 0:
            break
        one = chain(unit, seconds, most)
        too_long += one.seconds > seconds
        if 0 < one.seconds <= seconds and (one.stays or work(unit.model) <= room * ROUNDING):
            seconds, room = seconds - one.seconds, room - (0.0 if one.stays else work(unit.model))
            most = None if most is None else most - one.visits
            chosen.append(one)
        else:
            passed_over += 1
    return chosen
