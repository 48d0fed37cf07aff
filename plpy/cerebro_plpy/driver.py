"""The real ports of the orchestrator: N worker sessions, each with a trainer, and a recorder.

The driver lives in the session that called the fit function.  It never trains and never imports a
framework; it sends statements, and between two looks at its sessions it listens for cancel.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from cerebro_db.core import orchestrator
from cerebro_db.core.errors import (
    Cancelled,
    CerebroError,
    ConfigurationFailed,
    CorruptState,
    OutOfResources,
    TrainerFailed,
    by_name,
)
from cerebro_db.core.names import quote
from cerebro_db.core.orchestrator import Outcome
from cerebro_db.core.schedule import Evaluate, Schedule, Status, Train, Unit

from . import limits, logins
from .db import Database
from .dialect import Dialect
from .runs import STATES, Configuration, DataSet, Run, emptied_sql, note, schedule_of, shuffle_seed
from .sessions import LISTEN_EVERY, Listen, Rows, Session, Statement, listener, wait_any
from .trainer import HANG_AFTER

HEARTBEAT_EVERY = 1.0  # seconds
SICK_AFTER = 3  # configurations in a row whose trainer died on one segment: it is the segment's fault, not theirs
FREE_AT_ONCE = 1 << 20  # an old state larger than this gives its space back as soon as it is replaced
FRAMEWORK_MB = 600  # resident memory of a trainer before it holds any model
CANCELLED = "57014"
LOST = (None, CANCELLED, "57P01", "57P02", "57P03")  # what a session says, if anything, that somebody has ended
MOST_TRIES = 3
LEAVE_WITHIN = 3.0  # seconds that cancelled workers get to come back

Steps = Generator[Statement, Rows, Any]


class Refused(Exception):
    """The trainer said no to an order."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.kind = error["kind"]
        self.error = by_name(error["kind"], error["message"], detail=error.get("detail"), hint=error.get("hint"))


@dataclass
class Seat:
    """One segment of a run, as the driver sees it: its session and what its trainer holds."""

    segment: int
    dist_key: int
    session: Session
    worker_pid: int  # of the process that has the trainer: on Greenplum a segment's, not the session's
    cached: set[str] = field(default_factory=set)
    held: dict[int, tuple[int, str]] = field(default_factory=dict)  # configuration -> (hop, token)
    unit: Unit | None = None
    since: float = 0.0
    failing: set[int] = field(default_factory=set)  # configurations whose trainer died here, none done since


class Team:
    """The worker sessions, one per segment.  They can be used again by the next call in this session."""

    def __init__(self, db: Database, owner: str, dist_keys: Sequence[int], options: dict[str, Any]) -> None:
        self.owner = owner
        self.dist_keys = list(dist_keys)
        self.options = options
        self.dialect = Dialect.of(db)
        self.listen: Listen = listener(db.plpy)
        self.db = db
        self.seats: list[Seat] = []
        limits.require_connections(limits.of(db), len(self.dist_keys))
        self.open()

    def open(self) -> None:
        """Sessions and trainers for all segments."""
        try:
            for segment, dist_key in enumerate(self.dist_keys):
                self.seats.append(Seat(segment, dist_key, *self._open(segment)))
        except BaseException:
            self.close()
            raise

    def _open(self, segment: int) -> tuple[Session, int]:
        session = logins.connect_as(self.db, self.owner, f"cerebro_db segment {segment}", self.listen)
        # A trainer whose driver is gone must not go on for nobody, and Greenplum's own planner is to be left out.
        # PostgreSQL has the first of these settings from version 14 on.
        session.run(
            "SELECT set_config(s.name, wanted, false) FROM pg_settings s JOIN (VALUES"
            " ('client_connection_check_interval', '1s'), ('optimizer', 'off')) AS ours (name, wanted) USING (name)"
        )
        gpus = self.options.get("gpus") or 0
        opening = {
            "engine": self.options["engine"],
            "threads": self.options["threads"],
            "deterministic": self.options["deterministic"],
            "gpu": segment % gpus if gpus else None,
            "hang_after": self.options.get("hang_after", HANG_AFTER),
        }
        where = self.dialect.on_segment(self.dist_keys[segment])
        opened = session.run(f"SELECT cerebro._worker_open(%s) {where}", (json.dumps(opening),))[0][0]
        return session, opened["worker_pid"]

    def replace(self, seat: Seat) -> None:
        """A new session and trainer for a segment whose old ones are gone."""
        with contextlib.suppress(psycopg2.Error):
            seat.session.close()
        seat.cached.clear()
        seat.held.clear()
        seat.session, seat.worker_pid = self._open(seat.segment)

    def order(self, seat: Seat, asked: dict[str, Any]) -> Steps:
        """Have a trainer do something; its answer, or Refused."""
        where = self.dialect.on_segment(seat.dist_key)
        rows = yield f"SELECT cerebro._work(%s) {where}", (json.dumps(asked),)
        reply = json.loads(rows[0][0])
        if "error" in reply:
            raise Refused(reply["error"])
        return reply["ok"]

    def read(self, seat: Seat, data: DataSet, number: int) -> Steps:
        """See to it that a partition's rows are in the trainer's cache: (handle, seconds it took)."""
        partition = data.partition(number)
        handle = f"{data.table}/{number}/{partition['sha256']}"
        if handle in seat.cached:
            return handle, 0.0
        started = time.monotonic()
        yield from self.order(seat, {"work": "forget", "handle": handle})  # what a failed attempt may have left
        calls = ", ".join(f"cerebro._data_in(%s, %s, {in_format(quote(name))})" for name in data.variables)
        yield (
            f"SELECT {calls} FROM {in_format(data.table)}"
            f" WHERE __dist_key__ = {int(partition['key'])} ORDER BY buffer_id",
            [text for name in data.variables for text in (handle, name)],
        )
        order = {
            "work": "data",
            "handle": handle,
            "layout": {"inputs": data.layout["inputs"], "outputs": data.layout["outputs"]},
            "rows": partition["rows"],
            "sha256": partition["sha256"],
        }
        try:
            yield from self.order(seat, order)
        except Refused as refused:
            if refused.kind == "TrainerFailed":
                raise
            raise refused.error from refused  # the rows are not what was packed: no configuration's fault
        seat.cached.add(handle)
        return handle, time.monotonic() - started

    def run_all(self, work: dict[int, Steps]) -> dict[int, Any]:
        """Let several segments work at once, and wait for all: segment -> result."""
        results: dict[int, Any] = {}
        try:
            for segment, steps in work.items():
                self.seats[segment].session.begin(steps)
            while len(results) < len(work):
                waiting = [self.seats[segment].session for segment in work if segment not in results]
                wait_any(waiting, LISTEN_EVERY)
                self.listen()
                for segment in work:
                    if segment not in results:
                        done, result = self.seats[segment].session.advance()
                        if done:
                            results[segment] = result
        except BaseException:
            self.abandon()
            raise
        return results

    def abandon(self) -> None:
        """Stop whatever the sessions do, and close them: after a cancel or an error."""
        for seat in self.seats:
            seat.session.cancel()
        deadline = time.monotonic() + LEAVE_WITHIN
        for seat in self.seats:
            with contextlib.suppress(psycopg2.Error):
                while not seat.session.ready() and time.monotonic() < deadline:
                    wait_any([seat.session], LISTEN_EVERY)
        self.close()

    def close(self) -> None:
        """End all sessions; those that still answer take their trainers and files away first."""
        leaving = []
        for seat in self.seats:
            with contextlib.suppress(psycopg2.Error):
                if not seat.session.lost and seat.session.ready():
                    where = self.dialect.on_segment(seat.dist_key)
                    seat.session.send(f"ROLLBACK; SELECT cerebro._worker_close() {where}")
                    leaving.append(seat.session)
        deadline = time.monotonic() + LEAVE_WITHIN
        for session in leaving:
            with contextlib.suppress(psycopg2.Error):
                while not session.ready() and time.monotonic() < deadline:
                    wait_any([session], LISTEN_EVERY)
        for seat in self.seats:
            with contextlib.suppress(psycopg2.Error):
                seat.session.close()
        self.seats.clear()


def in_format(sql: str) -> str:
    """SQL to stand in a statement that has parameters, where psycopg2 wants % doubled."""
    return sql.replace("%", "%%")


class Driver:
    """Makes units happen (the orchestrator decides which) and keeps the record of them."""

    def __init__(self, db: Database, run: Run, schedule: Schedule, team: Team, recorder: Session) -> None:
        self.db = db
        self.run = run
        self.schedule = schedule
        self.team = team
        self.recorder = recorder
        self.total = sum(run.rows_of(c) * run.epochs for c in run.configurations.values())
        self.done = sum(run.rows_of(c) * c.hops // run.segments for c in run.configurations.values())
        self.beat_at = 0.0
        self.told = -1
        self.started = time.monotonic()
        self.done_before = self.done
        self.most_seconds, _ = limits.of(db)["run_seconds"]

    # -- ports ------------------------------------------------------------------------------------

    def start(self, unit: Unit) -> None:
        seat = self.team.seats[unit.segment]
        seat.unit, seat.since = unit, time.monotonic()
        seat.session.begin(self.train(seat, unit) if isinstance(unit, Train) else self.evaluate(seat, unit))

    def wait(self) -> list[Outcome]:
        busy = [seat for seat in self.team.seats if seat.unit is not None]
        wait_any([seat.session for seat in busy], LISTEN_EVERY)
        self.team.listen()
        outcomes = [outcome for seat in busy if (outcome := self._look(seat)) is not None]
        self.beat()
        return outcomes

    def gave_up(self, configuration: int, reason: str) -> None:
        note(self.recorder_idle(), self.run.id, "configuration failed", configuration, reason=reason)
        lost = self.run.configurations[configuration]
        self.total -= self.run.rows_of(lost) * self.run.epochs - self.run.rows_of(lost) * lost.hops // self.run.segments
        self.db.warning(f"mst_key {configuration} failed: {reason}")

    def trying_again(self, unit: Unit, reason: str) -> None:
        note(self.recorder_idle(), self.run.id, "unit failed", unit.configuration, reason=reason, segment=unit.segment)
        self.db.notice(f"mst_key {unit.configuration} on segment {unit.segment}: {reason}; trying again")

    # -- within -----------------------------------------------------------------------------------

    def _look(self, seat: Seat) -> Outcome | None:
        """What became of a segment's unit, if it has ended."""
        unit = seat.unit
        assert unit is not None
        try:
            finished, result = seat.session.advance()
        except Refused as refused:
            seat.session.work = None
            if refused.kind == "DiskFull":
                raise refused.error from refused  # no configuration's fault
            lost = refused.kind in ("TrainerFailed", "CorruptState")
            if lost:
                seat.held.clear()
            return self._ended(seat, str(refused.error.message), try_again=lost)
        except psycopg2.Error as error:
            if not seat.session.lost and error.pgcode != CANCELLED:
                raise failure_of(f"segment {seat.segment}", error) from error
            reason = first_line(error)
            self.team.replace(seat)
            if self.committed(seat, unit):
                seat.unit = None
                return Outcome(unit, seconds=time.monotonic() - seat.since)
            return self._ended(seat, reason, try_again=True)
        if not finished:
            return None
        seat.failing.clear()
        if isinstance(result, str):
            return self._ended(seat, result, try_again=False)
        seat.unit = None
        return Outcome(unit, seconds=time.monotonic() - seat.since)

    def committed(self, seat: Seat, unit: Unit) -> bool:
        """Whether the log has a unit whose session was lost; it may have been lost on its way back from COMMIT."""
        if not isinstance(unit, Train):
            return bool(
                self.recorder_idle().run(
                    "SELECT 1 FROM cerebro.evaluation WHERE run = %s AND owner = current_user AND mst_key = %s"
                    " AND epoch = %s AND dataset = %s AND part = %s",
                    (self.run.id, unit.configuration, unit.epoch, unit.dataset, unit.part),
                )
            )
        found = self.recorder_idle().run(
            "SELECT rows, state_bytes, state_sha256 FROM cerebro.hop"
            " WHERE run = %s AND owner = current_user AND mst_key = %s AND hop = %s",
            (self.run.id, unit.configuration, unit.hop),
        )
        configuration = self.run.configurations[unit.configuration]
        if found and configuration.hops < unit.hop:
            rows, configuration.state_bytes, configuration.sha256 = found[0]
            configuration.hops, configuration.dist_key = unit.hop, seat.dist_key
            self.done += rows
        return bool(found)

    def _ended(self, seat: Seat, reason: str, *, try_again: bool) -> Outcome:
        unit, seat.unit = seat.unit, None
        assert unit is not None
        if try_again:
            seat.failing.add(unit.configuration)
            if len(seat.failing) >= SICK_AFTER:
                raise TrainerFailed(
                    f"segment {seat.segment} fails whatever it trains: {reason}",
                    hint=f"Mend it (SELECT * FROM cerebro.doctor() may tell), then SELECT cerebro.resume({self.run.id}).",
                )
        return Outcome(unit, error=reason, try_again=try_again)

    # -- the two kinds of units ---------------------------------------------------------------------

    def train(self, seat: Seat, unit: Train) -> Steps:
        """One hop.  Returns the reason if the configuration must stop, else None: it is committed."""
        run, configuration = self.run, self.run.configurations[unit.configuration]
        rows = yield (
            "INSERT INTO cerebro.attempt (run, mst_key, hop, segment, worker_pid) VALUES (%s, %s, %s, %s, %s)"
            " RETURNING started_at",
            (run.id, unit.configuration, unit.hop, unit.segment, seat.worker_pid),
        )
        started_at = rows[0][0]
        handle, reading = yield from self.team.read(seat, run.source, unit.segment)
        order = {
            "work": "train",
            "configuration": configuration.definition,
            "handle": handle,
            "seed": configuration.seed,
            "shuffle_seed": shuffle_seed(run, configuration, unit.hop),
            "hop": unit.hop,
        }
        result, loading = yield from self.with_state(seat, configuration, unit.hop - 1, order)
        if not result.get("finite", True) and run.options.get("nan") != "keep":
            return f"the loss became {result['loss']} in epoch {unit.epoch} on segment {unit.segment}"
        state, seconds = result["state"], result["seconds"]
        seconds = {
            "data": reading,
            "build": seconds.get("build", 0.0),
            "load": seconds.get("load", 0.0) + loading,
            "train": seconds.get("train", 0.0),
        }
        leaf = run.leaf(configuration, unit.hop)
        yield (
            f"BEGIN; {run.empty_leaf_sql(self.team.dialect, configuration, unit.hop)}"
            f" INSERT INTO {leaf} (__dist_key__, hop, start, payload)"
            f" SELECT s.__dist_key__, {int(unit.hop)}, (s.made).start, (s.made).payload"
            f" FROM ({self.team.dialect.made_on_segment('cerebro._state_out()', seat.dist_key)}) s;"
            " INSERT INTO cerebro.hop (run, mst_key, hop, epoch, segment, started_at, worker_pid, trainer_pid, rows,"
            "  steps, loss, metric, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)"
            " SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
            "  %s::jsonb || jsonb_build_object('save', %s + extract(epoch FROM clock_timestamp() - now()));"
            " COMMIT",
            (
                run.id,
                unit.configuration,
                unit.hop,
                unit.epoch,
                unit.segment,
                started_at,
                result["worker_pid"],
                result["trainer_pid"],
                result["rows"],
                result["steps"],
                result["loss"],
                first_metric(result["metrics"]),
                plain_json(result["metrics"]),
                state["bytes"],
                state["sha256"],
                state["weights_offset"],
                state["weights_bytes"],
                json.dumps(seconds),
                result["seconds"].get("save", 0.0),
            ),
        )
        configuration.hops, configuration.sha256 = unit.hop, state["sha256"]
        configuration.state_bytes, configuration.dist_key = state["bytes"], seat.dist_key
        seat.held[unit.configuration] = (unit.hop, state["token"])
        self.done += result["rows"]
        if unit.hop > 1 and state["bytes"] > FREE_AT_ONCE:
            yield emptied_sql([run.leaf(configuration, unit.hop - 1)]), None
        return None

    def evaluate(self, seat: Seat, unit: Evaluate) -> Steps:
        run, configuration = self.run, self.run.configurations[unit.configuration]
        rows = yield "SELECT clock_timestamp()", None
        started_at = rows[0][0]
        handle, reading = yield from self.team.read(seat, run.data(unit.dataset), unit.part)
        order = {"work": "evaluate", "configuration": configuration.definition, "handle": handle}
        result, loading = yield from self.with_state(seat, configuration, unit.hop, order)
        seconds = {**result["seconds"], "data": reading}
        seconds["load"] = seconds.get("load", 0.0) + loading
        yield (
            "INSERT INTO cerebro.evaluation (run, mst_key, epoch, dataset, part, segment, started_at, worker_pid, rows,"
            " loss, metric, metrics, seconds) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                run.id,
                unit.configuration,
                unit.epoch,
                unit.dataset,
                unit.part,
                unit.segment,
                started_at,
                result["worker_pid"],
                result["rows"],
                result["loss"],
                first_metric(result["metrics"]),
                plain_json(result["metrics"]),
                json.dumps(seconds),
            ),
        )
        return None

    def with_state(self, seat: Seat, configuration: Configuration, hop: int, order: dict[str, Any]) -> Steps:
        """Give an order that needs the state after a hop: (result, seconds spent fetching the state)."""
        order = {**order, "state_bytes": configuration.state_bytes}
        if hop == 0 and configuration.initial == "random":
            result = yield from self.team.order(seat, {**order, "state": {"kind": "none"}})
            return result, 0.0
        held = seat.held.get(configuration.key)
        if held is not None and held[0] == hop:
            try:
                result = yield from self.team.order(seat, {**order, "state": {"kind": "held", "token": held[1]}})
                return result, 0.0
            except Refused as refused:
                if refused.kind != "WrongState":
                    raise
                del seat.held[configuration.key]
        started = time.monotonic()
        ticket = f"{self.run.id}/{configuration.key}/{hop}/{started}"
        leaf, here, there = self.run.leaf(configuration, hop), seat.dist_key, configuration.dist_key
        where = f"hop = {int(hop)}"
        if self.team.dialect.greenplum:
            # The rows themselves hop: a segment can hand its function only what it stores.  Rows that an earlier
            # attempt has left do no harm: they are the same bytes at the same places.
            if here != there:
                yield (
                    f"INSERT INTO {leaf} SELECT {here}, hop, start, payload FROM {leaf} WHERE {where}"
                    f" AND __dist_key__ = {there}",
                    None,
                )
            where += f" AND __dist_key__ = {here}"
        yield f"SELECT cerebro._state_in(%s, start, payload) FROM {leaf} WHERE {where}", (ticket,)
        loading = time.monotonic() - started
        state = {
            "kind": configuration.initial if hop == 0 else "full",
            "ticket": ticket,
            "sha256": configuration.sha256,
        }
        result = yield from self.team.order(seat, {**order, "state": state})
        return result, loading

    # -- telling others -----------------------------------------------------------------------------

    def rows_under_way(self) -> int:
        return sum(
            int(seat.session.progress.get("rows", 0))
            for seat in self.team.seats
            if isinstance(seat.unit, Train) and seat.session.progress
        )

    def beat(self, *, last: bool = False) -> None:
        """Once a second: say how far we are, and hear whether another session wants the run to end."""
        if self.recorder.work is not None and not last:
            finished, wanted = self.recorder.advance()
            if finished and wanted:
                raise Cancelled(
                    f"run {self.run.id} was cancelled", hint=f"SELECT cerebro.resume({self.run.id}) goes on."
                )
        now = time.monotonic()
        if self.most_seconds is not None and now - self.started > self.most_seconds and not last:
            raise Cancelled(
                f"run {self.run.id} was ended: it took the {self.most_seconds} s that a run of yours may take"
                " at a stretch",
                hint=f"SELECT cerebro.resume({self.run.id}) goes on. {limits.SEE}",
            )
        if now - self.beat_at < HEARTBEAT_EVERY and not last:
            return
        self.beat_at = now
        done = min(self.done + self.rows_under_way(), self.total)
        if last:
            self.recorder_idle()
        if self.recorder.work is None:
            self.recorder.begin(self._heartbeat(done))
        tenth = 10 * done // max(self.total, 1)
        if self.told < tenth < 10 and not last:
            self.told = tenth
            self._tell(done, now)

    def _heartbeat(self, done: int) -> Steps:
        yield (
            "INSERT INTO cerebro.heartbeat (run, rows_done, rows_total) VALUES (%s, %s, %s)",
            (self.run.id, done, self.total),
        )
        rows = yield (
            "SELECT event = 'cancel requested' FROM cerebro.event WHERE run = %s AND owner = current_user"
            " AND event IN ('started', 'cancel requested') ORDER BY event_id DESC LIMIT 1",
            (self.run.id,),
        )
        return bool(rows and rows[0][0])

    def _tell(self, done: int, now: float) -> None:
        speed = (done - self.done_before) / max(now - self.started, 0.001)
        if speed <= 0:
            return
        statuses = [mine.status for mine in self.schedule.progress.values()]
        failed = statuses.count(Status.FAILED)
        self.db.notice(
            f"{100 * done / self.total:3.0f} %  {statuses.count(Status.FINISHED)} of {len(statuses)} configurations"
            f" finished{f', {failed} failed' if failed else ''}, {speed:,.0f} rows/s,"
            f" about {(self.total - done) / speed:.0f} s left"
        )

    def recorder_idle(self) -> Session:
        """The recorder, once what it was writing is written."""
        while self.recorder.work is not None:
            finished, _ = self.recorder.advance()
            if not finished:
                wait_any([self.recorder], LISTEN_EVERY)
        return self.recorder


def drive(db: Database, run: Run, team: Team, recorder: Session) -> None:
    """Take a claimed run to its end; whatever stops it is on record before it is raised."""
    try:
        build_once(db, run, team, recorder)
        schedule = schedule_of(recorder, run)
        driver = Driver(db, run, schedule, team, recorder)
        orchestrator.run(schedule, driver)
        driver.beat(last=True)
        free_old_states(driver.recorder_idle(), run)
        require_success(run, schedule)
        note(recorder, run.id, "finished")
    except BaseException as error:
        team.abandon()
        record_end(db, run.owner, recorder, run.id, error)
        raise


def build_once(db: Database, run: Run, team: Team, recorder: Session) -> None:
    """Have the trainers build every configuration that was never built, before any of them trains.

    What cannot be built, or does not fit the rows, fails here and alone; what can be tells how much
    memory and disk the run will need.
    """
    fresh = [configuration for configuration in run.configurations.values() if not configuration.built]
    if fresh:
        failed = {}
        for key, found in described_for_sure(team, run, fresh).items():
            if isinstance(found, CerebroError):
                failed[key] = found
                note(recorder, run.id, "configuration failed", key, reason=found.message)
            else:
                run.configurations[key].state_bytes = found["state_bytes"]
                note(recorder, run.id, "built", key, parameters=found["parameters"], state_bytes=found["state_bytes"])
        if len(failed) == len(run.configurations):
            key, error = next(iter(failed.items()))
            error.message = f"mst_key {key}: {error.message}"
            raise error
        for key, error in failed.items():
            db.warning(f"mst_key {key} failed: {error.message}", hint=error.hint)
    require_room(recorder, run)
    say_needs(db, run)


def require_room(recorder: Session, run: Run) -> None:
    figures = limits.of_session(recorder)
    if figures["state_bytes"][0] is not None:
        stored = recorder.run(
            "SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s AND starts_with(c.relname::text, %s)",
            (STATES, f"{run.storage}_"),
        )[0][0]
        limits.require_states(figures, [c.state_bytes for c in run.configurations.values()], stored)


def described_for_sure(team: Team, run: Run, configurations: Sequence[Configuration]) -> dict[int, Any]:
    """As ``described``; a trainer or a session that dies meanwhile says little about a configuration: again."""
    answers: dict[int, Any] = {}
    for tries_left in reversed(range(MOST_TRIES)):
        missing = [c for c in configurations if isinstance(answers.get(c.key, TrainerFailed("")), TrainerFailed)]
        if not missing:
            break
        try:
            answers.update(described(team, run, missing))
        except psycopg2.Error as error:
            if not tries_left or error.pgcode not in LOST:
                raise failure_of("a worker session", error) from error
            team.open()
    return answers


def described(team: Team, run: Run, configurations: Sequence[Configuration]) -> dict[int, Any]:
    """For each configuration what a trainer says of it, or the error that it is."""
    kinds: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        # Configurations that differ only in the optimizer's numbers are built alike.
        compiled = configuration.definition["compile"]
        optimizer = {**compiled["optimizer"], "config": sorted(compiled["optimizer"].get("config") or {})}
        kind = json.dumps([configuration.model_id, {**compiled, "optimizer": optimizer}], sort_keys=True)
        kinds.setdefault(kind, []).append(configuration)
    layout = {side: run.source.layout[side] for side in ("inputs", "outputs")}

    def look_at(seat: Seat, mine: list[str]) -> Steps:
        found: dict[str, Any] = {}
        for kind in mine:
            order = {"work": "describe", "configuration": kinds[kind][0].definition, "layout": layout}
            try:
                found[kind] = yield from team.order(seat, order)
            except Refused as refused:
                found[kind] = refused.error
        return found

    shares = {seat.segment: list(kinds)[seat.segment :: len(team.seats)] for seat in team.seats}
    work = {segment: look_at(team.seats[segment], share) for segment, share in shares.items() if share}
    answers = {kind: found for part in team.run_all(work).values() for kind, found in part.items()}
    return {configuration.key: answers[kind] for kind, alike in kinds.items() for configuration in alike}


def say_needs(db: Database, run: Run) -> None:
    """What the run will take of the machine, and a warning where it has less."""
    states = [configuration.state_bytes for configuration in run.configurations.values()]
    disk = 2 * sum(states)
    largest_part = max(partition["bytes"] for partition in run.source.partitions)
    memory = run.segments * ((FRAMEWORK_MB << 20) + largest_part + 3 * max(states))
    db.notice(
        f"up to {megabytes(disk)} of disk for model states and about {megabytes(memory)} of memory"
        f" for {run.segments} trainers"
    )
    free_disk, free_memory = disk_available(), memory_available()
    if disk > free_disk:
        db.warning(
            f"only {megabytes(free_disk)} of disk are free",
            hint="Train fewer or smaller configurations at once, or make room: a run can be resumed.",
        )
    if free_memory is not None and memory > free_memory:
        db.warning(
            f"only {megabytes(free_memory)} of memory are available",
            hint="Pack into fewer segments: training_preprocessor_dl(..., segments => 1).",
        )


def require_success(run: Run, schedule: Schedule) -> None:
    if any(mine.status is Status.FINISHED for mine in schedule.progress.values()):
        return
    reason = next(iter(schedule.progress.values())).reason
    raise ConfigurationFailed(
        f"run {run.id}: every configuration failed; the first because {reason}",
        hint=f"SELECT mst_key, reason FROM cerebro.leaderboard WHERE run = {run.id};",
    )


def record_end(db: Database, owner: str, recorder: Session, run_id: int, error: BaseException) -> None:
    """Say in the log why a run ended early.  Nothing here may listen: the cancel was heard already."""
    cancelled = getattr(error, "sqlstate", None) == CANCELLED or isinstance(error, KeyboardInterrupt)
    event, message = "cancelled" if cancelled else "failed", first_line(error)
    recorder.settle()
    try:
        _note_end(recorder, run_id, event, message)
    except psycopg2.Error:
        # It may be the recorder that was lost.  Without an end on record the run would be "running" for as
        # long as this session lives.
        with contextlib.suppress(psycopg2.Error, CerebroError):
            another = logins.connect_as(db, owner, "cerebro_db recorder", lambda: None)
            _note_end(another, run_id, event, message)
            another.close()


def _note_end(recorder: Session, run_id: int, event: str, message: str) -> None:
    last = recorder.run(
        "SELECT event FROM cerebro.event WHERE run = %s AND owner = current_user"
        " AND event IN ('started', 'finished', 'failed', 'cancelled') ORDER BY event_id DESC LIMIT 1",
        (run_id,),
    )
    if last and last[0][0] == "started":
        note(recorder, run_id, event, message=message)


def free_old_states(recorder: Session, run: Run) -> None:
    """Once a run is finished only the last state of each configuration is kept (it may be extended)."""
    old = [run.leaf(c, c.hops - 1) for c in run.configurations.values() if c.hops > 1]
    for start in range(0, len(old), 50):
        recorder.run(emptied_sql(old[start : start + 50]))


# -- small things --------------------------------------------------------------------------------------


def first_metric(metrics: dict[str, Any]) -> float | None:
    return next(iter(metrics.values()), None)


def plain_json(metrics: dict[str, Any]) -> str:
    """JSON has no NaN."""
    return json.dumps({name: value if math.isfinite(value) else None for name, value in metrics.items()})


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def failure_of(where: str, error: psycopg2.Error) -> CerebroError:
    """A statement failed for a reason of the database's: this concerns the whole run."""
    diagnosis = error.diag
    message = f"{where}: {diagnosis.message_primary or first_line(error)}"
    if error.pgcode in ("53100", "53200"):
        failure: CerebroError = OutOfResources(
            message, hint="Make room, then SELECT cerebro.resume(run) goes on where it stopped."
        )
    elif error.pgcode == "42P01":
        failure = CorruptState(message, hint="A table that the run needs was dropped.")
    else:
        failure = CerebroError(message, hint=diagnosis.message_hint)
    failure.detail = diagnosis.message_detail
    failure.sqlstate = error.pgcode or failure.sqlstate
    return failure


def megabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{max(1, round(size / 2**20)):,} MB"


def disk_available() -> int:
    room = os.statvfs(os.getcwd())
    return room.f_bavail * room.f_frsize


def memory_available() -> int | None:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
