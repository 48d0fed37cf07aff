"""The model tables of a run: the models, ``_info``, ``_summary``, and ``_weights`` of large models.  They are plain.

They are made in the caller's transaction, from states that the workers have committed.  The bytes of a model go from
table to table and never pass through Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core import codec, documents, run_options
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.adapters import document
from cerebro_db.core.errors import CorruptState, InUse, InvalidArgument, WrongState
from cerebro_db.core.events import Event, RunStatus
from cerebro_db.core.models.model_columns import INFO_COLUMNS, LATER_COLUMNS
from cerebro_db.core.names import Name, written_list
from cerebro_db.core.options import BEST, LAST
from cerebro_db.core.packing.packed_summary import ENDINGS, PLAIN, PackedSummary
from cerebro_db.core.parameters import custom, writing
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.sql_types import TEXT, SqlType

from ... import neighbours, platform
from ...database.access import Database
from ...database.entry import entry
from ...models import model_parts, weights
from ...packing.rows.summary import parsed
from ..record import own_runs, state_tables
from ..record.log import ARCHITECTURE, MODEL_INFO, RunLog, StateOnRecord, as_written
from ..record.run import no_such_run
from . import group_tables
from .made import MadeTables, Values

MOST_NAMED = 10  # configurations in a message
LARGE_PIECES = 16 << 20  # bytes of the weights of a model that was cut; fewer are one value


@entry(called="cerebro.materialize")
def materialize_run(
    db: Database, run: int, model_table: str, which: str | None, fold: int | None, replace: bool | None = False
) -> None:
    if which not in (None, BEST, LAST):
        raise InvalidArgument(
            f"which is '{which}'; it must be '{BEST}' or '{LAST}'.",
            hint=f"NULL: '{BEST}' if the run keeps best states, else '{LAST}'.",
        )
    name = model_parts.of_new_model(db, model_table, bool(replace))
    log = RunLog.of_caller(db, run)
    if log.drivers.status() is RunStatus.RUNNING:
        raise InUse(
            f"run {run} is being trained",
            hint=f"SELECT cerebro.wait({run}); or end it: cerebro.cancel({run}).",
        )
    materialize(db, run, name, replace=bool(replace), which=which, fold=fold)
    log.events.note(Event.MATERIALIZED)


class NoModel(WrongState):
    """There is nothing to make tables of."""


def materialize(
    db: Database,
    run_id: int,
    name: Name,
    *,
    replace: bool,
    which: str | None = None,
    fold: int | None = None,
) -> None:
    """Make the tables, in the form of the package that began the run.

    ``which`` states they get, the best or the last ones.  None: what the run was asked to keep.
    ``fold``: the models of this fold.  None: the models on all rows.
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
    run["options"] = run_options.read(documents.decoded(run["options"], where), where)
    kept = run["options"].keep
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
    states = _trained(db, run_id, which, fold, groups=layout.groups is not None)
    unmeasured = [state.key for state in states if state.which != which]
    if unmeasured:
        db.warning(
            f"{run['options'].objective} was measured after no epoch of {_configurations(unmeasured)}:"
            " the table has the last state, which need not be the best"
        )
    before = own_runs.rows_of_models(db, name) if replace else []
    if replace:
        for old in model_parts.of(db, name).tables.values():  # whoever reads them locks the first one first
            db.patiently(sql("DROP TABLE {old}", old=old.sql))
    where = f"packed_summary of run {run_id}"
    with as_written(run_id):
        outputs = [variable.name for variable in layout.outputs]
        summary = PackedSummary.read(documents.decoded(run["packed_summary"], where), outputs, where)
        made = MadeTables(
            name=name, run=run, layout=layout, summary=summary, states=states, which=which, fold=fold, replace=replace
        )
        _make_models(db, made)
        _make_info(db, made)
        _make_summary(db, made)
        if layout.groups is not None:
            group_tables.make(db, made)
        dress = neighbours.dress_of(run["options"])
        if dress is not None:
            dress(db, made)
    own_runs.drop_unneeded(db, before)


def _trained(db: Database, run_id: int, which: str, fold: int | None, *, groups: bool) -> list[StateOnRecord]:
    """The states that the tables get.  A model that has seen a part of the rows only is no trained model."""
    log = RunLog.of_caller(db, run_id).states
    states = log.states_of_best_models(which, fold=fold)
    why = f"SELECT configuration, status, reason FROM cerebro.leaderboard WHERE run = {run_id}; says why."
    again = f"SELECT cerebro.resume({run_id}); trains those that have not failed."
    if not states:
        of_all_rows = " on all rows" if groups and fold is None else ""
        raise NoModel(f"run {run_id} has no trained model{of_all_rows}", hint=f"{why} {again}")
    untrained = set(log.without_epoch(fold))
    found = [state for state in states if state.key not in untrained]
    if not found:
        db.warning(
            "no configuration has completed an epoch: the models in the table have trained on a part of the rows only",
            hint=why,
        )
        return states
    if untrained:
        db.notice(f"the table has no model of {_configurations([*untrained])}, because no epoch was completed", why)
    return found


def _configurations(keys: list[int]) -> str:
    """For messages; many are cut short."""
    named = ", ".join(map(str, sorted(keys)[:MOST_NAMED]))
    others = f" and {len(keys) - MOST_NAMED} others" if len(keys) > MOST_NAMED else ""
    return f"{'configuration' if len(keys) == 1 else 'configurations'} {named}{others}"


def _make_models(db: Database, made: MadeTables) -> None:
    name, run, here = made.name, made.run, platform.of(db)
    db.execute(
        sql(
            "CREATE TABLE {name} (configuration integer, weights bytea, architecture json, __dist_key__ integer)"
            " {distributed_by}",
            name=name.sql,
            distributed_by=here.distributed_by("__dist_key__"),
        )
    )
    db.execute(sql("ALTER TABLE {name} ALTER COLUMN weights SET STORAGE EXTERNAL", name=name.sql))
    log = RunLog.of_caller(db, run["run"])
    cut, configurations = log.plan.cut_models(), log.known.configurations()
    adapted = {key for key, (architecture, _, _) in configurations.items() if document.KEY in architecture}
    chunks, changed, bodies = None, [], set[str]()
    for state in made.states:
        place = state.place(run["storage"], run["dist_keys"])
        dist_key, rows = place.dist_key, place.rows
        gone = place.frozen is not None and not state_tables.are_there(db, place.tables)
        if gone or not weights.has_checksum(db, rows, state.state_sha256):
            changed.append(state.key)
            names = " or ".join(name.quoted for name in place.tables)
            db.warning(
                f"configuration {state.key} is left out: its state is not the one that was committed",
                hint=f"Rows of {names} were changed or deleted by hand.",
            )
            continue
        first, size = state.weights_offset, state.weights_bytes
        # To make one value of weights takes three times their size in memory.  Those of a model that was cut, because
        # memory is short, stay in pieces.
        # A frozen body of models with adapters is there once, and they refer to it.
        body = place.frozen if state.key in adapted else None
        in_pieces = body is not None or size > weights.LARGEST_VALUE or (state.model in cut and size > LARGE_PIECES)
        if in_pieces:
            if chunks is None:
                chunks = name.suffixed("_weights")
                db.execute(
                    sql(
                        "CREATE TABLE {chunks} (configuration integer, start bigint, payload bytea,"
                        " __dist_key__ integer{body}) WITH ({whole_pages}) {distributed_by}",
                        chunks=chunks.sql,
                        body=sql(", body text") if adapted else sql(""),
                        whole_pages=state_tables.WHOLE_PAGES,
                        distributed_by=here.distributed_by("__dist_key__"),
                    )
                )
                db.execute(sql("ALTER TABLE {chunks} ALTER COLUMN payload SET STORAGE EXTERNAL", chunks=chunks.sql))
            own = rows
            if body is not None:
                own = place.rows_without_frozen
                refer = sql("INSERT INTO {chunks} VALUES ($1, $2, NULL, $3, $4)", chunks=chunks.sql)
                types = ("integer", "bigint", "integer", "text")
                db.execute(refer, types, state.key, body.start - first, dist_key, body.sha256)
                if body.sha256 not in bodies:
                    bodies.add(body.sha256)
                    state_tables.copy_body(db, run["storage"], body, chunks)
            pieces = weights.chunks_sql(state.key, own, first, size)
            db.execute(sql("INSERT INTO {chunks} {pieces}", chunks=chunks.sql, pieces=pieces))
        values = () if in_pieces else weights.value_queries(rows, first, size)
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
    if len(changed) == len(made.states):
        raise CorruptState(f"the states of run {run['run']} are not those that were committed")


def _make_info(db: Database, made: MadeTables) -> None:
    run = made.run
    told: dict[int, dict[str, Any]] = {}
    for key, (architecture, compiled, _) in RunLog.of_caller(db, run["run"]).known.configurations().items():
        outputs = keras_json.outputs(architecture)
        told[key] = {"loss": writing.loss_type(compiled, outputs), "metrics": writing.metrics_type(compiled, outputs)}
        if references := sorted(custom.references(compiled)):
            told[key]["functions"] = "{" + ",".join(references) + "}"
    for state in made.states:
        told.setdefault(state.key, {}).update(which=state.which, epoch=state.epoch)
    name = made.name.suffixed("_info")
    create_info(db, name, {**INFO_COLUMNS, **LATER_COLUMNS}, "configuration")
    db.execute(
        sql(
            "INSERT INTO {name} SELECT {listed} FROM ({told}) told",
            name=name.sql,
            listed=joined(", ", map(identifier, INFO_COLUMNS)),
            told=MODEL_INFO,
        ),
        ("bigint", "text", "integer"),
        run["run"],
        json.dumps(told),
        made.fold,
    )
    set_key(db, name, "configuration")


def create_info(db: Database, name: Name, columns: Mapping[str, str], key: str) -> None:
    """Create a table with a row for each configuration, numbered in ``key``; ``columns`` with their types."""
    defined = joined(
        ", ",
        (sql("{column} {kind}", column=identifier(column), kind=SqlType(kind).sql) for column, kind in columns.items()),
    )
    db.execute(
        sql(
            "CREATE TABLE {name} ({defined}) {distributed_by}",
            name=name.sql,
            defined=defined,
            distributed_by=platform.of(db).distributed_by(key),
        )
    )


def set_key(db: Database, name: Name, key: str) -> None:
    db.execute(sql("ALTER TABLE {name} ADD PRIMARY KEY ({key})", name=name.sql, key=identifier(key)))


def _make_summary(db: Database, made: MadeTables) -> None:
    """One row; the labels have the type that their column has."""
    run, summary = made.run, made.summary
    optimised = run["options"].optimised(run["validation_table"] is not None)
    of_groups = [] if made.layout.groups is None else group_tables.of_summary(made.layout.groups, run["options"])
    create_row(
        db,
        made.name.suffixed("_summary"),
        [
            ("run", "bigint", run["run"]),
            ("run_name", "text", run["run_name"]),
            ("description", "text", run["description"]),
            ("model_table", "text", str(made.name)),
            ("source_table", "text", run["source_table"]),
            ("packed_table", "text", run["packed_table"]),
            ("validation_table", "text", run["validation_table"]),
            ("target", "text", written_list(summary.target or ())),
            ("inputs", "text", written_list(summary.inputs or ())),
            ("epochs", "integer", run["epochs"]),
            ("evaluate_every", "integer", run["evaluate_every"]),
            ("seed", "bigint", run["seed"]),
            ("objective", "text", optimised.name),
            ("direction", "text", optimised.direction),
            ("which", "text", made.which),
            ("fold", "integer", made.fold),
            ("started_at", "timestamptz", run["started_at"]),
            ("ended_at", "timestamptz", run["ended_at"]),
            ("cerebro_version", "text", run["cerebro_version"]),
            *labels(made, PLAIN.labels),
            ("layout", "jsonb", json.dumps(made.layout.without_groups.to_json()) if of_groups else run["layout"]),
            ("packing", "jsonb", None if summary.packing is None else json.dumps(codec.encode(summary.packing))),
            ("memory_mb", "integer", run["options"].trainer.memory_mb),
            *of_groups,
        ],
    )


def create_row(db: Database, name: Name, columns: Sequence[Values]) -> None:
    """Create a table with this row."""
    # Labels travel as text; the database converts them to their own type.
    sent = tuple("text[]" if column.endswith(ENDINGS) else kind for column, kind, _ in columns)
    chosen = joined(
        ", ",
        (
            sql("${place}::{kind} AS {column}", place=place, kind=SqlType(kind).sql, column=identifier(column))
            for place, (column, kind, _) in enumerate(columns, 1)
        ),
    )
    db.execute(
        sql(
            "CREATE TABLE {name} AS SELECT {chosen} {distributed_by}",
            name=name.sql,
            chosen=chosen,
            distributed_by=platform.of(db).distributed_by("source_table"),
        ),
        sent,
        *(value for _, _, value in columns),
    )


def labels(made: MadeTables, ending: str) -> list[Values]:
    """The columns for the labels of each output, whose names have this ending."""
    types = {one.name: one.preparation.label_type or TEXT for one in made.layout.outputs}
    return [
        (name + ending, types[name].array.name, None if values is None else list(values))
        for name, values in made.summary.labels.items()
    ]
