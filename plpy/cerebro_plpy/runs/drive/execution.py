"""From the claim of a run to its end: the trainers, the schedule, the loop, and the end on record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg2

from cerebro_db.core.errors import CerebroError, ConfigurationFailed
from cerebro_db.core.events import Event
from cerebro_db.core.scheduling.deciding import SPENT
from cerebro_db.core.scheduling.schedule import Schedule, Status

from ...database import listening
from ...database.access import Database
from ...sessions import kept_teams, warm_up
from ...sessions.failures import CANCELLED
from ...sessions.session import Session
from ...sessions.team import Team
from ..preflight import engine_choice, fusion, preflight
from ..record import state_tables
from ..record.log import RunLog
from ..record.run import Run
from ..record.speeds import RunSpeeds
from . import lost_rows
from .incoming_requests import IncomingRequests, cancelled
from .searching import Search


def carry_out(
    db: Database,
    recorder: Session,
    run_id: int,
    epochs: int | None = None,
    retry_failed: bool = False,
    submitted: bool = False,
    *,
    begins: bool = False,
) -> Run:
    """Drive a run that is on record from wherever its log ends; ``begins``: one that was just put on record."""
    log = RunLog.of(recorder, run_id)
    db.ask_for_details()  # from the claim on, no query goes through the caller's session
    # Between the claim and the code that records an end, nothing may be raised.
    with listening.paused(), contextlib.ExitStack() as call:
        with cancel_on_record(recorder, log):
            log.drivers.claim(recorder, epochs, retry_failed, submitted, begins)
        try:
            with listening.resumed():
                if not recorder.own:
                    recorder.configure(application_name=f"cerebro_db recorder of run {run_id}")
                if retry_failed:
                    log.events.revive_failed()
                run = log.plan.load()
                speeds = RunSpeeds(run, log)
                run.expected = speeds.visit_seconds
                log.plan.require_own_rows(run)
                attention = IncomingRequests(recorder.listen, recorder, log)
                search = call.enter_context(contextlib.closing(Search(db, run, recorder, attention)))
                search.begin()
                sharing = search.sharing
                sharing.wait_for_turn(attention)
                attention.beat = sharing.beat
                options = engine_choice.team_options(run, engine_choice.choose(run, log, speeds))
                warm_up.ahead(db, options.engine(0))
                team = call.enter_context(
                    kept_teams.team_for(
                        db, run.dist_keys, options, attention, own=recorder.own, recorder=recorder, run=run_id
                    )
                )
        except BaseException as error:
            record_end(recorder, log, error)
            raise
        drive(db, run, team, recorder, search, speeds)
    return run


def drive(db: Database, run: Run, team: Team, recorder: Session, search: Search, speeds: RunSpeeds) -> None:
    """Take a claimed run to its end; whatever stops it is on record before it is raised."""
    log = speeds.log
    try:
        with listening.resumed():
            planned = preflight.build_models(db, run, team, recorder, log, speeds, may_all_fail=search.policy.searches)
            fusion.settle(db, run, team, log, speeds)
            spent, schedule, features = search.drive(team, speeds)
            free_old_states(recorder, run, log)
            require_success(run, schedule)
            lost_rows.require_none(db, recorder, schedule, search)
            with contextlib.suppress(psycopg2.Error):  # without it, a later run measures again
                speeds.store()
        detail: dict[str, Any] = {"reason": SPENT} if spent else {}
        if features.any:
            detail["features"] = features.to_json(planned)
            preflight.say_features_used(db, features, planned)
        if not log.events.note_finished(recorder, detail):
            raise cancelled(run.id)
    except BaseException as error:
        team.abandon()
        record_end(recorder, log, error)
        raise


def require_success(run: Run, schedule: Schedule) -> None:
    if any(mine.status in (Status.FINISHED, Status.STOPPED) for mine in schedule.progress.values()):
        return
    if not schedule.progress:
        raise ConfigurationFailed(f"run {run.id}: the search proposed no configuration")
    reason = next(iter(schedule.progress.values())).reason
    raise ConfigurationFailed(
        f"run {run.id}: every configuration failed; the first because {reason}",
        hint=f"SELECT configuration, reason FROM cerebro.leaderboard WHERE run = {run.id};",
    )


def free_old_states(recorder: Session, run: Run, log: RunLog) -> None:
    """Keep only the last state of each model of a finished run, and the best; the run may be extended."""
    best = {
        model: epoch * run.hops_per_epoch(run.models[model]) for model, epoch, _, kept in log.units.objectives() if kept
    }
    states = state_tables.needed(run, best)
    # Both tables may have states that nothing needs: the first move empties the one, and the second the other.
    for source in (run.shared.other, run.shared.current):
        if run.shared.filled[source]:
            recorder.run(state_tables.moved_sql(run.storage, source, states))
    # A model that failed before its first hop may be tried again.
    begin = {model.given for model in run.models.values() if not model.hops}
    for given in {model.given for model in run.models.values() if model.given is not None} - begin:
        name = state_tables.given_table_name(run.storage, given)
        if state_tables.is_there(recorder, name):
            recorder.run(state_tables.dropped_sql(name))
    # A model that was stopped between its replicas' visits and their average may go on.
    models = [
        model for model in run.models.values() if not model.replicas and not state_tables.is_small(model.state_bytes)
    ]
    old = [table for model in models for table in state_tables.superseded(run, model, model.hops)]
    for start in range(0, len(old), 50):
        recorder.run(state_tables.emptied_sql(old[start : start + 50]))


@contextlib.contextmanager
def end_on_record(recorder: Session, log: RunLog) -> Iterator[None]:
    """Around what the call that made a run does before the run begins: record why nobody will begin it."""
    try:
        yield
    except BaseException as error:
        record_end(recorder, log, error, begun=False)
        raise


@contextlib.contextmanager
def cancel_on_record(recorder: Session, log: RunLog) -> Iterator[None]:
    """Around what comes before a run begins: record a cancel of the call, or the end of its time."""
    try:
        yield
    except BaseException as error:
        record_cancel(recorder, log, error)
        raise


def record_cancel(recorder: Session, log: RunLog, error: BaseException) -> None:
    """Unless the run has begun, or its end is on record already."""
    if is_cancel(error):
        record_end(recorder, log, error, begun=False)


def is_cancel(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == CANCELLED or isinstance(error, KeyboardInterrupt)


def record_end(recorder: Session, log: RunLog, error: BaseException, *, begun: bool = True) -> None:
    """Record why a run ended early.  This must not listen: the cancel was heard already."""
    if recorder.own:
        return  # the error undoes the whole run, and its record with it
    event = Event.CANCELLED if is_cancel(error) else Event.FAILED
    recorder.settle()
    try:
        log.events.note_end(recorder, event, error, begun=begun)
    except psycopg2.Error:
        # Perhaps the recorder session itself was lost.  Without an end on record the run would count as running for
        # as long as this session lives.
        with contextlib.suppress(psycopg2.Error, CerebroError):
            assert recorder.another is not None
            another = recorder.another(lambda: None)
            log.events.note_end(another, event, error, begun=begun)
            another.close()
