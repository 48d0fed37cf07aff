"""What predicting the rows of a table needs once its trainer starts: columns, inputs, the chunks and the answers.

A module apart from streaming.py, because importing it takes a new session long, compared with the trainer's start.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Callable

from cerebro_db.core.errors import BadData, UndefinedColumn, Unsupported
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.protocol import BestClasses
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation
from ..models.trained import TrainedModel, class_labels
from ..packing.rows import buffers, inputs_by_name, unseen_values, windowed
from ..packing.rows.preparation import SourceVariable
from . import execution, predictions, trainers
from .chunks import Source, bytes_per_row
from .keys_and_outputs import as_trained


@dataclass(frozen=True)
class RowsToPredict:
    """The rows of a table or view, with what the model needs of them."""

    table: Relation
    present: dict[str, Column]  # the columns of the table
    inputs: list[SourceVariable]
    key: Sql  # what identifies a row
    key_columns: list[str]  # what the key is made of: they are never NULL
    also: list[str] = field(default_factory=list)  # other columns that the key is made of
    key_bytes: int = 0


def rows_by_column(
    table: Relation, present: dict[str, Column], inputs: list[SourceVariable], identity: Column
) -> RowsToPredict:
    """The rows, each identified by one of the columns."""
    return RowsToPredict(table, present, inputs, identifier(identity.name), [identity.name])


def predicted(
    db: Database, predict: execution.Predict, model: TrainedModel, rows: RowsToPredict, wanted: tuple[str, float]
) -> Callable[[Name], None]:
    """Predict the rows, whose key is a column; the result writes the table that the user asked for."""
    if model.layout.steps:
        raise Unsupported(
            "the model predicts each step of a window.", hint="cerebro.predict_into() writes a row for each step."
        )
    kind, number = wanted
    outputs = model.layout.outputs
    numbers = [variable.target == "real" for variable in outputs]
    values = all(numbers)
    if any(numbers) != values:
        raise Unsupported(
            "the model predicts classes and numbers at once.",
            hint="cerebro.predict() returns a row for each of them.",
        )
    labels = {variable.name: class_labels(variable) for variable in outputs}
    ranks = {"response": 1, "top": int(number)}.get(kind)  # None: all
    best = None if values else BestClasses([len(classes) for classes in labels.values()], ranks)
    staged = answers(db, predict, model, rows, best)
    identity = rows.present[rows.key_columns[0]]

    def write(output: Name) -> None:
        if values:
            predictions.write_values(db, staged, output, identity, outputs)
        else:
            above = number if kind == "above" else None
            predictions.write_classes(db, staged, output, identity, labels, ranks=kind != "response", above=above)
        db.execute(sql("DROP TABLE {staged}", staged=staged))

    return write


def answers(
    db: Database, predict: execution.Predict, model: TrainedModel, rows: RowsToPredict, best: BestClasses | None
) -> Sql:
    """Predict the rows; the staging table that has the answers.

    ``best``: the classes that are wanted; None: numbers.
    """
    table, key, inputs = rows.table, rows.key, rows.inputs
    windows = model.layout.windows
    ordering = windows.read if windows is not None else ()
    read = [
        *rows.key_columns,
        *rows.also,
        *(column.name for variable in inputs for column in variable.columns),
        *ordering,
    ]
    relations.require_readable(db, table, [rows.present[name] for name in read if name in rows.present])
    counted = lru_cache(maxsize=None)(partial(count, db, table, rows.key_columns, inputs))
    if unseen_values.of(inputs):
        counted()  # it tells what training has not seen, and the segments do not
    if windows is not None:
        counted()
        table, inputs = windowed.to_predict(db, table, rows.present, windows, inputs, key)
        key = windowed.KEY
    size = bytes_per_row(model.layout) + rows.key_bytes * (model.layout.steps or 1)
    source = Source(table, key, inputs, counted, size, model.layout.steps > 0)
    order = trainers.order_of(model, model.version(db), [one.for_prediction() for one in inputs], best)
    return predict(model, order, source)


def id_column(text: str, present: dict[str, Column], test: Relation) -> Column:
    names = split_list(text, "id column")
    if len(names) != 1 or names[0] not in present:
        raise UndefinedColumn(
            f"invalid id column ('{text}') for test table ({test.text}).",
            hint=relations.has_columns(present),
        )
    return present[names[0]]


def inputs_of(
    db: Database, trained: Layout, named: str | None, present: dict[str, Column], test: Relation
) -> list[SourceVariable]:
    if trained.related is not None:
        raise Unsupported(
            "the model reads related tables, which this function does not.", hint="cerebro.predict() reads them."
        )
    if inputs_by_name.matches(trained):
        inputs_by_name.require_all(trained, named, "independent_varname")
        return inputs_by_name.found(trained, present, f"'{test.text}'")
    return as_trained(db, trained, input_columns(named, present, test))


def input_columns(text: str | None, present: dict[str, Column], test: Relation) -> list[Column]:
    names = split_list(text, "independent_varname")
    for name in names:
        if name not in present:
            raise UndefinedColumn(
                f"invalid independent_varname ('{name}') for test table ({test.text}).",
                hint=relations.has_columns(present),
            )
    return [present[name] for name in names]


def count(db: Database, test: Relation, key_columns: list[str], inputs: list[SourceVariable]) -> int:
    """The number of rows; an error if one of them cannot be predicted."""
    names = [*key_columns, *buffers.filled_columns(inputs)]
    nulls = joined(" OR ", (sql("{name} IS NULL", name=identifier(name)) for name in names))
    news = unseen_values.of(inputs)
    counted = [
        sql("count(*) AS rows"),
        sql("count(*) FILTER (WHERE {nulls}) AS nulls", nulls=nulls) if names else sql("0 AS nulls"),
        *unseen_values.counts(news),
    ]
    (found,) = db.scan(sql("SELECT {counted} FROM {test}", counted=joined(", ", counted), test=test.sql))
    unseen_values.tell(db, f"'{test.text}'", news, found)
    if found["nulls"]:
        raise BadData(
            f"{found['nulls']} rows of '{test.text}' have a NULL in {', '.join(names)}.",
            hint="Leave them out with a view, or fill them in.",
        )
    return int(found["rows"])
