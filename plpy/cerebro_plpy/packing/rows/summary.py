"""The summary of a packed table: one row that says what is in the table and how it was made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Any, Optional

from cerebro_db.core import codec, documents
from cerebro_db.core.codec import Within
from cerebro_db.core.errors import BadData, UndefinedColumn, UndefinedTable, WrongState
from cerebro_db.core.names import Name, with_ending, written_list
from cerebro_db.core.packing import buffer_format
from cerebro_db.core.packing.layout import MOST_PARTITIONS, Layout, Partition, Variable
from cerebro_db.core.packing.packed_summary import ENDINGS, PLAIN, VARNAMES, PackedSummary, Packing, SummaryColumns
from cerebro_db.core.packing.packed_summary import of as columns_of
from cerebro_db.core.packing.preparation import MOST_COLUMNS, Divisor, Fold, OneHot
from cerebro_db.core.packing.related import Related
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from ... import platform
from ...database import relations, types
from ...database.access import Database
from ...database.relations import Column, Relation
from ...platform import ALL, DistributionRule
from .argument_names import PLEASE
from .preparation import SourceVariable
from .subgroups import Placed


@dataclass
class PackJob:
    """One packing: from where, to where, and how."""

    source: Relation
    output: Name
    source_text: str
    output_text: str
    inputs: list[SourceVariable]
    outputs: list[SourceVariable]
    independents: list[str]  # as the user listed them
    divide_by: float
    rows: int
    geometry: buffer_format.Geometry | buffer_format.PlacedGeometry
    keys: list[int]
    buffer_size: int | None = None  # as the user gave it
    seed: int | None = None
    classes: list[int] | None = None
    form: SummaryColumns = PLAIN
    rule: DistributionRule = ALL
    partitions: list[Partition] = field(default_factory=list)
    windows: Windows | None = None
    weight: SourceVariable | None = None
    fold: SourceVariable | None = None
    groups: Placed | None = None
    place_groups: Callable[[], None] | None = (
        None  # sets ``groups`` and what follows from them, after rows have changed
    )
    key: str | None = None  # the column that identifies a row, if one does
    row_hash: Sql | None = None  # of what tells a row apart, 64 bits; None: the order follows from the packed columns
    part: Sql | None = None  # the part of a row, from 1 on, if a variable has means over other parts
    fingerprint: str | None = None  # of rows and arguments, if the table may be used again (kept_rows.py)
    packing: Packing | None = None  # of the rows for training
    uneven: bool = False  # arrays of the source have different lower bounds
    related: Related | None = None  # what the source has of other tables
    is_of_table: bool = False  # the rows go to a packed table that there is, whose values have their types

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
            inputs=tuple(variable.documented() for variable in self.inputs),
            outputs=tuple(variable.documented() for variable in self.outputs),
            rows=self.rows,
            partitions=tuple(self.partitions),
            windows=self.windows,
            weight=self.weight.documented() if self.weight else None,
            fold=self.fold.documented() if self.fold else None,
            key=self.key,
            groups=self.groups.documented() if self.groups else None,
            related=self.related,
        )


def write(db: Database, job: PackJob) -> None:
    """Create the summary."""
    form = job.form
    one_hot = [variable for variable in job.outputs if isinstance(variable.preparation, OneHot)]
    dependents = [column for variable in job.outputs for column in variable.columns]
    columns: list[tuple[str, str, Any]] = [
        ("source_table", "text", job.source_text),
        (form.table, "text", job.output_text),
        (form.target, *_names(form, [column.name for column in dependents])),
        (form.inputs, *_names(form, job.independents)),
        (form.target_types, "text[]", [column.shown for column in dependents]),
        *((v.name + form.labels, *_labels(v)) for v in job.outputs),
        ("buffer_size", "integer", job.geometry.buffer_size),
        (form.divide_by, "real", job.divide_by),
        (form.classes, "integer[]", job.classes or [variable.shape[-1] for variable in one_hot]),
    ]
    if form is VARNAMES:
        columns += [
            ("distribution_rules", *_all_or(job.rule.dbids)),
            ("__internal_gpu_config__", *_all_or(job.rule.contents)),
        ]
    columns += [
        ("rows", "bigint", job.rows),
        ("segments", "integer", len(job.keys)),
        ("seed", "bigint", job.seed),
        ("layout", "jsonb", written(job.layout)),
    ]
    if job.fingerprint is not None:
        columns.append(("fingerprint", "text", job.fingerprint))
    if job.packing is not None:
        columns.append(("packing", "jsonb", json.dumps(codec.encode(job.packing))))
    name = job.output.suffixed("_summary").sql
    body = joined(
        ", ",
        (sql("{column} {kind}", column=identifier(column), kind=SqlType(kind).sql) for column, kind, _ in columns),
    )
    db.execute(
        sql(
            "CREATE TABLE {name} ({body}) {distributed_by}",
            name=name,
            body=body,
            distributed_by=platform.of(db).distributed_by("source_table"),
        )
    )
    # Labels travel as text; the database converts them to their own type.
    sent = ["text[]" if column.endswith(ENDINGS) else kind for column, kind, _ in columns]
    values = joined(
        ", ",
        (sql("${place}::{kind}", place=place, kind=SqlType(kind).sql) for place, (_, kind, _) in enumerate(columns, 1)),
    )
    db.execute(
        sql("INSERT INTO {name} VALUES ({values})", name=name, values=values),
        sent,
        *(value for _, _, value in columns),
    )


def _names(form: SummaryColumns, columns: list[str]) -> tuple[str, Any]:
    """Type and value of a column that lists columns."""
    return ("text[]", columns) if form.lists else ("text", written_list(columns))


def written(layout: Layout) -> str:
    """The layout as JSON that can be read again."""
    document = layout.to_json()
    Layout.from_json(document, "the layout to be written")
    return json.dumps(document)


def _all_or(some: list[int] | None) -> tuple[str, Any]:
    return ("text", "all_segments") if some is None else ("integer[]", some)


def _labels(variable: SourceVariable) -> tuple[str, list[str | None] | None]:
    """Type and labels, with a NULL for each declared class that has no label; NULL for an output without labels."""
    column, preparation = variable.columns[0], variable.preparation
    if not isinstance(preparation, OneHot):
        return f"{column.element or column.type}[]", None
    without = variable.shape[-1] - len(preparation.labels)
    return preparation.type.array.name, [*preparation.labels, *[None] * without]


Classes = Annotated[list[Annotated[int, Within(0, buffer_format.MOST_CLASSES)]], Within(0, MOST_COLUMNS)]


@dataclass(frozen=True)
class Training:
    """What a validation table takes from the training table."""

    text: str
    divide_by: float
    layout: Layout
    segments: int
    classes: list[int] | None


def read_training(db: Database, text: str | None, argument: str, please: str = PLEASE) -> Training:
    table = relations.existing(db, text, please.format((text or "").strip()), argument=argument)
    found = relations.beside(db, table, "_summary")
    if found is None:
        raise UndefinedTable(
            f"Input table '{with_ending(table.text, '_summary')}' does not exist. {please.format(table.text)}",
            hint="cerebro.pack_plain() makes it. Keep the two together.",
        )
    summary = relations.existing(db, found.name.quoted)
    present = relations.columns(db, summary)
    form = columns_of(present)
    taken = (form.divide_by, form.classes, "segments", "layout")
    for column in taken:
        if column not in present:
            raise UndefinedColumn(
                f"Expected column {column} in {table.text}_summary.",
                hint="Pack the training table again with this version of cerebro_db.",
            )
    relations.require_readable(db, summary, [present[name] for name in taken])
    listed = joined(", ", map(identifier, taken))
    row = db.one(sql("SELECT {listed} FROM {summary}", listed=listed, summary=summary.sql))
    if row is None:
        raise WrongState(f"Input table '{summary.text}' is empty!", hint=please.format(table.text))
    layout = with_labels(db, summary, parsed(db, row["layout"], table.text), present)

    def read(kind: Any, column: str) -> Any:
        return codec.read(kind, row[column], f"the summary of '{table.text}': {column}", please.format(table.text))

    divide_by = read(Optional[Divisor], form.divide_by)
    return Training(
        table.text,
        1.0 if divide_by is None else divide_by,
        layout,
        read(Annotated[int, Within(1, MOST_PARTITIONS)], "segments"),
        read(Optional[Classes], form.classes),
    )


def read_layout(db: Database, text: str | None, argument: str = "packed_table") -> Layout:
    """The layout that the summary of a packed table, or of a model table, has."""
    table = relations.existing(db, text, argument=argument, companions=("_summary",))
    summary = relations.beside(db, table, "_summary")
    if summary is None or "layout" not in relations.columns(db, summary):
        raise WrongState(f"'{table.text}' is not a packed table.", hint=PLEASE.format(table.text))
    relations.require_columns(db, summary, ["layout"])
    document = db.value(sql("SELECT layout FROM {summary}", summary=summary.sql))
    if document is None:
        raise WrongState(f"'{summary.text}' has no layout.", hint=PLEASE.format(table.text))
    return parsed(db, document, table.text)


def parsed(db: Database, layout: Any, table: str) -> Layout:
    """The layout that a summary has.  Its types are those that the caller's statements may use."""
    found = Layout.parse(layout, f"the layout of '{table}'")
    return found.settled(partial(types.settled, db))


def columns_of_summary(db: Database, summary: Relation, layout: Layout, table: str) -> PackedSummary:
    """What the summary of a packed table says besides its layout."""
    present = relations.columns(db, summary)
    form = columns_of(present)
    known = [name for name in form.told if name in present]
    relations.require_readable(db, summary, [present[name] for name in known])
    listed = joined(", ", map(identifier, known))
    row = db.one(sql("SELECT {listed} FROM {summary}", listed=listed, summary=summary.sql)) if known else {}
    outputs = [output.name for output in layout.outputs]
    row = row or {}
    if row.get("packing") is not None:
        row["packing"] = documents.decoded(row["packing"], f"the packing of '{table}'")
    found = {
        **row,
        **{name + form.labels: label_column(db, summary, present, name) for name in outputs},
    }
    return PackedSummary.read(found, outputs, f"the summary of '{table}'", form)


def with_labels(db: Database, summary: Relation, layout: Layout, present: dict[str, Column]) -> Layout:
    """The layout with the labels and label types that the summary has now.

    Users may add labels there where the number of classes left room, and may rename the type.
    """

    def refreshed(output: Variable) -> Variable:
        if not isinstance(output.preparation, OneHot):
            return output
        name = output.name + columns_of(present).labels
        relations.require_columns(db, summary, [name], present=present)
        labels = label_column(db, summary, present, output.name) or []
        first = [None] if output.preparation.null_is_a_class and labels[:1] == [None] else []
        document = {
            **codec.encode_fields(output.preparation),
            "type": types.settled(db, SqlType(str(present[name].element))).name,
            "labels": [*first, *(label for label in labels if label is not None)],
        }
        where = f"column '{name}' of {summary.name}"
        changed = replace(output, preparation=codec.read(OneHot, document, where))
        if not changed.preparation.fits(output.of_step, len(output.columns)):
            raise BadData(f"{where} has more labels than there are classes ({output.of_step[0]}).")
        return changed

    return replace(layout, outputs=tuple(map(refreshed, layout.outputs)))


def label_column(db: Database, summary: Relation, present: dict[str, Column], output: str) -> list[str | None] | None:
    """The labels of an output, as text; None without such a column."""
    name = output + columns_of(present).labels
    if name not in present:
        return None
    column = present[name]
    if column.element is None:
        raise BadData(f"column '{name}' of {summary.name} must be an array, not {column.shown}.")
    if types.may_use(db, SqlType(column.element)):
        labels = sql("{name}::text[]", name=identifier(name))
    else:  # without the casts of its owner
        labels = sql(
            "CASE WHEN {name} IS NOT NULL"
            " THEN ARRAY(SELECT CASE WHEN u.label IS NOT NULL THEN pg_catalog.format('%s', u.label) END"
            " FROM pg_catalog.unnest({name}) WITH ORDINALITY AS u (label, place) ORDER BY u.place) END",
            name=identifier(name),
        )
    query = sql("SELECT {labels} AS labels FROM {summary}", labels=labels, summary=summary.sql)
    return db.value(query)  # type: ignore[no-any-return]
