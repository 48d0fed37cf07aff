"""``madlib_fit_multiple_model``: check everything, put the run on record, drive it, hand out the results."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2

from cerebro_db import __version__
from cerebro_db.core import models, params
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

from . import logins, results, runs, tables, warm
from .db import Database, entry
from .driver import Driver, Refused, Seat, Steps, Team, cores, drive, failure_of
from .runs import DataSet, note
from .sessions import Session, listener
from .tables import Relation

MODULE = "madlib_fit_multiple_model"
FRAMEWORK_MB = 600  # resident memory of a trainer before it holds any model


@dataclass
class Asked:
    """The arguments of a fit, checked, and what they name, read."""

    source: Packed
    validation: Packed | None
    output: Name
    selection: Relation
    arch_table: Relation
    rows: list[dict[str, Any]]  # of the model selection table, with parsed parameters
    architectures: dict[int, tuple[str, dict[str, Any], bytes | None]]
    epochs: int
    evaluate_every: int
    warm_start: bool


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
def fit_multiple_model(
    db: Database,
    source_table: str,
    model_output_table: str,
    model_selection_table: str,
    num_iterations: int,
    use_gpus: bool | None,
    validation_table: str | None,
    metrics_compute_frequency: int | None,
    warm_start: bool | None,
    name: str | None,
    description: str | None,
    use_caching: bool | None,
    options: str | None,
) -> int:
    refuse_transaction(db)
    asked = check(
        db,
        source_table,
        model_output_table,
        model_selection_table,
        num_iterations,
        validation_table,
        metrics_compute_frequency,
        bool(warm_start),
    )
    chosen = choose_options(options, len(asked.source.layout["partitions"]), bool(use_gpus))
    owner = db.value("SELECT current_user::text")
    with opened_recorder(db, owner) as recorder:
        see_committed(recorder, asked)
        keys = [partition["key"] for partition in asked.source.layout["partitions"]]
        team = Team(db, owner, keys, chosen)
        try:
            run_id = prepare(db, recorder, team, asked, chosen, name, description)
            driver = carry_out(db, recorder, team, run_id)
        finally:
            team.close()
    results.materialize(db, run_id, asked.output, replace=asked.warm_start)
    say_end(db, driver, asked.output)
    return run_id


def carry_out(db: Database, recorder: Session, team: Team, run_id: int) -> Driver:
    """Drive a run that is on record from wherever its log ends."""
    runs.claim(recorder, run_id, os.getpid())
    run = runs.load(recorder, run_id)
    return drive(db, run, runs.schedule_of(recorder, run), team, recorder)


@contextlib.contextmanager
def opened_recorder(db: Database, owner: str) -> Iterator[Session]:
    recorder = logins.connect_as(db, owner, "cerebro_db recorder", listener(db.plpy))
    try:
        yield recorder
    except psycopg2.Error as error:
        raise failure_of("the run's record", error) from error
    except Refused as refused:
        raise refused.error from refused
    finally:
        with contextlib.suppress(psycopg2.Error):
            recorder.close()


# -- checking ------------------------------------------------------------------------------------------


def refuse_transaction(db: Database) -> None:
    """Worker sessions commit as they go; a caller that would not see it can have no result."""
    facts = db.one(
        "SELECT current_setting('transaction_isolation') AS isolation,"
        " current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby"
    )
    assert facts is not None
    if facts["standby"] or facts["read_only"] == "on":
        raise Unsupported(f"{MODULE} error: it writes, and this transaction is read-only.", hint="Use the primary.")
    if facts["isolation"] != "read committed":
        raise Unsupported(
            f"{MODULE} error: it cannot run in a {facts['isolation']} transaction, which would not see the results.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )


def check(
    db: Database,
    source_table: str,
    output_table: str,
    selection_table: str,
    epochs: int,
    validation_table: str | None,
    frequency: int | None,
    warm_start: bool,
) -> Asked:
    if epochs is None or epochs < 1:
        raise InvalidArgument(f"{MODULE} error: num_iterations is {epochs}; it must be at least 1.")
    if frequency is not None and not 1 <= frequency <= epochs:
        raise InvalidArgument(
            f"{MODULE} error: metrics_compute_frequency is {frequency}; it must be between 1 and num_iterations ({epochs})."
        )
    source = packed(db, source_table)
    validation = packed(db, validation_table) if validation_table is not None else None
    if validation is not None:
        same_shape(source, validation)
    selection = tables.filled(
        db,
        selection_table,
        MODULE,
        f"Please ensure that the model selection table ({selection_table}) has been created by"
        " generate_model_configs() or load_model_selection_table().",
    )
    if warm_start:
        tables.existing(db, output_table, MODULE, "A warm start goes on from it.")
        output = tables.qualified(db, Name.parse(output_table), MODULE)
        warm.require_replaceable(db, output, MODULE)
    else:
        output = tables.new(db, output_table, MODULE, ("_info", "_summary", "_weights"))
    rows, arch_table = read_selection(db, selection)
    architectures = {
        model_id: read_architecture(db, arch_table, model_id) for model_id in sorted({row["model_id"] for row in rows})
    }
    return Asked(
        source, validation, output, selection, arch_table, rows, architectures, epochs, frequency or epochs, warm_start
    )


def packed(db: Database, table: str | None) -> Packed:
    please = "Pack the rows with training_preprocessor_dl() or validation_preprocessor_dl() first."
    relation = tables.filled(db, table, MODULE, please)
    summary = tables.find(db, relation.name.suffixed("_summary"))
    if relation.temporary:
        raise Unsupported(
            f"{MODULE} error: '{relation.text}' is a temporary table, which worker sessions cannot see.",
            hint="Pack into an ordinary table.",
        )
    if summary is None or "layout" not in tables.columns(db, summary):
        raise WrongState(f"{MODULE} error: '{relation.text}' is not a packed table.", hint=please)
    row = db.one(f"SELECT * FROM {summary.sql}")
    if row is None:
        raise BadData(f"{MODULE} error: the summary of '{relation.text}' is empty.", hint=please)
    return Packed(relation, {k: v for k, v in row.items() if k != "layout"}, json.loads(row["layout"]))


def same_shape(source: Packed, validation: Packed) -> None:
    for side in ("inputs", "outputs"):
        ours = [(v["shape"], v.get("kind")) for v in source.layout[side]]
        theirs = [(v["shape"], v.get("kind")) for v in validation.layout[side]]
        if ours != theirs:
            raise BadData(
                f"{MODULE} error: the {side} of '{validation.relation.text}' have the shapes"
                f" {[s for s, _ in theirs]}, those of '{source.relation.text}' {[s for s, _ in ours]}.",
                hint="Pack it with validation_preprocessor_dl(), naming the training table.",
            )


def read_selection(db: Database, selection: Relation) -> tuple[list[dict[str, Any]], Relation]:
    tables.require_columns(db, selection, ["mst_key", "model_id", "compile_params", "fit_params"], MODULE)
    rows = db.rows(f"SELECT mst_key, model_id, compile_params, fit_params FROM {selection.sql} ORDER BY mst_key")
    keys = [row["mst_key"] for row in rows]
    if None in keys or len(set(keys)) < len(keys):
        raise BadData(f"{MODULE} error: the mst_key values of '{selection.text}' must be distinct and not NULL.")
    for row in rows:
        try:
            row["compile"] = params.compile_params(row["compile_params"])
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


def read_architecture(db: Database, table: Relation, model_id: int) -> tuple[str, dict[str, Any], bytes | None]:
    row = db.one(
        f"SELECT model_arch::text AS arch, model_weights AS weights FROM {table.sql} WHERE model_id = $1",
        ("integer",),
        model_id,
    )
    if row is None or row["arch"] is None:
        raise UndefinedObject(
            f"{MODULE} error: no model arch found in table {table.text} with id {model_id}",
            hint="load_keras_model() adds one.",
        )
    try:
        return row["arch"], models.architecture(row["arch"]), row["weights"]
    except CerebroError as error:
        error.message = f"model_id {model_id} of '{table.text}': {error.message}"
        raise


def see_committed(recorder: Session, asked: Asked) -> None:
    """Worker sessions see only what is committed."""
    for data in filter(None, (asked.source, asked.validation)):
        seen = recorder.run("SELECT to_regclass(%s)::oid", (data.relation.sql,))[0][0]
        layout = None
        if seen == data.relation.oid:
            summary = data.relation.name.suffixed("_summary").sql.replace("%", "%%")
            found = recorder.run(f"SELECT layout FROM {summary}")
            layout = found[0][0] if found else None
        if layout != data.layout:
            raise WrongState(
                f"{MODULE} error: '{data.relation.text}' was made or changed in this transaction, which is not"
                " committed, so worker sessions cannot see it.",
                hint="COMMIT first, then call it again.",
            )


OPTIONS: dict[str, tuple[type, ...]] = {
    "seed": (int,),
    "deterministic": (bool,),
    "engine": (str,),
    "threads": (int,),
    "nan": (str,),
}


def choose_options(text: str | None, segments: int, use_gpus: bool) -> dict[str, Any]:
    given = json.loads(text) if text else {}
    for key, value in given.items():
        if key not in OPTIONS:
            raise InvalidArgument(
                f"{MODULE} error: there is no option '{key}'.", hint=f"The options are: {', '.join(OPTIONS)}."
            )
        if not isinstance(value, OPTIONS[key]) or (isinstance(value, bool) and bool not in OPTIONS[key]):
            raise InvalidArgument(f"{MODULE} error: option '{key}' cannot be {json.dumps(value)}.")
    if given.get("engine", "tensorflow") != "tensorflow":
        raise Unsupported(f"{MODULE} error: there is no engine '{given['engine']}'.", hint="The engine is tensorflow.")
    if given.get("nan", "stop") not in ("stop", "keep"):
        raise InvalidArgument(f"{MODULE} error: option 'nan' must be 'stop' or 'keep'.")
    if given.get("threads", 1) < 1:
        raise InvalidArgument(f"{MODULE} error: option 'threads' must be at least 1.")
    gpus = gpu_count() if use_gpus else 0
    if use_gpus and not gpus:
        raise InvalidArgument(f"{MODULE} error: No GPUs configured on host(s).", hint="Call it with use_gpus => false.")
    deterministic = bool(given.get("deterministic", False))
    return {
        "engine": given.get("engine", "tensorflow"),
        "deterministic": deterministic,
        "threads": given.get("threads", 1 if deterministic else max(1, cores() // segments)),
        "nan": given.get("nan", "stop"),
        "gpus": gpus,
        # A run that is told to be deterministic is so from the first call on.
        "seed": given.get("seed", 0 if deterministic else secrets.randbits(31)),
    }


def gpu_count() -> int:
    return sum(1 for entry in os.scandir("/dev") if entry.name.startswith("nvidia") and entry.name[6:].isdigit())


# -- preparing -----------------------------------------------------------------------------------------


def prepare(
    db: Database,
    recorder: Session,
    team: Team,
    asked: Asked,
    options: dict[str, Any],
    name: str | None,
    description: str | None,
) -> int:
    """Have every configuration built once, say what the run will need, and put it on record."""
    described = describe(team, asked)
    broken = {key: found for key, found in described.items() if isinstance(found, CerebroError)}
    if len(broken) == len(asked.rows):
        key, error = next(iter(broken.items()))
        error.message = f"mst_key {key}: {error.message}"
        raise error
    storage = f"run_{secrets.token_hex(6)}"
    initial = warm.initial_states(db, asked)
    layout = asked.source.layout
    run_id = runs.create(
        recorder,
        {
            "name": name,
            "description": description,
            "source_table": asked.source.relation.sql,
            "validation_table": asked.validation.relation.sql if asked.validation else None,
            "model_table": str(asked.output),
            "selection_table": asked.selection.text,
            "arch_table": asked.arch_table.text,
            "epochs": asked.epochs,
            "evaluate_every": asked.evaluate_every,
            "seed": options["seed"],
            "segments": len(layout["partitions"]),
            "dist_keys": team.dist_keys,
            "configurations": len(asked.rows),
            "rows_per_epoch": sum(partition["rows"] for partition in layout["partitions"]),
            "storage": storage,
            "options": options,
            "layout": layout,
            "validation_layout": asked.validation.layout if asked.validation else None,
            "source_summary": results.plain_summary(asked.source.summary),
            "version": __version__,
        },
        [(model_id, given, json.dumps(arch)) for model_id, (given, arch, _) in asked.architectures.items()],
        [
            {
                "mst_key": row["mst_key"],
                "place": place,
                "model_id": row["model_id"],
                "compile_params": row["compile_params"],
                "fit_params": row["fit_params"] or "",
                "compile": row["compile"],
                "fit": row["fit"],
                "seed": derived_seed(options["seed"], "configuration", place),
                "parameters": sizes(described[row["mst_key"]])[0],
                "state_bytes": sizes(described[row["mst_key"]])[1],
                "initial": initial[row["mst_key"]].kind if row["mst_key"] in initial else "random",
                "initial_sha256": initial[row["mst_key"]].sha256 if row["mst_key"] in initial else None,
            }
            for place, row in enumerate(asked.rows)
        ],
    )
    warm.put_initial_states(recorder, run_id, initial, team.dialect)
    for key, error in broken.items():
        note(recorder, run_id, "configuration failed", key, reason=error.message)
        db.warning(f"mst_key {key} failed: {error.message}", hint=error.hint)
    say_start(db, run_id, asked, options, [sizes(found)[1] for found in described.values()])
    return run_id


def describe(team: Team, asked: Asked) -> dict[int, Any]:
    """For each configuration what its trainer says of it, or the error it would be."""
    kinds: dict[str, list[int]] = {}
    definitions: dict[str, dict[str, Any]] = {}
    for row in asked.rows:
        # Configurations that differ in numbers only are built alike.
        optimizer = {**row["compile"]["optimizer"], "config": None}
        kind = json.dumps([row["model_id"], {**row["compile"], "optimizer": optimizer}], sort_keys=True)
        kinds.setdefault(kind, []).append(row["mst_key"])
        definitions[kind] = {
            "architecture": asked.architectures[row["model_id"]][1],
            "compile": row["compile"],
            "fit": row["fit"],
        }
    layout = {side: asked.source.layout[side] for side in ("inputs", "outputs")}

    def look_at(seat: Seat, mine: list[str]) -> Steps:
        found: dict[str, Any] = {}
        for kind in mine:
            try:
                found[kind] = yield from team.order(
                    seat, {"work": "describe", "configuration": definitions[kind], "layout": layout}
                )
            except Refused as refused:
                found[kind] = refused.error
        return found

    share = list(kinds)
    work = {seat.segment: look_at(seat, share[seat.segment :: len(team.seats)]) for seat in team.seats}
    busy = {segment: steps for segment, steps in work.items() if share[segment :: len(team.seats)]}
    answers = {kind: found for part in team.run_all(busy).values() for kind, found in part.items()}
    return {key: answers[kind] for kind, keys in kinds.items() for key in keys}


def sizes(described: Any) -> tuple[int, int]:
    return (0, 0) if isinstance(described, CerebroError) else (described["parameters"], described["state_bytes"])


# -- saying --------------------------------------------------------------------------------------------


def say_start(db: Database, run_id: int, asked: Asked, options: dict[str, Any], state_bytes: list[int]) -> None:
    layout = asked.source.layout
    segments = len(layout["partitions"])
    rows = sum(partition["rows"] for partition in layout["partitions"])
    disk = 2 * sum(state_bytes)
    largest_part = max(partition["bytes"] for partition in layout["partitions"])
    memory = segments * (FRAMEWORK_MB * 2**20 + largest_part + 3 * max(state_bytes))
    db.notice(
        f"run {run_id}: {len(asked.rows)} configurations x {segments} segments x {asked.epochs} epochs"
        f" over {rows:,} rows of {asked.source.relation.text}"
    )
    db.notice(
        f"it needs up to {megabytes(disk)} of disk for model states and about {megabytes(memory)} of memory"
        f" for {segments} trainers; follow it from elsewhere: SELECT * FROM cerebro.run_progress WHERE run = {run_id};"
    )
    room = os.statvfs(os.getcwd())
    if disk > room.f_bavail * room.f_frsize:
        db.warning(
            f"only {megabytes(room.f_bavail * room.f_frsize)} of disk are free",
            hint="Train fewer or smaller configurations at once, or make room: a run can be resumed.",
        )
    free = memory_available()
    if free is not None and memory > free:
        db.warning(
            f"only {megabytes(free)} of memory are available",
            hint="Pack into fewer segments: training_preprocessor_dl(…, segments => 1).",
        )


def memory_available() -> int | None:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def megabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{max(1, round(size / 2**20)):,} MB"


def say_end(db: Database, driver: Driver, output: Name) -> None:
    best = db.one(
        "SELECT mst_key, COALESCE(validation_loss, training_loss) AS loss, validation_loss IS NOT NULL AS validated,"
        " COALESCE(validation_metric, training_metric) AS metric, metric_name FROM cerebro.leaderboard"
        " WHERE run = $1 AND owner = current_user ORDER BY rank, mst_key LIMIT 1",
        ("bigint",),
        driver.run.id,
    )
    if best is None:
        return
    kind = "validation" if best["validated"] else "training"
    metric = f", {best['metric_name']} {best['metric']:.4f}" if best["metric"] is not None else ""
    db.notice(
        f"run {driver.run.id} finished: best is mst_key {best['mst_key']} with {kind} loss {best['loss']:.4f}{metric};"
        f" models are in {output}, all results in SELECT * FROM cerebro.leaderboard WHERE run = {driver.run.id};"
    )
