"""The layout of a packed table: its variables, its partitions, and the JSON in which the summary stores both.

docs/architecture.md shows the JSON.  Trainers get the part of it that ``Variable.for_trainer`` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from . import preparation
from .errors import BadData
from .packing import ITEM_BYTES, elements
from .preparation import PACK_AGAIN, Fold, Preparation
from .records import dataclass
from .windows import Windows

Json = dict[str, Any]


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
    def from_json(cls, document: Any, where: str) -> Variable:
        _require(isinstance(document, dict) and isinstance(document.get("name"), str), where, "has no name")
        where = f"{where} '{document['name']}'"
        _require("preparation" in document, where, "has no preparation")
        _require(document.get("dtype") in ITEM_BYTES, where, f"has a dtype that is not one of {', '.join(ITEM_BYTES)}")
        shape = document.get("shape")
        _require(isinstance(shape, list) and all(_count(size) and size > 0 for size in shape), where, "has no shape")
        columns = document.get("columns", [document["name"]])
        _require(
            isinstance(columns, list) and columns and all(isinstance(name, str) for name in columns),
            where,
            "does not name its columns",
        )
        prepared = preparation.from_json(document["preparation"], where)
        found = cls(document["name"], document["dtype"], tuple(shape), tuple(columns), prepared)
        for key, value in found.for_trainer().items():
            _require(document.get(key) == value, where, f"should have {key} {value!r}, by its preparation")
        return found


@dataclass(frozen=True)
class Partition:
    """The packed rows of one segment."""

    key: int  # value of __dist_key__
    rows: int
    buffers: int
    bytes: int
    sha256: str  # over each buffer in buffer_id order: the bytes of every input, then of every output
    folds: tuple[int, ...] = ()  # rows of each fold, if rows have folds

    def to_json(self) -> Json:
        document = asdict(self)
        folds = document.pop("folds")
        return {**document, **({"folds": list(folds)} if folds else {})}

    @classmethod
    def from_json(cls, document: Any, where: str) -> Partition:
        *names, _ = cls.__dataclass_fields__
        _require(isinstance(document, dict) and set(names) <= set(document), where, f"needs {', '.join(names)}")
        numbers = [document[name] for name in names[:-1]]
        _require(all(map(_count, numbers)) and isinstance(document["sha256"], str), where, "has a wrong value")
        folds = document.get("folds", [])
        _require(isinstance(folds, list) and all(map(_count, folds)), where, "has a wrong number of rows of a fold")
        _require(not folds or sum(folds) == document["rows"], where, "has folds with another number of rows")
        return cls(**{name: document[name] for name in names}, folds=tuple(folds))


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
        }

    @classmethod
    def from_json(cls, document: Any, where: str = "the layout") -> Layout:
        """BadData, beginning with ``where``, if the document is not a layout."""
        _require(isinstance(document, dict) and _count(document.get("rows")), where, "has no number of rows")

        def listed(key: str) -> Sequence[Any]:
            found = document.get(key)
            _require(isinstance(found, list), where, f"has no list of {key}")
            return found

        found = cls(
            tuple(Variable.from_json(one, f"{where}: input") for one in listed("inputs")),
            tuple(Variable.from_json(one, f"{where}: output") for one in listed("outputs")),
            document["rows"],
            tuple(Partition.from_json(one, f"{where}: partition {n}") for n, one in enumerate(listed("partitions"))),
            Windows.from_json(document["sequence"], f"{where}: sequence") if "sequence" in document else None,
            Variable.from_json(document["weight"], f"{where}: weight") if "weight" in document else None,
            Variable.from_json(document["fold"], f"{where}: fold") if "fold" in document else None,
        )
        counts = {len(partition.folds) for partition in found.partitions}
        _require(counts <= {found.folds}, where, "does not have the rows of each fold in each partition")
        return found


@dataclass(frozen=True)
class DataSet:
    """A packed table, as SQL, with its layout as JSON."""

    table: str
    layout: Json

    @property
    def partitions(self) -> list[Json]:
        return self.layout["partitions"]

    def partition(self, number: int) -> Json:
        return self.partitions[number]

    @property
    def folds(self) -> int:
        """The number of folds; 0: rows have none."""
        fold = self.layout.get("fold")
        return fold["preparation"]["folds"] if fold else 0

    def rows_of_fold(self, fold: int) -> int:
        return sum(partition["folds"][fold - 1] for partition in self.partitions)

    @property
    def variables(self) -> list[str]:
        return [variable["name"] for variable in self.layout["inputs"] + self._outputs + self._fold]

    @property
    def for_trainer(self) -> Json:
        """The layout as orders to trainers have it: without labels, source columns and partitions."""
        keys = ("name", "dtype", "shape", "scale", "kind")
        sides = {"inputs": self.layout["inputs"], "outputs": self._outputs}
        if self._fold:
            sides["fold"] = self._fold
        return {
            side: [{key: variable[key] for key in keys if key in variable} for variable in variables]
            for side, variables in sides.items()
        }

    @property
    def _outputs(self) -> list[Json]:
        """What a model is trained on besides the inputs.  The weights of the rows come last."""
        weight = self.layout.get("weight")
        return self.layout["outputs"] + ([weight] if weight else [])

    @property
    def _fold(self) -> list[Json]:
        return [self.layout["fold"]] if "fold" in self.layout else []


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _require(holds: Any, where: str, why: str) -> None:
    if not holds:
        raise BadData(f"{where} {why}.", hint=PACK_AGAIN)
