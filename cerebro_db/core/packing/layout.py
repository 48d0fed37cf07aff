# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The layout of a packed table: its variables, its partitions, and the JSON in which the summary stores both.

docs/architecture.md shows the JSON.  Trainers get the part of it that ``Variable.for_trainer`` gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Optional

from .. import codec, documents
from ..codec import Identifier, Misfit, OneOf, Text, Whole, Within, different
from ..documents import LARGEST_WHOLE
from ..errors import BadData
from ..records import dataclass, field
from ..sql_types import SqlType
from .buffer_format import ITEM_BYTES, LARGEST_BYTES, elements
from .preparation import MOST_COLUMNS, MOST_FOLDS, PACK_AGAIN, Fold, Preparation
from .quantiles import MOST_QUANTILES, quantiles_are_right
from .related import Related
from .subgroups import LONGEST_LABEL, MOST_GROUPS, Piece
from .windows import Windows

Json = dict[str, Any]
Settled = Callable[[SqlType], SqlType]

FIRST_ADDED = 1_000_000_000  # buffer_id of the first buffer that is added to a packed table later
LARGEST_ID = 2**31 - 1
MOST_DIMENSIONS = 8  # PostgreSQL's arrays have six at most, and windows add one
MOST_PARTITIONS = 100_000
INPUT: tuple[str | None, ...] = (None,)  # what the preparations of each part of a layout are for
OUTPUT: tuple[str | None, ...] = ("class", "encoded", "real")
_SHA256 = re.compile("[0-9a-f]{64}")


def _rising(quantiles: tuple[float, ...]) -> None:
    if not quantiles_are_right(quantiles):
        raise Misfit(f"have to be at most {MOST_QUANTILES} rising numbers between 0 and 1")


Quantiles = Annotated[tuple[float, ...], Within(0, MOST_QUANTILES), _rising]


@dataclass(frozen=True)
class Variable:
    """One input or output: a column of the packed table, and one of the model's inputs or outputs."""

    name: Identifier
    dtype: Annotated[str, OneOf(*ITEM_BYTES)]  # of the packed values
    shape: Annotated[tuple[Annotated[int, Within(1, LARGEST_ID)], ...], Within(1, MOST_DIMENSIONS)]  # of one row
    columns: Annotated[tuple[Identifier, ...], Within(1, MOST_COLUMNS), different]  # of the source table
    preparation: Preparation
    # Of an output with a value for each step of a window: how many; the first number of the shape. 0: it has one value.
    steps: Annotated[int, Within(0, LARGEST_ID)] = codec.omitted(0)
    # Of a number to predict: the quantiles that a model predicts of it; none: its mean.
    quantiles: Quantiles = codec.omitted(())
    # Of an input: so many rows after those of the window, because its columns are known before.
    later: Annotated[int, Within(0, LARGEST_ID)] = codec.omitted(0)

    @property
    def middle(self) -> int:
        """The place of the quantile that stands for the number: the median, or the nearest one to it."""
        return min(range(len(self.quantiles)), key=lambda place: abs(self.quantiles[place] - 0.5))

    @property
    def of_step(self) -> tuple[int, ...]:
        """The shape of one value of an output: that of one step, if it has steps."""
        return self.shape[1:] if self.steps else self.shape

    @property
    def target(self) -> str | None:
        """class, encoded or real; weight for the weights of rows, fold for their folds; None for an input."""
        return self.preparation.target

    @property
    def elements(self) -> int:
        return elements(self.shape)

    @property
    def places(self) -> list[tuple[str, int, int | None]]:
        """The elements that come from each source column: its name, the first place along the last dimension, and the
        number of places; None: all elements."""
        if len(self.columns) == 1:
            return [(self.columns[0], 0, None)]
        each = (self.shape or (1,))[-1] // len(self.columns)
        widths = [len(feature.names) for feature in self.preparation.features] or [each] * len(self.columns)
        return list(zip(self.columns, accumulate([0, *widths]), widths))

    def for_trainer(self) -> Json:
        """The entry of an order to a trainer: what a trainer must know to read the values."""
        shown: Json = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        if self.target is None:
            return {**shown, "scale": self.preparation.scale(self.dtype)}
        quantiles = {"quantiles": list(self.quantiles)} if self.quantiles else {}
        return {**shown, "kind": self.target, **({"steps": self.steps} if self.steps else {}), **quantiles}

    def to_document(self) -> Json:
        columns = {} if self.columns == (self.name,) else {"columns": list(self.columns)}
        later = {"later": self.later} if self.later else {}
        return {**self.for_trainer(), **columns, **later, "preparation": codec.encode(self.preparation)}

    @classmethod
    def from_document(cls, document: Any) -> Variable:
        """What trainers get is in the document, too, and has to be what follows from the rest."""
        if not isinstance(document, dict):
            raise codec.wrong("a JSON object", document)
        own = {name: value for name, value in document.items() if name not in ("scale", "kind")}
        found = codec.decoded(cls, {"columns": [own.get("name")], **own})
        told = found.for_trainer()
        for name in ("scale", "kind"):
            if document.get(name) != told.get(name):
                raise Misfit(f"has to be {told.get(name)!r}, by its preparation", name)
        return found

    def require_agreement(self) -> None:
        if self.dtype not in self.preparation.dtypes:
            raise Misfit(f"cannot be {self.dtype}, by the preparation", "dtype")
        if self.quantiles and (self.target != "real" or self.of_step != (1,)):
            raise Misfit("need a target that is one number", "quantiles")

    def require_use(self, targets: Sequence[str | None], windows: int | None, steps: int = 0, later: int = 0) -> None:
        """An error if it is not prepared for one of these.

        ``windows``: the rows of a window, or the steps of a target of such; None: the row has one value.
        ``steps``: those of an output.  ``later``: what an input may have, besides 0.
        """
        if self.target not in targets:
            raise Misfit(f"cannot be {self.preparation.kind}", "preparation.kind")
        if self.later != (later if self.later else 0):
            raise Misfit(f"has to be {later}, as the sequence says", "later")
        if self.steps != steps:
            raise Misfit(f"has to be {steps}, as the sequence says", "steps")
        of_row = self.shape if windows is None else self.shape[1:] if self.shape[0] == windows else ()
        if not of_row or not self.preparation.fits(of_row, len(self.columns)) or 4 * self.elements > LARGEST_BYTES:
            raise Misfit(f"cannot be {list(self.shape)}, by the preparation and the number of columns", "shape")

    def settled(self, settled: Settled) -> Variable:
        """The variable with other names for the types in its document."""
        return replace(self, preparation=self.preparation.settled(settled))


def _checksum(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise Misfit("has to be a checksum of 64 hexadecimal digits")


def _in_order(pieces: tuple[Piece, ...]) -> None:
    if any(earlier >= later for (earlier, _), (later, _) in zip(pieces, pieces[1:])):
        raise Misfit("has to have each group once, in the order of the numbers")


Counted = Annotated[int, Within(1, LARGEST_WHOLE)]
RowsOfFolds = Annotated[tuple[Whole, ...], Within(2, MOST_FOLDS)]


@dataclass(frozen=True)
class Partition:
    """The packed rows of one segment."""

    key: Annotated[int, Within(-(2**31), 2**31 - 1)]  # value of __dist_key__
    rows: Whole
    buffers: Whole
    bytes: Whole
    # Over each buffer in buffer_id order: the bytes of every input, then of every output.
    sha256: Annotated[str, _checksum]
    folds: RowsOfFolds = codec.omitted(())  # if rows have folds
    # If rows have groups, the number and the rows of each, in the order in which they lie.
    groups: Annotated[tuple[tuple[Counted, Counted], ...], Within(1, MOST_GROUPS), _in_order] = codec.omitted(())
    # Of each of these, if rows have both.
    group_folds: Annotated[tuple[RowsOfFolds, ...], Within(1, MOST_GROUPS)] = codec.omitted(())

    def require_agreement(self) -> None:
        pieces = [rows for _, rows in self.groups]
        if self.folds and sum(self.folds) != self.rows:
            raise Misfit(f"has to add up to the {self.rows} rows", "folds")
        if pieces and sum(pieces) != self.rows:
            raise Misfit(f"has to add up to the {self.rows} rows", "groups")
        if len(self.group_folds) != (len(pieces) if self.folds else 0):
            raise Misfit("has to have the rows of each fold for each group", "group_folds")
        if self.group_folds and [sum(folds) for folds in self.group_folds] != pieces:
            raise Misfit("has to add up to the rows of each group", "group_folds")
        if self.group_folds and tuple(map(sum, zip(*self.group_folds))) != self.folds:
            raise Misfit("has to add up to the rows of each fold", "group_folds")


@dataclass(frozen=True)
class GroupColumn:
    """A column whose values tell the groups apart."""

    name: Identifier
    type: SqlType


@dataclass(frozen=True)
class Groups:
    """The groups of the rows: the columns that tell them apart, and the values of each group, in the numbers' order."""

    columns: Annotated[tuple[GroupColumn, ...], Within(1, MOST_COLUMNS)]
    labels: Annotated[tuple[tuple[Optional[Text], ...], ...], Within(1, MOST_GROUPS), different]

    def require_agreement(self) -> None:
        if len({one.name for one in self.columns}) < len(self.columns):
            raise Misfit("has to have different names", "columns")
        for label in self.labels:
            if len(label) != len(self.columns):
                raise Misfit(f"has to have a list of {len(self.columns)} for each group", "labels")
            if sum(len(one.encode()) for one in label if one is not None) > LONGEST_LABEL:
                raise Misfit(f"has to have at most {LONGEST_LABEL} bytes for each group", "labels")

    def settled(self, settled: Settled) -> Groups:
        return replace(self, columns=tuple(replace(one, type=settled(one.type)) for one in self.columns))


Variables = Annotated[tuple[Variable, ...], Within(1, MOST_COLUMNS)]


@dataclass(frozen=True)
class Layout:
    """What is in a packed table."""

    inputs: Variables
    outputs: Variables
    rows: Whole
    partitions: Annotated[tuple[Partition, ...], Within(0, MOST_PARTITIONS)]
    windows: Optional[Windows] = codec.named("sequence", None)  # a row is a window of rows of the source
    weight: Optional[Variable] = None  # how much each row counts in training
    fold: Optional[Variable] = None  # the fold of each row
    key: Optional[Identifier] = None  # the column of the source that identifies a row, if one does
    groups: Optional[Groups] = None  # the rows of each group lie together
    related: Optional[Related] = None  # what rows have of other tables, as columns beside their own
    # Buffers with this id, or a later one, were added to the table after it had this layout.
    end: Annotated[int, Within(FIRST_ADDED, LARGEST_ID)] = codec.omitted(FIRST_ADDED)

    @property
    def without_groups(self) -> Layout:
        """The layout of the same rows for models on all rows, which need not know where the rows of groups lie."""
        partitions = tuple(replace(one, groups=(), group_folds=()) for one in self.partitions)
        return replace(self, groups=None, partitions=partitions)

    @property
    def steps(self) -> int:
        """How many values each output has for a window, one for each step; 0: one value."""
        return 0 if self.windows is None else self.windows.steps

    @property
    def null_to_come(self) -> list[str]:
        """Columns that are NULL in rows to come: the targets, where windows read what is known of later rows."""
        known = self.windows is not None and self.windows.known
        return [name for variable in self.outputs for name in variable.columns] if known else []

    @property
    def folds(self) -> int:
        """The number of folds; 0: rows have none."""
        return self.fold.preparation.folds if self.fold and isinstance(self.fold.preparation, Fold) else 0

    def to_json(self) -> Json:
        return codec.encode_fields(self)

    def settled(self, settled: Settled) -> Layout:
        """The layout with other names for the types in it: ``settled`` gives the new name of each."""
        return replace(
            self,
            inputs=tuple(one.settled(settled) for one in self.inputs),
            outputs=tuple(one.settled(settled) for one in self.outputs),
            groups=self.groups.settled(settled) if self.groups else None,
            related=self.related.settled(settled) if self.related else None,
        )

    @classmethod
    def from_json(cls, document: Any, where: str = "the layout") -> Layout:
        """BadData, beginning with ``where``, if the document is not a layout."""
        return codec.decode(cls, document, where, BadData, PACK_AGAIN)

    @classmethod
    def parse(cls, text: Any, where: str) -> Layout:
        """The layout in a JSON text; BadData, beginning with ``where``, if it has none."""
        return cls.from_json(documents.decoded(text, where, PACK_AGAIN), where)

    def require_agreement(self) -> None:
        length = None if self.windows is None else self.windows.length
        steps, later = (0, 0) if self.windows is None else (self.windows.steps, self.windows.reach)
        for part, variables, targets, windows, its in (
            ("inputs", self.inputs, INPUT, length, 0),
            ("outputs", self.outputs, OUTPUT, steps or None, steps),
            ("weight", (self.weight,), ("weight",), steps or None, steps),
            ("fold", (self.fold,), ("fold",), None, 0),
        ):
            for variable in filter(None, variables):
                try:
                    variable.require_use(targets, windows, its, later if part == "inputs" else 0)
                except Misfit as misfit:
                    raise misfit.within(f".{part} '{variable.name}'") from None
        if {len(partition.folds) for partition in self.partitions} - {self.folds}:
            raise Misfit("has to have the rows of each fold", "partitions")
        self._require_groups()
        if self.partitions and sum(partition.rows for partition in self.partitions) != self.rows:
            raise Misfit(f"has to add up to the {self.rows} rows", "partitions")
        if len({partition.key for partition in self.partitions}) < len(self.partitions):
            raise Misfit("has to have different keys", "partitions")
        names = [variable.name for variable in (*self.inputs, *self.outputs, self.weight, self.fold) if variable]
        if len(set(names)) < len(names):
            raise Misfit("has two variables of one name")
        self._require_columns()

    def _require_columns(self) -> None:
        """An error if two inputs are made of one column, unless it is a number or date for one, a category for the
        other."""
        used: dict[tuple[str, int], list[tuple[str, SqlType | None]]] = {}
        for variable in self.inputs:
            types = {column: one.type for column, one in zip(variable.columns, variable.preparation.features)}
            for column in variable.columns:
                used.setdefault((column, variable.later), []).append((variable.preparation.kind, types.get(column)))
        for its in used.values():
            kinds, of = {kind for kind, _ in its}, {type for _, type in its}
            if len(its) > 1 and (len(kinds) < len(its) or len(of) > 1 or None in of):
                raise Misfit("has two inputs made of one column")

    def _require_groups(self) -> None:
        """An error if the pieces of groups contradict the rows or the list of the groups."""
        count = len(self.groups.labels) if self.groups is not None else 0
        pieces = sum(len(partition.groups) for partition in self.partitions)
        if any(
            bool(partition.groups) != (self.groups is not None and partition.rows > 0) for partition in self.partitions
        ):
            raise Misfit("has to have the rows of each group", "partitions")
        if any(partition.groups[-1][0] > count for partition in self.partitions if partition.groups):
            raise Misfit(f"has to have groups from 1 to {count}", "partitions")
        if pieces > 2 * MOST_GROUPS:
            raise Misfit(f"has to have at most {2 * MOST_GROUPS} pieces of groups", "partitions")
        by = self.windows.by if self.windows is not None else None
        if self.groups is not None and by is not None and {one.name for one in self.groups.columns} - set(by):
            raise Misfit('has to have "by" with the columns of the groups', "sequence")


def has_grown(before: Layout, now: Layout) -> bool:
    """Whether rows were added to the table since it had the first of two layouts.  Its buffers are still there."""
    return replace(before, rows=now.rows, partitions=now.partitions, end=now.end) == now and before.end < now.end


@dataclass(frozen=True)
class DataSet:
    """A packed table, as SQL, with its layout."""

    table: str
    layout: Layout
    # Filled when they are first read.
    _pieces: dict[int, dict[int, int]] = field(default_factory=dict, compare=False, repr=False)
    _spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    _folds: dict[tuple[int, int], Sequence[int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.layout.partitions

    @property
    def folds(self) -> int:
        return self.layout.folds

    def rows_of_fold(self, fold: int, group: int | None = None) -> int:
        return sum(self.rows_for(fold, group, trained=False).values())

    def folds_of(self, group: int) -> list[int]:
        """The folds that have rows of a group, if more than one has: each leaves rows of the group to train on."""
        found = [fold for fold in range(1, self.folds + 1) if self.rows_of_fold(fold, group)]
        return found if len(found) > 1 else []

    def rows_for(self, fold: int | None, group: int | None, *, trained: bool) -> dict[int, int]:
        """Partition -> the rows that a model trains on there, or else is evaluated on; only where there are any.

        ``fold``: it trains on the rows of all other folds, and is evaluated on those of this one; None: on all.
        ``group``: only rows of this group count; None: those of all groups.
        """
        found = {}
        for number in range(len(self.partitions)) if group is None else self.pieces.get(group, ()):
            rows, folds = self._counted(number, group)
            if fold is not None:
                rows = rows - folds[fold - 1] if trained else folds[fold - 1]
            if rows:
                found[number] = rows
        return found

    def _counted(self, number: int, group: int | None) -> tuple[int, Sequence[int]]:
        """The rows of a partition and of each fold there; ``group``: of these the rows of a group."""
        if group is None:
            partition = self.partitions[number]
            return partition.rows, partition.folds
        return self.pieces[group][number], self._folds.get((number, group), ())

    @property
    def groups(self) -> tuple[tuple[str | None, ...], ...]:
        """The values of each group; empty: rows have no groups."""
        return self.layout.groups.labels if self.layout.groups is not None else ()

    @property
    def group_by(self) -> list[str]:
        """The columns that tell the groups apart; empty: rows have no groups."""
        return [one.name for one in self.layout.groups.columns] if self.layout.groups is not None else []

    @property
    def has_groups(self) -> bool:
        return self.layout.groups is not None

    @property
    def spans(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(Number of the partition, number of the group) -> first row and number of rows, for each piece."""
        if not self._spans and self.has_groups:
            for number, partition in enumerate(self.partitions):
                start = 0
                for group, rows in partition.groups:
                    self._spans[number, group] = start, rows
                    start += rows
                for (group, _), folds in zip(partition.groups, partition.group_folds):
                    self._folds[number, group] = folds
        return self._spans

    @property
    def pieces(self) -> dict[int, dict[int, int]]:
        """Number of the group -> its rows in each partition that has rows of it."""
        if not self._pieces:
            for (partition, group), (_, rows) in self.spans.items():
                self._pieces.setdefault(group, {})[partition] = rows
        return self._pieces

    @property
    def variables(self) -> list[str]:
        return [variable.name for variable in (*self.layout.inputs, *self._outputs, *self._fold)]

    @property
    def for_trainer(self) -> Json:
        """The layout as orders to trainers have it: without labels, source columns and partitions."""
        sides = {"inputs": self.layout.inputs, "outputs": self._outputs, **({"fold": self._fold} if self._fold else {})}
        return {side: [variable.for_trainer() for variable in variables] for side, variables in sides.items()}

    @property
    def _outputs(self) -> tuple[Variable, ...]:
        """What a model is trained on besides the inputs.  The weights of the rows come last."""
        return (*self.layout.outputs, *([self.layout.weight] if self.layout.weight is not None else []))

    @property
    def _fold(self) -> tuple[Variable, ...]:
        return () if self.layout.fold is None else (self.layout.fold,)
