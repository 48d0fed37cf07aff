"""The summary of a packed table: one row that says what is in it and how it was made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from cerebro_db.core import packing
from cerebro_db.core.errors import UndefinedColumn, WrongState
from cerebro_db.core.names import Name, quote

from . import tables
from .db import Database
from .dialect import Dialect
from .engine import ALL, Rule
from .tables import Relation
from .variables import Variable

PLEASE = "Please ensure that table '{}' has been preprocessed using training_preprocessor_dl()."


@dataclass
class Packing:
    """One packing: from where, to where, and how."""

    module: str
    source: Relation
    output: Name
    source_text: str
    output_text: str
    inputs: list[Variable]
    outputs: list[Variable]
    independents: list[str]  # as the user listed them
    constant: float
    rows: int
    geometry: packing.Geometry
    keys: list[int]
    seed: int | None = None
    num_classes: list[int] | None = None
    rule: Rule = ALL
    partitions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def variables(self) -> list[Variable]:
        return self.inputs + self.outputs

    @property
    def layout(self) -> dict[str, Any]:
        return {
            "inputs": [variable.describe() for variable in self.inputs],
            "outputs": [variable.describe() for variable in self.outputs],
            "rows": self.rows,
            "partitions": self.partitions,
        }


def write_summary(db: Database, job: Packing) -> None:
    """MADlib's columns, then ours."""
    columns: list[tuple[str, str, Any]] = [
        ("source_table", "text", job.source_text),
        ("output_table", "text", job.output_text),
        ("dependent_varname", "text[]", [column.name for v in job.outputs for column in v.columns]),
        ("independent_varname", "text[]", job.independents),
        ("dependent_vartype", "text[]", [column.shown for v in job.outputs for column in v.columns]),
        *((f"{v.name}_class_values", *_class_values(v)) for v in job.outputs),
        ("buffer_size", "integer", job.geometry.buffer_size),
        ("normalizing_const", "real", job.constant),
        ("num_classes", "integer[]", job.num_classes or [v.shape[0] for v in job.outputs if v.kind == "class"]),
        ("distribution_rules", *_all_or(job.rule.dbids)),
        ("__internal_gpu_config__", *_all_or(job.rule.contents)),
        ("row_count", "bigint", job.rows),
        ("segment_count", "integer", len(job.keys)),
        ("seed", "bigint", job.seed),
        ("layout", "jsonb", json.dumps(job.layout)),
    ]
    name = job.output.suffixed("_summary").sql
    body = ", ".join(f"{quote(column)} {kind}" for column, kind, _ in columns)
    db.execute(f"CREATE TABLE {name} ({body}) {Dialect.of(db).distributed_by('source_table')}")
    # Labels travel as text and become their own type in the database.
    types = ["text[]" if column.endswith("_class_values") else kind for column, kind, _ in columns]
    values = ", ".join(f"${place + 1}::{kind}" for place, (_, kind, _) in enumerate(columns))
    db.execute(f"INSERT INTO {name} VALUES ({values})", types, *(value for _, _, value in columns))


def _all_or(some: list[int] | None) -> tuple[str, Any]:
    return ("text", "all_segments") if some is None else ("integer[]", some)


def _class_values(variable: Variable) -> tuple[str, list[str | None] | None]:
    """The labels, with NULLs for classes that were declared but not found; NULL for a vector."""
    column = variable.columns[0]
    if variable.kind != "class":
        return (f"{column.element or column.type}[]", None)
    return (f"{variable.label_type}[]", [*variable.labels, *[None] * (variable.shape[0] - len(variable.labels))])


@dataclass(frozen=True)
class Training:
    """What a validation table takes from the training table."""

    text: str
    constant: float
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    segments: int
    num_classes: list[int]
    classes: list[tuple[str | None, list[str | None]]]  # per output: type and labels

    def class_type(self, index: int) -> str | None:
        return self.classes[index][0]

    def labels(self, index: int) -> list[str]:
        return [label for label in self.classes[index][1] if label is not None]


def read_training(db: Database, text: str | None, module: str) -> Training:
    table = tables.existing(
        db, text, module, PLEASE.format((text or "").strip()), argument="training_preprocessor_table"
    )
    summary = _summary_of(db, table, module)
    present = tables.columns(db, summary)
    for column in ("normalizing_const", "num_classes", "segment_count", "layout"):
        if column not in present:
            raise UndefinedColumn(
                f"{module}: Expected column {column} in {table.text}_summary.",
                hint="Pack the training table again with this version of training_preprocessor_dl.",
            )
    row = db.one(f"SELECT normalizing_const, num_classes, segment_count, layout FROM {summary.sql}")
    if row is None:
        raise WrongState(f"{module} error: Input table '{summary.text}' is empty!", hint=PLEASE.format(table.text))
    layout = json.loads(row["layout"])
    classes: list[tuple[str | None, list[str | None]]] = []
    for output in layout["outputs"]:
        column = f"{output['name']}_class_values"
        tables.require_columns(db, summary, [column], module)
        labels = db.value(f"SELECT {quote(column)}::text[] AS labels FROM {summary.sql}")
        classes.append((present[column].element, labels or []))
    constant = row["normalizing_const"]
    return Training(
        table.text,
        1.0 if constant is None else packing.float32(constant),
        layout["inputs"],
        layout["outputs"],
        row["segment_count"],
        row["num_classes"],
        classes,
    )


def _summary_of(db: Database, table: Relation, module: str) -> Relation:
    name = table.name.suffixed("_summary")
    return tables.existing(db, str(name), module, PLEASE.format(table.text))
