"""``cerebro.predict`` with a table of models of groups: each row is predicted by a model of its group.

Rows are read in the order of their groups, so the weights of each model go to the trainer once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import UndefinedObject, Unsupported
from cerebro_db.core.options import NEW_GROUPS
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from .. import platform
from ..data import buffers, surprises
from ..data.preparation import expression
from ..data.subgroups import key_of, require_types
from ..data.weights import PIECE
from ..database.access import Database
from ..database.relations import Column, Relation
from . import natural, trainers
from .chunks import at_a_time, gathered_arrays
from .reading import Reading
from .table_rows import bytes_per_row
from .trained import Grouped, TrainedModel, read

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BestClasses

    from ..segment.prediction import SegmentPrediction

NUMBER = sql("(row_number() OVER ())::text")


@dataclass
class GroupModel(TrainedModel):
    """A model of a group; its weights are in the table of the groups."""

    groups: Relation | None = None
    group_number: int = 0

    def weights(self, db: Database, *, sealed: bool = False) -> Iterator[bytes]:
        assert self.groups is not None
        which = sql("FROM {groups} WHERE group_number = $1 AND configuration = $2", groups=self.groups.sql)
        types, values = ("integer", "integer"), (self.group_number, self.key)
        size = db.value(sql("SELECT octet_length(weights) {which}", which=which), types, *values)
        for start in range(0, size or 0, PIECE):
            piece = sql("SELECT substr(weights, {start}, {piece}) {which}", start=start + 1, piece=PIECE, which=which)
            yield db.value(piece, types, *values)

    def version(self, db: Database) -> str | None:
        return None  # a trainer that still has weights of another group must not take them for these


def require_whole(model: TrainedModel, function: str, hint: str) -> None:
    """Refuse what would predict all rows with the model of all rows."""
    if model.grouped is not None:
        raise Unsupported(f"{function} does not know models of groups, which '{model.table.text}' has.", hint=hint)


class ModelOfRow:
    """Finds the model of a group, by the key of the group."""

    def __init__(self, db: Database, whole: TrainedModel, grouped: Grouped, configuration: int | None) -> None:
        self.db, self.whole, self.grouped, self.configuration = db, whole, grouped, configuration
        self._of_key: dict[int, TrainedModel] = {whole.key: whole}

    def of(self, key: str) -> TrainedModel:
        """The best model of the group, or that of the configuration; else the one of all rows.

        The architecture of a configuration is in the model table, which has those with a model on all rows.
        """
        rows = self.db.rows(
            sql(
                "SELECT configuration, group_number, weights IS NULL AS lacks FROM {groups}"
                " WHERE group_key = $1 AND ($2 IS NULL OR configuration = $2)"
                " AND configuration IN (SELECT configuration FROM {models})"
                " ORDER BY weights IS NULL, rank, configuration LIMIT 1",
                groups=self.grouped.table.sql,
                models=self.whole.table.sql,
            ),
            ("text", "integer"),
            key,
            self.configuration,
        )
        if not rows and self.grouped.new_groups == NEW_GROUPS[0]:
            columns = ", ".join(column.name for column in self.grouped.columns)
            raise UndefinedObject(
                f"no model was trained on the group {key} of {columns}.",
                hint="Leave its rows out of the query. A fit with the option new_groups 'all rows' makes tables that"
                " predict such rows by the model of all rows.",
            )
        if not rows or rows[0]["lacks"]:
            return self.whole
        found = self._of_configuration(rows[0]["configuration"])
        return GroupModel(
            found.table, found.key, found.definition, found.layout, None, found.named,
            groups=self.grouped.table, group_number=rows[0]["group_number"],
        )  # fmt: skip

    def _of_configuration(self, key: int) -> TrainedModel:
        if key not in self._of_key:
            self._of_key[key] = read(self.db, self.whole.table.name.quoted, key)[0]
        return self._of_key[key]


def predicted(
    db: Database,
    model: TrainedModel,
    rows: tuple[Relation, dict[str, Column]],
    key: str | None,
    configuration: int | None,
    best: BestClasses | None,
) -> Iterator[dict[str, Any]]:
    """A row for each chunk, as ``streaming.predict_rows`` gives them."""
    grouped, (source, present) = model.grouped, rows
    assert grouped is not None
    columns = _columns(grouped, present)
    reading = _reading(db, model, rows, key, columns, best)
    models = ModelOfRow(db, model, grouped, configuration)
    chosen = trainers.options(db, False, platform.of(db).distribution_keys(db, 1))
    cursor = db.cursor(reading.query(source))
    found = {"rows": 0, **{f"s{place}": 0 for place in range(len(reading.news))}}
    with trainers.own_segment(db, chosen) as (mine, _), ExitStack() as stack:
        group: str | None = None
        prediction: SegmentPrediction | None = None
        while batch := cursor.fetch(1):
            chunk = batch[0]
            found = {name: before + chunk[name] for name, before in found.items()}
            reading.require_sound(chunk, chunk["ids0"], source.text)
            if chunk["g"] != group or prediction is None:
                group = chunk["g"]
                its = models.of(group)
                stack.close()
                order = trainers.prediction_order(its, reading.inputs, reading.best)
                prediction = stack.enter_context(trainers.predicting(db, mine, its, order))
            answers = prediction.predict(chunk["rows"], chunk["variables"], None)
            yield {"ids": chunk["ids0"], "outputs": reading.outputs, "answers": answers}
    cursor.close()
    surprises.tell(db, source.text, reading.news, found)


def _columns(grouped: Grouped, present: dict[str, Column]) -> list[Column]:
    """The columns of the query that tell the groups apart, with the types that they had in training."""
    columns = [Column(one.name, one.type.name, str(one.type), "", None) for one in grouped.columns]
    require_types(columns, present, "the query")
    return columns


def _reading(
    db: Database,
    model: TrainedModel,
    rows: tuple[Relation, dict[str, Column]],
    key: str | None,
    columns: list[Column],
    best: BestClasses | None,
) -> Reading:
    source, present = rows
    inputs = natural.inputs_of(db, model.layout, present, "the query")
    keys = natural.key_columns(db, key, present, model.layout, source, "the query")
    names = list({column.name: None for variable in inputs for column in variable.columns})
    alias = {name: sql("c{place}", place=place) for place, name in enumerate(names)}
    needed = {f"column '{name}'": alias[name] for name in buffers.filled_columns(inputs)}
    news = surprises.of(inputs, lambda column: alias[column.name])
    chunk = at_a_time(bytes_per_row(model.layout))
    arrays = [expression(variable, lambda column: alias[column.name]) for variable in inputs]
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{place}", name=name, place=place)
        for place, name in enumerate(needed.values())
    ]
    gathered = joined(", ", [gathered_arrays(arrays), sql("array_agg(id) AS ids0"), *nulls, *surprises.counts(news)])
    stored = joined("", (sql(", {name} AS {alias}", name=identifier(name), alias=one) for name, one in alias.items()))

    def query(source: Relation) -> Sql:
        return sql(
            "SELECT g, count(*) AS rows, {gathered}"
            " FROM (SELECT k.*, (row_number() OVER (PARTITION BY g) - 1) / {chunk} AS turn"
            " FROM (SELECT {id} AS id, {group} AS g{stored} FROM {rows} AS s) k ORDER BY g, turn) r"
            " GROUP BY g, turn ORDER BY g, turn",
            gathered=gathered,
            chunk=chunk,
            id=natural.key_of(keys) if keys else NUMBER,
            group=key_of(columns, lambda column: identifier(column.name)),
            stored=stored,
            rows=source.rows,
        )

    outputs = natural.outputs_as_json(model.layout.outputs, None)
    return Reading(keys, inputs, best, outputs, chunk, query, list(needed), news)
