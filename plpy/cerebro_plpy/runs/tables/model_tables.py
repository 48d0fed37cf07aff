"""The MADlib-shaped tables of a run: the models, ``_info`` and ``_summary``.

They are made in the caller's transaction, from states that the workers have committed.  The bytes of a model go from
table to table and never pass through Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from cerebro_db.core import documents, recorded_options
from cerebro_db.core.architecture import reading
from cerebro_db.core.errors import CorruptState, InUse, InvalidArgument, WrongState
from cerebro_db.core.events import Event, RunStatus
from cerebro_db.core.layout import Layout
from cerebro_db.core.names import Name
from cerebro_db.core.options import BEST, LAST
from cerebro_db.core.packed_summary import CLASS_VALUES, PackedSummary
from cerebro_db.core.parameters import custom, writing
from cerebro_db.core.search import objective
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.sql_types import TEXT, SqlType

from ... import platform
from ...data import weights
from ...data.summary import parsed
from ...database import relations
from ...database.access import Database
from ...database.entry import entry
from ...platform.base import Platform
from ..record import state_tables
from ..record.log import ARCHITECTURE, MODEL_INFO, RunLog, StateOnRecord, as_written
from ..record.run import no_such_run
from . import automl_tables
from .automl_tables import AutoML

MOST_ITERATIONS = 1_000_000  # that a summary lists
Written = Mapping[str, Optional[str]]  # column of the summary -> the name of a table as the user wrote it
INFO_COLUMNS = {
    "mst_key": "integer",
    "model_id": "integer",
    "compile_params": "text",
    "fit_params": "text",
    "model_type": "text",
    "model_size": "double precision",
    "metrics_elapsed_time": "double precision[]",
    "metrics_type": "text[]",
    "loss_type": "text",
    "training_metrics_final": "double precision",
    "training_loss_final": "double precision",
    "training_metrics": "double precision[]",
    "training_loss": "double precision[]",
    "validation_metrics_final": "double precision",
    "validation_loss_final": "double precision",
    "validation_metrics": "double precision[]",
    "validation_loss": "double precision[]",
}
OWN_INFO_COLUMNS = {  # after those of MADlib
    "status": "text",
    "reason": "text",
    "which": "text",
    "epoch": "integer",
    "objective_value": "double precision",
    "functions": "text[]",  # the versions of custom functions that the model was trained with
}


@entry(called="cerebro.materialize")
def materialize_run(db: Database, run_id: int, model_table: str, which: str | None, fold: int | None) -> None:
    if which not in (None, BEST, LAST):
        raise InvalidArgument(
            f"which is '{which}'; it must be '{BEST}' or '{LAST}'.",
            hint=f"NULL: '{BEST}' if the run keeps best states, else '{LAST}'.",
        )
    name = relations.new(db, model_table, ("_info", "_summary", "_weights"), argument="model_table")
    log = RunLog.of_caller(db, run_id)
    if log.status() is RunStatus.RUNNING:
        raise InUse(
            f"run {run_id} is being trained",
            hint=f"SELECT cerebro.wait({run_id}); or end it: cerebro.cancel({run_id}).",
        )
    materialize(db, run_id, name, replace=False, which=which, fold=fold)
    log.note(Event.MATERIALIZED)


def materialize(
    db: Database,
    run_id: int,
    name: Name,
    *,
    replace: bool,
    which: str | None = None,
    written: Written | None = None,
    fold: int | None = None,
) -> None:
    """Make the tables.

    ``which`` states they get, the best or the last ones.  None: what the run was asked to keep.
    ``fold``: the models of this fold.  None: the models on all rows.
    ``written``: as in MADlib, names of tables, losses and metrics are those that the user wrote.
    """
    run = db.one(
        sql(
            "SELECT r.*, s.status, s.started_at, s.ended_at"
            " FROM cerebro.run_plan r JOIN cerebro.runs s USING (run, owner)"
            " WHERE run = $1 AND owner = current_user"
        ),
        ("bigint",),
        run_id,
    )
    if run is None:
        raise no_such_run(run_id)
    where = f"the options of run {run_id}"
    run["options"] = recorded_options.read(documents.decoded(run["options"], where), where)
    kept = run["options"].get("keep", LAST)
    which = which or kept
    if which == BEST and kept != BEST:
        raise WrongState(
            f"run {run_id} has not kept its best states.",
            hint="""Ask for which => 'last', or train with the option {"keep": "best"}.""",
        )
    layout = parsed(db, run["layout"], f"run {run_id}")
    folds = layout.folds
    if fold is not None and not 1 <= fold <= folds:
        raise InvalidArgument(
            f"run {run_id} has no fold {fold}.",
            hint=f"It has the folds 1 to {folds}." if folds else "It was trained on rows without folds.",
        )
    states = RunLog.of_caller(db, run_id).states_of_best_models(which, fold=fold)
    if not states:
        raise WrongState(f"run {run_id} has no trained model yet", hint=f"SELECT cerebro.resume({run_id}) goes on.")
    without = [state.key for state in states if state.which != which]
    if without:
        db.warning(
            f"no epoch of configuration {', '.join(map(str, sorted(without)))} has a value of"
            f" {run['options']['objective']} yet: the table has the last state"
        )
    here = platform.of(db)
    searched = automl_tables.of_options(run["options"])
    if searched is not None:
        own = str(name) == run["model_table"]  # else the caller of materialize has named another one
        written = {key: text for key, text in searched.written.items() if own or key not in ("model", "model_info")}
    if replace:
        for ending in ("_weights", "_info", "_summary", ""):
            old = relations.find(db, name.suffixed(ending))
            if old is not None:
                db.patiently(sql("DROP TABLE {old}", old=old.sql))
    with as_written(run_id):
        _make_models(db, here, run, states, name, keyed=searched is not None)
        _make_info(db, here, run, states, name.suffixed("_info"), searched, fold, names_as_written=written is not None)
        _make_summary(db, here, run, layout, name, which, searched, written or {})
    if searched is not None:
        automl_tables.make_selection(db, run_id, run["arch_table"], searched, replace=replace)


def _make_models(
    db: Database, here: Platform, run: dict[str, Any], states: list[StateOnRecord], name: Name, *, keyed: bool
) -> None:
    """``keyed``: the table has a primary key.  On Greenplum it is distributed by it, then."""
    key, spread = (sql(" PRIMARY KEY"), "mst_key") if keyed else (sql(""), "__dist_key__")
    db.execute(
        sql(
            "CREATE TABLE {name} (mst_key integer{key}, model_weights bytea, model_arch json, __dist_key__ integer)"
            " {distributed_by}",
            name=name.sql,
            key=key,
            distributed_by=here.distributed_by(spread),
        )
    )
    db.execute(sql("ALTER TABLE {name} ALTER COLUMN model_weights SET STORAGE EXTERNAL", name=name.sql))
    chunks, changed = None, []
    for state in states:
        table = state_tables.table_of_state(run["storage"], state.model, state.hop, state.which)
        dist_key = int(run["dist_keys"][state.segment])
        rows = sql(
            "FROM {table} WHERE hop = {hop} AND __dist_key__ = {dist_key}",
            table=table.sql,
            hop=state.hop,
            dist_key=dist_key,
        )
        if not weights.has_checksum(db, rows, state.state_sha256):
            changed.append(state.key)
            db.warning(
                f"configuration {state.key} is left out: its state is not the one that was committed",
                hint=f"Rows of {table.quoted} were changed or deleted by hand.",
            )
            continue
        first, size = state.weights_offset, state.weights_bytes
        if size > weights.LARGEST_VALUE:
            if chunks is None:
                chunks = name.suffixed("_weights")
                db.execute(
                    sql(
                        "CREATE TABLE {chunks} (mst_key integer, start bigint, payload bytea, __dist_key__ integer)"
                        " WITH ({whole_pages}) {distributed_by}",
                        chunks=chunks.sql,
                        whole_pages=state_tables.WHOLE_PAGES,
                        distributed_by=here.distributed_by("__dist_key__"),
                    )
                )
                db.execute(sql("ALTER TABLE {chunks} ALTER COLUMN payload SET STORAGE EXTERNAL", chunks=chunks.sql))
            cut = weights.chunks_sql(state.key, rows, first, size)
            db.execute(sql("INSERT INTO {chunks} {cut}", chunks=chunks.sql, cut=cut))
        values = weights.value_queries(rows, first, size) if size <= weights.LARGEST_VALUE else ()
        for query in (*values, sql("SELECT NULL::bytea AS value, {dist_key} AS __dist_key__", dist_key=dist_key)):
            # The value is in FROM and not in a sub-select of its own, whose result PostgreSQL would copy.
            insert = sql(
                "INSERT INTO {name} SELECT $1, value, ({architecture}), __dist_key__ FROM ({query}) w",
                name=name.sql,
                architecture=ARCHITECTURE,
                query=query,
            )
            if db.execute(insert, ("integer", "bigint"), state.key, run["run"]):
                break
    if len(changed) == len(states):
        raise CorruptState(f"the states of run {run['run']} are not those that were committed")


def _make_info(
    db: Database,
    here: Platform,
    run: dict[str, Any],
    states: list[StateOnRecord],
    name: Name,
    searched: AutoML | None,
    fold: int | None,
    *,
    names_as_written: bool,
) -> None:
    names, of_key = {}, {state.key: state for state in states}
    log = RunLog.of_caller(db, run["run"])
    texts = log.compile_params() if names_as_written else {}
    for key, (architecture, compiled, _) in log.configurations().items():
        outputs = reading.outputs(architecture)
        metrics = writing.metrics_type(compiled, outputs, plain=names_as_written)
        loss = writing.loss_type(compiled, outputs)
        if key in texts:
            loss, metrics = writing.as_written(texts[key], loss, metrics, len(outputs))
        names[key] = {
            "metrics": metrics,
            "loss": loss,
            **({"which": of_key[key].which, "epoch": of_key[key].epoch} if key in of_key else {}),
        }
        if references := sorted(custom.references(compiled)):
            names[key]["functions"] = "{" + ",".join(references) + "}"
        if searched is not None:
            names[key].update(searched.told(key, of_key[key].epoch if key in of_key else 0))
    columns = {**INFO_COLUMNS, **(searched.info_columns if searched is not None else {}), **OWN_INFO_COLUMNS}
    defined = joined(
        ", ",
        (sql("{column} {kind}", column=identifier(column), kind=SqlType(kind).sql) for column, kind in columns.items()),
    )
    db.execute(
        sql(
            "CREATE TABLE {name} ({defined}, PRIMARY KEY (mst_key)) {distributed_by}",
            name=name.sql,
            defined=defined,
            distributed_by=here.distributed_by("mst_key"),
        )
    )
    listed = joined(", ", map(identifier, columns))
    db.execute(
        sql("INSERT INTO {name} SELECT {listed} FROM ({told}) told", name=name.sql, listed=listed, told=MODEL_INFO),
        ("bigint", "timestamptz", "integer", "integer", "text", "integer"),
        run["run"],
        run["started_at"],
        run["evaluate_every"],
        run["epochs"],
        json.dumps(names),
        fold,
    )


def _make_summary(
    db: Database,
    here: Platform,
    run: dict[str, Any],
    layout: Layout,
    name: Name,
    which: str,
    searched: AutoML | None,
    written: Written,
) -> None:
    """One row, MADlib's columns; the class values have the type that their column has."""
    where = f"source_summary of run {run['run']}"
    summary = PackedSummary.read(
        documents.decoded(run["source_summary"], where), [v.name for v in layout.outputs], where
    )
    # The summary of a packed table counts the classes of labels only, as MADlib's.
    vectors = [one.shape[-1] for one in layout.outputs if one.target == "encoded" and one.shape]
    optimised = objective.of_options(run["options"], run["validation_table"] is not None)
    epochs = run["epochs"]
    every = run["evaluate_every"] or epochs
    # Of a run that is planned for more epochs than anybody lists, only the last one.
    iterations = [*range(every, epochs, every), epochs] if epochs // every <= MOST_ITERATIONS else [epochs]
    columns: list[tuple[str, str, Any]] = [
        ("source_table", "text", run["source_table"]),
        ("validation_table", "text", run["validation_table"]),
        ("model", "text", str(name)),
        ("model_info", "text", str(name.suffixed("_info"))),
        ("dependent_varname", "text[]", _listed(summary.dependent_varname)),
        ("independent_varname", "text[]", _listed(summary.independent_varname)),
        ("model_arch_table", "text", run["arch_table"]),
        ("model_selection_table", "text", run["selection_table"]),
        ("object_table", "text", None),
        ("num_iterations", "integer", run["epochs"]),
        ("metrics_compute_frequency", "integer", run["evaluate_every"]),
        ("warm_start", "boolean", bool(run["options"].get("warm_start"))),
        ("name", "text", run["name"]),
        ("description", "text", run["description"]),
        ("start_training_time", "timestamp", run["started_at"]),
        ("end_training_time", "timestamp", run["ended_at"]),
        ("madlib_version", "text", f"cerebro_db {run['cerebro_version']}"),
        ("num_classes", "integer[]", _listed(summary.num_classes) or vectors),
        *_class_values(summary, layout),
        ("dependent_vartype", "text[]", _listed(summary.dependent_vartype)),
        ("normalizing_const", "real", summary.normalizing_const),
        ("metrics_iters", "integer[]", iterations),
        ("run", "bigint", run["run"]),
        ("seed", "bigint", run["seed"]),
        ("layout", "jsonb", run["layout"]),
        ("objective", "text", optimised.name),
        ("direction", "text", optimised.direction),
        ("which", "text", which),
    ]
    if searched is not None:
        columns = searched.summary(columns)
    columns = [(column, kind, written.get(column, value)) for column, kind, value in columns]
    # Class values travel as text; the database converts them to their own type.
    sent = ["text[]" if column.endswith(CLASS_VALUES) else kind for column, kind, _ in columns]
    chosen = joined(
        ", ",
        (
            sql("${place}::{kind} AS {column}", place=place, kind=SqlType(kind).sql, column=identifier(column))
            for place, (column, kind, _) in enumerate(columns, 1)
        ),
    )
    db.execute(
        sql(
            "CREATE TABLE {companion} AS SELECT {chosen} {distributed_by}",
            companion=name.suffixed("_summary").sql,
            chosen=chosen,
            distributed_by=here.distributed_by("source_table"),
        ),
        tuple(sent),
        *(value for _, _, value in columns),
    )


def _class_values(summary: PackedSummary, layout: Layout) -> list[tuple[str, str, Any]]:
    """The columns for the labels of each output: name, type and values."""
    types = {one.name: one.preparation.label_type or TEXT for one in layout.outputs}
    return [
        (name + CLASS_VALUES, types[name].array.name, _listed(values)) for name, values in summary.class_values.items()
    ]


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
