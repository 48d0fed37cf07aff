"""From the claim of a run to its end: the trainers, the schedule, the loop, and the end on record."""

from __future__ import annotations

import contextlib
import time

import psycopg2

from cerebro_db.core.errors import Cancelled, CerebroError, ConfigurationFailed
from cerebro_db.core.events import Event
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.schedule import Schedule, Status
from cerebro_db.core.search.never_stop import NeverStop
from cerebro_db.core.search.policy import History, Policy

from ..database import locks
from ..database.access import Database
from ..database.cancellation import Listen
from ..sessions import kept_teams
from ..sessions.failures import CANCELLED, first_line
from ..sessions.session import Session
from ..sessions.team import Team
from . import engine_choice, fusion, preflight, state_tables
from .driver import Driver
from .log import RunLog
from .run import Run

CANCEL_EVERY = 1.0  # seconds between two questions whether another session has requested a cancel


def carry_out(
    db: Database,
    recorder: Session,
    run_id: int,
    epochs: int | None = None,
    retry_failed: bool = False,
    submitted: bool = False,
) -> Run:
    """Drive a run that is on record from wherever its log ends."""
    locks.show(db, locks.of_models(run_id))
    log = RunLog.of(recorder, run_id)
    log.claim(recorder, epochs, retry_failed, submitted)
    with contextlib.ExitStack() as call:
        try:
            if retry_failed:
                log.revive_failed()
            run = log.load()
            engine_choice.choose(run, log)
            listen = until_cancelled(recorder.listen, recorder, log)
            team = call.enter_context(kept_teams.team_for(db, run.dist_keys, run.options, listen))
        except BaseException as error:
            record_end(recorder, log, error)
            raise
        drive(db, run, team, recorder, log)
    return run


def drive(db: Database, run: Run, team: Team, recorder: Session, log: RunLog) -> None:
    """Take a claimed run to its end; whatever stops it is on record before it is raised."""
    policy: Policy = NeverStop()
    try:
        preflight.build_models(db, run, team, recorder, log)
        fusion.settle(db, run, team, log)
        schedule = schedule_of(log, run, policy)
        driver = Driver(db, run, schedule, team, recorder, policy)
        orchestrator.run(schedule, driver, policy, history_of(run, log) if schedule.decides else None)
        driver.beat(last=True)
        recorder.finish()
        free_old_states(recorder, run)
        require_success(run, schedule)
        log.note(Event.FINISHED)
    except BaseException as error:
        team.abandon()
        record_end(recorder, log, error)
        raise


def schedule_of(log: RunLog, run: Run, policy: Policy) -> Schedule:
    """The schedule with everything that the log says is done and decided."""
    # A replay repeats the decisions of the earlier run, also under a policy that is never asked.
    replayed = RunLog(log.ask, run.options["replay"]).decisions() if "replay" in run.options else []
    schedule = Schedule(run.plan(), policy.asks or bool(replayed), replayed)
    evaluated, decisions = log.evaluated(), log.decisions()
    for number, model in run.models.items():
        mine = [decision for decision in decisions if decision.model == number]
        schedule.restore(number, model.hops, evaluated.get(number, ()), mine)
    for number, reason in log.failed().items():
        schedule.give_up(number, reason)
    return schedule


def history_of(run: Run, log: RunLog) -> History:
    """What the log has for a policy."""
    history = History()
    for model in run.models.values():
        history.begins(model.number, run.configuration_of(model))
    for model, epoch, hop, *figures in log.hops():
        history.trained(model, epoch, hop, *figures)
    for model, epoch, dataset, part, *figures in log.evaluations():
        history.evaluated(model, epoch, dataset, part, *figures)
    return history


def require_success(run: Run, schedule: Schedule) -> None:
    if any(mine.status in (Status.FINISHED, Status.STOPPED) for mine in schedule.progress.values()):
        return
    reason = next(iter(schedule.progress.values())).reason
    raise ConfigurationFailed(
        f"run {run.id}: every configuration failed; the first because {reason}",
        hint=f"SELECT mst_key, reason FROM cerebro.leaderboard WHERE run = {run.id};",
    )


def free_old_states(recorder: Session, run: Run) -> None:
    """Keep only the last state of each model of a finished run; the run may be extended."""
    old = [state_tables.table_of(run, model, model.hops - 1) for model in run.models.values() if model.hops > 1]
    for start in range(0, len(old), 50):
        recorder.run(state_tables.emptied_sql(old[start : start + 50]))


def record_end(recorder: Session, log: RunLog, error: BaseException) -> None:
    """Record why a run ended early.  This must not listen: the cancel was heard already."""
    cancelled = getattr(error, "sqlstate", None) == CANCELLED or isinstance(error, KeyboardInterrupt)
    event, message = Event.CANCELLED if cancelled else Event.FAILED, first_line(error)
    recorder.settle()
    try:
        log.note_end(recorder, event, message)
    except psycopg2.Error:
        # Perhaps the recorder session itself was lost.  Without an end on record the run would count as running for
        # as long as this session lives.
        with contextlib.suppress(psycopg2.Error, CerebroError):
            assert recorder.another is not None
            another = recorder.another(lambda: None)
            log.note_end(another, event, message)
            another.close()


def until_cancelled(own: Listen, recorder: Session, log: RunLog) -> Listen:
    """Listens to the session it runs in and, once a second, for ``cerebro.cancel()``.  Raises for a cancel once.

    The recorder session asks, when it has nothing else to do: on Greenplum the caller's own session may have lost its
    segments while the run goes on.
    """
    asked_at, requested, raised = time.monotonic(), False, False

    async def ask() -> None:
        nonlocal requested
        rows = await log.cancel_requested()
        requested = bool(rows and rows[0][0])

    def listen() -> None:
        nonlocal asked_at, raised
        own()
        if recorder.work is not None:
            recorder.attend()
        elif not raised and not recorder.busy and time.monotonic() - asked_at >= CANCEL_EVERY:
            asked_at = time.monotonic()
            recorder.begin(ask())
        if requested and not raised:
            raised = True
            raise Cancelled(f"run {log.run} was cancelled", hint=f"SELECT cerebro.resume({log.run}) goes on.")

    return listen
