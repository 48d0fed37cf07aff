"""What one column of a table becomes within a prepared variable: the documents, with their parameters.

| prepared as | values                                                                                        |
|-------------|-----------------------------------------------------------------------------------------------|
| number      | one number around 0, and an indicator of NULL if the training rows have NULLs                 |
| date        | a sine and a cosine for each cycle, the days since an origin, and an indicator of NULL        |
| category    | one code: 0 for NULL and unknown values, then one per value, then rare values or hash buckets |
| words       | a fixed number of ids of words, or of their pieces: 0 where the text has no more              |
| means       | means of the targets over the training rows with the same value, around 0; 0: not known       |

The SQL of each is in cerebro_plpy/packing/rows/feature_sql.py.  How the parameters are found is in columns.py.
"""

from __future__ import annotations

import abc
from typing import Annotated, Any, ClassVar

from .. import codec
from ..codec import Misfit, Number, OneOf, Text, Within, different
from ..documents import LARGEST_NUMBER
from ..records import dataclass
from ..sql_types import FAMILIES, SqlType
from ..word_pieces import what_is_wrong

Texts = Annotated[tuple[Text, ...], different]

TRANSFORMS = ("standard", "log", "quantile")
CYCLES = ("year", "month", "week", "day")
EDGES_OF_CYCLE = tuple(place / 16 for place in range(-16, 17))  # of a sine or cosine
FARTHEST = 100.0  # deviations; a number that is farther away counts as this far
LEAST = 1e-305  # of what numbers are divided by
MOST_LENGTH, MOST_IDS, MOST_BUCKETS = 10_000, 1_000_000, 1_000_000
MOST_KNOTS = 1000
MOST_MEANS, MOST_VALUES_WITH_MEANS = 8, 10_000
NARROWEST = 0.005  # bin of a number, in deviations: 16-bit numbers are precise enough
Knots = Annotated[tuple[Number, ...], Within(0, MOST_KNOTS)]


def _far_apart(edges: tuple[float, ...]) -> None:
    if any(high - low < NARROWEST for low, high in zip(edges, edges[1:])):
        raise Misfit(f"has to ascend, each by at least {NARROWEST:g}")


Edges = Annotated[tuple[Annotated[float, Within(-FARTHEST, FARTHEST)], ...], Within(0, MOST_KNOTS), _far_apart]


@dataclass(frozen=True)
class Feature(abc.ABC):
    """What one column becomes."""

    prepared_as: ClassVar[str]
    family: Annotated[str, OneOf(*FAMILIES)]  # of the column's type, see sql_types.py
    type: SqlType

    @property
    @abc.abstractmethod
    def names(self) -> list[str]:
        """Of the values, in their order."""

    def tag(self) -> dict[str, str]:
        return {"prepared_as": self.prepared_as}

    @classmethod
    def from_document(cls, document: Any) -> Feature:
        return codec.tagged(FEATURES, "prepared_as", document)

    def require_agreement(self) -> None:
        if self.type.name not in FAMILIES[self.family] and (self.family != "text" or self.type.is_built_in):
            raise Misfit(f"is {self.type}, which is not of the family {self.family}", "type")


@dataclass(frozen=True)
class NumberFeature(Feature):
    prepared_as = "number"
    transform: Annotated[str, OneOf(*TRANSFORMS)]
    mean: Number  # of the transformed values
    deviation: Annotated[float, Within(LEAST, LARGEST_NUMBER)]
    fill: Number  # a NULL counts as this value
    missing: bool  # whether an indicator of NULL follows
    not_finite: Annotated[str, OneOf("error", "null")]  # null: NaN and infinity count as NULL
    unit: Annotated[float, Within(LEAST, 1e200)] = 1.0  # log: values far below it stay nearly linear; times 1e100
    knots: Knots = ()  # quantile: values, ascending …
    scores: Annotated[tuple[Annotated[float, Within(-1e6, 1e6)], ...], Within(0, MOST_KNOTS)] = ()  # … become these
    edges: Edges = ()  # quantiles of what the values become, ascending; older tables have none

    @property
    def names(self) -> list[str]:
        return ["value", *(["missing"] if self.missing else [])]

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each value; none of an indicator."""
        return [self.edges, *([()] if self.missing else [])]

    def require_agreement(self) -> None:
        super().require_agreement()
        knots = self.knots
        if any(high - low < LEAST for low, high in zip(knots, knots[1:])) or len(knots) != len(self.scores):
            raise Misfit("has to ascend, with one entry of 'scores' for each", "knots")
        if self.transform == "quantile" and len(knots) < 2:
            raise Misfit("has to have two items at least", "knots")


@dataclass(frozen=True)
class DateFeature(Feature):
    prepared_as = "date"
    cycles: Annotated[tuple[Annotated[str, OneOf(*CYCLES)], ...], different]
    mean: Number  # days since 1970-01-01
    deviation: Annotated[float, Within(0.0, LARGEST_NUMBER)]  # 0: the days themselves are left out
    missing: bool
    edges: Edges = ()  # as those of a number: of the days

    @property
    def names(self) -> list[str]:
        pairs = [f"{cycle} {part}" for cycle in self.cycles for part in ("sine", "cosine")]
        return [*pairs, *(["days"] if self.deviation else []), *(["missing"] if self.missing else [])]

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each value; none of an indicator."""
        cycles = [EDGES_OF_CYCLE] * 2 * len(self.cycles)
        return [*cycles, *([self.edges] if self.deviation else []), *([()] if self.missing else [])]

    def require_agreement(self) -> None:
        super().require_agreement()
        if 0 < self.deviation < LEAST or not self.names:
            raise Misfit("has to be larger", "deviation")


@dataclass(frozen=True)
class CategoryFeature(Feature):
    prepared_as = "category"
    values: Texts  # they get the codes 1, 2, …
    rare: Texts  # they share the next code
    buckets: Annotated[int, Within(0, MOST_BUCKETS)]  # all other values share so many codes; 0: they are unknown
    unknown: Annotated[str, OneOf("notice", "error")]

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

    def require_agreement(self) -> None:
        super().require_agreement()
        if not set(self.values).isdisjoint(self.rare):
            raise Misfit("has a value that is in 'values'", "rare")


@dataclass(frozen=True)
class WordsFeature(Feature):
    prepared_as = "words"
    length: Annotated[int, Within(1, MOST_LENGTH)]  # ids per row
    ids: Annotated[int, Within(2, MOST_IDS)]  # different ids, 0 included
    vocabulary: Text = ""  # of pieces of words (word_pieces.py), one in each line; empty: the ids are hashes of words

    @property
    def names(self) -> list[str]:
        return [f"word {place}" for place in range(1, self.length + 1)]

    def require_agreement(self) -> None:
        super().require_agreement()
        pieces = self.vocabulary.split("\n")
        if self.vocabulary and (self.ids != len(pieces) or self.length < 2 or what_is_wrong(pieces)):
            raise Misfit("is no vocabulary of as many pieces as 'ids' says", "vocabulary")


Means = Annotated[
    tuple[Annotated[float, Within(-FARTHEST, FARTHEST)], ...], Within(1, MOST_VALUES_WITH_MEANS)
]  # one for each value


@dataclass(frozen=True)
class MeansFeature(Feature):
    """Beside the code of a category with many values.

    Packing gives a training row means over other rows (cerebro_plpy/packing/columns/target_means.py).
    """

    prepared_as = "means"
    of: Annotated[tuple[Text, ...], Within(1, MOST_MEANS)]  # the targets; of classes, each with a label
    values: Annotated[tuple[Text, ...], Within(1, MOST_VALUES_WITH_MEANS), different]
    means: Annotated[tuple[Means, ...], Within(1, MOST_MEANS)]

    @property
    def names(self) -> list[str]:
        return [f"mean {one}" for one in self.of]

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """No edges: a model reads a mean as it is."""
        return [()] * len(self.of)

    @property
    def places(self) -> dict[str, int]:
        """The place of each value among the means, from 1."""
        return {value: place for place, value in enumerate(self.values, 1)}

    def require_agreement(self) -> None:
        super().require_agreement()
        if len(self.means) != len(self.of) or any(len(one) != len(self.values) for one in self.means):
            raise Misfit("has to have one list for each of 'of', with one number for each of 'values'", "means")


FEATURES: dict[str, type[Feature]] = {
    kind.prepared_as: kind for kind in (NumberFeature, DateFeature, CategoryFeature, WordsFeature, MeansFeature)
}
