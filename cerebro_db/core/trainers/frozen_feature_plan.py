"""What the features of frozen layers are expected to cost a run, and to save it, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.answers import FeaturesUsed
from ..records import dataclass, field
from . import knapsack

BYTES_PER_SECOND = 1e9  # at which features are read again; slower than that, computing them anew is no loss


@dataclass(frozen=True)
class WantedFeatures:
    """The features of the rows of a table, for models with the same frozen layers and weights."""

    rows: int  # of the table
    row_bytes: int
    row_seconds: float  # that computing them takes
    visited: float  # rows, over all passes of all these models

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def computing(self) -> float:
        """Seconds if each pass computes them."""
        return self.visited * self.row_seconds

    @property
    def computing_once(self) -> float:
        return min(self.rows, self.visited) * self.row_seconds

    @property
    def saved(self) -> float:
        """Seconds, if they are kept."""
        read = max(0.0, self.visited - self.rows) * self.row_bytes / BYTES_PER_SECOND
        return self.computing - self.computing_once - read


@dataclass(frozen=True)
class FeaturePlan:
    """Seconds are summed over the segments."""

    bytes: int  # that are kept
    computing: float  # seconds
    saved: float  # seconds
    without: float  # seconds if each pass computed them

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in vars(self).items()}


def plan(wanted: Sequence[WantedFeatures], limit: int, *, all_pay: bool) -> FeaturePlan:
    """``limit``: bytes on all segments; ``all_pay``: whether features are kept whatever that saves."""
    worth = [one for one in wanted if one.rows and (all_pay or one.saved > 0)]
    chosen = knapsack.best([one.bytes for one in worth], [max(one.saved, 1e-9) for one in worth], limit)
    kept = [one for place, one in enumerate(worth) if place in chosen]
    without, saved = sum(one.computing for one in wanted), sum(one.saved for one in kept)
    computing = without - sum(one.computing - one.computing_once for one in kept)
    return FeaturePlan(sum(one.bytes for one in kept), computing, saved, without)


@dataclass
class FeatureUse:
    """What features did in a run, as far as its present driver knows."""

    computing: float = 0.0  # seconds, over all segments
    saved: float = 0.0  # seconds
    _bytes: dict[int, int] = field(default_factory=dict)  # by segment, the most that were kept

    def add(self, segment: int, used: FeaturesUsed | None) -> None:
        if used is not None:
            self.computing += used.computing
            self.saved += used.saved
            self._bytes[segment] = max(used.bytes, self._bytes.get(segment, 0))

    @property
    def bytes(self) -> int:
        return sum(self._bytes.values())

    @property
    def any(self) -> bool:
        return self.computing > 0 or self.saved > 0

    def to_json(self, expected: FeaturePlan | None) -> dict[str, object]:
        found: dict[str, object] = {
            "bytes": self.bytes,
            "computing": round(self.computing, 3),
            "saved": round(self.saved, 3),
        }
        return found if expected is None else {**found, "expected": expected.to_json()}
