"""What waits for a segment, by urgency, and how much work is left in all: 50,000 models are not searched for each hop.

The model with most work left goes first, so that the longest does not end alone. How urgent a unit is depends therefore
on the seconds that its model still has to train. Until a model has a pace of its own, it is thought to be as fast as
all others, which changes with every visit of any model. So units of such models are sorted by the hops that are left,
and the others by their seconds: what another model does changes neither order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from typing import NamedTuple

from .plan import Evaluate, ModelPlan, Unit

UNIT_OF_TIME = 1e12  # per second: sums of whole numbers are exact, in whatever order models are added and taken out


class WorkOfModel(NamedTuple):
    """What a model still has to train: seconds, or hops of a model without a pace of its own."""

    seconds: float = 0.0
    hops: int = 0

    def at(self, pace: float) -> float:
        """The seconds, if a hop takes so many."""
        return self.seconds + self.hops * pace


class WorkLeft:
    """Of all models that are active."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, int]] = {}  # model -> time, hops
        self._time = self._hops = 0

    def set(self, model: int, left: WorkOfModel) -> None:
        self.drop(model)
        time, hops = self._of[model] = round(left.seconds * UNIT_OF_TIME), left.hops
        self._time, self._hops = self._time + time, self._hops + hops

    def drop(self, model: int) -> None:
        time, hops = self._of.pop(model, (0, 0))
        self._time, self._hops = self._time - time, self._hops - hops

    def at(self, pace: float) -> float:
        return self._time / UNIT_OF_TIME + self._hops * pace


class Sort(NamedTuple):
    """Units that can be compared by what is left of their models, and that one order to a trainer may have together."""

    has_pace: bool
    ahead: bool  # of all others, whatever is left of their models
    rows: tuple[str, int] | None  # the data set and the part of it that are evaluated; None: a visit
    group: str | None
    series: str | None


class Place(NamedTuple):
    """The most urgent unit of a sort has the least place."""

    less: float  # seconds or hops, with a minus
    position: int
    arrival: int
    unit: Unit


class WaitingUnits:
    """Those of one segment."""

    def __init__(self) -> None:
        self._queues: dict[Sort, list[Place]] = {}
        self._places: dict[Unit, tuple[Sort, Place]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._places)

    def add(self, unit: Unit, left: WorkOfModel, plan: ModelPlan, ahead: bool) -> None:
        sort = Sort(not left.hops, ahead, _rows_of(unit), plan.group, plan.series)
        self._arrivals += 1
        place = Place(-left.hops or -left.seconds, plan.position, self._arrivals, unit)
        insort(self._queues.setdefault(sort, []), place)
        self._places[unit] = sort, place

    def remove(self, unit: Unit) -> None:
        sort, place = self._places.pop(unit)
        queue = self._queues[sort]
        del queue[bisect_left(queue, place)]
        if not queue:
            del self._queues[sort]

    def most_urgent(self, pace: float, visits: Collection[Unit] | None = None) -> Unit | None:
        """``pace``: seconds of a hop of models without their own.  ``visits``: of all visits, only these may begin."""
        firsts = [(sort, queue[0]) for sort, queue in self._queues.items() if visits is None or sort.rows is not None]
        firsts += [self._places[unit] for unit in visits or () if unit in self._places]
        return min(firsts, key=lambda one: _urgency(one[0], one[1], pace))[1].unit if firsts else None

    def like(self, unit: Unit, word: str, value: str, pace: float) -> Iterator[Unit]:
        """Those of a group or series that one order may have together with this unit: the most urgent first."""
        rows = _rows_of(unit)
        queues = [
            _sorted(sort, queue, pace)
            for sort, queue in self._queues.items()
            if sort.rows == rows and getattr(sort, word) == value
        ]
        return (place.unit for _, place in merge(*queues))


Urgency = tuple[bool, float, int, int]


def _rows_of(unit: Unit) -> tuple[str, int] | None:
    return (unit.dataset, unit.part) if isinstance(unit, Evaluate) else None


def _sorted(sort: Sort, queue: list[Place], pace: float) -> Iterator[tuple[Urgency, Place]]:
    return ((_urgency(sort, place, pace), place) for place in queue)


def _urgency(sort: Sort, place: Place, pace: float) -> Urgency:
    """Of the units of all sorts, the most urgent one has the least."""
    return not sort.ahead, place.less * (1.0 if sort.has_pace else pace), place.position, place.arrival
