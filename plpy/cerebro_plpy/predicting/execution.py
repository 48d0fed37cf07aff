"""Where predictions are computed: in the caller's session, or by worker sessions that share the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Callable

from cerebro_db.core.errors import NotPermitted
from cerebro_db.core.names import Name, token
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..database.access import Database
from ..database.relations import Relation
from ..segment.prediction import SegmentPrediction
from ..segment.worker import Segment
from . import staging, trainers

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BeginPrediction

    from ..models.trained import TrainedModel
    from .chunks import Source

SMALL_TABLE = 4 << 20  # bytes; a smaller table is predicted by one trainer, which saves the start of others

# Predicts, and returns the table that has the answers for all rows; drop it when they are read.
Predict = Callable[["TrainedModel", "BeginPrediction", "Source"], Sql]


@contextlib.contextmanager
def place_for(
    db: Database, table: Relation, use_gpus: bool | None, *, sealed: bool = False, memory_mb: int | None = None
) -> Iterator[Predict]:
    """Where the rows of a table are predicted.  Trainers start at once, while the caller looks up what they need.

    ``memory_mb``: of the model, as ``ModelTables.memory_mb`` knows it.
    ``sealed``: the caller may not read the weights, which therefore stay in the caller's session.
    """
    small = platform.of(db).runs_functions_in_session and _size_of(db, table) < SMALL_TABLE
    if sealed or small or _seen_only_here(db, table):
        with trainers.own_segment(db, memory_mb, use_gpus=use_gpus, sealed=sealed) as (mine, _):
            yield partial(_predict_here, db, mine)
        return
    from . import on_segments  # only now: what it imports takes a new session longer than predicting a row

    yield partial(on_segments.predict, db, use_gpus)


def _seen_only_here(db: Database, table: Relation) -> bool:
    """Whether only this session sees the table's rows: it is temporary, or was made or changed in this transaction.

    Tables that inherit from it cannot be checked: once this transaction has written, such a table counts as changed.
    """
    return table.temporary or bool(
        db.value(
            sql(
                "SELECT txid_current_if_assigned() IS NOT NULL AND (age(c.xmin) <= 0 OR c.relhassubclass"
                " OR pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)"
                " + pg_stat_get_xact_tuples_deleted(c.oid) > 0) FROM pg_catalog.pg_class c WHERE c.oid = $1::oid"
            ),
            ("bigint",),
            table.oid,
        )
    )


def _size_of(db: Database, table: Relation) -> int:
    """Bytes of a table.  The size of a view is not known; views count as small."""
    if table.kind == "v":
        return 0
    return int(db.value(sql("SELECT pg_total_relation_size($1::oid)"), ("bigint",), table.oid) or 0)


# -- in the caller's session ---------------------------------------------------------------------------------


def _predict_here(db: Database, mine: Segment, model: TrainedModel, order: BeginPrediction, source: Source) -> Sql:
    here = platform.of(db)
    (chunks,) = source.shares(db, here.distribution_keys(db, 1), source.count())
    with trainers.predicting(db, mine, model, order) as prediction:
        table = create_temporary(db)
        if here.runs_functions_in_session:
            db.execute(staging.fill(table, chunks))
        else:
            _predict_fetched(db, prediction, chunks, table)
    return table


def create_temporary(db: Database) -> Sql:
    """The temporary table of the answers, which has no rows yet."""
    table = Name("pg_temp", f"cerebro_predict_{token()}").sql
    try:
        for statement in staging.create(table, platform.of(db)):
            db.execute(statement)
    except db.plpy.SPIError as error:
        if not db.is_error(error, NotPermitted.sqlstate):
            raise
        raise NotPermitted(
            f"the predictions need a temporary table: {error}.",
            hint="cerebro.predict() needs none. It works in materialized views, and without the privilege TEMPORARY.",
        ) from None
    return table


def _predict_fetched(db: Database, prediction: SegmentPrediction, chunks: Sql, table: Sql) -> None:
    """Chunk by chunk through this function, where a query would call cerebro._predict on the segments."""
    cursor = db.cursor(sql("SELECT __dist_key__, rows, ids, variables FROM ({chunks}) c", chunks=chunks))
    while found := cursor.fetch(1):
        chunk = found[0]
        answers = prediction.predict(chunk["rows"], chunk["variables"])
        db.execute(
            staging.add(table), staging.ADDED, *(chunk[name] for name in ("__dist_key__", "rows", "ids")), answers
        )
    cursor.close()
