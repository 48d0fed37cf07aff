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
in this module, whose ``read`` checks each parameter, and its SQL expression in
cerebro_plpy/packing/rows/preparation.py.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from .. import sql_types
from ..documents import Fields
from ..records import dataclass
from ..sql_types import SqlType
from . import features
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
from .features import CategoryFeature, DateFeature, Feature, NumberFeature, WordsFeature

Json = dict[str, Any]

MOST_FOLDS = 100
MOST_COLUMNS = 1600  # PostgreSQL's limit of a table
LEAST_DIVISOR, LARGEST_DIVISOR = 1e-37, 3.5e38  # float32 numbers whose reciprocals are float32, too
PACK_AGAIN = "Pack the table again with the function that has packed it."


@dataclass(frozen=True)
class Preparation(abc.ABC):
    """What one variable's columns become.  Subclasses are the kinds; their fields are the parameters."""

    kind: ClassVar[str]
    target: ClassVar[str | None] = None  # how a loss treats an output: class, encoded or real; None: an input
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

    def encoder(self, shape: Sequence[int], dtype: str, spellings: dict[str | None, int]) -> Encoder:
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

    def to_json(self) -> Json:
        return {"kind": self.kind, **{name: _plain(value) for name, value in vars(self).items()}}

    @classmethod
    def read(cls, fields: Fields) -> Preparation:
        """The preparation with the parameters of a document; BadData if one of them is wrong."""
        return cls()


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
    by: float

    def factor(self, dtype: str) -> float:
        return float32(1.0 / self.by) if dtype == "float32" else 1.0

    def scale(self, dtype: str) -> float:
        return 1.0 if dtype == "float32" else self.by

    @classmethod
    def read(cls, fields: Fields) -> Divided:
        return cls(fields.number("by", LEAST_DIVISOR, LARGEST_DIVISOR))


@known
@dataclass(frozen=True)
class Pixels(Preparation):
    kind = "pixels"
    by: float = 1.0

    def dtype(self, integers: bool) -> str:
        return "uint8"

    def scale(self, dtype: str) -> float:
        return self.by

    def wire_dtype(self, dtype: str) -> str:
        return dtype

    def encoder(self, shape: Sequence[int], dtype: str, spellings: dict[str | None, int]) -> Encoder:
        return BytesEncoder(shape)

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return columns == 1

    @classmethod
    def read(cls, fields: Fields) -> Pixels:
        return cls(fields.number("by", LEAST_DIVISOR, LARGEST_DIVISOR))


@known
@dataclass(frozen=True)
class OneHot(Preparation):
    kind = "one_hot"
    target = "class"
    type: SqlType  # of the column
    # As text, in the type's order, NULL (None) first if it is a label; classes declared beyond them have no label yet.
    labels: tuple[str | None, ...] = ()

    def dtype(self, integers: bool) -> str:
        return ClassEncoder.dtype

    def encoder(self, shape: Sequence[int], dtype: str, spellings: dict[str | None, int]) -> Encoder:
        return ClassEncoder(spellings, shape[0])

    @property
    def label_type(self) -> SqlType | None:
        return self.type

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return columns == 1 and len(shape) == 1 and len(self.labels) <= shape[0] <= MOST_CLASSES

    def settled(self, settled: Callable[[SqlType], SqlType]) -> OneHot:
        return replace(self, type=settled(self.type))

    def to_json(self) -> Json:
        return {"kind": self.kind, "type": self.type.name, "labels": list(self.labels)}

    @classmethod
    def read(cls, fields: Fields) -> OneHot:
        labels = fields.list("labels", 0, MOST_CLASSES)
        first: tuple[str | None, ...] = (None,) if labels and labels[0] is None else ()
        return cls(sql_types.read(fields), (*first, *fields.texts("labels", MOST_CLASSES, skipped=len(first))))

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
    mean: float
    deviation: float

    @classmethod
    def read(cls, fields: Fields) -> Measured:
        return cls(fields.number("mean"), fields.number("deviation", features.LEAST))


@known
@dataclass(frozen=True)
class Weight(Preparation):
    """The last column is the target, if there are labels."""

    kind = "weight"
    target = "weight"
    labels: tuple[str, ...] = ()  # every spelling
    factors: tuple[float, ...] = ()

    def dtype(self, integers: bool) -> str:
        return "float32"

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return shape == (1,) and columns <= 2

    @classmethod
    def read(cls, fields: Fields) -> Weight:
        found = cls(fields.texts("labels"), fields.numbers("factors", low=0.0, high=LARGEST_DIVISOR))
        if len(found.labels) != len(found.factors):
            raise fields.wrong("must have one number for each of 'labels'", "factors")
        return found


@known
@dataclass(frozen=True)
class Fold(Preparation):
    """The columns are those of the hash that chooses the fold."""

    kind = "fold"
    target = "fold"
    folds: int

    def dtype(self, integers: bool) -> str:
        return INTEGERS[0]  # one byte

    def fits(self, shape: tuple[int, ...], columns: int) -> bool:
        return shape == (1,)

    @classmethod
    def read(cls, fields: Fields) -> Fold:
        return cls(fields.whole("folds", 2, MOST_FOLDS))


@dataclass(frozen=True)
class ByColumn(Preparation):
    """Columns that are prepared one by one.  ``kinds``: what their features may be."""

    prepared: tuple[Feature, ...]
    kinds: ClassVar[tuple[type[NumberFeature | DateFeature | CategoryFeature | WordsFeature], ...]]

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

    def to_json(self) -> Json:
        return {"kind": self.kind, "features": [features.to_json(feature) for feature in self.prepared]}

    @classmethod
    def read(cls, fields: Fields) -> ByColumn:
        found = cls(tuple(map(features.read, fields.objects("features", 1, MOST_COLUMNS))))
        if not all(isinstance(feature, cls.kinds) for feature in found.prepared):
            raise fields.wrong(f"must be {' or '.join(kind.prepared_as for kind in cls.kinds)}", "features")
        return found


@known
@dataclass(frozen=True)
class Numbers(ByColumn):
    kind = "numbers"
    kinds = (NumberFeature, DateFeature)

    @property
    def bins(self) -> list[tuple[float, ...]]:
        """The edges of the bins of each element."""
        return [
            edges
            for feature in self.prepared
            if isinstance(feature, (NumberFeature, DateFeature))
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


def read(fields: Fields, allowed: Sequence[str | None]) -> Preparation:
    """The preparation that a document describes; BadData if it describes none.

    ``allowed``: what it may be for, as ``Preparation.target`` says.
    """
    kinds = [name for name, kind in KINDS.items() if kind.target in allowed]
    found = KINDS[fields.choice("kind", kinds)].read(fields)
    fields.done()
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
