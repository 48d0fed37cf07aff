# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What the columns of a variable become, as a document that a packed table's summary stores.

Packing, validation packing, evaluation and prediction all apply this document.  The kinds:

| kind       | parameters      | values of the variable                                                           |
|------------|-----------------|----------------------------------------------------------------------------------|
| as_is      | –               | numbers as they are: small integers stay integers, all others become float32     |
| divided    | by              | the same, divided by a constant: integers when they are read, floats when packed |
| pixels     | by              | the bytes of one column as uint8, divided by a constant when they are read       |
| one_hot    | type, labels    | a class label as a vector with a 1 at the place of its class                     |
| encoded    | –               | the user's own vector of integers, a target, as int16                            |
| real       | –               | numbers to predict, as float32                                                   |
| measured   | mean, deviation | the same; the parameters tell an architecture how large the numbers are          |
| numbers    | features        | the numbers that several columns become, side by side, as float32                |
| categories | features        | a code for each of several columns: uint8, int16 or int32                        |
| words      | features        | the word ids of one text column, as int32                                        |
| weight     | labels, factors | how much a row counts in training: a column's number, times its label's factor   |
| fold       | folds           | the fold of a row, from 1 on                                                     |

The features of numbers, categories and words are documents of features.py, one for each column.  A new kind is a class
in this module, whose fields bound each parameter, and its SQL expression in
cerebro_plpy/packing/rows/preparation.py.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Optional

from .. import codec
from ..codec import Misfit, Number, Text, Within, different
from ..documents import LARGEST_NUMBER
from ..records import dataclass
from ..sql_types import SqlType
from .buffer_format import (
    INTEGERS,
    ITEM_BYTES,
    MOST_CLASSES,
    ArrayEncoder,
    BytesEncoder,
    ClassEncoder,
    Encoder,
    float32,
)
from .features import LEAST, CategoryFeature, DateFeature, Feature, MeansFeature, NumberFeature, WordsFeature

MOST_FOLDS = 100
MOST_COLUMNS = 1600  # PostgreSQL's limit of a table
LEAST_DIVISOR, LARGEST_DIVISOR = 1e-37, 3.5e38  # float32 numbers whose reciprocals are float32, too
PACK_AGAIN = "Pack the table again with the function that has packed it."
Divisor = Annotated[float, Within(LEAST_DIVISOR, LARGEST_DIVISOR)]


@dataclass(frozen=True)
class Preparation(abc.ABC):
    """What one variable's columns become.  Subclasses are the kinds; their fields are the parameters."""

    kind: ClassVar[str]
    target: ClassVar[Optional[str]] = None  # how a loss treats an output: class, encoded or real; None: an input
    # Whether a value that needs a wider integer type makes the whole variable wider; otherwise the value is an error.
    widens: ClassVar[bool] = False

    @property
    def features(self) -> tuple[Feature, ...]:
        """One for each column, if the columns are prepared one by one.  Such columns are matched by name."""
        return ()

    @abc.abstractmethod
    def dtype(self, integers: bool) -> str:
        """The type of the packed values; ``integers``: all columns hold smallint, integer or boolean."""

    def factor(self, dtype: str) -> float:
        """By how much values are multiplied before they are packed."""
        return 1.0

    def scale(self, dtype: str) -> float:
        """By how much values are divided when the trainer reads them."""
        return 1.0

    def wire_dtype(self, dtype: str) -> str:
        """The type of the elements in a query; ``dtype``: of the packed values.  Those of an array have four bytes."""
        return "float32" if dtype == "float32" else "int32"

    def encoder(self, shape: Sequence[int], dtype: str) -> Encoder:
        """Collects the values of rows and gives them back as the bytes of a buffer."""
        return ArrayEncoder(shape, dtype, self.factor(dtype))

    @property
    def label_type(self) -> SqlType | None:
        """The SQL type in which column values are compared, if they are labels; None for numbers."""
        return None

    @property
    def dtypes(self) -> Sequence[str]:
        """The types that packed values can have."""
        return (self.dtype(False),)

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        """Whether so many columns can become values of this shape."""
        return columns == 1 or shape == (columns,)

    def settled(self, settled: Callable[[SqlType], SqlType]) -> Preparation:
        """The preparation with other names for its types."""
        return self

    def tag(self) -> dict[str, str]:
        return {"kind": self.kind}

    @classmethod
    def from_document(cls, document: Any) -> Preparation:
        return codec.tagged(KINDS, "kind", document)


KINDS: dict[str, type[Preparation]] = {}


def known(kind: type[Preparation]) -> type[Preparation]:
    """Registers a kind."""
    KINDS[kind.kind] = kind
    return kind


@known
@dataclass(frozen=True)
class AsIs(Preparation):
    kind = "as_is"
    widens = True

    def dtype(self, integers: bool) -> str:
        return INTEGERS[0] if integers else "float32"

    @property
    def dtypes(self) -> Sequence[str]:
        return tuple(ITEM_BYTES)


@known
@dataclass(frozen=True)
class Divided(AsIs):
    kind = "divided"
    by: Divisor

    def factor(self, dtype: str) -> float:
        return float32(1.0 / self.by) if dtype == "float32" else 1.0

    def scale(self, dtype: str) -> float:
        return 1.0 if dtype == "float32" else self.by


@known
@dataclass(frozen=True)
class Pixels(Preparation):
    kind = "pixels"
    by: Divisor = 1.0

    def dtype(self, integers: bool) -> str:
        return "uint8"

    def scale(self, dtype: str) -> float:
        return self.by

    def wire_dtype(self, dtype: str) -> str:
        return dtype

    def encoder(self, shape: Sequence[int], dtype: str) -> Encoder:
        return BytesEncoder(shape)

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return columns == 1


def _null_comes_first(labels: tuple[str | None, ...]) -> None:
    if None in labels[1:]:
        raise Misfit("has a null that is not the first item")


@known
@dataclass(frozen=True)
class OneHot(Preparation):
    kind = "one_hot"
    target = "class"
    type: SqlType  # of the column
    # As text, in the type's order, NULL (None) first if it is a label; classes declared beyond them have no label yet.
    labels: Annotated[tuple[Optional[Text], ...], Within(0, MOST_CLASSES), different, _null_comes_first] = ()

    def dtype(self, integers: bool) -> str:
        return ClassEncoder.dtype

    def encoder(self, shape: Sequence[int], dtype: str) -> Encoder:
        return ClassEncoder(shape[0])

    @property
    def label_type(self) -> SqlType | None:
        return self.type

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return columns == 1 and len(shape) == 1 and len(self.labels) <= shape[0] <= MOST_CLASSES

    def settled(self, settled: Callable[[SqlType], SqlType]) -> OneHot:
        return replace(self, type=settled(self.type))

    @property
    def null_is_a_class(self) -> bool:
        return self.labels[:1] == (None,)


@known
@dataclass(frozen=True)
class Encoded(Preparation):
    kind = "encoded"
    target = "encoded"

    def dtype(self, integers: bool) -> str:
        return "int16"

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return columns == 1


@known
@dataclass(frozen=True)
class Real(Preparation):
    kind = "real"
    target = "real"

    def dtype(self, integers: bool) -> str:
        return "float32"


@known
@dataclass(frozen=True)
class Measured(Real):
    kind = "measured"
    mean: Number
    deviation: Annotated[float, Within(LEAST, LARGEST_NUMBER)]


@known
@dataclass(frozen=True)
class Weight(Preparation):
    """The last column is the target, if there are labels."""

    kind = "weight"
    target = "weight"
    labels: Annotated[tuple[Text, ...], different] = ()  # every spelling
    factors: tuple[Annotated[float, Within(0.0, LARGEST_DIVISOR)], ...] = ()

    def dtype(self, integers: bool) -> str:
        return "float32"

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return shape == (1,) and columns <= 2

    def require_agreement(self) -> None:
        if len(self.labels) != len(self.factors):
            raise Misfit("has to have one number for each of 'labels'", "factors")


@known
@dataclass(frozen=True)
class Fold(Preparation):
    """The columns are those of the hash that chooses the fold."""

    kind = "fold"
    target = "fold"
    folds: Annotated[int, Within(2, MOST_FOLDS)]

    def dtype(self, integers: bool) -> str:
        return INTEGERS[0]  # one byte

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return shape == (1,)


@dataclass(frozen=True)
class ByColumn(Preparation):
    """Columns that are prepared one by one.  ``kinds``: what their features may be."""

    prepared: Annotated[tuple[Feature, ...], Within(1, MOST_COLUMNS)] = codec.named("features")
    kinds: ClassVar[tuple[type[Feature], ...]]

    @property
    def features(self) -> tuple[Feature, ...]:
        return self.prepared

    @property
    def width(self) -> int:
        return sum(len(feature.names) for feature in self.prepared)

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return shape == (self.width,) and columns == len(self.prepared)

    def settled(self, settled: Callable[[SqlType], SqlType]) -> ByColumn:
        return replace(self, prepared=tuple(replace(one, type=settled(one.type)) for one in self.prepared))

    def require_agreement(self) -> None:
        if not all(isinstance(feature, self.kinds) for feature in self.prepared):
            raise Misfit(f"has to be {' or '.join(kind.prepared_as for kind in self.kinds)}", "features")


@known
@dataclass(frozen=True)
class Numbers(ByColumn):
    kind = "numbers"
    kinds = (NumberFeature, DateFeature, MeansFeature)

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each element."""
        return [
            edges
            for feature in self.prepared
            if isinstance(feature, (NumberFeature, DateFeature, MeansFeature))
            for edges in feature.bins
        ]

    def dtype(self, integers: bool) -> str:
        return "float32"


@known
@dataclass(frozen=True)
class Categories(ByColumn):
    kind = "categories"
    kinds = (CategoryFeature,)

    @property
    def sizes(self) -> list[int]:
        """The number of codes of each column."""
        return [feature.size for feature in self.prepared if isinstance(feature, CategoryFeature)]

    def dtype(self, integers: bool) -> str:
        largest = max(self.sizes) - 1
        return "uint8" if largest < 1 << 8 else "int16" if largest < 1 << 15 else "int32"


@known
@dataclass(frozen=True)
class Words(ByColumn):
    kind = "words"
    kinds = (WordsFeature,)

    def dtype(self, integers: bool) -> str:
        return "int32"

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return super().fits(shape, columns) and columns == 1


def divided_by(constant: float) -> Preparation:
    return AsIs() if constant == 1.0 else Divided(constant)
