# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What the summary of a packed table says besides the layout, and what its columns are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Optional

from .. import codec
from ..arguments import RECORDED
from ..codec import Number, Text, Within, different
from ..documents import LARGEST_WHOLE
from ..errors import BadData
from ..names import StoredName, split_list, written_list
from ..records import dataclass
from .buffer_format import MOST_CLASSES
from .division import Division
from .drift import Profile
from .preparation import MOST_COLUMNS

Labels = Mapping[str, Optional[Annotated[tuple[Optional[Text], ...], Within(0, MOST_CLASSES), different]]]
Texts = Annotated[tuple[Text, ...], Within(0, MOST_COLUMNS)]


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
_TEXT, _WHOLE = Annotated[Text, Within(0, LONGEST_ARGUMENT)], Annotated[int, Within(-LARGEST_WHOLE, LARGEST_WHOLE)]
ARGUMENTS: dict[str, Any] = {
    "Text": _TEXT, "Json": _TEXT, "Table": StoredName, "Whole": _WHOLE, "Large": _WHOLE, "Number": Number, "Flag": bool,
}  # fmt: skip


@dataclass(frozen=True)
class Packing:
    """How rows were packed, and how the values of their columns were distributed."""

    arguments: Mapping[str, Any]  # of RECORDED, those that are not NULL; a document's tables are stored names
    fingerprint: Optional[Annotated[Text, Within(0, 64)]] = None  # of rows and arguments
    profiles: Annotated[tuple[Profile, ...], Within(0, MOST_COLUMNS)] = ()
    division: Optional[Division] = None  # None: rows are not divided by a rule that other rows could follow

    @property
    def tables(self) -> dict[str, str]:
        """The tables that the arguments of a document name, for people."""
        return {name: one.for_people for name, one in self.arguments.items() if isinstance(one, StoredName)}

    @classmethod
    def from_document(cls, document: Any) -> Packing:
        """Arguments of later versions are left out."""
        found = codec.decoded(cls, document)
        known = {name: ARGUMENTS[RECORDED[name]] for name in found.arguments if name in RECORDED}
        return replace(
            found, arguments={name: codec.entry(found.arguments, name, kind) for name, kind in known.items()}
        )


@dataclass(frozen=True)
class PackedSummary:
    """``None``: the summary does not say it."""

    source_table: Optional[StoredName]  # whose rows were packed
    target: Optional[Texts]
    inputs: Optional[Texts]
    target_types: Optional[Texts]
    classes: Optional[Annotated[tuple[Annotated[int, Within(0, MOST_CLASSES)], ...], Within(0, MOST_COLUMNS)]]
    divide_by: Optional[Number]
    labels: Labels  # by output; NULL for a class without a label; None: the output has no labels
    packing: Optional[Packing] = None

    def to_json(self) -> dict[str, Any]:
        """The document that ``read`` reads, in the plain form."""
        said = {**vars(self), **{one: written_list(its) for one in LISTS if (its := getattr(self, one)) is not None}}
        labels = {name + PLAIN.labels: one for name, one in said.pop("labels").items()}
        packing = {} if said.pop("packing") is None else {"packing": self.packing}
        return {name: codec.encode(one) for name, one in {**said, **labels, **packing}.items()}

    @classmethod
    def read(cls, document: Any, outputs: Sequence[str], where: str, columns: SummaryColumns = PLAIN) -> PackedSummary:
        """BadData if a column that is needed has a wrong value.  ``outputs``: their names."""
        row = codec.read(dict[str, Any], document, where)
        said = {name: row.get(getattr(columns, name, name)) for name in cls.__dataclass_fields__}
        said["labels"] = {output: row.get(output + columns.labels) for output in outputs}
        for name in () if columns.lists else LISTS:
            if said[name] is not None:
                said[name] = codec.read(ColumnList, said[name], f"{where}: {name}")
        return codec.decode(cls, said, where, BadData)


LISTS = ("target", "inputs")  # columns with the text of a list of columns


class ColumnList:
    """The text of a list of columns."""

    @classmethod
    def from_document(cls, text: Any) -> list[str]:
        if not isinstance(text, str):
            raise codec.wrong("a list of columns", text)
        return split_list(text, "the list")
