"""``madlib_fit_multiple_model``: check everything, put the run on record, drive it, hand out the results."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from cerebro_db import __version__
from cerebro_db.core import models, params
from cerebro_db.core.custom import Known
from cerebro_db.core.engines import AUTO, DEFAULT, ENGINES
from cerebro_db.core.errors import (
    BadData,
    CerebroError,
    InvalidArgument,
    UndefinedObject,
    Unsupported,
    WrongState,
)
from cerebro_db.core.names import Name
from cerebro_db.core.schedule import derived_seed

from . import (
    background,
    choosing,
    engine,
    functions,
    limits,
    logins,
    machine,
    results,
    runs,
    tables,
    trainer,
    waiting,
    warm,
)
from .db import Database, entry
from .dialect import Dialect, lost_a_segment
from .driver import drive, record_end
from .interrupts import listener
from .runs import DataSet, Run, note
from .sessions import Session
from .tables import Relation
from .team import Team, failure_of, until_cancelled
from .trainer import HANG_AFTER

MODULE = "madlib_fit_multiple_model"
MOST_THREADS = 256  # of one trainer; it starts them all, and the server's account has only so many


@dataclass
class Asked:
    """The arguments of a fit, checked, and what they name, read."""

    source: Packed
    validation: Packed | None
    output: Name
    selection: Relation
    arch_table: Relation
    rows: list[dict[str, Any]]  # of the model selection table, with parsed parameters
    architectures: dict[int, Architecture]
    epochs: int
    evaluate_every: int
    warm_start: bool
    name: str | None
    description: str | None
    options: dict[str, Any]


@dataclass
class Architecture:
    """A row of an architecture table."""

    name: str | None
    given: str
    translated: dict[str, Any]
    weights: bytes | None


@dataclass
class Packed:
    """A packed table and its summary."""

    relation: Relation
    summary: dict[str, Any]
    layout: dict[str, Any]

    @property
    def dataset(self) -> DataSet:
        return DataSet(self.relation.sql, self.layout)


@entry
def fit_multiple_model(db: Database, *arguments: Any) -> int:
    """Train and wait: the tables are there when it returns."""
    asked = check(db, *arguments)
    owner = tables.current_role(db)
    with opened_recorder(db, owner) as recorder:
        run_id = put_on_record(db, recorder, asked)
        run = carry_out(db, recorder, owner, run_id)
        hand_out(db, recorder, run, asked.output, replace=asked.warm_start)
    return run_id


@entry
def submit(db: Database, *arguments: Any) -> int:
    """Train without waiting: the run goes on in a session of its own."""
    asked = check(db, *arguments)
    owner = tables.current_role(db)
    with opened_recorder(db, owner) as recorder:
        run_id = put_on_record(db, recorder, asked)
        note(recorder, run_id, "submitted")
    background.start(db, owner, run_id)
    return run_id


@entry
def resume(db: Database, run_id: int, epochs: int | None, retry_failed: bool, wait: bool | None) -> int:
    """Take a run up where its log ends, or go on beyond its end."""
    refuse_transaction(db)
    owner = tables.current_role(db)
    if wait is False:
        background.require_own(db, run_id)
        with opened_recorder(db, owner) as recorder:
            note(recorder, run_id, "submitted")
        background.start(db, owner, run_id, epochs, bool(retry_failed))
        return run_id
    with opened_recorder(db, owner) as recorder:
        if not background.submitted(db, run_id):
            require_place(db, runs.load(recorder, run_id))
        run = carry_out(db, recorder, owner, run_id, epochs, bool(retry_failed))
        output = Name.parse(run.model_table)
        hand_out(db, recorder, run, output, replace=not run.segments_lost and in_the_way(db, run, output))
    return run_id


def require_place(db: Database, run: Run) -> None:
    """Before hours of training: may the model tables be made at their end?"""
    output = Name.parse(run.model_table)
    try:
        require_makeable(db, output, replace=in_the_way(db, run, output))
    except CerebroError as error:
        error.hint = (
            f"Move that table out of the way, or train on with SELECT cerebro.resume({run.id}, wait => false);"
            f" and then SELECT cerebro.materialize({run.id}, 'another_name');"
        )
        raise


def require_makeable(db: Database, output: Name, *, replace: bool) -> None:
    if replace:
        warm.require_replaceable(db, output, MODULE)
    else:
        for ending in ("", "_info", "_summary", "_weights"):
            tables.require_free(db, output.suffixed(ending), MODULE)


def in_the_way(db: Database, run: Run, output: Name) -> bool:
    """Whether there are tables that a run replaces: those it made before its end was moved, or began with."""
    if run.options["warm_start"]:
        return tables.find(db, output) is not None
    summary = tables.find(db, output.suffixed("_summary"))
    if summary is None or "run" not in tables.columns(db, summary):
        return False
    return db.value(f"SELECT run FROM {summary.sql} LIMIT 1") == run.id


def hand_out(db: Database, recorder: Session, run: Run, output: Name, *, replace: bool) -> None:
    """Make the model tables in the caller's transaction; that they are there is known when it commits."""
    if run.segments_lost:  # its transaction has lost them, too
        recorder.run("SELECT cerebro.materialize(%s, %s)", (run.id, output.sql))
        db.notice(f"run {run.id} finished; its models are in {output}, whatever becomes of this transaction")
        return
    try:
        # Of two runs for one name the second waits for the first to commit, and then says what is wrong.
        db.rows(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))",
            ("text",),
            f"cerebro_db table {output}",
        )
        require_makeable(db, output, replace=replace)
        results.materialize(db, run.id, output, replace=replace)
        db.execute("INSERT INTO cerebro.event (run, event) VALUES ($1, 'materialized')", ("bigint",), run.id)
    except BaseException as error:
        recorder.settle()
        with contextlib.suppress(psycopg2.Error):
            note(recorder, run.id, "not materialized", message=str(error))
        kept = f"The models are kept: SELECT cerebro.materialize({run.id}, 'another_name');"
        if isinstance(error, CerebroError):
            error.hint = kept
        elif isinstance(error, db.plpy.SPIError) and not error.sqlstate.startswith("57"):  # not a cancel
            refused = CerebroError(str(error), hint=kept)
            refused.sqlstate = error.sqlstate
            raise refused from error
        raise
    say_end(db, run)


def carry_out(
    db: Database,
    recorder: Session,
    owner: str,
    run_id: int,
    epochs: int | None = None,
    retry_failed: bool = False,
) -> Run:
    """Drive a run that is on record from wherever its log ends."""
    runs.claim(recorder, run_id, os.getpid(), epochs, retry_failed)
    try:
        if retry_failed:
            runs.revive(recorder, run_id)
        run = runs.load(recorder, run_id)
        choosing.choose(run, recorder)
        team = Team(db, owner, run.dist_keys, run.options, until_cancelled(recorder.listen, recorder, run_id))
    except BaseException as error:
        record_end(recorder, run_id, error)
        raise
    try:
        drive(db, run, team, recorder)
        team.release()
    finally:
        team.close()
    return run


@contextlib.contextmanager
def opened_recorder(db: Database, owner: str) -> Iterator[Session]:
    recorder = logins.connect_as(db, owner, "cerebro_db recorder", listener(db.plpy))
    recorder.endures = lost_a_segment
    try:
        yield recorder
    except psycopg2.Error as error:
        raise failure_of("the run's record", error) from error
    finally:
        with contextlib.suppress(psycopg2.Error):
            recorder.close()


# -- checking ------------------------------------------------------------------------------------------


def refuse_transaction(db: Database, module: str = MODULE) -> None:
    """Worker sessions commit as they go; a caller that would not see it can have no result."""
    facts = db.one(
        "SELECT current_setting('transaction_isolation') AS isolation,"
        " current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby"
    )
    assert facts is not None
    if facts["standby"] or facts["read_only"] == "on":
        raise Unsupported(f"{module} error: it writes, and this transaction is read-only.", hint="Use the primary.")
    if facts["isolation"] != "read committed":
        raise Unsupported(
            f"{module} error: it cannot run in a {facts['isolation']} transaction, which would not see the results.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )


def check(
    db: Database,
    source_table: str,
    output_table: str,
    selection_table: str,
    epochs: int,
    use_gpus: bool | None,
    validation_table: str | None,
    frequency: int | None,
    warm_start: bool | None,
    name: str | None,
    description: str | None,
    _use_caching: bool | None,  # trainers always keep their rows
    options: str | None,
) -> Asked:
    refuse_transaction(db)
    if epochs is None or epochs < 1:
        raise InvalidArgument(
            f"{MODULE} error: num_iterations is {'NULL' if epochs is None else epochs}; it must be at least 1."
        )
    if frequency is not None and not 1 <= frequency <= epochs:
        raise InvalidArgument(
            f"{MODULE} error: metrics_compute_frequency is {frequency};"
            f" it must be between 1 and num_iterations ({epochs})."
        )
    source = packed(db, source_table)
    runs.require_countable(epochs, len(source.layout["partitions"]))
    validation = packed(db, validation_table, argument="validation_table") if validation_table is not None else None
    if validation is not None:
        require_same_shapes(source.layout, source.relation.text, validation)
    selection = tables.filled(
        db,
        selection_table,
        MODULE,
        f"Please ensure that the model selection table ({selection_table}) has been created by"
        " generate_model_configs() or load_model_selection_table().",
        argument="model_selection_table",
    )
    if warm_start:
        tables.existing(db, output_table, MODULE, "A warm start goes on from it.", argument="model_output_table")
        output = tables.qualified(db, Name.parse(output_table), MODULE)
        warm.require_replaceable(db, output, MODULE)
    else:
        output = tables.new(db, output_table, MODULE, ("_info", "_summary", "_weights"), argument="model_output_table")
    keys = [partition["key"] for partition in source.layout["partitions"]]
    chosen = choose_options(db, options, keys, bool(use_gpus))
    rows, arch_table = read_selection(db, selection, functions.known(db, run=chosen.get("replay")))
    architectures = {
        model_id: read_architecture(db, arch_table, model_id) for model_id in sorted({row["model_id"] for row in rows})
    }
    for row in rows:
        row["compile"] = models.for_outputs(row["compile"], architectures[row["model_id"]].translated)
    segments = len(source.layout["partitions"])
    limits.require_run(limits.of(db), segments)
    waiting.make_room(db, segments + 1, listener(db.plpy))
    limits.require_connections(limits.of(db), segments + 1)
    chosen["warm_start"] = bool(warm_start)
    return Asked(
        source=source,
        validation=validation,
        output=output,
        selection=selection,
        arch_table=arch_table,
        rows=rows,
        architectures=architectures,
        epochs=epochs,
        evaluate_every=frequency or epochs,
        warm_start=bool(warm_start),
        name=name,
        description=description,
        options=chosen,
    )


def packed(db: Database, table: str | None, module: str = MODULE, *, argument: str = "source_table") -> Packed:
    please = "Pack the rows with training_preprocessor_dl() or validation_preprocessor_dl() first."
    relation = tables.filled(db, table, module, please, argument=argument)
    summary = tables.find(db, relation.name.suffixed("_summary"))
    if relation.temporary:
        raise Unsupported(
            f"{module} error: '{relation.text}' is a temporary table, which worker sessions cannot see.",
            hint="Pack into an ordinary table.",
        )
    if summary is None or "layout" not in tables.columns(db, summary):
        raise WrongState(f"{module} error: '{relation.text}' is not a packed table.", hint=please)
    row = db.one(f"SELECT * FROM {summary.sql}")
    if row is None:
        raise BadData(f"{module} error: the summary of '{relation.text}' is empty.", hint=please)
    return Packed(relation, {k: v for k, v in row.items() if k != "layout"}, json.loads(row["layout"]))


def require_same_shapes(trained: dict[str, Any], trained_on: str, other: Packed, module: str = MODULE) -> None:
    """Rows to validate or evaluate on must look like those that were trained on."""
    for side in ("inputs", "outputs"):
        ours = [(v["shape"], v.get("kind")) for v in trained[side]]
        theirs = [(v["shape"], v.get("kind")) for v in other.layout[side]]
        if ours != theirs:
            raise BadData(
                f"{module} error: the {side} of '{other.relation.text}' have the shapes"
                f" {[s for s, _ in theirs]}, those of '{trained_on}' {[s for s, _ in ours]}.",
                hint="Pack it with validation_preprocessor_dl(), naming the training table.",
            )


def read_selection(db: Database, selection: Relation, known: Known) -> tuple[list[dict[str, Any]], Relation]:
    tables.require_columns(db, selection, ["mst_key", "model_id", "compile_params", "fit_params"], MODULE)
    rows = db.rows(f"SELECT mst_key, model_id, compile_params, fit_params FROM {selection.sql} ORDER BY mst_key")
    keys = [row["mst_key"] for row in rows]
    if None in keys or len(set(keys)) < len(keys):
        raise BadData(f"{MODULE} error: the mst_key values of '{selection.text}' must be distinct and not NULL.")
    for row in rows:
        try:
            row["compile"] = params.compile_params(row["compile_params"], known)
            row["fit"] = params.fit_params(row["fit_params"])
        except CerebroError as error:
            error.message = f"mst_key {row['mst_key']} of '{selection.text}': {error.message}"
            raise
    summary = tables.find(db, selection.name.suffixed("_summary"))
    named = db.value(f"SELECT model_arch_table FROM {summary.sql} LIMIT 1") if summary is not None else None
    if named is None:
        raise UndefinedObject(
            f"{MODULE} error: '{selection.text}_summary' does not say which table holds the architectures.",
            hint="generate_model_configs() and load_model_selection_table() make it.",
        )
    return rows, tables.existing(db, named, MODULE, "It should hold the architectures.")


def read_architecture(db: Database, table: Relation, model_id: int) -> Architecture:
    name = "name::text" if "name" in tables.columns(db, table) else "NULL::text AS name"
    row = db.one(
        f"SELECT {name}, model_arch::text AS arch, model_weights AS weights FROM {table.sql} WHERE model_id = $1",
        ("integer",),
        model_id,
    )
    if row is None or row["arch"] is None:
        raise UndefinedObject(
            f"{MODULE} error: no model arch found in table {table.text} with id {model_id}",
            hint="load_keras_model() adds one.",
        )
    try:
        return Architecture(row["name"], row["arch"], models.architecture(row["arch"]), row["weights"])
    except CerebroError as error:
        error.message = f"model_id {model_id} of '{table.text}': {error.message}"
        raise


def see_committed(recorder: Session, packed_tables: Iterable[Packed], module: str = MODULE) -> None:
    """Worker sessions see only what is committed."""
    for data in packed_tables:
        seen = recorder.run("SELECT to_regclass(%s)::oid", (data.relation.sql,))[0][0]
        layout = None
        if seen == data.relation.oid:
            found = recorder.run(f"SELECT layout FROM {data.relation.name.suffixed('_summary').sql}")
            layout = found[0][0] if found else None
        if layout != data.layout:
            raise WrongState(
                f"{module} error: '{data.relation.text}' was made or changed in this transaction, which is not"
                " committed, so worker sessions cannot see it.",
                hint="COMMIT first, then call it again.",
            )


OPTIONS: dict[str, type] = {
    "seed": int,
    "deterministic": bool,
    "engine": str,
    "threads": int,
    "nan": str,
    "replay": int,
    "hang_after": int,
    "fuse": bool,
}


def choose_options(db: Database, text: str | None, keys: Sequence[int], use_gpus: bool) -> dict[str, Any]:
    """Everything that a run's results depend on besides its data and its configurations."""
    given = json.loads(text) if text else {}
    if not isinstance(given, dict):
        raise InvalidArgument(f"{MODULE} error: options must be a JSON object.", hint='For instance {"seed": 1}.')
    for key, value in given.items():
        if key not in OPTIONS:
            raise InvalidArgument(
                f"{MODULE} error: there is no option '{key}'.", hint=f"The options are: {', '.join(OPTIONS)}."
            )
        if type(value) is not OPTIONS[key]:
            takes = {int: "a whole number", bool: "true or false", str: "a text"}[OPTIONS[key]]
            raise InvalidArgument(
                f"{MODULE} error: option '{key}' cannot be {json.dumps(value)}.", hint=f"It takes {takes}."
            )
    if "replay" in given:
        given = {**replayed(db, given["replay"]), **{k: v for k, v in given.items() if k != "seed"}}
    if given.get("nan", "stop") not in ("stop", "keep"):
        raise InvalidArgument(f"{MODULE} error: option 'nan' must be 'stop' or 'keep'.")
    if not 1 <= given.get("threads", 1) <= MOST_THREADS:
        raise InvalidArgument(f"{MODULE} error: option 'threads' must be between 1 and {MOST_THREADS}.")
    if not 0 <= given.get("hang_after", 0) < 2**31:
        raise InvalidArgument(f"{MODULE} error: option 'hang_after' must be a number of seconds, or 0 for no limit.")
    if not -(2**63) <= given.get("seed", 0) < 2**63:
        raise InvalidArgument(f"{MODULE} error: option 'seed' must fit a bigint.")
    if given.get("fuse") and given.get("deterministic"):
        raise InvalidArgument(
            f"{MODULE} error: options 'deterministic' and 'fuse' exclude each other.",
            hint="Models that train together have the numbers of single ones, but not their bits.",
        )
    gpus = require_gpus(db, use_gpus, keys, MODULE)
    deterministic = given.get("deterministic", False)
    return {
        **choose_engine(given.get("engine", DEFAULT), deterministic),
        "deterministic": deterministic,
        "threads": given.get("threads", 1 if deterministic else max(1, machine.cores() // len(keys))),
        "nan": given.get("nan", "stop"),
        "gpus": gpus,
        "hang_after": given.get("hang_after", HANG_AFTER),
        # A run that is told to be deterministic is so from the first call on.
        "seed": given.get("seed", 0 if deterministic else secrets.randbits(31)),
        # Together, models have the numbers of single ones but not their bits.
        "fuse": False if deterministic else given.get("fuse"),
        **({"replay": given["replay"]} if "replay" in given else {}),
    }


def choose_engine(engine: str, deterministic: bool) -> dict[str, Any]:
    """The engine, or those among which a trial is to choose; all of them installed."""
    if engine not in (*ENGINES, AUTO):
        raise Unsupported(
            f"{MODULE} error: there is no engine '{engine}'.",
            hint=f"The engines are: {', '.join(ENGINES)}; {AUTO} has them tried for each architecture.",
        )
    if engine == DEFAULT or (engine == AUTO and deterministic):  # a trial would depend on the load
        return {"engine": DEFAULT}
    installed = trainer.engines()
    if engine == AUTO:
        return {"engine": AUTO, "among": installed} if len(installed) > 1 else {"engine": installed[0]}
    if engine not in installed:
        raise Unsupported(
            f"{MODULE} error: the engine '{engine}' is not installed where the trainers are.",
            hint=f"Use one of: {', '.join(installed)}; or have the package {ENGINES[engine]} installed into the"
            " trainer's environment (docker/install.sh does).",
        )
    return {"engine": engine}


def replayed(db: Database, run_id: int) -> dict[str, Any]:
    """The options of an earlier run, to have its very numbers again."""
    found = db.value("SELECT options FROM cerebro.run WHERE run = $1 AND owner = current_user", ("bigint",), run_id)
    if found is None:
        raise UndefinedObject(
            f"{MODULE} error: there is no run {run_id} of yours to replay.",
            hint="SELECT run, name, status FROM cerebro.runs lists your runs.",
        )
    return {key: value for key, value in json.loads(found).items() if key in OPTIONS}


def require_gpus(db: Database, use_gpus: bool | None, keys: Sequence[int], module: str) -> list[int | None]:
    """The GPU of each segment, or an empty list if trainers may use none."""
    if not use_gpus:
        return []
    found = engine.gpus_of_segments(db, keys)
    without = found.count(None)
    if without == len(found):
        raise InvalidArgument(f"{module} error: No GPUs configured on host(s).", hint="Call it with use_gpus => false.")
    if without:
        db.notice(
            f"{without} of {len(found)} segments have no GPU and use processors; distribution_rules => 'gpu_segments'"
            " would leave them out when rows are packed"
        )
    return found


# -- preparing -----------------------------------------------------------------------------------------


def put_on_record(db: Database, recorder: Session, asked: Asked) -> int:
    """Write down what is to be done: from here on the run can be resumed whatever becomes of us."""
    see_committed(recorder, filter(None, (asked.source, asked.validation)))
    initial = warm.initial_states(db, asked)
    layout = asked.source.layout
    run_id = runs.create(
        recorder,
        {
            "name": asked.name,
            "description": asked.description,
            "source_table": str(asked.source.relation.name),
            "validation_table": str(asked.validation.relation.name) if asked.validation else None,
            "model_table": str(asked.output),
            "selection_table": asked.selection.text,
            "arch_table": asked.arch_table.text,
            "epochs": asked.epochs,
            "evaluate_every": asked.evaluate_every,
            "seed": asked.options["seed"],
            "segments": len(layout["partitions"]),
            "dist_keys": [partition["key"] for partition in layout["partitions"]],
            "configurations": len(asked.rows),
            "rows_per_epoch": sum(partition["rows"] for partition in layout["partitions"]),
            "storage": f"run_{secrets.token_hex(6)}",
            "options": asked.options,
            "layout": layout,
            "validation_layout": asked.validation.layout if asked.validation else None,
            "source_summary": results.plain_summary(asked.source.summary),
            "version": __version__,
        },
        [
            {"model_id": model_id, "name": one.name, "given": one.given, "architecture": json.dumps(one.translated)}
            for model_id, one in asked.architectures.items()
        ],
        [
            {
                "mst_key": row["mst_key"],
                "place": place,
                "model_id": row["model_id"],
                "compile_params": row["compile_params"],
                "fit_params": row["fit_params"] or "",
                "compile": row["compile"],
                "fit": row["fit"],
                "seed": derived_seed(asked.options["seed"], "configuration", place),
                "initial": initial[row["mst_key"]].kind if row["mst_key"] in initial else "random",
                "initial_sha256": initial[row["mst_key"]].sha256 if row["mst_key"] in initial else None,
            }
            for place, row in enumerate(asked.rows)
        ],
    )
    warm.put_initial_states(recorder, run_id, initial, Dialect.of(db))
    db.notice(
        f"run {run_id}: {len(asked.rows)} configurations x {len(layout['partitions'])} segments x {asked.epochs} epochs"
        f" over {layout['rows']:,} rows of {asked.source.relation.text}; follow it from elsewhere:"
        f" SELECT * FROM cerebro.run_progress WHERE run = {run_id};"
    )
    return run_id


def say_end(db: Database, run: Run) -> None:
    best = db.one(
        "SELECT mst_key, COALESCE(validation_loss, training_loss) AS loss, validation_loss IS NOT NULL AS validated,"
        " COALESCE(validation_metric, training_metric) AS metric, metric_name FROM cerebro.leaderboard"
        " WHERE run = $1 AND owner = current_user ORDER BY rank, mst_key LIMIT 1",
        ("bigint",),
        run.id,
    )
    if best is None:
        return
    kind = "validation" if best["validated"] else "training"
    metric = f", {best['metric_name']} {best['metric']:.4f}" if best["metric"] is not None else ""
    db.notice(
        f"run {run.id} finished: best is mst_key {best['mst_key']} with {kind} loss {best['loss']:.4f}{metric};"
        f" models are in {run.model_table}, all results in SELECT * FROM cerebro.leaderboard WHERE run = {run.id};"
    )
