"""The real ports of the orchestrator: N worker sessions, each with a trainer, and a recorder.

The driver lives in the session that called the fit function.  It never trains and never imports a
framework; it sends statements, and between two looks at its sessions it listens for cancel.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import psycopg2

from cerebro_db.core import orchestrator
from cerebro_db.core.errors import Cancelled, CerebroError, ConfigurationFailed, TrainerFailed
from cerebro_db.core.orchestrator import Outcome
from cerebro_db.core.schedule import Evaluate, Schedule, Status, Train, Unit

from . import limits
from .building import build_once
from .db import Database
from .dialect import lost_a_segment
from .machine import cores
from .runs import MOST_TOGETHER, Configuration, DataSet, Run, emptied_sql, note, schedule_of, shuffle_seed
from .sessions import LISTEN_EVERY, Session, wait_any
from .team import CANCELLED, Refused, Seat, Steps, Team, failure_of, first_line
from .turns import Turn, TurnSteps

HEARTBEAT_EVERY = 1.0  # seconds
TELL_EVERY = 60.0  # seconds; a notice comes with every tenth of a run, too
SICK_AFTER = 3  # configurations in a row whose trainer died on one segment: it is the segment's fault, not theirs
FREE_AT_ONCE = 1 << 20  # an old state larger than this is gone when the new one is committed
# Segments read ahead and store behind where that takes more than this share of the time of training: to choose the next
# unit early costs the schedule some freedom. And where a unit's states may have so many bytes: less is fetched and
# stored in milliseconds; of more a segment should not hold two in memory.
AHEAD_ABOVE = 0.2
AHEAD_FROM, AHEAD_TO = 1 << 20, 256 << 20


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
        self.started = self.told_at = time.monotonic()
        self.done_before = self.done
        self.most_seconds, _ = limits.of_session(recorder)["run_seconds"]
        largest = max(c.state_bytes * (MOST_TOGETHER if c.alike else 1) for c in run.configurations.values())
        # Trainers that keep all processors busy are only held up by what goes on beside them.
        room = run.options["threads"] > 1 or cores() > run.segments or bool(run.options.get("gpus"))
        self.may_read_ahead = room and AHEAD_FROM <= largest <= AHEAD_TO
        self.training = self.moving = 0.0  # seconds of all hops so far: at the rows, and on fetching and storing states

    # -- ports ------------------------------------------------------------------------------------

    def start(self, units: Sequence[Unit]) -> None:
        seat = self.team.seats[units[0].segment]
        turn = Turn(list(units), time.monotonic(), begun=not seat.turns.under_way)
        self._begin(seat, turn)

    def _begin(self, seat: Seat, turn: Turn) -> None:
        turn.steps, turn.statement = self._steps(seat, turn), None
        seat.turns.under_way.append(turn)
        if seat.session.work is None:
            seat.session.begin(seat.turns.work())

    def reads_ahead(self, segment: int) -> bool:
        turns = self.team.seats[segment].turns
        return self.ahead and len(turns.under_way) == 1 and turns.computing is not None and turns.computing.shares

    @property
    def ahead(self) -> bool:
        """Whether to read ahead; it has no influence on what comes of it."""
        wanted = self.run.options.get("read_ahead")
        if wanted is None:
            return self.may_read_ahead and self.moving > AHEAD_ABOVE * self.training
        return bool(wanted)

    def wait(self) -> list[Outcome]:
        busy = [seat for seat in self.team.seats if seat.turns.under_way]
        wait_any([seat.session for seat in busy], LISTEN_EVERY)
        self.team.listen()
        outcomes = [outcome for seat in busy for outcome in self._look(seat)]
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

    def _steps(self, seat: Seat, turn: Turn) -> TurnSteps:
        """For each unit the reason if it must stop, else None: it is committed.  And what the trainer has refused."""
        first = turn.units[0]
        try:
            if isinstance(first, Evaluate):
                reasons = yield from self.evaluate(seat, turn, first)
            else:
                reasons = yield from self.train(seat, turn, [unit for unit in turn.units if isinstance(unit, Train)])
            return reasons, None
        except Refused as refused:
            return [], refused

    def _look(self, seat: Seat) -> list[Outcome]:
        """What became of a segment's units, of those that have ended."""
        lost, turns = None, seat.turns
        try:
            seat.session.advance()
        except psycopg2.Error as error:
            lost = error
        over, turns.over = turns.over, []
        outcomes = [outcome for turn in over for outcome in self._settled(seat, turn)]
        return outcomes if lost is None else outcomes + self._after_loss(seat, lost)

    def _settled(self, seat: Seat, turn: Turn) -> list[Outcome]:
        reasons, refused = turn.result
        if refused is None:
            seat.failing.clear()
            return _ended(turn, reasons, try_again=False)
        if refused.kind == "DiskFull":
            raise refused.error from refused  # no configuration's fault
        lost = refused.kind in ("TrainerFailed", "CorruptState")
        if lost:
            seat.held.clear()
        # Of several, whose fault it is shows when each is tried alone.
        try_again, reason = lost or len(turn.units) > 1, refused.error.message
        if try_again:
            self._suspect(seat, turn, reason)
        return _ended(turn, [reason] * len(turn.units), try_again=try_again)

    def _after_loss(self, seat: Seat, error: psycopg2.Error) -> list[Outcome]:
        """A session is gone, and what it was doing."""
        if lost_a_segment(error):
            self.run.segments_lost = True
        elif not seat.session.lost and error.pgcode != CANCELLED:
            raise failure_of(f"segment {seat.segment}", error) from error
        reason, asked, abandoned = first_line(error), seat.turns.asked, seat.turns.abandon()
        self.team.replace(seat)
        outcomes = []
        for turn in abandoned:
            if turn is asked:
                reasons = [None if self.committed(seat, unit) else reason for unit in turn.units]
                outcomes += _ended(turn, reasons, try_again=True)
                if all(reasons):
                    self._suspect(seat, turn, reason)
            else:  # the session was lost at another's statement
                turn.started, turn.begun, turn.rows = time.monotonic(), True, 0
                self._begin(seat, turn)
        return outcomes

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

    def _suspect(self, seat: Seat, turn: Turn, reason: str) -> None:
        """A trainer or a session has died at this; with others before, it is the segment that fails."""
        seat.failing.add(turn.units[0].configuration)
        if len(seat.failing) >= SICK_AFTER:
            raise TrainerFailed(
                f"segment {seat.segment} fails whatever it trains: {reason}",
                hint=f"SELECT * FROM cerebro.doctor() may tell why; then SELECT cerebro.resume({self.run.id}).",
            )

    # -- the two kinds of units ---------------------------------------------------------------------

    def train(self, seat: Seat, turn: Turn, units: list[Train]) -> TurnSteps:
        """A hop, or several that train together.  For each the reason if it must stop, else None: it is committed."""
        run = self.run
        members, states = [], []
        for unit in units:
            configuration = run.configurations[unit.configuration]
            members.append(
                {
                    "configuration": configuration.definition,
                    "seed": configuration.seed,
                    "shuffle_seed": shuffle_seed(run, configuration, unit.hop),
                    "hop": unit.hop,
                }
            )
            states.append((configuration, unit.hop - 1))
        engine = run.configurations[units[0].configuration].engine
        order = {"work": "train", "engine": engine, "members": members}
        ahead = yield from self.fetch_ahead(seat, turn, states)
        with seat.turns.computes(turn):
            seat.session.progress = None
            started_at = yield (
                "INSERT INTO cerebro.attempt (run, mst_key, hop, segment, worker_pid) VALUES "
                + ", ".join(["(%s, %s, %s, %s, %s)"] * len(units))
                + " RETURNING started_at",
                [
                    value
                    for unit in units
                    for value in (run.id, unit.configuration, unit.hop, unit.segment, seat.worker_pid)
                ],
            )
            seat.turns.since = started_at[0][0]
            result, seconds = yield from self.compute(seat, turn, (run.source, units[0].segment), states, ahead, order)
        turn.rows = sum(trained["rows"] for trained in result["members"])
        while seat.turns.followed(turn) and seat.turns.since is None:
            yield None  # who comes next has the trainer compute before this one stores
        behind = seat.turns.since  # when that was
        reasons: list[str | None] = []
        sql, values = ["BEGIN"], []
        kept = []
        for place, (unit, (began,), trained) in enumerate(zip(units, started_at, result["members"])):
            if not trained["finite"] and run.options.get("nan") != "keep":
                reasons.append(f"the loss became {trained['loss']} in epoch {unit.epoch} on segment {unit.segment}")
                continue
            reasons.append(None)
            kept.append((unit, trained))
            share = {stage: round(spent / len(units), 6) for stage, spent in seconds.items()}
            saving = share.pop("save", 0.0)
            sql += self._saving(seat, unit, result["unit"], place, behind=behind is not None)
            values += [
                run.id,
                unit.configuration,
                unit.hop,
                unit.epoch,
                unit.segment,
                began,
                result["worker_pid"],
                result["trainer_pid"],
                trained["rows"],
                trained["steps"],
                trained["loss"],
                first_metric(trained["metrics"]),
                plain_json(trained["metrics"]),
                trained["state"]["bytes"],
                trained["state"]["sha256"],
                trained["state"]["weights_offset"],
                trained["state"]["weights_bytes"],
                json.dumps({**share, "together": len(units)} if len(units) > 1 else share),
                saving,
                *([] if behind is None else [behind]),
                len(units),
            ]
        old = [
            run.leaf(run.configurations[unit.configuration], unit.hop - 1)
            for unit, trained in kept
            if unit.hop > 1 and trained["state"]["bytes"] > FREE_AT_ONCE
        ]
        if old:
            sql.append(emptied_sql(old).rstrip(";"))
        if kept:
            before = time.monotonic()
            yield "; ".join([*sql, "COMMIT"]), values
            if not turn.shares:
                self.moving += time.monotonic() - before
        for unit, trained in kept:
            configuration, state = run.configurations[unit.configuration], trained["state"]
            configuration.hops, configuration.sha256 = unit.hop, state["sha256"]
            configuration.state_bytes, configuration.dist_key = state["bytes"], seat.dist_key
            if "token" in state and behind is None:
                seat.held[unit.configuration] = (unit.hop, state["token"])
            self.done += trained["rows"]
        return reasons

    def _saving(self, seat: Seat, unit: Train, left_by: int, place: int, *, behind: bool) -> list[str]:
        """The statements that store the state of one who trained, and its record.

        That is part of saving, or it is ``behind``: the segment's trainer is at the next one's since some moment.
        """
        configuration = self.run.configurations[unit.configuration]
        leaf, dialect = self.run.leaf(configuration, unit.hop), self.team.dialect
        join = ", 'behind'," if behind else "+"
        took = f"extract(epoch FROM clock.finished_at - {'%s' if behind else 'now()'}) / %s"
        return [
            self.run.empty_leaf_sql(dialect, configuration, unit.hop).rstrip(";"),
            f"INSERT INTO {leaf} (__dist_key__, hop, start, payload)"
            f" SELECT s.__dist_key__, {int(unit.hop)}, (s.made).start, (s.made).payload"
            f" FROM ({dialect.made_on_segment(f'cerebro._state_out({int(left_by)}, {int(place)})', seat.dist_key)}) s",
            "INSERT INTO cerebro.hop (run, mst_key, hop, epoch, segment, started_at, worker_pid, trainer_pid, rows,"
            "  steps, loss, metric, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds,"
            "  finished_at)"
            " SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
            f"  %s::jsonb || jsonb_build_object('save', %s {join} {took}), clock.finished_at"
            " FROM (SELECT clock_timestamp() AS finished_at) clock",
        ]

    def evaluate(self, seat: Seat, turn: Turn, unit: Evaluate) -> TurnSteps:
        """Returns one None, as ``train`` does: an evaluation has no reason to stop."""
        run, configuration = self.run, self.run.configurations[unit.configuration]
        order = {"work": "evaluate", "engine": configuration.engine, "configuration": configuration.definition}
        states = [(configuration, unit.hop)]
        ahead = yield from self.fetch_ahead(seat, turn, states)
        with seat.turns.computes(turn):
            seat.session.progress = None
            ((started_at,),) = yield "SELECT clock_timestamp()", None
            seat.turns.since = started_at
            part = run.data(unit.dataset), unit.part
            result, seconds = yield from self.compute(seat, turn, part, states, ahead, order)
            yield (
                "INSERT INTO cerebro.evaluation (run, mst_key, epoch, dataset, part, segment, started_at, worker_pid,"
                " rows, loss, metric, metrics, seconds) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
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
        return [None]

    def fetch_ahead(self, seat: Seat, turn: Turn, wanted: list[tuple[Configuration, int]]) -> TurnSteps:
        """The states that were fetched while the trainer was another's, if it was; it is free then."""
        if turn.begun:
            return None
        states = yield from self.fetch_all(seat, wanted)
        while seat.turns.computing is not None:
            yield None
        turn.begun, turn.started = True, time.monotonic()
        return states

    def compute(
        self,
        seat: Seat,
        turn: Turn,
        partition: tuple[DataSet, int],
        wanted: list[tuple[Configuration, int]],
        states: list[Any] | None,
        order: dict[str, Any],
    ) -> Steps:
        """Give an order that needs rows, and states, each of a configuration after a hop: (result, its seconds).

        The states were fetched already, or they are now, unless the trainer still holds the only one.
        """
        try:
            handle, reading = yield from self.team.read(seat, *partition)
        except Refused:
            tickets = [state["ticket"] for state in states or [] if "ticket" in state]
            if tickets:
                yield from self.team.order(seat, {"work": "drop", "tickets": tickets})
            raise
        turn.shares = self.ahead or states is not None
        give = self.team.order_and_share if turn.shares else self.team.order
        state_bytes = sum(configuration.state_bytes for configuration, _ in wanted)
        order = {**order, "handle": handle, "state_bytes": state_bytes}
        result, fetching = None, 0.0
        if states is None and len(wanted) == 1:
            ((configuration, hop),) = wanted
            held = seat.held.get(configuration.key)
            if held is not None and held[0] == hop:
                try:
                    result = yield from give(seat, {**order, "states": [{"kind": "held", "token": held[1]}]})
                except Refused as refused:
                    if refused.kind != "WrongState":
                        raise
                    del seat.held[configuration.key]
        if result is None:
            started = time.monotonic()
            if states is None:
                states = yield from self.fetch_all(seat, wanted)
            fetching = time.monotonic() - started
            result = yield from give(seat, {**order, "states": states})
        if not turn.shares:  # else it would be waiting for others, too
            self.moving += fetching
            self.training += result["seconds"].get("train", 0.0) + result["seconds"].get("evaluate", 0.0)
        return result, {"data": reading, **result["seconds"], "load": result["seconds"].get("load", 0.0) + fetching}

    def fetch_all(self, seat: Seat, wanted: list[tuple[Configuration, int]]) -> Steps:
        states = []
        for configuration, hop in wanted:
            states.append((yield from self.fetch(seat, configuration, hop)))
        return states

    def fetch(self, seat: Seat, configuration: Configuration, hop: int) -> Steps:
        """Bring the state after a hop to a segment; how an order names it there."""
        if hop == 0 and configuration.initial == "random":
            return {"kind": "none"}
        ticket = f"{self.run.id}/{configuration.key}/{hop}/{time.monotonic()}"
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
        kind = configuration.initial if hop == 0 else "full"
        return {"kind": kind, "ticket": ticket, "sha256": configuration.sha256}

    # -- telling others -----------------------------------------------------------------------------

    def rows_under_way(self) -> int:
        rows = 0
        for seat in self.team.seats:
            rows += sum(turn.rows for turn in seat.turns.under_way)
            computing = seat.turns.computing
            if computing is not None and isinstance(computing.units[0], Train):
                rows += int((seat.session.progress or {}).get("rows", 0))
        return rows

    def beat(self, *, last: bool = False) -> None:
        """Once a second: say how far we are."""
        if not last:
            self.recorder.attend()
        now = time.monotonic()
        if self.most_seconds is not None and now - self.started > self.most_seconds and not last:
            raise Cancelled(
                f"run {self.run.id} was ended: it took the {self.most_seconds} s that a run of yours may take"
                " at a stretch",
                hint=f"SELECT cerebro.resume({self.run.id}) goes on. {limits.SEE}",
            )
        if now - self.beat_at < HEARTBEAT_EVERY and not last:
            return
        done = min(self.done + self.rows_under_way(), self.total)
        if last:
            self.recorder_idle()
        if self.recorder.work is None:  # else in a moment: it asks about something else
            self.beat_at = now
            self.recorder.begin(self._heartbeat(done))
        tenth = 10 * done // max(self.total, 1)
        if (self.told < tenth < 10 or now - self.told_at > TELL_EVERY) and done > self.done_before and not last:
            self.told, self.told_at = tenth, now
            self._tell(done, now)

    def _heartbeat(self, done: int) -> Steps:
        yield (
            "INSERT INTO cerebro.heartbeat (run, rows_done, rows_total) VALUES (%s, %s, %s)",
            (self.run.id, done, self.total),
        )

    def _tell(self, done: int, now: float) -> None:
        speed = (done - self.done_before) / max(now - self.started, 0.001)
        statuses = [mine.status for mine in self.schedule.progress.values()]
        failed = statuses.count(Status.FAILED)
        self.db.notice(
            f"{100 * done / self.total:3.0f} %  {statuses.count(Status.FINISHED)} of {len(statuses)} configurations"
            f" finished{f', {failed} failed' if failed else ''}, {speed:,.0f} rows/s,"
            f" about {(self.total - done) / speed:.0f} s left"
        )

    def recorder_idle(self) -> Session:
        """The recorder, once what it was writing is written."""
        self.recorder.finish()
        return self.recorder


def _ended(turn: Turn, reasons: Sequence[str | None], *, try_again: bool) -> list[Outcome]:
    """The units are over; those with a reason have come to nothing."""
    share = (time.monotonic() - turn.started) / len(turn.units)
    return [
        Outcome(unit, seconds=share, error=reason, try_again=try_again) for unit, reason in zip(turn.units, reasons)
    ]


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
        record_end(recorder, run.id, error)
        raise


def require_success(run: Run, schedule: Schedule) -> None:
    if any(mine.status is Status.FINISHED for mine in schedule.progress.values()):
        return
    reason = next(iter(schedule.progress.values())).reason
    raise ConfigurationFailed(
        f"run {run.id}: every configuration failed; the first because {reason}",
        hint=f"SELECT mst_key, reason FROM cerebro.leaderboard WHERE run = {run.id};",
    )


def record_end(recorder: Session, run_id: int, error: BaseException) -> None:
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
            assert recorder.another is not None
            another = recorder.another(lambda: None)
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


def first_metric(metrics: dict[str, Any]) -> float | None:
    return next(iter(metrics.values()), None)


def plain_json(metrics: dict[str, Any]) -> str:
    """JSON has no NaN."""
    return json.dumps({name: value if math.isfinite(value) else None for name, value in metrics.items()})
