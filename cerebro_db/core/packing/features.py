"""What one column of a table becomes within a prepared variable: the documents, with their parameters.

| prepared as | values                                                                                        |
|-------------|-----------------------------------------------------------------------------------------------|
| number      | one number around 0, and an indicator of NULL if the training rows have NULLs                 |
| date        | a sine and a cosine for each cycle, the days since an origin, and an indicator of NULL        |
| category    | one code: 0 for NULL and unknown values, then one per value, then rare values or hash buckets |
| words       | a fixed number of word ids: 0 where the text has no more words                                |

The SQL of each is in cerebro_plpy/packing/rows/feature_sql.py.  How the parameters are found is in columns.py.
"""

from __future__ import annotations

from typing import Any, ClassVar, Union

from .. import sql_types
from ..documents import Fields
from ..records import dataclass
from ..sql_types import SqlType

Json = dict[str, Any]

TRANSFORMS = ("standard", "log", "quantile")
CYCLES = ("year", "month", "week", "day")
EDGES_OF_CYCLE = tuple(place / 16 for place in range(-16, 17))  # of a sine or cosine
FARTHEST = 100.0  # deviations; a number that is farther away counts as this far
LEAST = 1e-305  # of what numbers are divided by
MOST_LENGTH, MOST_IDS, MOST_BUCKETS = 10_000, 1_000_000, 1_000_000
MOST_KNOTS = 1000
NARROWEST = 0.005  # bin of a number, in deviations: 16-bit numbers are precise enough


@dataclass(frozen=True)
class NumberFeature:
    prepared_as: ClassVar[str] = "number"
    family: str  # of the column's type, see sql_types.py
    type: SqlType
    transform: str
    mean: float  # of the transformed values
    deviation: float
    fill: float  # a NULL counts as this value
    missing: bool  # whether an indicator of NULL follows
    not_finite: str  # "error", or "null": NaN and infinity count as NULL
    unit: float = 1.0  # log: values far below it stay nearly linear
    knots: tuple[float, ...] = ()  # quantile: values, ascending …
    scores: tuple[float, ...] = ()  # … and what they become
    edges: tuple[float, ...] = ()  # quantiles of what the values become, ascending; older tables have none

    @property
    def names(self) -> list[str]:
        return ["value", *(["missing"] if self.missing else [])]

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each value; none of an indicator."""
        return [self.edges, *([()] if self.missing else [])]

    @classmethod
    def read(cls, fields: Fields) -> NumberFeature:
        found = cls(
            *sql_types.read_family(fields),
            transform=fields.choice("transform", TRANSFORMS),
            mean=fields.number("mean"),
            deviation=fields.number("deviation", LEAST),
            fill=fields.number("fill"),
            missing=fields.flag("missing"),
            not_finite=fields.choice("not_finite", ("error", "null")),
            unit=fields.number("unit", LEAST, 1e200),  # multiplied by 1e100
            knots=fields.numbers("knots", MOST_KNOTS),
            scores=fields.numbers("scores", MOST_KNOTS, -1e6, 1e6),
            edges=_edges(fields),
        )
        knots = found.knots
        if not all(low < high for low, high in zip(knots, knots[1:])) or len(knots) != len(found.scores):
            raise fields.wrong("must ascend, with one entry of 'scores' for each", "knots")
        if found.transform == "quantile" and len(knots) < 2:
            raise fields.wrong("must have two items at least", "knots")
        if any(high - low < LEAST for low, high in zip(knots, knots[1:])):
            raise fields.wrong("must not be that close together", "knots")
        return found


def _edges(fields: Fields) -> tuple[float, ...]:
    found = fields.numbers("edges", MOST_KNOTS, -FARTHEST, FARTHEST) if fields.has("edges") else ()
    if any(high - low < NARROWEST for low, high in zip(found, found[1:])):
        raise fields.wrong(f"must ascend, each by at least {NARROWEST:g}", "edges")
    return found


@dataclass(frozen=True)
class DateFeature:
    prepared_as: ClassVar[str] = "date"
    family: str
    type: SqlType
    cycles: tuple[str, ...]
    mean: float  # days since 1970-01-01
    deviation: float  # 0: the days themselves are left out
    missing: bool
    edges: tuple[float, ...] = ()  # as those of a number: of the days

    @property
    def names(self) -> list[str]:
        pairs = [f"{cycle} {part}" for cycle in self.cycles for part in ("sine", "cosine")]
        return [*pairs, *(["days"] if self.deviation else []), *(["missing"] if self.missing else [])]

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each value; none of an indicator."""
        cycles = [EDGES_OF_CYCLE] * 2 * len(self.cycles)
        return [*cycles, *([self.edges] if self.deviation else []), *([()] if self.missing else [])]

    @classmethod
    def read(cls, fields: Fields) -> DateFeature:
        found = cls(
            *sql_types.read_family(fields),
            cycles=fields.texts("cycles", len(CYCLES)),
            mean=fields.number("mean"),
            deviation=fields.number("deviation", 0.0),
            missing=fields.flag("missing"),
            edges=_edges(fields),
        )
        if not set(found.cycles) <= set(CYCLES):
            raise fields.wrong(f"must be some of {', '.join(CYCLES)}", "cycles")
        if 0 < found.deviation < LEAST or not found.names:
            raise fields.wrong("must be larger", "deviation")
        return found


@dataclass(frozen=True)
class CategoryFeature:
    prepared_as: ClassVar[str] = "category"
    family: str
    type: SqlType
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

    @classmethod
    def read(cls, fields: Fields) -> CategoryFeature:
        found = cls(
            *sql_types.read_family(fields),
            values=fields.texts("values"),
            rare=fields.texts("rare"),
            buckets=fields.whole("buckets", 0, MOST_BUCKETS),
            unknown=fields.choice("unknown", ("notice", "error")),
        )
        if not set(found.values).isdisjoint(found.rare):
            raise fields.wrong("must not have a value that is in 'values'", "rare")
        return found


@dataclass(frozen=True)
class WordsFeature:
    prepared_as: ClassVar[str] = "words"
    family: str
    type: SqlType
    length: int  # ids per row
    ids: int  # different ids, 0 included

    @property
    def names(self) -> list[str]:
        return [f"word {place}" for place in range(1, self.length + 1)]

    @classmethod
    def read(cls, fields: Fields) -> WordsFeature:
        return cls(
            *sql_types.read_family(fields),
            length=fields.whole("length", 1, MOST_LENGTH),
            ids=fields.whole("ids", 2, MOST_IDS),
        )


Feature = Union[NumberFeature, DateFeature, CategoryFeature, WordsFeature]
FEATURES: dict[str, Any] = {
    kind.prepared_as: kind for kind in (NumberFeature, DateFeature, CategoryFeature, WordsFeature)
}


def to_json(feature: Feature) -> Json:
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(feature).items()}
    return {"prepared_as": feature.prepared_as, **fields, "type": feature.type.name}


def read(fields: Fields) -> Feature:
    """The feature that a document describes; BadData if it describes none."""
    feature: Feature = FEATURES[fields.choice("prepared_as", FEATURES)].read(fields)
    fields.done()
    return feature
