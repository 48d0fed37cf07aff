"""The worker sessions of a run, one per segment, and what one can have their trainers do."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from cerebro_db.core.errors import MAKE_ROOM, Cancelled, CerebroError, CorruptState, OutOfResources, from_told
from cerebro_db.core.names import quote
from cerebro_db.core.schedule import Unit

from . import limits, logins
from .db import Database
from .dialect import Dialect
from .interrupts import Listen, listener
from .runs import STATES, DataSet
from .sessions import LISTEN_EVERY, Rows, Session, Statement, wait_any
from .trainer import HANG_AFTER

CANCELLED = "57014"
LOST = (None, CANCELLED, "57P01", "57P02", "57P03")  # what a session says, if anything, that somebody has ended
CANCEL_EVERY = 1.0  # seconds between two looks for a cancel that was asked for elsewhere
LEAVE_WITHIN = 3.0  # seconds that cancelled workers get to come back

Steps = Generator[Statement, Rows, Any]


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
    cached: set[str] = field(default_factory=set)
    held: dict[int, tuple[int, str]] = field(default_factory=dict)  # configuration -> (hop, token)
    unit: Unit | None = None
    since: float = 0.0
    failing: set[int] = field(default_factory=set)  # configurations whose trainer died here, none done since


def until_cancelled(db: Database, run_id: int) -> Listen:
    """Listens to the session we run in and, once a second, to ``cerebro.cancel()``; heard once, not again."""
    own = listener(db.plpy)
    asked_at, heard = time.monotonic(), False

    def listen() -> None:
        nonlocal asked_at, heard
        own()
        if heard or time.monotonic() - asked_at < CANCEL_EVERY:
            return
        asked_at = time.monotonic()
        heard = bool(
            db.value(
                "SELECT event = 'cancel requested' FROM cerebro.event WHERE run = $1 AND owner = current_user"
                " AND event IN ('started', 'cancel requested') ORDER BY event_id DESC LIMIT 1",
                ("bigint",),
                run_id,
            )
        )
        if heard:
            raise Cancelled(f"run {run_id} was cancelled", hint=f"SELECT cerebro.resume({run_id}) goes on.")

    return listen


class Team:
    """The worker sessions, one per segment.  They can be used again by the next call in this session."""

    def __init__(
        self,
        db: Database,
        owner: str,
        dist_keys: Sequence[int],
        options: dict[str, Any],
        listen: Listen | None = None,
    ) -> None:
        self.owner = owner
        self.dist_keys = list(dist_keys)
        self.options = options
        self.dialect = Dialect.of(db)
        self.listen: Listen = listen or listener(db.plpy)
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
        session.configure(client_connection_check_interval="1s", optimizer="off")
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


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def failure_of(where: str, error: psycopg2.Error) -> CerebroError:
    """A statement failed for a reason of the database's: this concerns the whole run."""
    diagnosis = error.diag
    message = f"{where}: {diagnosis.message_primary or first_line(error)}"
    if error.pgcode in ("53100", "53200"):
        failure: CerebroError = OutOfResources(message, hint=MAKE_ROOM)
    elif error.pgcode == "42P01":
        failure = CorruptState(message, hint="A table that the run needs was dropped.")
    else:
        failure = CerebroError(message, hint=diagnosis.message_hint)
    failure.detail = diagnosis.message_detail
    failure.sqlstate = error.pgcode or failure.sqlstate
    return failure
