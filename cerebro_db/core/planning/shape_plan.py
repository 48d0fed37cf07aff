# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The plan of a run as it is on record: the shape in which it trains, and those that it was compared with."""

from __future__ import annotations

from typing import Annotated, Optional

from ..codec import Number, Text, Within
from ..engines import MOST_THREADS
from ..options import HOPPING
from ..records import dataclass

MOST_SHAPES = 40

Seconds = Optional[Annotated[Number, Within(0, 1e9)]]


@dataclass(frozen=True)
class PricedShape:
    """A shape of a run, and what it is expected to take."""

    engine: Annotated[Text, Within(1, 100)]
    threads: Annotated[int, Within(1, MOST_THREADS)]  # of each trainer
    parallel: Annotated[Text, Within(1, 20)] = HOPPING
    seconds: Seconds = None  # None: nothing alike was measured
    share: Optional[Annotated[Number, Within(0, 1e9)]] = None  # of the time of the plain rules; None: not known
    why: Annotated[Text, Within(0, 300)] = ""  # it was chosen, or was not
    lenient = True


@dataclass(frozen=True)
class ShapePlan:
    """What is on record of a run's plan: the shape that was chosen, and the others."""

    chosen: PricedShape
    others: Annotated[tuple[PricedShape, ...], Within(0, MOST_SHAPES)] = ()
    models: Annotated[int, Within(0, 2**31 - 1)] = 0
    measured: Annotated[int, Within(0, 2**31 - 1)] = 0  # of these models, those alike of which have been measured
    lenient = True
