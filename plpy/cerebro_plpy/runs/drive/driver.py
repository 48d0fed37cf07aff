"""The orchestrator's real ports: the workers of a team, and the recorder session that keeps the log.

The driver lives in the session that called the fit function.  It never trains and never imports a framework.  It sends
statements, and listens for a cancel between two looks at its sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import psycopg2

from cerebro_db.core.engines import DISPLAY_NAMES, ENGINES
from cerebro_db.core.errors import (
    Cancelled,
    CerebroError,
    ConfigurationFailed,
    CorruptState,
    DiskFull,
    RowsLost,
    StateLost,
    TrainerFailed,
)
from cerebro_db.core.events import DataSetName, Event
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling import remaining
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.plan import TrainJointly, segments_of
from cerebro_db.core.scheduling.remaining import BegunUnit
from cerebro_db.core.scheduling.schedule import MOST_TRIES, Evaluate, ModelPlan, Schedule, Status, Train, Unit
from cerebro_db.core.search.budget import Budget, MachineSpeed, Used
from cerebro_db.core.search.policy import Decision, Policy
from cerebro_db.core.search.request import Request
from cerebro_db.core.texts import short
from cerebro_db.core.trainers import sharding

from ...database.access import Database
from ...database.polling import LISTEN_EVERY
from ...platform.machine import cores
from ...sessions import limits
from ...sessions.at_once import SessionFailed, TeamWork
from ...sessions.failures import Refused, failure_of, first_line, session_was_lost
from ...sessions.overlap import Task, first_of_chains, of_each
from ...sessions.session import Session, wait_any
from ...sessions.team import Team, Worker
from ..preflight import engine_choice
from ..record import state_tables
from ..record.log import RunLog
from ..record.log.events import built_of
from ..record.run import MOST_FUSED, Run
from ..record.speeds import RunSpeeds
from ..units import evaluation, joint, visit
from ..units.unit import Result, Units
from .amounts import Estimate, RowsInAll
from .decisions import Decisions
from .sharing import Sharing

HEARTBEAT_EVERY = 1.0  # seconds
TELL_EVERY = 60.0  # seconds between two progress notices; a notice comes with every tenth of a run, too
TELL_LATER = 4.0  # but only after so many seconds, unless the caller wants details
LOSSES = (TrainerFailed, CorruptState, RowsLost)  # what ended may have nothing to do with the model
SEGMENT_TRIES = 10  # of a unit whose segment was lost: Greenplum ends all processes of a segment if one is killed
SICK_AFTER = 3  # models whose trainer died on one segment in a row: then the segment is to blame, not the models
# A segment reads ahead where fetching and storing take more than this share of the time of training: choosing the next
# unit early costs the schedule some freedom.  And where a unit's states have between so many bytes: smaller states are
# moved in milliseconds, and of larger ones a segment should not hold two in memory.
AHEAD_ABOVE = 0.2
AHEAD_FROM, AHEAD_TO = 1 << 20, 256 << 20


@dataclass(eq=False)
class JointTask:
    """A joint visit that is under way."""

    task: Task
    workers: list[Worker]  # of its segments, that which stores the state first
    work: TeamWork[list[Result]]


class Driver:
    """Runs the units that the orchestrator chooses, and keeps the record of them."""

    def __init__(
        self,
        db: Database,
        run: Run,
        schedule: Schedule,
        team: Team,
        recorder: Session,
        decisions: Decisions,
        *,
        policy: Policy,
        budget: Callable[[], Budget],
        sharing: Sharing,
        speeds: RunSpeeds,
    ) -> None:
        self.db = db
        self.run = run
        self.schedule = schedule
        self.team = team
        self.recorder = recorder
        self.decisions = decisions
        self.log = RunLog.of(recorder, run.id)
        self.policy, self.budget, self.sharing = policy, budget, sharing
        self.waited_before = sharing.waited  # the driver began
        self.follow_ups = [step.needs for step in run.options.follows if step.needs is not None]
        self._validation_parts = len(run.parts(DataSetName.VALIDATION)) if run.validation is not None else 0
        self.units = Units(run, self.log, team, keep_two=policy.asks or policy.proposes)
        self.units.evaluated = self.log.units.counted_by_part()
        self.units.rows_done = self.done_before = sum(map(run.rows_done, run.models.values()))
        self._rows_in_all = RowsInAll(run, schedule)
        self._left = Estimate()
        self.joint_visits: list[JointTask] = []
        self.pace, self.begins = speeds.expected_pace(), policy.begins
        self.first_unit: float | None = None  # when the first unit of this session began
        self.beat_at = 0.0
        self.told_tenth = -1
        self.told_short = False
        self.started = self.told_at = time.monotonic()
        self.most_seconds, _ = limits.answered(recorder.run)["run_seconds"]
        sizes = [model.state_bytes * (MOST_FUSED if model.build.group else 1) for model in run.models.values()]
        # Trainers that keep all processors busy are only slowed down by work beside them.
        spare = (run.options.trainer.threads or 1) > 1 or cores() > run.segments or bool(run.options.gpus)
        self.may_read_ahead = spare and AHEAD_FROM <= max(sizes, default=0) <= AHEAD_TO

    # -- ports ------------------------------------------------------------------------------------

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        first = groups[0][0]
        if isinstance(first, TrainJointly):
            self._begin_joint(first)
            return
        worker = self.team.workers[first.segment]
        task = Task([list(group) for group in groups], time.monotonic(), may_compute=not worker.tasks.under_way)
        self._begin(worker, task)

    def _begin(self, worker: Worker, task: Task) -> None:
        while True:
            task.work, task.statement = self._work(worker, task), None
            self.first_unit = self.first_unit or task.started
            worker.tasks.under_way.append(task)
            if worker.session.work is not None:
                return
            try:
                worker.session.require_life()
                worker.session.begin(worker.tasks.run())
                return
            except psycopg2.Error as error:
                self._require_lost(worker, error)
            worker.tasks.abandon()
            self.team.replace(worker)

    def _begin_joint(self, unit: TrainJointly) -> None:
        workers = [self.team.workers[segment] for segment in unit.segments]
        task = Task([[unit]], time.monotonic(), may_compute=True)
        for worker in workers:
            try:
                worker.session.require_life()
            except psycopg2.Error as error:
                self._require_lost(worker, error)
                self.team.replace(worker)
        sessions = {worker.segment: worker.session for worker in workers}
        self.joint_visits.append(JointTask(task, workers, TeamWork(sessions, joint.train(self.units, workers, task))))
        self.first_unit = self.first_unit or task.started

    def reads_ahead(self, segment: int) -> bool:
        tasks = self.team.workers[segment].tasks
        return (
            self.ahead and len(tasks.under_way) == 1 and tasks.computing is not None and tasks.computing.shares_session
        )

    def segments_allowed(self) -> int | None:
        return self.sharing.allowed

    @property
    def waited(self) -> float:
        """The seconds in which the run had to wait for others, since the loop began."""
        return self.sharing.waited - self.waited_before

    @property
    def ahead(self) -> bool:
        """Whether segments read ahead; that has no influence on the results."""
        wanted = self.run.options.read_ahead
        if wanted is None:
            times = self.units.times
            return self.may_read_ahead and times.moving_states > AHEAD_ABOVE * times.training
        return bool(wanted)

    def wait(self) -> list[Outcome]:
        outcomes = self._look_at_joint_visits()  # those that were just chosen begin
        busy = [worker for worker in self.team.workers if worker.tasks.under_way]
        together = [session for one in self.joint_visits for session in one.work.busy]
        rule = self.decisions.rule
        heard = [] if rule is None else rule.begin()
        wait_any([*(worker.session for worker in busy), *together, *heard], 0.0 if outcomes else LISTEN_EVERY)
        self.team.listen()
        if rule is not None:
            rule.advance()
        outcomes += [outcome for worker in busy for outcome in self._look(worker)]
        outcomes += self._look_at_joint_visits()
        self.beat()
        return outcomes

    def gave_up(self, model: int, reason: str) -> None:
        self.idle_log().events.note(Event.MODEL_FAILED, model, reason=reason)
        self.db.warning(f"{self.run.models[model].named} failed: {reason}")

    def trying_again(self, unit: Unit, reason: str) -> None:
        self.idle_log().events.note(Event.UNIT_FAILED, unit.model, reason=reason, segment=unit.segment)
        key = self.run.models[unit.model].key
        self.db.notice(f"configuration {key} on segment {unit.segment}: {reason}; trying again")

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        return self.decisions.decided(decisions)

    def configuration(self, model: int) -> dict[str, Any]:
        return self.decisions.configuration(model)

    def best_hop(self, model: int) -> int | None:
        return self.decisions.best_hop(model)

    def requests(self) -> Sequence[Request]:
        return self.decisions.requests()

    def ruled(self, model: int, epoch: int) -> str | None:
        return self.decisions.ruled(model, epoch)

    def used(self) -> Used:
        used = self.decisions.used()
        if not self.follow_ups:
            return used
        measured = self._measured()
        return replace(used, kept_back=sum(one.expect(measured) for one in self.follow_ups))

    def _measured(self) -> MachineSpeed:
        parts, early = self._validation_parts, self.pace.early
        return MachineSpeed(
            building=max(self.pace.built, default=0.0),
            evaluation=parts * (median(early) if early else 0.0),
            recent=parts * self.schedule.evaluation_seconds,
            models=sum(
                mine.epochs > 0 and self.run.models[number].asked.parent is None
                for number, mine in self.schedule.progress.items()
            ),
        )

    # -- units ------------------------------------------------------------------------------------

    async def _work(self, worker: Worker, task: Task) -> list[Result]:
        """A result for each unit of a task."""
        first = task.units[0]
        try:
            if isinstance(first, Evaluate):
                todo = [unit for unit in task.units if isinstance(unit, Evaluate)]
                return await evaluation.evaluate(self.units, worker, task, todo, self.ahead)
            return await visit.train(self.units, worker, task, self.ahead)
        except Refused as refused:
            failed, cut = Result(error=refused), Result(cut=True)
            return [one or cut for one in of_each(task.groups, lambda unit: failed)]

    def _look(self, worker: Worker) -> list[Outcome]:
        """The outcomes of a segment's units that have ended."""
        lost, tasks = None, worker.tasks
        try:
            worker.session.advance()
        except psycopg2.Error as error:
            lost = error
        over, tasks.over = tasks.over, []
        outcomes = [outcome for task in over for outcome in self._settled(worker, task)]
        return outcomes if lost is None else outcomes + self._after_loss(worker, lost)

    def _look_at_joint_visits(self) -> list[Outcome]:
        """The outcomes of those that have ended."""
        outcomes: list[Outcome] = []
        for under_way in list(self.joint_visits):
            try:
                if not under_way.work.advance():
                    continue
                under_way.task.result = under_way.work.result
                found = self._settled(under_way.workers[0], under_way.task)
                if all(one.error is None for one in found):
                    for worker in under_way.workers:
                        worker.failing.clear()
            except SessionFailed as failed:
                found = self._failed_jointly(under_way, self.team.workers[failed.segment], failed.error)
            self.joint_visits.remove(under_way)
            outcomes += found
        return outcomes

    def _failed_jointly(self, ended: JointTask, worker: Worker, error: Refused | psycopg2.Error) -> list[Outcome]:
        """One segment's part of a joint visit did not succeed: nothing of it is committed, or all of it."""
        if isinstance(error, Refused):
            ended.task.result = [Result(error=error)]
            return self._settled(worker, ended.task)
        self._require_lost(worker, error)
        lost_segment = self.team.platform.lost_a_segment(error)
        reason, most = first_line(error), SEGMENT_TRIES if lost_segment else MOST_TRIES
        self.team.replace(worker)
        outcomes = self._lost(ended.workers[0], ended.task, reason, most)
        if not lost_segment and any(one.error is not None for one in outcomes):
            self._suspect(worker, ended.task.units[0], reason)
        return outcomes

    def _settled(self, worker: Worker, task: Task) -> list[Outcome]:
        took = time.monotonic() - task.started
        self.decisions.unit_seconds += took * len(segments_of(task.units[0]))
        refused = [(unit, result.error) for unit, result in zip(task.units, task.result) if result.error is not None]
        if any(result.error is None and not result.cut for result in task.result):
            worker.failing.clear()
        for _, refusal in refused:
            if isinstance(refusal.error, DiskFull):
                raise refusal.error from refusal  # no model's fault
        lost = [(unit, refusal) for unit, refusal in refused if isinstance(refusal.error, LOSSES)]
        if lost:
            worker.resident.clear()
            unit, refusal = lost[0]  # one death is one suspicion, however many units the order had
            self._suspect(worker, unit, refusal.error.message)
        # What did not begin comes first, so that the last unit of its model that did says what follows.
        outcomes = [Outcome(unit, cut=True) for unit, result in zip(task.units, task.result) if result.cut]
        for unit, result in zip(task.units, task.result):
            seconds = took * (1 / len(task.units) if result.part is None else result.part)
            if result.cut:
                continue
            if result.error is None:
                if isinstance(unit, Train) and self._is_too_large(unit.model):
                    self.schedule.set_apart(unit.model)
                self.pace.add(unit, seconds, result.building)
                outcomes.append(
                    Outcome(
                        unit=unit,
                        seconds=seconds,
                        building=result.building,
                        error=result.reason,
                        try_again=False,
                        weight=result.weight,
                        loss=result.loss,
                        metrics=result.metrics,
                    )
                )
                continue
            error = result.error.error
            reason = self._told(unit, error)
            # Which of several models is to blame shows when each is tried alone.
            try_again = len(task.units) > 1 or isinstance(error, LOSSES)
            if not try_again and isinstance(error, ConfigurationFailed) and (engine := self._other_engine(unit)):
                outcomes.append(
                    Outcome(unit, seconds, error=f"{reason}; {DISPLAY_NAMES[engine]} takes over", try_again=True,
                            most_tries=MOST_TRIES + len(ENGINES))
                )  # fmt: skip
                continue
            counts = unit not in first_of_chains(task.groups)
            outcomes.append(Outcome(unit, seconds, error=reason, try_again=try_again, counts=counts))
        return outcomes

    def _told(self, unit: Unit, error: CerebroError) -> str:
        """Why a unit failed.  If a trainer had too little memory for a model, that it can be cut."""
        run = self.run
        if run.why_whole is not None:
            return sharding.told_uncut(error, run.trainer_mb, run.why_whole)
        build = run.models[unit.model].build
        return sharding.told(error, build.memory, run.trainer_mb, build.engine, str(run.options.trainer.shard))

    def _is_too_large(self, model: int) -> bool:
        """Whether a model has a larger state than those that share orders; of a new model the size was a guess."""
        shares = self.schedule.progress[model].plan.series is not None
        return shares and not state_tables.is_small(self.run.models[model].state_bytes)

    def _other_engine(self, unit: Unit) -> str | None:
        """Give a model that its engine cannot train another engine, on record, if ``auto`` has one left."""
        model = self.run.models[unit.model]
        engine = engine_choice.instead(self.run, model) if isinstance(unit, Train) else None
        if engine is not None:
            build = model.build
            build.engine, build.group = engine, None
            self.schedule.set_apart(unit.model)
            self.idle_log().events.note(Event.BUILT, unit.model, **built_of(model))
        return engine

    def _after_loss(self, worker: Worker, error: psycopg2.Error) -> list[Outcome]:
        """A session is gone, and with it whatever it was doing."""
        self._require_lost(worker, error)
        lost_segment = self.team.platform.lost_a_segment(error)
        most = SEGMENT_TRIES if lost_segment else MOST_TRIES
        reason, asked, abandoned = first_line(error), worker.tasks.asked, worker.tasks.abandon()
        self.team.replace(worker)
        outcomes = []
        for task in abandoned:
            if task is asked:
                found = self._lost(worker, task, reason, most)
                if all(one.error is not None or one.cut for one in found) and not lost_segment:
                    self._suspect(worker, task.units[0], reason)
                outcomes += found
            else:  # the session was lost while it ran another task's statement
                task.started, task.may_compute, task.rows = time.monotonic(), True, 0
                self._begin(worker, task)
        return outcomes

    def _lost(self, worker: Worker, task: Task, reason: str, most: int) -> list[Outcome]:
        """The outcomes of the units whose session was lost; those that the log has are committed."""
        seconds = (time.monotonic() - task.started) / len(task.units)
        chained = first_of_chains(task.groups)
        failed = of_each(
            task.groups,
            lambda unit: Outcome(
                unit, seconds, error=reason, try_again=True, most_tries=most, counts=unit not in chained
            ),
        )
        found = [
            self.on_record(worker, unit, seconds) or lost or Outcome(unit, cut=True)
            for unit, lost in zip(task.units, failed)
        ]
        return sorted(found, key=lambda outcome: not outcome.cut)

    def _require_lost(self, worker: Worker, error: psycopg2.Error) -> None:
        """Raise an error that is not the end of a session: it concerns the whole run.

        A session whose folder somebody has emptied is given up like one that has ended.
        """
        self.run.segments_lost |= self.team.platform.lost_a_segment(error)
        ended = session_was_lost(error, self.team.platform) or error.pgcode == StateLost.sqlstate
        if not worker.session.lost and not ended:
            raise failure_of(f"segment {worker.segment}", error, self.team.platform) from error

    def on_record(self, worker: Worker, unit: Unit, seconds: float) -> Outcome | None:
        """The outcome of a unit whose session was lost, if the log has it: perhaps on the way back from its COMMIT."""
        log = self.idle_log()
        self.units.objectives.look_up(unit)
        if isinstance(unit, Evaluate):
            evaluated = log.units.evaluation_on_record(unit)
            return None if evaluated is None else Outcome(unit, seconds, None, False, *evaluated)
        hop = log.units.hop_on_record(unit)
        if hop is None:
            return None
        rows, loss, metrics, state_bytes, sha256, counted = hop
        if not self.run.models[unit.model].has_hop(unit.hop):
            large = sha256 is not None and not state_tables.is_small(state_bytes)
            parts = log.states.frozen_parts([(unit.model, unit.hop)] if large else [])
            frozen = parts.get((unit.model, unit.hop))
            self.units.committed(worker, unit, rows, state_bytes, sha256, counted, frozen=frozen)
        return Outcome(unit=unit, seconds=seconds, error=None, try_again=False, weight=rows, loss=loss, metrics=metrics)

    def _suspect(self, worker: Worker, unit: Unit, reason: str) -> None:
        """A trainer or a session died at this unit.  If others did before, the segment is to blame."""
        worker.failing.add(unit.model)
        if len(worker.failing) >= SICK_AFTER:
            raise TrainerFailed(
                f"segment {worker.segment} fails whatever it trains: {reason}",
                hint=f"SELECT * FROM cerebro.doctor() may tell why; then SELECT cerebro.resume({self.run.id}).",
            )

    # -- progress -----------------------------------------------------------------------------------

    def rows_expected(self, done: int) -> int:
        """The rows of the whole run.  Under a method that fills its budget, as many as the pace so far comes to."""
        seconds = self.budget().seconds if self.policy.timed else None
        if seconds is None:
            return self._rows_in_all.now()
        share = self.decisions.used().seconds / seconds
        return round(done / share) if 0 < share < 1 and done else max(done, self._rows_in_all.now())

    def rows_under_way(self) -> int:
        rows = sum(one.task.rows for one in self.joint_visits)
        for worker in self.team.workers:
            rows += sum(task.rows for task in worker.tasks.under_way)
            computing = worker.tasks.computing
            if computing is not None and isinstance(computing.units[0], Train):
                # Code that was planted in the rows' table can report anything.
                reported = worker.session.progress.rows if worker.session.progress is not None else 0
                rows += max(0, reported)
        return rows

    def beat(self, *, last: bool = False) -> None:
        """Once a second, record how far the run is."""
        if not last:
            self.recorder.attend()
        now = time.monotonic()
        if self.most_seconds is not None and now - self.started - self.waited > self.most_seconds and not last:
            raise Cancelled(
                f"run {self.run.id} was ended: it took the {self.most_seconds} s that a run of yours may take"
                " at a stretch",
                hint=f"SELECT cerebro.resume({self.run.id}) goes on. {limits.SEE}",
            )
        if now - self.beat_at < HEARTBEAT_EVERY and not last:
            return
        self._tell_of_short_budget()
        done = self.units.rows_done + self.rows_under_way()
        total = self._rows_in_all.now(last=True) if last else self.rows_expected(done)
        done = min(done, total)
        if last:
            self.recorder.finish()
        if (
            self.recorder.work is None
        ):  # else it asks whether a cancel was requested: the heartbeat comes a moment later
            self.beat_at = now
            left = None if last else self.seconds_left(now)
            self.recorder.begin(self._heartbeat(done, total, left, last=last))
        tenth = 10 * done // max(total, 1)
        silent = now - self.told_at
        due = self.told_tenth < tenth < 10 and (silent > TELL_LATER or bool(self.db.verbose)) or silent > TELL_EVERY
        if due and done > self.done_before and not last:
            self.told_tenth, self.told_at = tenth, now
            self._tell(done, total, now)

    def _tell_of_short_budget(self) -> None:
        """Say once that the seconds of the budget are over and no model is of use yet, so that the run goes on."""
        budget = self.budget()
        if self.told_short or budget.seconds is None or budget.least_epochs is None:
            return
        used = self.used()
        epochs = max((mine.epochs for mine in self.schedule.progress.values()), default=0)
        if not budget.lacks(epochs) or used.seconds <= budget.seconds:
            return
        self.told_short = True
        starting = (self.first_unit or time.monotonic()) - self.decisions.began
        self.db.told(
            f"the budget is used, and no model has completed an epoch: the first visit began after {starting:.0f} s."
            " The call ends as soon as a model has",
            "A larger budget tries more than one model; fewer rows or columns make an epoch shorter.",
        )

    async def _heartbeat(self, done: int, total: int, left: float | None, *, last: bool) -> None:
        self.sharing.may_wait = self.budget().seconds is None
        wants = 0 if last else self.schedule.could_keep_busy()
        standing = self.sharing.standing(wants, left, total - done, sign=(done, self.pace.seconds))
        await self.log.events.heartbeat(done, total, left, standing)
        if standing is not None and not last:
            await self.sharing.look(standing, busy=bool(self.schedule.busy))

    def seconds_left(self, now: float) -> float | None:
        """How long the run still takes, as far as that can be told."""
        return self._left.at(now, lambda: self._seconds_left(now))

    def _seconds_left(self, now: float) -> float | None:
        budget = self.budget()
        used = self.used() if budget.limits else Used()
        under_way = [
            BegunUnit(unit, (now - task.started) / len(task.units), self._share(worker, task))
            for worker in self.team.workers
            for task in worker.tasks.under_way
            for unit in task.units
        ]
        for one in self.joint_visits:
            (unit,) = one.task.units
            share = one.task.rows / max(1, self.run.rows_of(self.run.models[unit.model]))
            under_way.append(BegunUnit(unit, now - one.task.started, share))
        elapsed = now - (self.first_unit or now) - self.waited
        return remaining.seconds_left(
            self.schedule, self.policy, self.pace,
            under_way=under_way, elapsed=elapsed, budget=budget, used=used, begins=self.begins,
        )  # fmt: skip

    def _share(self, worker: Worker, task: Task) -> float:
        """The share of a task's rows that its trainer has reported."""
        progress = worker.session.progress
        if worker.tasks.computing is not task or progress is None or not isinstance(task.units[0], Train):
            return 0.0
        models = [self.run.models[unit.model] for unit in task.units if isinstance(unit, Train)]
        rows = sum(self.run.rows_of(model) / self.run.hops_per_epoch(model) for model in models)
        return min(1.0, max(0, progress.rows) / rows) if rows else 0.0

    def _tell(self, done: int, total: int, now: float) -> None:
        speed = (done - self.done_before) / max(now - self.started, 0.001)
        statuses = [mine.status for mine in self.schedule.progress.values()]
        failed = statuses.count(Status.FAILED)
        stopped = statuses.count(Status.STOPPED)
        finished = statuses.count(Status.FINISHED) + stopped
        parts = self.run.folds or self.run.groups  # the best value of one of them says little
        told = []
        if self.db.verbose:
            early = f" ({stopped} stopped early)" if stopped else ""
            told.append(f"{finished} of {len(statuses)} {'models' if parts else 'configurations'} finished{early}")
        if failed:
            told.append(f"{failed} failed")
        if self.db.verbose:
            told.append(f"{speed:,.0f} rows/s")
        objectives = self.units.objectives
        if objectives.best_value is not None and not parts:
            told.append(f"best {objectives.objective.in_words} so far {short(objectives.best_value)}")
        left = self.seconds_left(now)
        told.append("estimating the time left" if left is None else f"about {left:.0f} s left")
        self.db.told(f"{100 * done / total:3.0f} %  {', '.join(told)}")

    def idle_log(self) -> RunLog:
        """The log, once the recorder session has finished what it was writing."""
        self.recorder.finish()
        return self.log
