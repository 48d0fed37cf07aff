"""The summary of a packed table: one row that says what is in the table and how it was made."""

from __future__ import annotations

import json
from dataclasses import field, replace
from typing import Any

from cerebro_db.core import packing
from cerebro_db.core.errors import UndefinedColumn, UndefinedTable, WrongState
from cerebro_db.core.layout import Layout, Partition, Variable
from cerebro_db.core.names import Name, quote, with_ending
from cerebro_db.core.preparation import Fold, OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.windows import Windows

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation
from ..platform import ALL, Rule
from .preparation import SourceVariable

PLEASE = "Please ensure that table '{}' has been preprocessed using training_preprocessor_dl()."


@dataclass
class Packing:
    """One packing: from where, to where, and how."""

    module: str
    source: Relation
    output: Name
    source_text: str
    output_text: str
    inputs: list[SourceVariable]
    outputs: list[SourceVariable]
    independents: list[str]  # as the user listed them
    constant: float
    rows: int
    geometry: packing.Geometry
    keys: list[int]
    buffer_size: int | None = None  # as the user gave it
    seed: int | None = None
    num_classes: list[int] | None = None
    rule: Rule = ALL
    partitions: list[Partition] = field(default_factory=list)
    windows: Windows | None = None
    weight: SourceVariable | None = None
    fold: SourceVariable | None = None

    @property
    def variables(self) -> list[SourceVariable]:
        return self.inputs + self.outputs + [one for one in (self.weight, self.fold) if one]

    @property
    def folds(self) -> int:
        """The number of folds; 0: rows have none."""
        return self.fold.preparation.folds if self.fold and isinstance(self.fold.preparation, Fold) else 0

    @property
    def layout(self) -> Layout:
        return Layout(
            tuple(variable.documented() for variable in self.inputs),
            tuple(variable.documented() for variable in self.outputs),
            self.rows,
            tuple(self.partitions),
            self.windows,
            self.weight.documented() if self.weight else None,
            self.fold.documented() if self.fold else None,
        )


def write(db: Database, job: Packing) -> None:
    """Create the summary: MADlib's columns, then ours."""
    one_hot = [variable for variable in job.outputs if isinstance(variable.preparation, OneHot)]
    columns: list[tuple[str, str, Any]] = [
        ("source_table", "text", job.source_text),
        ("output_table", "text", job.output_text),
        ("dependent_varname", "text[]", [column.name for v in job.outputs for column in v.columns]),
        ("independent_varname", "text[]", job.independents),
        ("dependent_vartype", "text[]", [column.shown for v in job.outputs for column in v.columns]),
        *((_class_values(v.name), *_labels(v)) for v in job.outputs),
        ("buffer_size", "integer", job.geometry.buffer_size),
        ("normalizing_const", "real", job.constant),
        ("num_classes", "integer[]", job.num_classes or [variable.shape[0] for variable in one_hot]),
        ("distribution_rules", *_all_or(job.rule.dbids)),
        ("__internal_gpu_config__", *_all_or(job.rule.contents)),
        ("row_count", "bigint", job.rows),
        ("segment_count", "integer", len(job.keys)),
        ("seed", "bigint", job.seed),
        ("layout", "jsonb", json.dumps(job.layout.to_json())),
    ]
    name = job.output.suffixed("_summary").sql
    body = ", ".join(f"{quote(column)} {kind}" for column, kind, _ in columns)
    db.execute(f"CREATE TABLE {name} ({body}) {platform.of(db).distributed_by('source_table')}")
    # Labels travel as text; the database converts them to their own type.
    types = ["text[]" if column.endswith("_class_values") else kind for column, kind, _ in columns]
    values = ", ".join(f"${place + 1}::{kind}" for place, (_, kind, _) in enumerate(columns))
    db.execute(f"INSERT INTO {name} VALUES ({values})", types, *(value for _, _, value in columns))


def _class_values(output: str) -> str:
    """MADlib's column for the labels of an output."""
    return f"{output}_class_values"


def _all_or(some: list[int] | None) -> tuple[str, Any]:
    return ("text", "all_segments") if some is None else ("integer[]", some)


def _labels(variable: SourceVariable) -> tuple[str, list[str | None] | None]:
    """Type and labels, with a NULL for each declared class that has no label; NULL for an output without labels."""
    column, preparation = variable.columns[0], variable.preparation
    if not isinstance(preparation, OneHot):
        return f"{column.element or column.type}[]", None
    without = variable.shape[0] - len(preparation.labels)
    return f"{preparation.type}[]", [*preparation.labels, *[None] * without]


@dataclass(frozen=True)
class Training:
    """What a validation table takes from the training table."""

    text: str
    constant: float
    layout: Layout
    segments: int
    num_classes: list[int]


def read_training(db: Database, text: str | None, module: str) -> Training:
    table = relations.existing(
        db, text, module, PLEASE.format((text or "").strip()), argument="training_preprocessor_table"
    )
    name = table.name.suffixed("_summary")
    if relations.find(db, name) is None:
        raise UndefinedTable(
            f"{module} error: Input table '{with_ending(table.text, '_summary')}' does not exist."
            f" {PLEASE.format(table.text)}",
            hint="training_preprocessor_dl() makes it. Keep the two together.",
        )
    summary = relations.existing(db, str(name), module)
    present = relations.columns(db, summary)
    for column in ("normalizing_const", "num_classes", "segment_count", "layout"):
        if column not in present:
            raise UndefinedColumn(
                f"{module}: Expected column {column} in {table.text}_summary.",
                hint="Pack the training table again with this version of training_preprocessor_dl.",
            )
    row = db.one(f"SELECT normalizing_const, num_classes, segment_count, layout FROM {summary.sql}")
    if row is None:
        raise WrongState(f"{module} error: Input table '{summary.text}' is empty!", hint=PLEASE.format(table.text))
    layout = with_labels(db, summary, parsed(row["layout"], table.text, module), module)
    constant = row["normalizing_const"]
    return Training(table.text, 1.0 if constant is None else constant, layout, row["segment_count"], row["num_classes"])


def read_layout(db: Database, text: str | None, module: str) -> Layout:
    """The layout that the summary of a packed table, or of a model table, has."""
    table = relations.existing(db, text, module, argument="table", companions=("_summary",))
    summary = relations.find(db, table.name.suffixed("_summary"))
    if summary is None or "layout" not in relations.columns(db, summary):
        raise WrongState(f"{module} error: '{table.text}' is not a packed table.", hint=PLEASE.format(table.text))
    document = db.value(f"SELECT layout FROM {summary.sql}")
    if document is None:
        raise WrongState(f"{module} error: '{summary.text}' has no layout.", hint=PLEASE.format(table.text))
    return parsed(document, table.text, module)


def parsed(layout: str, table: str, module: str) -> Layout:
    return Layout.from_json(json.loads(layout), f"{module} error: the layout of '{table}'")


def with_labels(db: Database, summary: Relation, layout: Layout, module: str) -> Layout:
    """The layout with the labels and label types that the summary's class_values columns have now.

    Users may add labels to these columns where num_classes left room, and may rename the type.
    """
    present = relations.columns(db, summary)

    def refreshed(output: Variable) -> Variable:
        if not isinstance(output.preparation, OneHot):
            return output
        name = _class_values(output.name)
        relations.require_columns(db, summary, [name], module)
        labels = db.value(f"SELECT {quote(name)}::text[] AS labels FROM {summary.sql}") or []
        return replace(output, preparation=_one_hot(present[name], labels, output.preparation))

    return replace(layout, outputs=tuple(map(refreshed, layout.outputs)))


def _one_hot(column: Column, labels: list[str | None], packed: OneHot) -> OneHot:
    first = (None,) if packed.null_is_a_class and labels[:1] == [None] else ()
    return OneHot(str(column.element), (*first, *(label for label in labels if label is not None)))
