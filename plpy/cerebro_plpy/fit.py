"""``madlib_fit_multiple_model`` and what goes on with a run: put it on record, drive it, hand out the results."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg2

from cerebro_db import __version__
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name
from cerebro_db.core.schedule import derived_seed

from . import background, choosing, logins, packed, results, runs, tables, warm
from .asked import Asked, check, refuse_transaction
from .db import Database, entry
from .dialect import Dialect, lost_a_segment
from .driver import drive, record_end
from .interrupts import listener
from .options import MODULE
from .runs import Run, note
from .sessions import Session
from .team import Team, failure_of, until_cancelled


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


# -- preparing -----------------------------------------------------------------------------------------


def put_on_record(db: Database, recorder: Session, asked: Asked) -> int:
    """Write down what is to be done: from here on the run can be resumed whatever becomes of us."""
    packed.see_committed(recorder, filter(None, (asked.source, asked.validation)), MODULE)
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
