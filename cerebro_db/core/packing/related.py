# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What a model reads of tables that are related to its own: the document that a packed table's layout keeps.

A *step* leads from one table to a related one: to the row that is referred to, or to the rows that refer.  The path of
a step has the labels of all steps before it, such as ``orders.items``.  The columns of a row that is referred to
become columns of the example.  Many rows that refer become aggregates, which are columns of the example, too, and the
latest of them become two arrays: numbers that are prepared already, and codes.

All sums are sums of whole steps, so they are the same in whatever order rows are read.  The SQL is in
cerebro_plpy/packing/related/deriving.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, Optional

from .. import codec
from ..codec import Identifier, Misfit, Number, OneOf, Text, Within
from ..names import LONGEST, StoredName
from ..records import dataclass
from ..sql_types import DATES, SqlType
from .features import LEAST, CategoryFeature, DateFeature, Feature, NumberFeature

DEEPEST = 3  # steps of a path
MOST_STEPS, MOST_OF_STEP = 100, 1600
MOST_LATEST = 256  # rows
FARTHEST_STEP = 2**31 - 1  # a number that is farther from the origin counts as this far: the square is a bigint
LARGEST_NUMBER = 1e200
SEPARATOR = "."
LONGEST_NAME = LONGEST - len("_shape")  # of a column; packing adds endings to the names of some

COUNT, SINCE_LAST, SINCE_FIRST = "count", "since last", "since first"
OF_ROWS = (COUNT, SINCE_LAST, SINCE_FIRST)
OF_NUMBERS = ("mean", "sum", "least", "largest", "spread", "trend")
SHARE, DIFFERENT, LAST = "share", "different", "last"
KINDS = (*OF_ROWS, *OF_NUMBERS, SHARE, DIFFERENT, LAST)
WITHOUT_WINDOW = (SINCE_LAST, SINCE_FIRST, LAST)


def _is_path(text: str) -> None:
    if not 1 <= len(labels_of(text)) <= DEEPEST or not all(labels_of(text)):
        raise Misfit(f"has to have 1 to {DEEPEST} labels, joined by dots")


Path = Annotated[Text, Within(1, 10 * LONGEST), _is_path]


def labels_of(path: str) -> list[str]:
    return path.split(SEPARATOR)


def parent_of(path: str) -> str:
    """The path of the step before; "" of a step from the example's own row."""
    return path.rpartition(SEPARATOR)[0]


@dataclass(frozen=True)
class RelatedColumn:
    """A column of a related table that is read."""

    name: Identifier
    type: SqlType


@dataclass(frozen=True)
class RelatedStep:
    """How one related table is reached, and what is read of it."""

    path: Path
    table: StoredName
    # The columns of the table before, each with the column of this one that has the same value.
    on: Annotated[tuple[tuple[Identifier, Identifier], ...], Within(1, MOST_OF_STEP)]
    many: bool  # its rows refer to that of the table before; else that row refers to one of them
    columns: Annotated[tuple[RelatedColumn, ...], Within(0, MOST_OF_STEP)]
    time: Optional[Identifier] = None  # the column with the time of a row

    @property
    def parent(self) -> str:
        return parent_of(self.path)

    def require_agreement(self) -> None:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise Misfit("has a column twice", "columns")


@dataclass(frozen=True)
class RelatedPlace:
    """A column, by the step that reads it."""

    path: Path
    column: Identifier


@dataclass(frozen=True)
class Carried(RelatedPlace):
    """A column of a row that an example refers to, and the name that it has beside the example's own."""

    name: Identifier
    since: bool = False  # how many days before the example a date in it was


@dataclass(frozen=True)
class RelatedMeasure(RelatedPlace):
    """A number of related rows, counted in whole steps from an origin."""

    origin: Number
    step: Annotated[float, Within(LEAST, LARGEST_NUMBER)]


@dataclass(frozen=True)
class Aggregate:
    """One column of the example, made of the rows that refer to it."""

    name: Identifier
    kind: Annotated[str, OneOf(*KINDS)]
    of: Optional[RelatedPlace] = None  # None: of the rows
    within: Optional[Annotated[float, Within(LEAST, LARGEST_NUMBER)]] = None  # days or units before; None: of all time
    value: Optional[Text] = None  # whose share
    as_text: bool = codec.omitted(False)  # of a last value: numbers that tell rows of other tables apart

    def require_agreement(self) -> None:
        if (self.of is None) != (self.kind in OF_ROWS):
            raise Misfit("has to have a column unless it is of rows", "of")
        if (self.value is None) == (self.kind == SHARE):
            raise Misfit("is of a share, and of nothing else", "value")
        if self.within is not None and self.kind in WITHOUT_WINDOW:
            raise Misfit(f"cannot be of {self.kind}", "within")


@dataclass(frozen=True)
class PreparedPlace(RelatedPlace):
    """A column of related rows, and what its values become in the arrays of the latest rows."""

    feature: Feature

    def require_agreement(self) -> None:
        if not isinstance(self.feature, (NumberFeature, DateFeature, CategoryFeature)):
            raise Misfit("has to be number, date or category", "feature")


@dataclass(frozen=True)
class Latest:
    """The latest rows that refer to an example, the newest first, as two arrays.

    In ``numbers``, the first channel is 1, and all are 0 where there is no row; in ``codes``, 0 stands for no row, too.
    """

    rows: Annotated[int, Within(1, MOST_LATEST)]
    numbers: Identifier
    codes: Optional[Identifier]  # None: no column is a category
    prepared: Annotated[tuple[PreparedPlace, ...], Within(0, MOST_OF_STEP)]
    age: Optional[NumberFeature] = None  # of the time that a row is before the example; None: rows have no time

    @property
    def of_numbers(self) -> list[PreparedPlace]:
        return [one for one in self.prepared if not isinstance(one.feature, CategoryFeature)]

    @property
    def of_codes(self) -> list[PreparedPlace]:
        return [one for one in self.prepared if isinstance(one.feature, CategoryFeature)]

    @property
    def channels(self) -> int:
        """The width of ``numbers``."""
        age = 0 if self.age is None else len(self.age.names)
        return 1 + age + sum(len(one.feature.names) for one in self.of_numbers)

    @property
    def sizes(self) -> list[int]:
        """The number of codes of each column of ``codes``."""
        return [one.feature.size for one in self.prepared if isinstance(one.feature, CategoryFeature)]

    def require_agreement(self) -> None:
        if (self.codes is None) != (not self.sizes):
            raise Misfit("has to have a name if a column is a category", "codes")


@dataclass(frozen=True)
class ManyRows:
    """What becomes of the rows at the end of a path with a step to many."""

    path: Path
    measures: Annotated[tuple[RelatedMeasure, ...], Within(0, MOST_OF_STEP)]
    aggregates: Annotated[tuple[Aggregate, ...], Within(0, MOST_OF_STEP)]
    latest: Optional[Latest] = None
    crowded: bool = codec.omitted(False)  # an example has so many rows that they are not read one example after another

    @property
    def names(self) -> list[str]:
        """The columns that an example gets."""
        arrays = [] if self.latest is None else [self.latest.numbers, self.latest.codes]
        return [*(one.name for one in self.aggregates), *filter(None, arrays)]


@dataclass(frozen=True)
class Related:
    """The related plan: all that a model reads of other tables."""

    steps: Annotated[tuple[RelatedStep, ...], Within(1, MOST_STEPS)]
    carried: Annotated[tuple[Carried, ...], Within(0, MOST_OF_STEP)]
    rows: Annotated[tuple[ManyRows, ...], Within(0, MOST_STEPS)]
    as_of: Optional[Identifier] = None  # the column with the time of an example; only rows before it are read

    @property
    def names(self) -> list[str]:
        """The columns that an example gets."""
        return [*(one.name for one in self.carried), *(name for rows in self.rows for name in rows.names)]

    @property
    def aggregates(self) -> list[str]:
        return [one.name for rows in self.rows for one in rows.aggregates]

    def latest_of(self, name: str) -> Latest | None:
        """The latest rows that an input of this name has the numbers or the codes of; None of any other input."""
        found = (one for rows in self.rows if (one := rows.latest) is not None and name in (one.numbers, one.codes))
        return next(found, None)

    def path_of(self, name: str) -> str | None:
        """The path that a column of an example comes from; None of the example's own."""
        carried = {one.name: one.path for one in self.carried}
        return carried.get(name) or next((rows.path for rows in self.rows if name in rows.names), None)

    def step(self, path: str) -> RelatedStep:
        return next(step for step in self.steps if step.path == path)

    def chain(self, path: str) -> list[RelatedStep]:
        """The steps to the end of a path."""
        labels = labels_of(path)
        return [self.step(SEPARATOR.join(labels[: end + 1])) for end in range(len(labels))]

    def inner(self, path: str) -> Iterator[RelatedStep]:
        """The steps from the rows at the end of a path to those that they refer to, each after the one before it."""
        for step in self.steps:
            if step.parent == path and not step.many:
                yield step
                yield from self.inner(step.path)

    def can_be_ranked(self, path: str) -> bool:
        """Whether the rows at the end of a path have one time, so that an example has all of them up to a rank.

        Differences of such times are exact: those of dates, and of integers that a double holds.
        """
        chain = self.chain(path)
        first = next(place for place, step in enumerate(chain) if step.many)
        timed = [step for step in chain[first:] if step.time is not None]
        inner = any(step.time is not None for step in self.inner(path))
        if self.as_of is None or len(timed) != 1 or not timed[0].many or inner:
            return False
        types = {column.name: column.type.name for column in timed[0].columns}
        return types.get(timed[0].time or "") in (*DATES, "smallint", "integer")

    def require_agreement(self) -> None:
        paths = [step.path for step in self.steps]
        if len(set(paths)) < len(paths):
            raise Misfit("has a path twice", "steps")
        for step in self.steps:
            if step.parent and step.parent not in paths:
                raise Misfit(f"lacks the path {step.parent!r}", "steps")
        names = [*self.names, *([] if self.as_of is None else [self.as_of])]
        if len(set(names)) < len(names):
            raise Misfit("has a column twice", "rows")
        known = {(step.path, column.name): column.type.name for step in self.steps for column in step.columns}
        for place in self._places():
            if (place.path, place.column) not in known:
                raise Misfit(f"reads a column that no step has: {place.path}{SEPARATOR}{place.column}")
        for one in self.carried:
            if one.since and (self.as_of is None or known[one.path, one.column] not in DATES):
                raise Misfit("cannot be true: there are no two dates", f"carried {one.name}")
        for rows in self.rows:
            if rows.path not in paths:
                raise Misfit(f"has no path {rows.path!r}", "rows")
            measured = {(one.path, one.column) for one in rows.measures}
            numbers = [one.of for one in rows.aggregates if one.kind in OF_NUMBERS and one.of is not None]
            if rows.crowded and not self.can_be_ranked(rows.path):
                raise Misfit("cannot be true: its rows have several times, or none", "rows")
            if any((one.path, one.column) not in measured for one in numbers):
                raise Misfit("lacks the measure of an aggregate", "rows")

    def _places(self) -> Iterator[RelatedPlace]:
        yield from self.carried
        for rows in self.rows:
            yield from rows.measures
            yield from (one.of for one in rows.aggregates if one.of is not None)
            yield from () if rows.latest is None else rows.latest.prepared

    def settled(self, settled: Any) -> Related:
        """The plan with other names for the types in it: ``settled`` gives the new name of each."""
        document = codec.encode_fields(self)
        return codec.decoded(Related, _with_types(document, settled))


def _with_types(value: Any, settled: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: settled(SqlType(one)).name if name == "type" and isinstance(one, str) else _with_types(one, settled)
            for name, one in value.items()
        }
    return [_with_types(one, settled) for one in value] if isinstance(value, list) else value


def column_name(path: str, what: str) -> str:
    """The name of a column of an example, short enough for PostgreSQL."""
    name = f"{path}{SEPARATOR}{what}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return name.encode()[: LONGEST_NAME - len(mark) - 1].decode(errors="ignore") + "~" + mark
