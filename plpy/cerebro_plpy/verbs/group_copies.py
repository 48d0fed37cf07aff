"""The models of groups that are copied into a version of a registered model: those that ``cerebro.predict`` uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cerebro_db.core.errors import SerializationFailure, UndefinedObject, WrongState
from cerebro_db.core.models.model_columns import GROUPS_COLUMNS
from cerebro_db.core.names import written_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ..database import relations
from ..database.access import Database
from ..models import document_columns
from ..models.trained import Grouped, TrainedModel, of_configuration
from ..registry import stored
from ..registry.stored import Piece

COPIED = tuple(name for name in GROUPS_COLUMNS if name != "weights")
MOST_NAMED = 5  # groups in an error


@dataclass(frozen=True)
class GroupRow:
    """A row of a table ``_groups``."""

    number: int
    configuration: int
    key: str  # a JSON array of the group's values
    size: int | None  # of the weights; None: the model on all rows predicts the group
    document: str  # the row as JSON, without the weights


def rows_of(db: Database, model: TrainedModel, grouped: Grouped, configuration: int | None) -> list[GroupRow]:
    """A row for each group: that of the model that predicts it, in the order of their numbers.

    A group that the model on all rows predicts gets the number of its configuration.
    """
    return _read(db, grouped, _chosen(db, model, grouped, configuration), model.key)


def row_of(db: Database, model: TrainedModel, group: str, configuration: int | None) -> GroupRow:
    """The row of the best model of a group, or of the configuration's.

    ``group``: its group_value or group_key.
    """
    grouped = model.grouped
    if grouped is None:
        raise UndefinedObject(f"group_value: '{model.table.text}' has no models of groups.", hint="Leave it out.")
    named = sql(
        "SELECT * FROM ({chosen}) g WHERE group_value = $1 OR group_key = $1 ORDER BY group_key <> $1 LIMIT 1",
        chosen=_chosen(db, model, grouped, configuration),
    )
    found = _read(db, grouped, named, model.key, group)
    if not found:
        some = sql(
            "SELECT DISTINCT group_key FROM {groups} ORDER BY 1 LIMIT {most}", groups=grouped.table.sql, most=MOST_NAMED
        )
        raise UndefinedObject(
            f"group_value: '{model.table.text}' has no group '{group}'.",
            hint="A group is named by its group_value or group_key, such as"
            f" {', '.join(row['group_key'] for row in db.rows(some))}.",
        )
    (row,) = found
    if row.size is None:
        raise WrongState(
            f"group_value: the group {row.key} of {written_list(one.name for one in grouped.columns)} has no model of"
            " its own.",
            hint=f"SELECT group_key, configuration, reason FROM {grouped.table.name}; says why. The model on all rows"
            " predicts its rows: leave group_value out.",
        )
    return row


def weights_of(db: Database, model: TrainedModel, grouped: Grouped, rows: Sequence[GroupRow]) -> Iterator[list[Piece]]:
    """The weights of these models, in batches for ``stored.create``: one statement reads many small models."""
    copied: Counter[tuple[int | None, int]] = Counter()
    for batch in _batches(rows):
        (first, *others) = batch
        if others or (first.size or 0) <= stored.PIECE:
            parts: Iterator[list[Piece]] = iter([_small(db, model, grouped, batch)])
        else:
            large = of_configuration(db, model, first.configuration).of_group(grouped, first.number)
            parts = stored.cut(first.number, first.configuration, large.weights(db))
        for pieces in parts:
            for piece in pieces:
                copied[piece.group_number, piece.configuration] += len(piece.payload)
            yield pieces
    if copied != {(row.number, row.configuration): row.size for row in rows if row.size}:
        raise SerializationFailure(f"'{grouped.table.text}' was changed while it was copied.", hint="Try again.")


def _batches(rows: Sequence[GroupRow]) -> Iterator[list[GroupRow]]:
    """The rows with weights: in each batch as many as one statement reads, or one with more weights than that."""
    batch: list[GroupRow] = []
    total = 0
    for row in rows:
        if not row.size:
            continue
        if batch and (len(batch) == stored.MOST_ROWS or total + row.size > stored.PIECE):
            yield batch
            batch, total = [], 0
        batch.append(row)
        total += row.size
    if batch:
        yield batch


def _small(db: Database, model: TrainedModel, grouped: Grouped, batch: Sequence[GroupRow]) -> list[Piece]:
    table = sql(
        "(SELECT group_number, configuration, 0::bigint AS start, weights AS payload FROM {groups})",
        groups=grouped.table.sql,
    )
    if model.is_registered:
        table = model.table.name.suffixed(stored.GROUP_WEIGHTS).sql
    found = db.rows(
        sql(
            "SELECT group_number, configuration, start, payload FROM {table} t"
            " JOIN ROWS FROM (pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::integer[]))"
            " AS w (group_number, configuration) USING (group_number, configuration)"
            " ORDER BY group_number, configuration, start",
            table=table,
        ),
        ("integer[]", "integer[]"),
        [row.number for row in batch],
        [row.configuration for row in batch],
    )
    return [Piece(row["group_number"], row["configuration"], row["start"], row["payload"]) for row in found]


def _chosen(db: Database, model: TrainedModel, grouped: Grouped, configuration: int | None) -> Sql:
    relations.require_columns(db, grouped.table, [*COPIED])
    # to_jsonb() would run a cast of the type's owner.
    document_columns.require_known_types(relations.columns(db, grouped.table), grouped.table.text, COPIED)
    return grouped.chosen(model.table, configuration, joined(", ", map(identifier, COPIED)))


def _read(db: Database, grouped: Grouped, chosen: Sql, whole: int, *group: str) -> list[GroupRow]:
    """``whole``: the configuration of the model on all rows."""
    values = {
        "configuration": sql(
            "CASE WHEN size IS NULL THEN {whole} ELSE configuration END AS configuration", whole=whole
        ),
        "bytes": sql("size AS bytes"),
    }
    rows = db.rows(
        sql(
            "SELECT group_number, configuration, group_key, bytes, pg_catalog.to_jsonb(r)::text AS document"
            " FROM (SELECT {listed} FROM ({chosen}) c) r ORDER BY group_number",
            listed=joined(", ", (values.get(name, identifier(name)) for name in COPIED)),
            chosen=chosen,
        ),
        ("text",) * len(group),
        *group,
    )
    return [
        GroupRow(row["group_number"], row["configuration"], row["group_key"], row["bytes"], row["document"])
        for row in rows
    ]
