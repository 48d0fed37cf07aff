"""What the summary of a packed table says besides the layout, and what its columns are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

from ..arguments import RECORDED
from ..documents import LARGEST_WHOLE, Fields
from ..errors import InvalidName
from ..names import StoredName, split_list, written_list
from ..records import dataclass
from .buffer_format import MOST_CLASSES
from .division import Division
from .drift import Profile
from .preparation import MOST_COLUMNS

Labels = Mapping[str, Optional[tuple[Optional[str], ...]]]


@dataclass(frozen=True)
class SummaryColumns:
    """The names of the columns that the summaries of packed tables and of models have in one of their two forms."""

    table: str  # the packed table
    target: str
    inputs: str
    target_types: str
    classes: str
    divide_by: str
    labels: str  # ending of the column with the labels of an output
    lists: bool = False  # target and inputs are arrays, not texts
    # Numbers to predict are labels, a label may be NULL, inputs are float32, and all buffers but the last are full.
    numbers_are_labels: bool = False

    @property
    def told(self) -> tuple[str, ...]:
        """Those that ``PackedSummary`` has, but for the labels."""
        return ("source_table", self.target, self.inputs, self.target_types, self.classes, self.divide_by, "packing")


PLAIN = SummaryColumns(
    table="packed_table", target="target", inputs="inputs", target_types="target_types", classes="classes",
    divide_by="divide_by", labels="_labels",
)  # fmt: skip
VARNAMES = SummaryColumns(
    table="output_table", target="dependent_varname", inputs="independent_varname", target_types="dependent_vartype",
    classes="num_classes", divide_by="normalizing_const", labels="_class_values", lists=True, numbers_are_labels=True,
)  # fmt: skip
ENDINGS = (PLAIN.labels, VARNAMES.labels)


def of(present: Collection[str]) -> SummaryColumns:
    """Which form a summary with these columns has."""
    return VARNAMES if VARNAMES.target in present else PLAIN


LONGEST_ARGUMENT = 1_000_000  # characters


@dataclass(frozen=True)
class Packing:
    """How rows were packed, and how the values of their columns were distributed."""

    arguments: Mapping[str, Any]  # of RECORDED, those that are not NULL; a document's tables are stored names
    fingerprint: str | None  # of rows and arguments
    profiles: tuple[Profile, ...]
    division: Division | None = None  # None: rows are not divided by a rule that other rows could follow

    @property
    def tables(self) -> dict[str, str]:
        """The tables that the arguments of a document name, for people."""
        return {name: one.for_people for name, one in self.arguments.items() if isinstance(one, StoredName)}

    def to_json(self) -> dict[str, Any]:
        return {
            "arguments": {
                name: one.for_people if isinstance(one, StoredName) else one for name, one in self.arguments.items()
            },
            **({} if self.fingerprint is None else {"fingerprint": self.fingerprint}),
            "profiles": [one.to_json() for one in self.profiles],
            **({} if self.division is None else {"division": self.division.to_json()}),
        }

    @classmethod
    def read(cls, fields: Fields) -> Packing:
        given = fields.object("arguments", f"{fields.where}: arguments")
        arguments: dict[str, Any] = {}
        for name in given.document:
            kind = RECORDED.get(name)
            if kind in ("Text", "Json"):
                arguments[name] = given.text(name, LONGEST_ARGUMENT)
            elif kind == "Table":
                arguments[name] = given.stored_name(name)
            elif kind in ("Whole", "Large"):
                arguments[name] = given.whole(name, -LARGEST_WHOLE)
            elif kind == "Number":
                arguments[name] = given.number(name)
            elif kind == "Flag":
                arguments[name] = given.flag(name)
        found = cls(
            arguments,
            fields.text("fingerprint", 64) if fields.has("fingerprint") else None,
            tuple(Profile.read(one) for one in fields.objects("profiles", 0, MOST_COLUMNS)),
            Division.read(fields.object("division", f"{fields.where}: division")) if fields.has("division") else None,
        )
        fields.done()
        return found


@dataclass(frozen=True)
class PackedSummary:
    """``None``: the summary does not say it."""

    source_table: StoredName | None  # whose rows were packed
    target: tuple[str, ...] | None
    inputs: tuple[str, ...] | None
    target_types: tuple[str, ...] | None
    classes: tuple[int, ...] | None
    divide_by: float | None
    labels: Labels  # by output; NULL for a class without a label; None: the output has no labels
    packing: Packing | None = None

    def to_json(self) -> dict[str, Any]:
        """The document that ``read`` reads, in the plain form."""
        lists = {"target_types": self.target_types, "classes": self.classes}
        return {
            "source_table": None if self.source_table is None else self.source_table.for_people,
            "target": None if self.target is None else written_list(self.target),
            "inputs": None if self.inputs is None else written_list(self.inputs),
            **{name: None if value is None else list(value) for name, value in lists.items()},
            "divide_by": self.divide_by,
            **{name + PLAIN.labels: None if one is None else list(one) for name, one in self.labels.items()},
            **({} if self.packing is None else {"packing": self.packing.to_json()}),
        }

    @classmethod
    def read(cls, document: Any, outputs: Sequence[str], where: str, columns: SummaryColumns = PLAIN) -> PackedSummary:
        """BadData if a column that is needed has a wrong value.  ``outputs``: their names."""
        fields = Fields(document, where)

        def says(name: str) -> bool:
            return fields.value(name, None) is not None

        def texts(name: str) -> tuple[str, ...] | None:
            return fields.texts(name, MOST_COLUMNS, different=False) if says(name) else None

        def names(name: str) -> tuple[str, ...] | None:
            if columns.lists or not says(name):
                return texts(name)
            try:
                return tuple(split_list(fields.text(name), name))
            except InvalidName as error:
                raise fields.wrong(f"must be a list of columns: {error.message}", name) from None

        labels = {}
        for output in outputs:
            name = output + columns.labels
            found = fields.list(name, 0, MOST_CLASSES) if says(name) else None
            if found is not None:
                known = {name: [one for one in found if one is not None]}
                Fields(known, where).texts(name, MOST_CLASSES)
            labels[output] = None if found is None else tuple(found)
        return cls(
            source_table=fields.stored_name("source_table") if says("source_table") else None,
            target=names(columns.target),
            inputs=names(columns.inputs),
            target_types=texts(columns.target_types),
            classes=fields.wholes(columns.classes, 0, MOST_COLUMNS, 0, MOST_CLASSES) if says(columns.classes) else None,
            divide_by=fields.number(columns.divide_by) if says(columns.divide_by) else None,
            labels=labels,
            packing=Packing.read(fields.object("packing", f"{where}: packing")) if says("packing") else None,
        )
