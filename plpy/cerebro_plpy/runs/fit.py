"""Begins a run, drives it or has it driven, and hands out its models."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Callable

import psycopg2

from cerebro_db.core.errors import CerebroError, InvalidArgument, SegmentLost
from cerebro_db.core.events import Event, Following
from cerebro_db.core.models.quality import Quality
from cerebro_db.core.names import Name
from cerebro_db.core.options import BEST
from cerebro_db.core.sql import sql

from .. import platform
from ..database import locks, relations
from ..database.access import Database
from ..models import model_parts
from ..sessions import recorder
from ..sessions.session import Session, Statement
from . import background
from .begin.new_run import put_on_record
from .drive import lost_rows, rules
from .drive.execution import carry_out, end_on_record, record_cancel
from .record import state_tables
from .record.log import OF_ALL_ROWS, RunLog
from .record.run import Run
from .request.request import RunRequest
from .tables import model_tables

REPLACE_WITHIN = 10.0  # seconds that a call waits for another session that replaces tables


def run_request(
    db: Database,
    request: RunRequest,
    on_record: Callable[[int | None], None] = lambda run_id: None,
) -> Run:
    """Train and wait: the model tables are there when it returns.

    ``on_record`` is called as soon as the run is on record, with its number if it can be resumed from then on.
    """
    with recorder.opened(db, own=request.options.in_session) as session:
        require_rule(session, request)
        run_id = put_on_record(db, session, request)
        with lost_rows.named(db, session, run_id):
            with end_on_record(session, RunLog.of(session, run_id)):
                on_record(None if session.own else run_id)
                run = carry_out(db, session, run_id, begins=True)
            hand_out(
                db, session, run, request.asked.output, replace=request.options.warm_start or request.options.replace
            )
    return run


def submit_request(
    db: Database, request: RunRequest, on_record: Callable[[int | None], None] = lambda run_id: None
) -> int:
    """Train without waiting: the run goes on in a session of its own."""
    if request.asked.output.schema == relations.TEMPORARY:
        raise InvalidArgument(
            f"'{request.asked.output}' would be a temporary table of the session that drives the run.",
            hint="Give the name of an ordinary table.",
        )
    if request.options.in_session:
        raise InvalidArgument(
            "a run that trains in your own session cannot be driven by another session.",
            hint="COMMIT the packed tables first and leave the option 'execution' out; or call cerebro.fit().",
        )
    with recorder.opened(db) as session:
        require_rule(session, request)
        run_id = put_on_record(db, session, request, submitted=True)
        log = RunLog.of(session, run_id)
        with end_on_record(session, log):
            on_record(run_id)
            background.start(db, run_id, on_cancel=lambda error: record_cancel(session, log, error))
    return run_id


def require_rule(session: Session, request: RunRequest) -> None:
    """Refuse a rule that cannot be used, before the run is on record."""
    if request.options.stop_when is not None:
        rules.require_sound(request.options.stop_when, session)


def hand_out(db: Database, session: Session, run: Run, name: Name, *, replace: bool, waits: bool = True) -> None:
    """Make the model tables in the caller's transaction; others see them, and the event, when it commits.

    If a segment was lost, the caller's transaction cannot commit.  Then another session makes the tables, and the
    caller gets an error that says so.  Where segments can be lost, another session also makes the tables of a run for
    which nobody ``waits``: it tries again.
    """
    run.segments_lost |= session.segments_lost
    if run.segments_lost and name.schema == relations.TEMPORARY:
        raise SegmentLost(
            f"run {run.id} finished, but this transaction has lost a segment and cannot make {name}",
            hint=f"The run need not be repeated: SELECT cerebro.materialize({run.id}, 'another_name');",
        )
    elsewhere = run.segments_lost or (not waits and platform.of(db).waits_in_own_session)
    pending = False
    try:
        if elsewhere:
            replacing = sql(", replace => true") if replace else sql("")
            call = sql("SELECT cerebro.materialize({}, {}{replacing})", replacing=replacing)
            makes = Statement(call, (run.id, name.quoted))
            if waits and replace:
                # The caller's transaction has locks on the tables if the run went on from them.
                session.outlive()
                session.send(makes)
                pending = not session.ends_within(REPLACE_WITHIN)
            else:
                session.run_statement(makes)
        else:
            # Of two runs with one output name the second waits for the first to commit, and then says what is wrong.
            locks.take(db, f"cerebro_db table {name}", f"the name {name}")
            model_parts.require_makeable(db, name, replace=replace)
            model_tables.materialize(db, run.id, name, replace=replace)
            RunLog.of_caller(db, run.id).events.note(Event.MATERIALIZED)
        if not session.own and not pending:
            session.run(state_tables.released_sql(run.storage))
    except BaseException as error:
        if session.own:  # the error undoes the whole run
            raise
        session.settle()
        with contextlib.suppress(psycopg2.Error):
            RunLog.of(session, run.id).events.note(Event.NOT_MATERIALIZED, message=str(error))
        kept = f"The models are kept: SELECT cerebro.materialize({run.id}, 'another_name');"
        if isinstance(error, CerebroError):
            if not isinstance(error, model_tables.NoModel):
                error.hint = kept
        elif isinstance(error, db.plpy.SPIError) and not error.sqlstate.startswith("57"):  # 57: a cancel
            refused = CerebroError(str(error), hint=kept)
            refused.sqlstate = error.sqlstate
            raise refused from error
        raise
    rest = f" SELECT cerebro.resume({run.id}); does what follows the training." if run.options.follows else ""
    if pending:
        raise SegmentLost(
            f"run {run.id} finished, but this transaction has lost a segment. When it has ended, the models replace"
            f" those in {name}",
            hint=f"The run need not be repeated. cerebro.runs says in message if its models are in no table.{rest}",
        )
    if run.segments_lost and waits:
        # Greenplum would fail this transaction with an error that says nothing of the run.
        raise SegmentLost(
            f"run {run.id} finished and its models are in {name}, but this transaction has lost a segment",
            hint=f"The run need not be repeated. Use the models in a new transaction.{rest}",
        )
    if waits and (db.verbose or not _is_judged(run)):
        db.told(_end(db, run))


def _is_judged(run: Run) -> bool:
    """Whether a step will say how good the best model is."""
    tasks = {step.task for step in run.options.follows}
    return Following.CALIBRATE in tasks and Following.REMOVE not in tasks


def say_result(db: Database, run: Run, output: Name, judged: Sequence[Quality]) -> None:
    """Say how good the best model is, and how to predict with it."""
    if _is_judged(run) and not judged and not db.verbose:
        db.told(_end(db, run))
    if judged and not db.verbose:
        db.told(f"{output} is {_what_predicts(db, run)}")
    for one in judged:
        db.told(f"{output} predicts {one.target}: {one.says} for validation")
        if one.is_no_better:
            db.warning(
                f"{output} predicts {one.target} no better than an answer that is {one.simple}",
                "More rows, other columns or a larger budget may help. Perhaps the columns say nothing about it.",
            )
    db.told(f"to predict, SELECT * FROM cerebro.predict('{output}', 'SELECT * FROM …');")


def _what_predicts(db: Database, run: Run) -> str:
    """The ensemble with the kinds of its members, or the best configuration with its kind."""
    row = db.one(
        sql(
            "SELECT r.made_of, r.chosen_configuration AS chosen, (SELECT min(b.architecture) FROM cerebro.leaderboard b"
            " WHERE b.run = r.run AND b.configuration = r.chosen_configuration) AS kind"
            " FROM cerebro.runs r WHERE r.run = $1 AND r.owner = current_user"
        ),
        ("bigint",),
        run.id,
    )
    assert row is not None
    kind = f" ({row['kind']})" if row["kind"] else ""
    return row["made_of"] or f"configuration {row['chosen']}{kind}"


def _end(db: Database, run: Run) -> str:
    best = db.one(
        sql(
            "SELECT configuration, COALESCE(validation_loss, training_loss) AS loss,"
            " validation_loss IS NOT NULL AS validated, COALESCE(validation_metric, training_metric) AS metric,"
            " metric_name, objective, objective_value, best_epoch, spread"
            " FROM cerebro.leaderboard b WHERE run = $1 AND owner = current_user AND {of_all_rows}"
            " ORDER BY rank, configuration LIMIT 1",
            of_all_rows=OF_ALL_ROWS,
        ),
        ("bigint",),
        run.id,
    )
    if best is None:
        return f"run {run.id} finished"
    if run.options.objective is not None and best["objective_value"] is not None:
        kept = f" after epoch {best['best_epoch']}" if run.options.keep == BEST else ""
        figures = f"{best['objective']} {best['objective_value']:.4f}{kept}"
    else:
        kind = "validation" if best["validated"] else "training"
        metric = f", {best['metric_name']} {best['metric']:.4f}" if best["metric"] is not None else ""
        figures = f"{kind} loss {best['loss']:.4f}{metric}"
    if best["spread"] is not None:
        figures += f" (mean over the folds; the deviation of {best['objective']} is {best['spread']:.4f})"
    of_all_rows = " of those on all rows" if run.groups else ""
    return (
        f"run {run.id} finished: the best{of_all_rows} is configuration {best['configuration']} with {figures};"
        f" models are in {run.model_table}, all results in SELECT * FROM cerebro.leaderboard WHERE run = {run.id};"
    )
