"""The layout of a packed table: its variables, its partitions, and the JSON in which the summary stores both.

docs/architecture.md shows the JSON.  Trainers get the part of it that ``Variable.for_trainer`` gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any

from .. import documents, sql_types
from ..documents import Fields
from ..records import dataclass, field
from ..sql_types import SqlType
from . import preparation
from .buffer_format import LARGEST_BYTES, elements
from .preparation import MOST_COLUMNS, MOST_FOLDS, PACK_AGAIN, Fold, Preparation
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


@dataclass(frozen=True)
class Variable:
    """One input or output: a column of the packed table, and one of the model's inputs or outputs."""

    name: str
    dtype: str  # of the packed values
    shape: tuple[int, ...]  # of one row
    columns: tuple[str, ...]  # of the source table
    preparation: Preparation

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
        return {**shown, "kind": self.target}

    def to_json(self) -> Json:
        columns = {} if self.columns == (self.name,) else {"columns": list(self.columns)}
        return {**self.for_trainer(), **columns, "preparation": self.preparation.to_json()}

    @classmethod
    def read(cls, fields: Fields, purpose: Sequence[str | None], windows: int | None) -> Variable:
        """The variable that a document describes.  ``windows``: the rows of a window, if it is an input of windows."""
        name = fields.identifier("name")
        fields.where += f" '{name}'"
        prepared = preparation.read(fields.object("preparation", f"{fields.where}: preparation"), purpose)
        shape = fields.wholes("shape", 1, MOST_DIMENSIONS, 1)
        columns = fields.identifiers("columns", 1, MOST_COLUMNS) if fields.has("columns") else (name,)
        found = cls(name, fields.choice("dtype", prepared.dtypes), shape, columns, prepared)
        of_row = shape[1:] if windows is not None and shape[0] == windows else shape if windows is None else ()
        if not of_row or not prepared.fits(of_row, len(columns)) or 4 * found.elements > LARGEST_BYTES:
            raise fields.wrong(f"cannot be {list(shape)}, by the preparation and the number of columns", "shape")
        for key, value in found.for_trainer().items():
            if fields.value(key) != value:
                raise fields.wrong(f"should be {value!r}, by its preparation", key)
        fields.done()
        return found

    def settled(self, settled: Settled) -> Variable:
        """The variable with other names for the types in its document."""
        return replace(self, preparation=self.preparation.settled(settled))


@dataclass(frozen=True)
class Partition:
    """The packed rows of one segment."""

    key: int  # value of __dist_key__
    rows: int
    buffers: int
    bytes: int
    sha256: str  # over each buffer in buffer_id order: the bytes of every input, then of every output
    folds: tuple[int, ...] = ()  # rows of each fold, if rows have folds
    groups: tuple[Piece, ...] = ()  # number and rows of each group, in the order in which they lie, if rows have groups
    group_folds: tuple[tuple[int, ...], ...] = ()  # of each of these, the rows of each fold, if rows have both

    def to_json(self) -> Json:
        document = asdict(self)
        folds, groups, group_folds = (document.pop(name) for name in ("folds", "groups", "group_folds"))
        return {
            **document,
            **({"folds": list(folds)} if folds else {}),
            **({"groups": [list(piece) for piece in groups]} if groups else {}),
            **({"group_folds": [list(folds) for folds in group_folds]} if group_folds else {}),
        }

    @classmethod
    def read(cls, fields: Fields) -> Partition:
        found = cls(
            key=fields.whole("key", -(2**31), 2**31 - 1),
            rows=fields.whole("rows"),
            buffers=fields.whole("buffers"),
            bytes=fields.whole("bytes"),
            sha256=fields.text("sha256", 64),
            folds=fields.wholes("folds", 2, MOST_FOLDS) if fields.has("folds") else (),
            groups=cls._pieces(fields) if fields.has("groups") else (),
            group_folds=cls._folds_of_pieces(fields) if fields.has("group_folds") else (),
        )
        fields.done()
        if not _SHA256.fullmatch(found.sha256):
            raise fields.wrong("must be a checksum of 64 hexadecimal digits", "sha256")
        if found.folds and sum(found.folds) != found.rows:
            raise fields.wrong(f"must add up to the {found.rows} rows", "folds")
        if found.groups and sum(rows for _, rows in found.groups) != found.rows:
            raise fields.wrong(f"must add up to the {found.rows} rows", "groups")
        if len(found.group_folds) != (len(found.groups) if found.folds else 0):
            raise fields.wrong("must have the rows of each fold for each group", "group_folds")
        if [sum(folds) for folds in found.group_folds] != [rows for _, rows in found.groups if found.folds]:
            raise fields.wrong("must add up to the rows of each group", "group_folds")
        if found.group_folds and tuple(map(sum, zip(*found.group_folds))) != found.folds:
            raise fields.wrong("must add up to the rows of each fold", "group_folds")
        return found

    @staticmethod
    def _folds_of_pieces(fields: Fields) -> tuple[tuple[int, ...], ...]:
        found = []
        for one in fields.list("group_folds", 1, MOST_GROUPS):
            listed = isinstance(one, (list, tuple)) and 2 <= len(one) <= MOST_FOLDS
            if not listed or not all(documents.is_whole_number(number, 0) for number in one):
                raise fields.wrong("must have lists of the rows of each fold", "group_folds")
            found.append(tuple(one))
        return tuple(found)

    @staticmethod
    def _pieces(fields: Fields) -> tuple[Piece, ...]:
        found = []
        for one in fields.list("groups", 1, MOST_GROUPS):
            pair = isinstance(one, (list, tuple)) and len(one) == 2
            if not pair or not all(documents.is_whole_number(number, 1) for number in one):
                raise fields.wrong("must have pairs of a group's number and its rows", "groups")
            found.append((one[0], one[1]))
        if any(earlier >= later for (earlier, _), (later, _) in zip(found, found[1:])):
            raise fields.wrong("must have each group once, in the order of the numbers", "groups")
        return tuple(found)


@dataclass(frozen=True)
class GroupColumn:
    """A column whose values tell the groups apart."""

    name: str
    type: SqlType


@dataclass(frozen=True)
class Groups:
    """The groups of the rows: the columns that tell them apart, and the values of each group, in the numbers' order."""

    columns: tuple[GroupColumn, ...]
    labels: tuple[tuple[str | None, ...], ...]

    def to_json(self) -> Json:
        return {
            "columns": [{"name": one.name, "type": one.type.name} for one in self.columns],
            "labels": [list(label) for label in self.labels],
        }

    @classmethod
    def read(cls, fields: Fields) -> Groups:
        columns = []
        for one in fields.objects("columns", 1, MOST_COLUMNS):
            columns.append(GroupColumn(one.identifier("name"), sql_types.read(one)))
            one.done()
        labels = tuple(cls._label(one, len(columns), fields) for one in fields.list("labels", 1, MOST_GROUPS))
        fields.done()
        if len({one.name for one in columns}) < len(columns):
            raise fields.wrong("must have different names", "columns")
        if len(set(labels)) < len(labels):
            raise fields.wrong("must not have the same values twice", "labels")
        return cls(tuple(columns), labels)

    @staticmethod
    def _label(values: Any, columns: int, fields: Fields) -> tuple[str | None, ...]:
        if not isinstance(values, (list, tuple)) or len(values) != columns:
            raise fields.wrong(f"must have a list of {columns} for each group", "labels")
        texts = Fields({"labels": [one for one in values if one is not None]}, fields.where, fields.hint)
        known = texts.texts("labels", columns, different=False)
        if sum(len(one.encode()) for one in known) > LONGEST_LABEL:
            raise fields.wrong(f"must have at most {LONGEST_LABEL} bytes for each group", "labels")
        return tuple(values)

    def settled(self, settled: Settled) -> Groups:
        return replace(self, columns=tuple(replace(one, type=settled(one.type)) for one in self.columns))


@dataclass(frozen=True)
class Layout:
    """What is in a packed table."""

    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    rows: int
    partitions: tuple[Partition, ...]
    windows: Windows | None = None  # a row is a window of rows of the source
    weight: Variable | None = None  # how much each row counts in training
    fold: Variable | None = None  # the fold of each row
    key: str | None = None  # the column of the source that identifies a row, if one does
    groups: Groups | None = None  # the rows of each group lie together
    end: int = FIRST_ADDED  # buffers with this id, or a later one, were added to the table after it had this layout

    @property
    def without_groups(self) -> Layout:
        """The layout of the same rows for models on all rows, which need not know where the rows of groups lie."""
        partitions = tuple(replace(one, groups=(), group_folds=()) for one in self.partitions)
        return replace(self, groups=None, partitions=partitions)

    @property
    def folds(self) -> int:
        """The number of folds; 0: rows have none."""
        return self.fold.preparation.folds if self.fold and isinstance(self.fold.preparation, Fold) else 0

    def to_json(self) -> Json:
        return {
            "inputs": [variable.to_json() for variable in self.inputs],
            "outputs": [variable.to_json() for variable in self.outputs],
            "rows": self.rows,
            "partitions": [partition.to_json() for partition in self.partitions],
            **({"sequence": self.windows.to_json()} if self.windows else {}),
            **({"weight": self.weight.to_json()} if self.weight else {}),
            **({"fold": self.fold.to_json()} if self.fold else {}),
            **({"key": self.key} if self.key is not None else {}),
            **({"groups": self.groups.to_json()} if self.groups else {}),
            **({"end": self.end} if self.end != FIRST_ADDED else {}),
        }

    def settled(self, settled: Settled) -> Layout:
        """The layout with other names for the types in it: ``settled`` gives the new name of each."""
        return replace(
            self,
            inputs=tuple(one.settled(settled) for one in self.inputs),
            outputs=tuple(one.settled(settled) for one in self.outputs),
            groups=self.groups.settled(settled) if self.groups else None,
        )

    @classmethod
    def from_json(cls, document: Any, where: str = "the layout") -> Layout:
        """BadData, beginning with ``where``, if the document is not a layout."""
        fields = Fields(document, where, PACK_AGAIN)
        windows = Windows.from_json(fields.value("sequence"), f"{where}: sequence") if fields.has("sequence") else None
        length = None if windows is None else windows.length

        def one(name: str) -> Variable | None:
            return Variable.read(fields.object(name), (name,), None) if fields.has(name) else None

        found = cls(
            inputs=tuple(Variable.read(one, INPUT, length) for one in fields.objects("inputs", 1, MOST_COLUMNS)),
            outputs=tuple(Variable.read(one, OUTPUT, None) for one in fields.objects("outputs", 1, MOST_COLUMNS)),
            rows=fields.whole("rows"),
            partitions=tuple(map(Partition.read, fields.objects("partitions", 0, MOST_PARTITIONS))),
            windows=windows,
            weight=one("weight"),
            fold=one("fold"),
            key=fields.identifier("key") if fields.has("key") else None,
            groups=Groups.read(fields.object("groups", f"{where}: groups")) if fields.has("groups") else None,
            end=fields.whole("end", FIRST_ADDED, LARGEST_ID) if fields.has("end") else FIRST_ADDED,
        )
        fields.done()
        found._require_agreement(fields)
        return found

    @classmethod
    def parse(cls, text: Any, where: str) -> Layout:
        """The layout in a JSON text; BadData, beginning with ``where``, if it has none."""
        return cls.from_json(documents.decoded(text, where, PACK_AGAIN), where)

    def _require_agreement(self, fields: Fields) -> None:
        """An error if the parts of the layout contradict each other."""
        if {len(partition.folds) for partition in self.partitions} - {self.folds}:
            raise fields.wrong("must have the rows of each fold", "partitions")
        self._require_groups(fields)
        if self.partitions and sum(partition.rows for partition in self.partitions) != self.rows:
            raise fields.wrong(f"must add up to the {self.rows} rows", "partitions")
        if len({partition.key for partition in self.partitions}) < len(self.partitions):
            raise fields.wrong("must have different keys", "partitions")
        names = [variable.name for variable in (*self.inputs, *self.outputs, self.weight, self.fold) if variable]
        if len(set(names)) < len(names):
            raise fields.wrong("has two variables of one name")
        columns = [column for variable in self.inputs for column in variable.columns]
        if len(set(columns)) < len(columns):
            raise fields.wrong("has two inputs made of one column")

    def _require_groups(self, fields: Fields) -> None:
        """An error if the pieces of groups contradict the rows or the list of the groups."""
        count = len(self.groups.labels) if self.groups is not None else 0
        pieces = sum(len(partition.groups) for partition in self.partitions)
        if any(
            bool(partition.groups) != (self.groups is not None and partition.rows > 0) for partition in self.partitions
        ):
            raise fields.wrong("must have the rows of each group", "partitions")
        if any(partition.groups[-1][0] > count for partition in self.partitions if partition.groups):
            raise fields.wrong(f"must have groups from 1 to {count}", "partitions")
        if pieces > 2 * MOST_GROUPS:
            raise fields.wrong(f"must have at most {2 * MOST_GROUPS} pieces of groups", "partitions")
        by = self.windows.by if self.windows is not None else None
        if self.groups is not None and by is not None and {one.name for one in self.groups.columns} - set(by):
            raise fields.wrong('must have "by" with the columns of the groups', "sequence")


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
