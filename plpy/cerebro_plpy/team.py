"""The worker sessions of a run, one per segment, and what one can have their trainers do."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import psycopg2

from cerebro_db.core.errors import MAKE_ROOM, Cancelled, CerebroError, CorruptState, OutOfResources, from_told
from cerebro_db.core.names import quote

from . import limits, logins, waiting
from .db import Database
from .dialect import SEGMENTS_DOWN, Dialect, lost_a_segment
from .interrupts import Listen, listener
from .runs import STATES, DataSet
from .sessions import ENDURE, LISTEN_EVERY, Rows, Session, Statement, wait_any
from .trainer import HANG_AFTER
from .turns import Patient, Turns

CANCELLED = "57014"
LOST = (None, CANCELLED, "57P01", "57P02", "57P03")  # what a session says, if anything, that somebody has ended
CANCEL_EVERY = 1.0  # seconds between two looks for a cancel that was asked for elsewhere
LEAVE_WITHIN = 3.0  # seconds that cancelled workers get to come back
PATIENCE = 0.1  # seconds that a session waits for a trainer, when there may be something else to do

Steps = Generator[Statement, Rows, Any]
Versions = Optional[list[tuple[Any, ...]]]  # of rows, as the system columns have them; None: it has none


class Refused(Exception):
    """The trainer said no to an order."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.kind = error["kind"]
        self.error = from_told(error)


@dataclass
class Seat:
    """One segment of a run, as the driver sees it: its session and what its trainer holds."""

    segment: int
    dist_key: int
    session: Session
    worker_pid: int  # of the process that has the trainer: on Greenplum a segment's, not the session's
    trainer_pid: int
    cached: dict[str, Versions] = field(default_factory=dict)  # handle -> which versions of the rows it holds
    looked_at: set[str] = field(default_factory=set)  # handles of which this call knows that they are those rows
    held: dict[int, tuple[int, str]] = field(default_factory=dict)  # configuration -> (hop, token)
    turns: Turns = field(default_factory=Turns)
    failing: set[int] = field(default_factory=set)  # configurations whose trainer died here, none done since

    def forget(self) -> None:
        """Another trainer knows nothing."""
        self.cached.clear()
        self.looked_at.clear()
        self.held.clear()

    def returned(self, opened: dict[str, Any]) -> None:
        """From another call, whose configurations had these numbers, too; the rows may be of use again."""
        if (self.worker_pid, self.trainer_pid) != (opened["worker_pid"], opened["trainer_pid"]):
            self.forget()
        self.worker_pid, self.trainer_pid = opened["worker_pid"], opened["trainer_pid"]
        self.looked_at.clear()
        self.held.clear()
        self.failing.clear()


def until_cancelled(own: Listen, recorder: Session, run_id: int) -> Listen:
    """Listens to the session we run in and, once a second, to ``cerebro.cancel()``; heard once, not again.

    The recorder asks, when it has nothing else to do.  Not our own session: on Greenplum it may have lost its segments
    while the run goes on.
    """
    asked_at, heard, told = time.monotonic(), False, False

    def ask() -> Steps:
        nonlocal heard
        rows = yield (
            "SELECT event = 'cancel requested' FROM cerebro.event WHERE run = %s AND owner = current_user"
            " AND event IN ('started', 'cancel requested') ORDER BY event_id DESC LIMIT 1",
            (run_id,),
        )
        heard = bool(rows and rows[0][0])

    def listen() -> None:
        nonlocal asked_at, told
        own()
        if recorder.work is not None:
            recorder.attend()
        elif not told and not recorder.busy and time.monotonic() - asked_at >= CANCEL_EVERY:
            asked_at = time.monotonic()
            recorder.begin(ask())
        if heard and not told:
            told = True
            raise Cancelled(f"run {run_id} was cancelled", hint=f"SELECT cerebro.resume({run_id}) goes on.")

    return listen


class Team:
    """The worker sessions, one per segment: those that wait for this call, or new ones."""

    # A trainer whose driver is gone must not go on for nobody, and Greenplum's own planner is to be left out.
    settings = {"client_connection_check_interval": "1s", "optimizer": "off"}

    def __init__(
        self,
        db: Database,
        owner: str,
        dist_keys: Sequence[int],
        options: dict[str, Any],
        listen: Listen | None = None,
    ) -> None:
        self.owner = logins.Owner.acting(db, owner)
        self.dist_keys = list(dist_keys)
        self.options = options
        self.dialect = Dialect.of(db)
        self.listen: Listen = listen or listener(db.plpy)
        self.db = db
        self.seats: list[Seat] = []
        if not waiting.take(self):
            waiting.make_room(db, len(self.dist_keys), self.listen, trainers=len(self.dist_keys))
            limits.require_connections(limits.of(db), len(self.dist_keys))
            self.open()

    def open(self) -> None:
        """Sessions and trainers for all segments."""
        try:
            for segment, dist_key in enumerate(self.dist_keys):
                self.seats.append(Seat(segment, dist_key, *self._open_in_time(segment)))
        except BaseException:
            self.close()
            raise

    def _open_in_time(self, segment: int) -> tuple[Session, int, int]:
        """A segment of Greenplum that lost a process is back in a moment."""
        deadline = time.monotonic() + ENDURE
        while True:
            try:
                return self._open(segment)
            except psycopg2.Error as error:
                if not lost_a_segment(error) or time.monotonic() > deadline:
                    raise failure_of(f"segment {segment}", error) from error
            time.sleep(LISTEN_EVERY)
            self.listen()

    def _open(self, segment: int) -> tuple[Session, int, int]:
        session = logins.session_of(self.owner, self.application(segment), self.listen)
        try:
            session.configure(**self.settings)
            opened = session.run(*self.open_trainer(segment))[0][0]
        except BaseException:
            session.close()
            raise
        return session, opened["worker_pid"], opened["trainer_pid"]

    def application(self, segment: int) -> str:
        return f"cerebro_db segment {segment}"

    def opening(self, segment: int) -> dict[str, Any]:
        """What the trainer of a segment is started with."""
        gpus = self.options.get("gpus")
        return {
            "engine": self.engine(segment),
            "threads": self.options["threads"],
            "deterministic": self.options["deterministic"],
            "gpu": gpus[segment] if gpus else None,
            "hang_after": self.options.get("hang_after", HANG_AFTER),
            "cache_mb": self.options.get("cache_mb"),
        }

    def engine(self, segment: int) -> str:
        """The one that a segment's trainer starts with; where the run needs several, segments start different ones."""
        first = self.options.get("start_with") or [self.options["engine"]]
        return first[segment % len(first)]

    def open_trainer(self, segment: int) -> Statement:
        """Sees to it that a segment has its trainer, and tells which processes they are."""
        where = self.dialect.on_segment(self.dist_keys[segment])
        return f"SELECT cerebro._worker_open(%s) {where}", (json.dumps(self.opening(segment)),)

    def replace(self, seat: Seat) -> None:
        """A new session and trainer for a segment whose old ones are gone."""
        self._end([seat])
        seat.forget()
        seat.session, seat.worker_pid, seat.trainer_pid = self._open_in_time(seat.segment)

    def order(self, seat: Seat, asked: dict[str, Any], *, kind: type[tuple[Any, ...]] = tuple) -> Steps:
        """Have a trainer do something; its answer, or Refused."""
        where = self.dialect.on_segment(seat.dist_key)
        rows = yield kind((f"SELECT cerebro._work(%s) {where}", (json.dumps(asked),)))
        reply = json.loads(rows[0][0])
        if "error" in reply:
            raise Refused(reply["error"])
        return reply["ok"]

    def order_and_share(self, seat: Seat, asked: dict[str, Any]) -> Steps:
        """As ``order``, but others may use the session while the trainer is at it."""
        yield from self.order(seat, {**asked, "wait": False})
        while True:
            answer = yield from self.order(seat, {"work": "result", "seconds": PATIENCE}, kind=Patient)
            if answer is not None:
                return answer

    def read(self, seat: Seat, data: DataSet, number: int) -> Steps:
        """See to it that a partition's rows are in the trainer's cache: (handle, seconds it took)."""
        partition = data.partition(number)
        handle = f"{data.table}/{number}/{partition['sha256']}"
        if handle in seat.looked_at:
            return handle, 0.0
        started = time.monotonic()
        versions = yield from self.versions(data.table, int(partition["key"]))
        if versions is not None and seat.cached.get(handle) == versions:
            seat.looked_at.add(handle)
            return handle, time.monotonic() - started
        # What a failed attempt may have left, and what earlier calls have read.
        for stale in {handle, *seat.cached} - seat.looked_at:
            yield from self.order(seat, {"work": "forget", "handle": stale})
            seat.cached.pop(stale, None)
        columns = [in_format(quote(name)) for name in data.variables]
        calls = ", ".join(f"cerebro._data_in(%s, %s, {column})" for column in columns)
        table, key, before, after = in_format(data.table), int(partition["key"]), "", ""
        if self.dialect.greenplum and key != seat.dist_key:
            # Validation data that was packed for another number of segments: its rows come here for once.
            elsewhere, table = table, f"{STATES}.{quote('part_' + secrets.token_hex(6))}"
            before = (
                f"BEGIN; CREATE TABLE {table} AS"
                f" SELECT {seat.dist_key} AS __dist_key__, buffer_id, {', '.join(columns)}"
                f" FROM {elsewhere} WHERE __dist_key__ = {key} DISTRIBUTED BY (__dist_key__); "
            )
            key, after = seat.dist_key, f"; DROP TABLE {table}; COMMIT"
        yield (
            f"{before}SELECT {calls} FROM {table} WHERE __dist_key__ = {key} ORDER BY buffer_id{after}",
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
        seat.cached[handle] = versions
        seat.looked_at.add(handle)
        return handle, time.monotonic() - started

    def versions(self, table: str, key: int) -> Steps:
        """Which versions of a partition's rows our user sees now; what has equal ones has equal bytes."""
        plain = yield (
            "SELECT 1 FROM pg_catalog.pg_class t WHERE t.oid = pg_catalog.to_regclass(%s) AND t.relkind IN ('r', 'p')"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam"
            "  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid"
            "  WHERE (c.oid = t.oid OR i.inhparent = t.oid) AND a.amname <> 'heap')",
            (table,),
        )
        if not plain:
            return None  # a view, or a kind of table that may have no such columns
        return (
            yield f"SELECT tableoid, ctid, xmin FROM {table} WHERE __dist_key__ = {key} ORDER BY buffer_id",
            None,
        )

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

    def release(self) -> None:
        """After a call that went well: the sessions wait for the next one, or end."""
        try:
            if not waiting.keep(self):
                self.close()
        except (psycopg2.Error, Refused):
            self.close()

    def close(self) -> None:
        """End all sessions."""
        self._end(self.seats)
        self.seats.clear()

    def _end(self, seats: Sequence[Seat]) -> None:
        """Sessions that still answer take their trainers and files away first."""
        leaving = []
        for seat in seats:
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
        for seat in seats:
            with contextlib.suppress(psycopg2.Error):
                seat.session.close()


def in_format(sql: str) -> str:
    """SQL to stand in a statement that has parameters, where psycopg2 wants % doubled."""
    return sql.replace("%", "%%")


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def failure_of(where: str, error: psycopg2.Error) -> CerebroError:
    """A statement failed for a reason of the database's: this concerns the whole run."""
    diagnosis = error.diag
    message = f"{where}: {diagnosis.message_primary or first_line(error)}"
    if error.pgcode in ("53100", "53200"):
        failure: CerebroError = OutOfResources(message, hint=MAKE_ROOM)
    elif lost_a_segment(error):
        failure = CerebroError(message, hint=f"{SEGMENTS_DOWN} Then SELECT cerebro.resume(run) goes on.")
    elif error.pgcode == "42P01":
        failure = CorruptState(message, hint="A table that the run needs was dropped.")
    else:
        failure = CerebroError(message, hint=diagnosis.message_hint)
    failure.detail = diagnosis.message_detail
    failure.sqlstate = error.pgcode or failure.sqlstate
    return failure
