"""How the values of a column are distributed over bins, and how far other values have drifted from that.

Packing keeps a ``Profile`` of each column of numbers, dates or categories.  cerebro_plpy/packing/columns/profiles.py
has the SQL that counts rows in its bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Union

from ..codec import Identifier, Misfit, Number, OneOf, Text, Whole, Within, different, encode_fields
from ..records import dataclass
from .distributions import Distribution

PARTS = 10  # of a column of numbers, with as many rows each where the values allow it
MOST_LISTED = 20  # values of a category with a bin of their own
MOST_EDGES, MOST_VALUES = 100, 1000
NUMBER, DATE, CATEGORY = "number", "date", "category"
HALF_A_ROW = 0.5  # added to each bin, so that the logarithm of an empty one is finite


@dataclass(frozen=True)
class Profile:
    """The rows of a column in bins.  Of numbers, n edges make n + 1 bins; categories have one for each listed value and
    one for all others.  The last bin is that of NULL."""

    column: Identifier
    is_target: bool
    kind: Annotated[str, OneOf(NUMBER, DATE, CATEGORY)]
    # Where one bin ends and the next begins, ascending.
    edges: Annotated[tuple[Number, ...], Within(0, MOST_EDGES)] = ()
    values: Annotated[tuple[Text, ...], Within(0, MOST_VALUES), different] = ()  # of categories, instead of edges
    rows: tuple[Whole, ...] = ()

    @property
    def bins(self) -> int:
        return len(self.values if self.kind == CATEGORY else self.edges) + 2

    def label(self, place: int) -> str:
        """What the values of a bin are, for people."""
        if place == self.bins - 1:
            return "NULL"
        if self.kind == CATEGORY:
            return repr(self.values[place][:40]) if place < len(self.values) else "other values"
        ends = [_day(edge) if self.kind == DATE else f"{edge:g}" for edge in self.edges]
        if not ends:
            return f"{self.kind}s"
        if place == 0:
            return f"below {ends[0]}"
        if place == len(ends):
            return f"from {ends[-1]}"
        low, high = self.edges[place - 1 : place + 1]
        return ends[place - 1] if high == _just_above(low) else f"{ends[place - 1]} to {ends[place]}"

    def to_document(self) -> dict[str, Any]:
        other = "edges" if self.kind == CATEGORY else "values"
        return {name: value for name, value in encode_fields(self).items() if name != other}

    def require_agreement(self) -> None:
        if self.edges and self.kind == CATEGORY or self.values and self.kind != CATEGORY:
            raise Misfit("has to have values if it is a category, and edges if not")
        if not all(low < high for low, high in zip(self.edges, self.edges[1:])):
            raise Misfit("has to ascend", "edges")
        if len(self.rows) != self.bins:
            raise Misfit(f"has to have {self.bins} items", "rows")


def _day(since_1970: float) -> str:
    try:
        return str(date(1970, 1, 1) + timedelta(days=since_1970))
    except OverflowError:  # of a calendar that Python does not have
        return f"day {since_1970:g}"


def edges_of(found: Distribution) -> tuple[float, ...]:
    """Different values that divide the rows into parts of about equal size.  A value that many rows have, such as 0,
    has a bin of its own."""
    places = [found.quantile(place / PARTS) for place in range(1, PARTS)] if found.bins else []
    repeated = {low for low, high in zip(places, places[1:]) if low == high}
    return tuple(sorted({*places, *map(_just_above, repeated)}))


def _just_above(value: float) -> float:
    return value + abs(value) * 2.0**-52 if value else 1e-300


@dataclass(frozen=True)
class Drift:
    """How far the rows of today are from those of training."""

    psi: float
    jensen_shannon: float
    largest: int | None  # the bin that adds most to psi; None: no bin has changed


Counts = Union[Sequence[int], Sequence[float]]


def between(before: Counts, now: Counts) -> Drift:
    """Compare the rows in the same bins.

    The population stability index is the sum of (q - p) ln(q / p) over the bins with the shares p before and q now.
    The Jensen-Shannon divergence is in bits: 0 for equal shares, 1 if no bin has rows of both.
    """
    p, q = _shares(before, HALF_A_ROW), _shares(now, HALF_A_ROW)
    terms = [(new - old) * math.log(new / old) for old, new in zip(p, q)]
    largest = max(range(len(terms)), key=terms.__getitem__, default=None)
    if largest is not None and terms[largest] <= 0:
        largest = None
    exact_p, exact_q = _shares(before, 0.0), _shares(now, 0.0)
    middle = [(old + new) / 2 for old, new in zip(exact_p, exact_q)]
    divergence = (_relative_entropy(exact_p, middle) + _relative_entropy(exact_q, middle)) / 2
    return Drift(math.fsum(terms), min(1.0, max(0.0, divergence)), largest)


def by_chance(before: Counts, now: Counts) -> float:
    """About the index that as many rows would have on average if nothing had changed."""
    bins = sum(1 for one in zip(before, now) if any(one))
    return max(0, bins - 1) * (1 / max(1.0, math.fsum(before)) + 1 / max(1.0, math.fsum(now)))


def _shares(rows: Counts, more: float) -> list[float]:
    whole = math.fsum(rows) + more * len(rows)
    return [(one + more) / whole for one in rows] if whole else [0.0] * len(rows)


def _relative_entropy(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(p * math.log2(p / q) for p, q in zip(one, other) if p)
