"""What the columns of a variable become, as a document that a packed table's summary stores.

Packing, validation packing, evaluation and prediction all apply this document.  The kinds:

| kind       | parameters      | values of the variable                                                           |
|------------|-----------------|----------------------------------------------------------------------------------|
| as_is      | –               | numbers as they are: small integers stay integers, all others become float32     |
| divided    | by              | the same, divided by a constant: integers when they are read, floats when packed |
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
in this module and its SQL expression in cerebro_plpy/data/preparation.py.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from . import features
from .errors import BadData
from .features import Category, Date, Feature, Number
from .features import Words as WordsFeature
from .packing import INTEGERS, ArrayEncoder, ClassEncoder, Encoder, float32
from .records import dataclass

Json = dict[str, Any]

MOST_FOLDS = 100
PACK_AGAIN = "Pack the table again with training_preprocessor_dl() or validation_preprocessor_dl()."


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

    def encoder(self, shape: Sequence[int], dtype: str, spellings: dict[str | None, int]) -> Encoder:
        """Collects the values of rows and gives them back as the bytes of a buffer."""
        return ArrayEncoder(shape, dtype, self.factor(dtype))

    @property
    def label_type(self) -> str | None:
        """The SQL type in which column values are compared, if they are labels; None for numbers."""
        return None

    def check(self) -> None:  # noqa: B027  (most kinds have nothing to check)
        """Raises ValueError if a parameter makes no sense."""

    def to_json(self) -> Json:
        return {"kind": self.kind, **{name: _plain(value) for name, value in vars(self).items()}}

    @classmethod
    def of(cls, given: Json) -> Preparation:
        """ValueError or TypeError if these are no parameters of the kind."""
        fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # subclasses are dataclasses
        if set(given) != fields:
            raise ValueError(f"it takes {sorted(fields)}, not {sorted(given)}")
        found = cls(**{name: _frozen(value) for name, value in given.items()})
        found.check()
        return found


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


@known
@dataclass(frozen=True)
class Divided(AsIs):
    kind = "divided"
    by: float

    def factor(self, dtype: str) -> float:
        return float32(1.0 / self.by) if dtype == "float32" else 1.0

    def scale(self, dtype: str) -> float:
        return 1.0 if dtype == "float32" else self.by

    def check(self) -> None:
        if type(self.by) not in (int, float) or not 0 < self.by < math.inf:
            raise ValueError("'by' must be a positive number")


@known
@dataclass(frozen=True)
class OneHot(Preparation):
    kind = "one_hot"
    target = "class"
    type: str  # the column's SQL type
    # As text, in the type's order, NULL (None) first if it is a label; classes declared beyond them have no label yet.
    labels: tuple[str | None, ...] = ()

    def dtype(self, integers: bool) -> str:
        return ClassEncoder.dtype

    def encoder(self, shape: Sequence[int], dtype: str, spellings: dict[str | None, int]) -> Encoder:
        return ClassEncoder(spellings, shape[0])

    @property
    def label_type(self) -> str | None:
        return self.type

    def check(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise ValueError("'type' must be the name of a type")
        texts = self.labels[1:] if self.null_is_a_class else self.labels
        if not all(isinstance(label, str) for label in texts) or len(set(texts)) < len(texts):
            raise ValueError("'labels' must be different texts")

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

    def check(self) -> None:
        if not all(type(one) in (int, float) and math.isfinite(one) for one in (self.mean, self.deviation)):
            raise ValueError("'mean' and 'deviation' must be numbers")
        if self.deviation <= 0:
            raise ValueError("'deviation' must be positive")


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

    def check(self) -> None:
        if len(self.labels) != len(self.factors) or not all(isinstance(label, str) for label in self.labels):
            raise ValueError("'labels' must be texts, each with one of 'factors'")
        if not all(type(one) in (int, float) and 0 <= one < math.inf for one in self.factors):
            raise ValueError("'factors' must be numbers of at least 0")


@known
@dataclass(frozen=True)
class Fold(Preparation):
    """The columns are those of the hash that chooses the fold."""

    kind = "fold"
    target = "fold"
    folds: int

    def dtype(self, integers: bool) -> str:
        return INTEGERS[0]  # one byte

    def check(self) -> None:
        if type(self.folds) is not int or not 2 <= self.folds <= MOST_FOLDS:
            raise ValueError(f"'folds' must be a whole number from 2 to {MOST_FOLDS}")


@dataclass(frozen=True)
class ByColumn(Preparation):
    """Columns that are prepared one by one.  ``kinds``: what their features may be."""

    prepared: tuple[Feature, ...]
    kinds: ClassVar[tuple[type[Number | Date | Category | WordsFeature], ...]]

    @property
    def features(self) -> tuple[Feature, ...]:
        return self.prepared

    @property
    def width(self) -> int:
        return sum(len(feature.names) for feature in self.prepared)

    def check(self) -> None:
        if not self.prepared or not all(isinstance(feature, self.kinds) for feature in self.prepared):
            raise ValueError(f"its features must be {' or '.join(kind.prepared_as for kind in self.kinds)}")

    def to_json(self) -> Json:
        return {"kind": self.kind, "features": [features.to_json(feature) for feature in self.prepared]}

    @classmethod
    def of(cls, given: Json) -> Preparation:
        if set(given) != {"features"} or not isinstance(given["features"], list):
            raise ValueError(f"it takes a list of features, not {sorted(given)}")
        found = cls(tuple(map(features.from_json, given["features"])))
        found.check()
        return found


@known
@dataclass(frozen=True)
class Numbers(ByColumn):
    kind = "numbers"
    kinds = (Number, Date)

    def dtype(self, integers: bool) -> str:
        return "float32"


@known
@dataclass(frozen=True)
class Categories(ByColumn):
    kind = "categories"
    kinds = (Category,)

    @property
    def sizes(self) -> list[int]:
        """The number of codes of each column."""
        return [feature.size for feature in self.prepared if isinstance(feature, Category)]

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

    def check(self) -> None:
        super().check()
        if len(self.prepared) != 1:
            raise ValueError("words take exactly one column")


def divided_by(constant: float) -> Preparation:
    return AsIs() if constant == 1.0 else Divided(constant)


def from_json(document: Any, where: str) -> Preparation:
    """The preparation that a document describes; BadData, naming ``where``, if it describes none."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise _damaged(where, f"the kind {kind!r} is not one of {', '.join(KINDS)}")
    try:
        return KINDS[kind].of({name: value for name, value in document.items() if name != "kind"})
    except (TypeError, ValueError) as error:
        raise _damaged(where, f"{kind}: {error}") from None


def _damaged(where: str, why: str) -> BadData:
    return BadData(f"{where} has a preparation that cannot be used: {why}.", hint=PACK_AGAIN)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
