"""The MADlib-shaped tables of a finished run: the models, ``_info`` and ``_summary``.

They are made in the caller's transaction, from states that the workers have committed.  The bytes of
a model go from table to table; they never pass through Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cerebro_db.core.errors import WrongState
from cerebro_db.core.names import Name, quote

from . import tables
from .db import Database, entry
from .dialect import Dialect
from .runs import WHOLE_PAGES, leaf_name, no_such_run
from .segment import CHUNK

MODULE = "materialize"
# pg_dump cannot write a value much larger; such a model is in the companion table, in chunks.
LARGEST_VALUE = 500 << 20
INFO_COLUMNS = """
    mst_key integer PRIMARY KEY, model_id integer, compile_params text, fit_params text, model_type text,
    model_size double precision, metrics_elapsed_time double precision[], metrics_type text[], loss_type text,
    training_metrics_final double precision, training_loss_final double precision,
    training_metrics double precision[], training_loss double precision[],
    validation_metrics_final double precision, validation_loss_final double precision,
    validation_metrics double precision[], validation_loss double precision[],
    status text, reason text
"""


@entry
def materialize_run(db: Database, run_id: int, model_output_table: str) -> None:
    name = tables.new(db, model_output_table, MODULE, ("_info", "_summary", "_weights"), argument="model_output_table")
    materialize(db, run_id, name, replace=False)
    db.execute("INSERT INTO cerebro.event (run, event) VALUES ($1, 'materialized')", ("bigint",), run_id)


def materialize(db: Database, run_id: int, name: Name, *, replace: bool) -> None:
    run = db.one(
        "SELECT r.*, s.status, s.started_at, s.ended_at FROM cerebro.run_plan r JOIN cerebro.runs s USING (run, owner)"
        " WHERE run = $1 AND owner = current_user",
        ("bigint",),
        run_id,
    )
    if run is None:
        raise no_such_run(run_id)
    models = db.rows(
        "SELECT DISTINCT ON (c.place) c.mst_key, c.model_id, h.hop, h.segment, h.weights_offset, h.weights_bytes"
        " FROM cerebro.configuration c JOIN cerebro.hop h USING (run, owner, mst_key)"
        " WHERE run = $1 AND owner = current_user ORDER BY c.place, h.hop DESC",
        ("bigint",),
        run_id,
    )
    if not models:
        raise WrongState(f"run {run_id} has no trained model yet", hint=f"SELECT cerebro.resume({run_id}) goes on.")
    dialect = Dialect.of(db)
    if replace:
        for ending in ("_weights", "_info", "_summary", ""):
            old = tables.find(db, name.suffixed(ending))
            if old is not None:
                db.patiently(f"DROP TABLE {old.sql}")
    _make_models(db, dialect, run, models, name)
    _make_info(db, dialect, run, models, name.suffixed("_info"))
    _make_summary(db, dialect, run, name)


def _make_models(db: Database, dialect: Dialect, run: dict[str, Any], models: list[dict[str, Any]], name: Name) -> None:
    db.execute(
        f"CREATE TABLE {name.sql} (mst_key integer, model_weights bytea, model_arch json, __dist_key__ integer)"
        f" {dialect.distributed_by('__dist_key__')}"
    )
    db.execute(f"ALTER TABLE {name.sql} ALTER COLUMN model_weights SET STORAGE EXTERNAL")
    chunks = None
    for model in models:
        leaf = leaf_name(run["storage"], model["mst_key"], model["hop"]).sql
        key = run["dist_keys"][model["segment"]]
        rows = f"FROM {leaf} WHERE hop = {model['hop']} AND __dist_key__ = {key}"
        first, size = model["weights_offset"], model["weights_bytes"]
        if size <= LARGEST_VALUE:
            # Only the chunks that hold weights are read, not the optimizer's.
            weights = (
                f"(SELECT substr(string_agg(payload, ''::bytea ORDER BY start), ({first} - min(start))::integer + 1,"
                f" {size})"
                f" {rows} AND start < {first + size} AND start + octet_length(payload) > {first})"
            )
        else:
            weights = "NULL"
            if chunks is None:
                chunks = name.suffixed("_weights")
                db.execute(
                    f"CREATE TABLE {chunks.sql} (mst_key integer, start bigint, payload bytea, __dist_key__ integer)"
                    f" {WHOLE_PAGES} {dialect.distributed_by('__dist_key__')}"
                )
                db.execute(f"ALTER TABLE {chunks.sql} ALTER COLUMN payload SET STORAGE EXTERNAL")
            db.execute(f"INSERT INTO {chunks.sql} {weight_chunks(model['mst_key'], rows, first, size)}")
        db.execute(
            f"INSERT INTO {name.sql} SELECT $1, {weights}, architecture, {key} FROM cerebro.architecture"
            " WHERE run = $2 AND owner = current_user AND model_id = $3",
            ("integer", "bigint", "integer"),
            model["mst_key"],
            run["run"],
            model["model_id"],
        )


def weight_chunks(key: int, rows: str, first: int, size: int) -> str:
    """The part of a state's chunks that the weights are, as a ``_weights`` table has it."""
    begin = f"GREATEST({first} - start, 0)"
    return (
        f"SELECT {key} AS mst_key, GREATEST(start - {first}, 0) AS start,"
        f" substr(payload, {begin}::integer + 1,"
        f" (LEAST(octet_length(payload), {first + size} - start) - {begin})::integer) AS payload,"
        f" __dist_key__ {rows} AND start < {first + size} AND start + octet_length(payload) > {first}"
    )


def weight_pieces(db: Database, models: str, chunks: str | None, key: int) -> Iterator[bytes]:
    """The weights of one model of a fit's tables; a piece is all of them that Python ever holds."""
    if chunks is not None:
        cursor = db.cursor(f"SELECT payload FROM {chunks} WHERE mst_key = $1 ORDER BY start", ("integer",), key)
        while batch := cursor.fetch(16):  # 128 kB, of runs from before 4 MB
            yield b"".join(row["payload"] for row in batch)
        cursor.close()
        return
    size = db.value(f"SELECT octet_length(model_weights) FROM {models} WHERE mst_key = $1", ("integer",), key)
    for start in range(0, size or 0, CHUNK):
        piece = f"SELECT substr(model_weights, $1, $2) FROM {models} WHERE mst_key = $3"
        yield db.value(piece, ("integer", "integer", "integer"), start + 1, CHUNK, key)


def _make_info(db: Database, dialect: Dialect, run: dict[str, Any], models: list[dict[str, Any]], name: Name) -> None:
    db.execute(f"CREATE TABLE {name.sql} ({INFO_COLUMNS}) {dialect.distributed_by('mst_key')}")
    db.execute(
        f"""
        INSERT INTO {name.sql}
        WITH told AS (
            SELECT mst_key,
                   array_agg(extract(epoch FROM trained_at - $2::timestamptz)::double precision ORDER BY epoch)
                       AS elapsed,
                   array_agg(training_metric ORDER BY epoch) AS training_metrics,
                   array_agg(training_loss ORDER BY epoch) AS training_loss,
                   array_agg(validation_metric ORDER BY epoch) AS validation_metrics,
                   array_agg(validation_loss ORDER BY epoch) AS validation_loss
              FROM cerebro.learning_curve
             WHERE run = $1 AND owner = current_user AND (epoch % $3 = 0 OR epoch = $4)
             GROUP BY mst_key
        )
        SELECT c.mst_key, c.model_id, c.compile_params, c.fit_params, 'madlib_keras',
               (SELECT h.weights_bytes / 1024.0 FROM cerebro.hop h
                 WHERE h.run = c.run AND h.owner = c.owner AND h.mst_key = c.mst_key ORDER BY h.hop DESC LIMIT 1),
               t.elapsed,
               CASE WHEN jsonb_typeof(c.compile -> 'metrics') = 'array' AND c.compile -> 'metrics' <> '[]'
                    THEN ARRAY(SELECT jsonb_array_elements_text(c.compile -> 'metrics')) END,
               c.compile ->> 'loss',
               b.training_metric, b.training_loss,
               CASE WHEN b.training_metric IS NOT NULL THEN t.training_metrics END, t.training_loss,
               b.validation_metric, b.validation_loss,
               CASE WHEN b.validation_metric IS NOT NULL THEN t.validation_metrics END,
               CASE WHEN b.validation_loss IS NOT NULL THEN t.validation_loss END,
               b.status, b.reason
          FROM cerebro.configuration c
          JOIN cerebro.leaderboard b USING (run, owner, mst_key)
          LEFT JOIN told t ON t.mst_key = c.mst_key
         WHERE c.run = $1 AND c.owner = current_user
        """,
        ("bigint", "timestamptz", "integer", "integer"),
        run["run"],
        run["started_at"],
        run["evaluate_every"],
        run["epochs"],
    )


def _make_summary(db: Database, dialect: Dialect, run: dict[str, Any], name: Name) -> None:
    """One row, MADlib's columns; the class values have the type that their column has."""
    summary = json.loads(run["source_summary"])
    options = json.loads(run["options"])
    iterations = [
        epoch for epoch in range(1, run["epochs"] + 1) if epoch % run["evaluate_every"] == 0 or epoch == run["epochs"]
    ]
    columns: list[tuple[str, str, Any]] = [
        ("source_table", "text", run["source_table"]),
        ("validation_table", "text", run["validation_table"]),
        ("model", "text", str(name)),
        ("model_info", "text", str(name.suffixed("_info"))),
        ("dependent_varname", "text[]", summary.get("dependent_varname")),
        ("independent_varname", "text[]", summary.get("independent_varname")),
        ("model_arch_table", "text", run["arch_table"]),
        ("model_selection_table", "text", run["selection_table"]),
        ("object_table", "text", None),
        ("num_iterations", "integer", run["epochs"]),
        ("metrics_compute_frequency", "integer", run["evaluate_every"]),
        ("warm_start", "boolean", bool(options.get("warm_start"))),
        ("name", "text", run["name"]),
        ("description", "text", run["description"]),
        ("start_training_time", "timestamp", run["started_at"]),
        ("end_training_time", "timestamp", run["ended_at"]),
        ("madlib_version", "text", f"cerebro_db {run['version']}"),
        ("num_classes", "integer[]", summary.get("num_classes")),
        *((column, "text[]", values) for column, values in summary.items() if column.endswith("_class_values")),
        ("dependent_vartype", "text[]", summary.get("dependent_vartype")),
        ("normalizing_const", "real", summary.get("normalizing_const")),
        ("metrics_iters", "integer[]", iterations),
        ("run", "bigint", run["run"]),
        ("seed", "bigint", run["seed"]),
        ("layout", "jsonb", run["layout"]),
    ]
    chosen = ", ".join(f"${place}::{kind} AS {quote(column)}" for place, (column, kind, _) in enumerate(columns, 1))
    db.execute(
        f"CREATE TABLE {name.suffixed('_summary').sql} AS SELECT {chosen} {dialect.distributed_by('source_table')}",
        tuple(kind for _, kind, _ in columns),
        *(value for _, _, value in columns),
    )


def plain_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary row as JSON can hold it; class values become text, as they are written in SQL."""

    def as_text(value: Any) -> str | None:
        return value if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    plain: dict[str, Any] = {}
    for column, value in summary.items():
        if column.endswith("_class_values") and value is not None:
            plain[column] = [as_text(label) for label in value]
        else:
            plain[column] = value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)
    return plain
