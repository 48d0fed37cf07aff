"""What one column of a table becomes within a prepared variable: the documents, with their parameters.

| prepared as | values                                                                                        |
|-------------|-----------------------------------------------------------------------------------------------|
| number      | one number around 0, and an indicator of NULL if the training rows have NULLs                 |
| date        | a sine and a cosine for each cycle, the days since an origin, and an indicator of NULL        |
| category    | one code: 0 for NULL and unknown values, then one per value, then rare values or hash buckets |
| words       | a fixed number of word ids: 0 where the text has no more words                                |

The SQL of each is in cerebro_plpy/data/features.py.  How the parameters are found is in columns.py.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Union

from .records import dataclass

Json = dict[str, Any]

TRANSFORMS = ("standard", "log", "quantile")
CYCLES = ("year", "month", "week", "day")
FARTHEST = 100.0  # deviations; a number that is farther away counts as this far


@dataclass(frozen=True)
class Number:
    prepared_as: ClassVar[str] = "number"
    family: str  # of the column's type, see columns.py
    type: str  # as users know it
    transform: str
    mean: float  # of the transformed values
    deviation: float
    fill: float  # a NULL counts as this value
    missing: bool  # whether an indicator of NULL follows
    not_finite: str  # "error", or "null": NaN and infinity count as NULL
    unit: float = 1.0  # log: values far below it stay nearly linear
    knots: tuple[float, ...] = ()  # quantile: values, ascending …
    scores: tuple[float, ...] = ()  # … and what they become

    @property
    def names(self) -> list[str]:
        return ["value", *(["missing"] if self.missing else [])]

    def check(self) -> None:
        _require(self.transform in TRANSFORMS, f"'transform' must be one of {', '.join(TRANSFORMS)}")
        _require(self.not_finite in ("error", "null"), "'not_finite' must be 'error' or 'null'")
        numbers = (self.mean, self.deviation, self.fill, self.unit, *self.knots, *self.scores)
        _require(
            all(type(one) in (int, float) and math.isfinite(one) for one in numbers), "a parameter is not a number"
        )
        _require(self.deviation > 0 and self.unit > 0, "'deviation' and 'unit' must be positive")
        rising = all(low < high for low, high in zip(self.knots, self.knots[1:]))
        _require(
            rising and len(self.knots) == len(self.scores), "'knots' must ascend, with one entry of 'scores' for each"
        )
        _require(self.transform != "quantile" or len(self.knots) > 1, "'knots' are missing")


@dataclass(frozen=True)
class Date:
    prepared_as: ClassVar[str] = "date"
    family: str
    type: str
    cycles: tuple[str, ...]
    mean: float  # days since 1970-01-01
    deviation: float  # 0: the days themselves are left out
    missing: bool

    @property
    def names(self) -> list[str]:
        pairs = [f"{cycle} {part}" for cycle in self.cycles for part in ("sine", "cosine")]
        return [*pairs, *(["days"] if self.deviation else []), *(["missing"] if self.missing else [])]

    def check(self) -> None:
        _require(set(self.cycles) <= set(CYCLES), f"'cycles' must be some of {', '.join(CYCLES)}")
        numbers = (self.mean, self.deviation)
        _require(
            all(type(one) in (int, float) and math.isfinite(one) for one in numbers), "a parameter is not a number"
        )
        _require(self.deviation >= 0 and bool(self.names), "'deviation' must not be negative")


@dataclass(frozen=True)
class Category:
    prepared_as: ClassVar[str] = "category"
    family: str
    type: str
    values: tuple[str, ...]  # they get the codes 1, 2, …
    rare: tuple[str, ...]  # they share the next code
    buckets: int  # all other values share so many codes; 0: they are unknown
    unknown: str  # "notice" or "error"

    @property
    def names(self) -> list[str]:
        return ["code"]

    @property
    def size(self) -> int:
        """The number of codes."""
        return 1 + len(self.values) + bool(self.rare) + self.buckets

    @property
    def codes(self) -> dict[str, int]:
        found = {value: code for code, value in enumerate(self.values, 1)}
        return {**found, **{value: len(self.values) + 1 for value in self.rare}}

    @property
    def first_bucket(self) -> int:
        return self.size - self.buckets

    def check(self) -> None:
        known = (*self.values, *self.rare)
        _require(all(isinstance(value, str) for value in known), "'values' and 'rare' must be texts")
        _require(len(set(known)) == len(known), "a value is listed twice")
        _require(type(self.buckets) is int and self.buckets >= 0, "'buckets' must not be negative")
        _require(self.unknown in ("notice", "error"), "'unknown' must be 'notice' or 'error'")


@dataclass(frozen=True)
class Words:
    prepared_as: ClassVar[str] = "words"
    family: str
    type: str
    length: int  # ids per row
    ids: int  # different ids, 0 included

    @property
    def names(self) -> list[str]:
        return [f"word {place}" for place in range(1, self.length + 1)]

    def check(self) -> None:
        _require(type(self.length) is int and 1 <= self.length <= 10_000, "'length' must be from 1 to 10000")
        _require(type(self.ids) is int and 2 <= self.ids <= 1_000_000, "'ids' must be from 2 to 1000000")


Feature = Union[Number, Date, Category, Words]
FEATURES: dict[str, Any] = {kind.prepared_as: kind for kind in (Number, Date, Category, Words)}


def to_json(feature: Feature) -> Json:
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(feature).items()}
    return {"prepared_as": feature.prepared_as, **fields}


def from_json(document: Any) -> Feature:
    """ValueError or TypeError if the document describes no feature."""
    _require(isinstance(document, dict) and document.get("prepared_as") in FEATURES, "a feature has no 'prepared_as'")
    kind = FEATURES[document["prepared_as"]]
    given = {name: value for name, value in document.items() if name != "prepared_as"}
    known = {field.name for field in dataclasses.fields(kind)}
    _require(set(given) == known, f"{kind.prepared_as} takes {sorted(known)}, not {sorted(given)}")
    feature: Feature = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})
    _require(isinstance(feature.family, str) and isinstance(feature.type, str), "'family' and 'type' must be texts")
    feature.check()
    return feature


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
