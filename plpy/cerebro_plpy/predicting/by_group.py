"""Predictions with a table of models of groups: each row is predicted by a model of its group.

The query of the rows finds the model of each row.  Rows are read model by model, so the weights of each model go to the
trainer once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import UndefinedObject, Unsupported
from cerebro_db.core.options import NEW_GROUPS
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from ..models.calibrations import Wanted
from ..models.trained import Grouped, TrainedModel, of_configuration
from ..packing.rows import buffers, group_key, unseen_values, windowed
from ..packing.rows.subgroups import require_types
from . import keys_and_outputs, query_reading, trainers
from .query_reading import Reading

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BestClasses, Explanation

    from ..segment.prediction import Answer, SegmentPrediction

NUMBER = sql("(row_number() OVER ())::text")


@dataclass(frozen=True)
class RowsOfGroups:
    """The rows to predict, of a query or of a table."""

    table: Relation
    present: dict[str, Column]  # its columns
    named: str  # what an error calls them
    keys: list[str]  # the columns of a row's key; empty: its number is the key
    identity: Sql | None = None  # the key, if it is not made of the texts of these columns
    key_bytes: int = 0
    chosen: Sequence[Sequence[str | None]] = ()  # as in keys_and_outputs.outputs_as_lines, as the next one
    timed: bool = False


def refuse_groups(model: TrainedModel) -> None:
    """Refuse to calibrate models of groups."""
    if model.grouped is not None:
        raise Unsupported(
            f"'{model.table.text}' has models of groups, which cannot be calibrated.",
            hint="cerebro.predict() predicts without a calibration.",
        )


def require_plain(wanted: Wanted, model_table: str | None) -> None:
    """Refuse what only a calibrated model has."""
    if wanted.coverage is not None or wanted.calibrated or wanted.thresholds:
        raise Unsupported(
            f"coverage, calibrated and thresholds cannot be used: '{model_table}' has models of groups, which are not"
            " calibrated.",
            hint="Leave them out.",
        )


class Models:
    """The models that predict, by configuration and group."""

    def __init__(self, db: Database, whole: TrainedModel, grouped: Grouped) -> None:
        self.db, self.whole, self.grouped = db, whole, grouped
        self._of_key: dict[int, TrainedModel] = {whole.key: whole}

    def of(self, key: int | None, group_number: int | None) -> TrainedModel:
        """The model of a group; that on all rows if there is none."""
        if key is None or group_number is None:
            return self.whole
        if key not in self._of_key:
            self._of_key[key] = of_configuration(self.db, self.whole, key)
        return self._of_key[key].of_group(self.grouped, group_number)

    def best(self, configuration: int | None) -> Sql:
        """For the key of each group its best model, or that of the configuration; NULLs if it has none."""
        columns = sql("group_key, configuration, group_number")
        return sql(
            "SELECT group_key, CASE WHEN size IS NOT NULL THEN configuration END AS key,"
            " CASE WHEN size IS NOT NULL THEN group_number END AS group_number FROM ({chosen}) g",
            chosen=self.grouped.chosen(self.whole.table, configuration, columns),
        )

    def require_known(self, group_key: str) -> None:
        """Refuse a group that training has not seen, unless the model on all rows is to predict it."""
        if self.grouped.new_groups == NEW_GROUPS[0]:
            columns = ", ".join(column.name for column in self.grouped.columns)
            raise UndefinedObject(
                f"no model was trained on the group {group_key} of {columns}.",
                hint="Leave its rows out. A fit with the option new_groups 'all rows' makes tables that"
                " predict such rows by the model on all rows.",
            )


def predicted(
    db: Database,
    model: TrainedModel,
    rows: RowsOfGroups,
    configuration: int | None,
    best: BestClasses | None,
) -> Iterator[dict[str, Any]]:
    """A row for each chunk, as ``streaming.predict_rows`` gives them."""
    source, reading = reading_of(db, model, rows, best)
    for chunk, answers in answered(db, model, rows, configuration, (source, reading)):
        yield {"ids": chunk["ids0"], "outputs": reading.outputs, "answers": answers}


def answered(
    db: Database,
    model: TrainedModel,
    rows: RowsOfGroups,
    configuration: int | None,
    read: tuple[Relation, Reading],
    explanation: Explanation | None = None,
) -> Iterator[tuple[dict[str, Any], list[Answer]]]:
    """Each chunk of the rows with the answers; ``read``: what ``reading_of`` returns."""
    grouped = model.grouped
    assert grouped is not None
    models, (source, reading) = Models(db, model, grouped), read
    query = _query(source, reading, _columns(grouped, rows), models.best(configuration))
    cursor = db.cursor(query)
    inputs = [one.for_prediction() for one in reading.inputs]
    found = {"rows": 0, **{f"s{place}": 0 for place in range(len(reading.news))}}
    with (
        trainers.own_segment(db, model.memory_mb, sealed=model.tables.must_seal(db)) as (mine, _),
        ExitStack() as stack,
    ):
        ready: tuple[int | None, int | None] | None = None
        prediction: SegmentPrediction | None = None
        while batch := cursor.fetch(1):
            chunk = batch[0]
            found = {name: before + chunk[name] for name, before in found.items()}
            if reading.steps:  # a window has an array of keys
                chunk["ids0"] = list(chain.from_iterable(chunk["ids0"]))
            reading.require_sound(chunk, chunk["ids0"], rows.table.text)
            if chunk["unknown"]:  # these come first
                models.require_known(chunk["g"])
            wanted = chunk["key"], chunk["group_number"]
            if prediction is None or wanted != ready:
                ready, its = wanted, models.of(*wanted)
                stack.close()
                order = replace(trainers.order_of(its, its.version(db), inputs, reading.best), explanation=explanation)
                prediction = stack.enter_context(trainers.predicting(db, mine, its, order))
            yield chunk, prediction.predict(chunk["rows"], chunk["variables"], None)
    cursor.close()
    unseen_values.tell(db, rows.table.text, reading.news, found)


def _columns(grouped: Grouped, rows: RowsOfGroups) -> list[Column]:
    """The columns that tell the groups apart, with the types that they had in training."""
    columns = [Column(one.name, one.type.name, str(one.type), "", None) for one in grouped.columns]
    require_types(columns, rows.present, rows.named)
    return columns


def reading_of(
    db: Database, model: TrainedModel, rows: RowsOfGroups, best: BestClasses | None
) -> tuple[Relation, Reading]:
    """What is read, rows or windows of them, and how."""
    source, windows = rows.table, model.layout.windows
    key = rows.identity or (keys_and_outputs.key_of(rows.keys) if rows.keys else NUMBER)
    inputs = keys_and_outputs.inputs_of(db, model.layout, rows.present, rows.named)
    if windows is not None:
        buffers.count(db, source, inputs, may_be_null=model.layout.null_to_come)
        subjects, judged = [rows.present[name] for name in windows.by], rows.keys == [keys_and_outputs.PAIR]
        source, inputs = windowed.to_predict(
            db,
            source,
            rows.present,
            windows,
            inputs,
            key,
            subjects=subjects,
            judged=judged,
            numbers=keys_and_outputs.is_number(model.layout.outputs[0]),
        )
        key = windowed.KEY
    return source, query_reading.reading_of(
        model.layout,
        inputs,
        {"": key},
        best,
        key_bytes=rows.key_bytes,
        chosen=rows.chosen,
        timed=rows.timed,
    )


def _query(source: Relation, reading: Reading, columns: list[Column], of_groups: Sql) -> Sql:
    """The chunks of rows, model by model; first those of groups that training has not seen."""
    return sql(
        "SELECT unknown, group_number, key, min(g) AS g, {gathered}"
        " FROM (SELECT k.*, m.group_key IS NULL AS unknown, m.group_number, m.key, (row_number() OVER"
        " (PARTITION BY m.group_key IS NULL, m.group_number, m.key) - 1) / {chunk} AS turn"
        " FROM (SELECT {stored}, {group} AS g FROM {rows} AS s) k"
        " LEFT JOIN ({of_groups}) m ON m.group_key = k.g) r"
        " GROUP BY unknown, group_number, key, turn ORDER BY unknown DESC, group_number, key, turn",
        gathered=reading.gathered,
        chunk=reading.chunk,
        stored=reading.stored,
        group=group_key.of(columns, lambda column: identifier(column.name)),
        rows=source.rows,
        of_groups=of_groups,
    )
