"""Where predictions are computed: in the caller's session, or by worker sessions that share the rows."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

from cerebro_db.core.names import quote

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..runs.request import refuse_transaction
from ..segment.prediction import Prediction
from ..sessions import logins
from ..sessions.session import Session
from ..sessions.team import Team
from . import staging, trainers
from .chunks import Source
from .trained import Model
from .trainers import PredictionOrder

SMALL_TABLE = 4 << 20  # bytes; a smaller table is predicted by one trainer, which saves the start of others


def staged(
    db: Database, model: Model, order: PredictionOrder, source: Source, use_gpus: bool | None, module: str
) -> str:
    """The table that has the answers for all rows; drop it when they are read."""
    small = platform.of(db).runs_functions_in_session and _size_of(db, source.table) < SMALL_TABLE
    here = small or _seen_only_here(db, source.table)
    return (_predict_here if here else _predict_on_segments)(db, model, order, source, use_gpus, module)


def _seen_only_here(db: Database, table: Relation) -> bool:
    """Whether only this session sees the table's rows: it is temporary, or was made or changed in this transaction.

    Tables that inherit from it cannot be checked: once this transaction has written, such a table counts as changed.
    """
    return table.temporary or bool(
        db.value(
            "SELECT txid_current_if_assigned() IS NOT NULL AND (age(c.xmin) <= 0 OR c.relhassubclass"
            " OR pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)"
            " + pg_stat_get_xact_tuples_deleted(c.oid) > 0) FROM pg_catalog.pg_class c WHERE c.oid = $1::oid",
            ("bigint",),
            table.oid,
        )
    )


def _size_of(db: Database, table: Relation) -> int:
    """Bytes of a table.  The size of a view is not known; views count as small."""
    if table.kind == "v":
        return 0
    return int(db.value("SELECT pg_total_relation_size($1::oid)", ("bigint",), table.oid) or 0)


# -- in the caller's session ---------------------------------------------------------------------------------


def _predict_here(
    db: Database, model: Model, order: PredictionOrder, source: Source, use_gpus: bool | None, module: str
) -> str:
    here = platform.of(db)
    keys = here.distribution_keys(db, 1)
    table = f"pg_temp.{quote('cerebro_predict_' + secrets.token_hex(6))}"
    with trainers.predicting_here(db, model, order, trainers.options(db, use_gpus, module, keys)) as prediction:
        for statement in staging.create(table, here):
            db.execute(statement)
        (chunks,) = source.shares(db, keys)
        if here.runs_functions_in_session:
            db.execute(staging.fill(table, chunks))
        else:
            _predict_fetched(db, prediction, chunks, table)
    return table


def _predict_fetched(db: Database, prediction: Prediction, chunks: str, table: str) -> None:
    """Chunk by chunk through this function, where a query would call cerebro._predict on the segments."""
    cursor = db.cursor(f"SELECT __dist_key__, rows, ids::text AS ids, variables FROM ({chunks}) c")
    while found := cursor.fetch(1):
        chunk = found[0]
        db.execute(
            f"INSERT INTO {table} VALUES ($1, $2, $3::text[], $4)",
            ("integer", "bigint", "text", "cerebro._prediction[]"),
            *(chunk[name] for name in ("__dist_key__", "rows", "ids")),
            prediction.predict(chunk["rows"], chunk["variables"]),
        )
    cursor.close()


# -- in worker sessions --------------------------------------------------------------------------------------


def _predict_on_segments(
    db: Database, model: Model, order: PredictionOrder, source: Source, use_gpus: bool | None, module: str
) -> str:
    """Each worker session predicts its share of the rows, into a table that only this user can see."""
    here = platform.of(db)
    parts = platform.segments_wanted(db, None, module) or here.segments(db)
    keys = here.distribution_keys(db, parts)
    refuse_transaction(db, module)

    def predicted(team: Team) -> str:
        table, copy = staging.new_name(), staging.new_name()
        copied = not here.runs_functions_in_session  # functions get only rows stored on their segment
        shares = [source.share_of_copy(copy, key) for key in keys] if copied else source.shares(db, keys)
        sessions = [worker.session for worker in team.workers]
        first = sessions[0]
        staging.drop_forgotten(first)
        for statement in staging.create(table, here):
            first.run(statement)
        statements = [staging.fill(table, share) for share in shares]
        try:
            if copied:
                first.run(source.copied(copy, keys, here))
            else:
                _begin_with_one_snapshot(sessions)
            trainers.predict(db, team, model, order, statements, in_transaction=not copied)
            if copied:
                first.run(f"DROP TABLE {copy}")
        except BaseException:
            with contextlib.suppress(Exception):
                cleaner = logins.connect_as(db, relations.current_role(db), "cerebro_db cleaner", lambda: None)
                cleaner.run(f"DROP TABLE IF EXISTS {table}, {copy}")
                cleaner.close()
            raise
        return table

    with trainers.team_of(db, keys, trainers.options(db, use_gpus, module, keys)) as team:
        return trainers.again_if_lost(team, lambda: predicted(team))


def _begin_with_one_snapshot(sessions: Sequence[Session]) -> None:
    """Begin a transaction in each session, all with the same snapshot.

    Otherwise a row that others change meanwhile could move from the share of one session into that of another.
    """
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
    first, *others = sessions
    first.run(begin)
    ((snapshot,),) = first.run("SELECT pg_catalog.pg_export_snapshot()")
    for session in others:
        session.run(begin)
        session.run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
