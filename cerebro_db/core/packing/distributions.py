"""The distribution of a column's values, from aggregates of the segments, and the transform that suits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..records import dataclass
from .features import FARTHEST

MOST_SKEW, MOST_KURTOSIS = 2.0, 10.0  # beyond these a tail is heavy; an exponential distribution has 2 and 9
KNOTS = 33
FEW_VALUES = 10  # a column of integers with no more values than this is one of categories


@dataclass(frozen=True)
class Bin:
    """Values that lie close together."""

    rows: float
    mean: float
    variance: float
    low: float
    high: float


@dataclass(frozen=True)
class Moments:
    mean: float
    deviation: float
    skew: float
    kurtosis: float

    @property
    def heavy(self) -> bool:
        return abs(self.skew) > MOST_SKEW or self.kurtosis > MOST_KURTOSIS


class Distribution:
    """The finite values of a column, in bins."""

    def __init__(self, bins: Iterable[Bin]) -> None:
        self.bins = sorted(bins, key=lambda one: one.low)
        self.rows = sum(one.rows for one in self.bins)

    @property
    def low(self) -> float:
        return self.bins[0].low

    @property
    def high(self) -> float:
        return self.bins[-1].high

    @property
    def constant(self) -> bool:
        return not self.bins or self.low == self.high

    @property
    def values(self) -> list[float] | None:
        """The different values if they are few; else None."""
        if len(self.bins) > 1000 or any(one.low != one.high for one in self.bins):
            return None
        return [one.low for one in self.bins]

    def quantile(self, share: float) -> float:
        """The value that this share of the rows does not exceed; within a bin, rows are taken as evenly spread."""
        wanted, before = share * self.rows, 0.0
        for one in self.bins:
            if before + one.rows >= wanted:
                return one.low + (one.high - one.low) * min(1.0, max(0.0, (wanted - before) / one.rows))
            before += one.rows
        return self.high

    def moments(self, transform: Callable[[float], float] | None = None) -> Moments:
        """Those of the values, or of what a function makes of them (then to the precision of the bins)."""
        points = [(one.rows, transform(one.mean) if transform else one.mean) for one in self.bins]
        mean = math.fsum(rows * value for rows, value in points) / self.rows
        inner = 0.0 if transform else math.fsum(one.rows * one.variance for one in self.bins)
        variance = (inner + math.fsum(rows * (value - mean) ** 2 for rows, value in points)) / self.rows
        deviation = math.sqrt(variance)
        if not deviation:
            return Moments(mean, 0.0, 0.0, 0.0)
        scaled = [(rows, (value - mean) / deviation) for rows, value in points]
        skew = math.fsum(rows * value**3 for rows, value in scaled) / self.rows
        return Moments(mean, deviation, skew, math.fsum(rows * value**4 for rows, value in scaled) / self.rows)


@dataclass(frozen=True)
class Transform:
    """The parameters of a NumberFeature that have to do with its transform."""

    transform: str
    mean: float
    deviation: float
    unit: float = 1.0
    knots: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()

    def of(self, value: float) -> float:
        """What a value becomes, unless quantiles map it."""
        if self.transform == "log":
            value = math.copysign(math.log1p(abs(value) / self.unit), value)
        return max(-FARTHEST, min(FARTHEST, (value - self.mean) / self.deviation))


def chosen(found: Distribution, wanted: str | None = None) -> Transform:
    """The transform that was asked for, or the simplest that leaves no heavy tail."""
    plain = _standard(found)
    if wanted == "standard" or (wanted is None and not found.moments().heavy):
        return plain
    logarithmic, moments = _log(found)
    if wanted == "log" or (wanted is None and not moments.heavy):
        return logarithmic
    knots = _knots(found)
    if len(knots) < (2 if wanted else 8):
        return logarithmic if moments.kurtosis < found.moments().kurtosis and wanted is None else plain
    scores = [normal_score(found, knots, place) for place in range(len(knots))]
    return Transform("quantile", 0.0, 1.0, knots=tuple(knots), scores=tuple(scores))


def _standard(found: Distribution) -> Transform:
    moments = found.moments()
    return Transform("standard", rounded(moments.mean, moments.deviation), six_digits(moments.deviation or 1.0))


def _log(found: Distribution) -> tuple[Transform, Moments]:
    """sign(x) · ln(1 + |x| / unit), standardised.  The unit is a value that is small among these."""
    sizes = Distribution(
        Bin(one.rows, abs(one.mean), 0.0, *sorted((abs(one.low), abs(one.high)))) for one in found.bins if one.mean
    )
    unit = six_digits(max(sizes.quantile(0.25), sizes.high * 1e-12)) if sizes.bins else 1.0
    moments = found.moments(lambda x: math.copysign(math.log1p(abs(x) / unit), x))
    deviation = six_digits(moments.deviation or 1.0)
    return Transform("log", rounded(moments.mean, deviation), deviation, unit=unit), moments


def _knots(found: Distribution) -> list[float]:
    """Different quantiles, ascending.  Numbers of six digits, so that they are the same on all machines."""
    return sorted({six_digits(found.quantile(place / (KNOTS - 1))) for place in range(KNOTS)})


def edges(found: Distribution, one: Transform) -> tuple[float, ...]:
    """Different quantiles of what the values become, ascending: where bins can begin and end."""
    places = one.scores or map(one.of, _knots(found))
    return tuple(sorted({round(place, 2) + 0.0 for place in places}))  # two digits: the same on all machines


def normal_score(found: Distribution, knots: Sequence[float], place: int) -> float:
    """Where a normal distribution has the share of the rows that a knot has; the ends are at about two and a half."""
    from statistics import NormalDist

    below = sum(one.rows for one in found.bins if one.high < knots[place])
    upto = sum(one.rows for one in found.bins if one.low <= knots[place])
    share = (below + upto) / 2 / found.rows
    return six_digits(NormalDist().inv_cdf(min(0.995, max(0.005, share)))) + 0.0


def rounded(value: float, deviation: float) -> float:
    """A value to a ten-thousandth of the deviation: the order in which rows were added up makes no difference."""
    if not deviation or not math.isfinite(value):
        return six_digits(value)
    return round(value, max(-300, min(300, 4 - math.floor(math.log10(deviation))))) + 0.0


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def limits(mean: float, deviation: float) -> tuple[float, float]:
    """The lowest and highest value that is told from those beyond."""
    return mean - FARTHEST * deviation, mean + FARTHEST * deviation
