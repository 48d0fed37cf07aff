"""A run's place among the runs of all users: it tells them how it stands, and finds out what it may keep busy.

A run in its caller's own session does not take part. Other sessions see nothing of it, it keeps one segment busy at a
time, and if it waited, it would keep the locks of its caller's transaction.
"""

from __future__ import annotations

import time

from cerebro_db.core.events import Event
from cerebro_db.core.scheduling import fair_queue
from cerebro_db.core.scheduling.fair_queue import Contender, QueueEntry, QueuePlace
from cerebro_db.core.search.budget import Budget
from cerebro_db.core.sql import sql

from ...database.access import Database
from ...database.polling import LISTEN_EVERY
from ...platform.machine import cores
from ...sessions.session import Session, Statement
from ..record.log import RunLog
from ..record.run import Run
from .incoming_requests import IncomingRequests

BEAT_EVERY, LOOK_EVERY = 1.0, 0.2  # seconds; a run that waits to begin looks more often than it says so
STUCK_AFTER = 10.0  # seconds without a sign of progress: then others need not wait for the run
QUEUE = sql("SELECT run, owner, began, standing, share, processors FROM cerebro_internal._queue()")


class Sharing:
    """What one run has to do with the others, while a session drives it."""

    def __init__(self, db: Database, run: Run, recorder: Session, log: RunLog, budget: Budget) -> None:
        """``budget``: that the run begins with."""
        self.db, self.run, self.recorder, self.log = db, run, recorder, log
        self.may_wait = budget.seconds is None
        self.place: QueuePlace | None = None
        self._told: str | None = None  # for which run it waits, as the log says
        self._said = False  # whether its caller knows that it had to wait
        self._rows: tuple[int, int] | None = None  # done, and in all
        self._beat_at = -float("inf")  # before the loop
        self._sign: object = None  # the last sign of progress, and when it came
        self._sign_at = time.monotonic()
        if recorder.own:
            return
        ((me, hosts),) = recorder.run(sql("SELECT current_user::text AS me, cerebro_internal._hosts() AS hosts"))
        began = next((row[2] for row in recorder.run(QUEUE) if row[:2] == (run.id, me)), time.time())
        self.place = QueuePlace(run.id, me, began, run.options.trainer.threads or 1, cores() * hosts)

    @property
    def allowed(self) -> int | None:
        """How many segments may be busy; None: all."""
        return None if self.place is None else self.place.granted

    @property
    def waited(self) -> float:
        """The seconds in which the run could have worked and had to wait."""
        return 0.0 if self.place is None else self.place.waited

    def standing(self, wants: int, left: float | None, rows: int, sign: object = None) -> QueueEntry | None:
        """How the run stands, as a heartbeat says it.

        ``left``, ``rows``: seconds and rows. ``sign``: whatever changes when the run makes progress.
        """
        if self.place is None:
            return None
        now = time.monotonic()
        if sign != self._sign or not self.place.granted:
            self._sign, self._sign_at = sign, now
        stuck = sign is not None and now - self._sign_at > STUCK_AFTER
        return self.place.standing(
            0 if stuck else min(wants, fair_queue.MOST_SEGMENTS), left, rows, waits=self.may_wait
        )

    async def look(self, mine: QueueEntry, *, busy: bool) -> None:
        """Find out what the run may keep busy, and say it if it has to wait or goes on."""
        if self.place is None:
            return
        others = [
            Contender(run, owner, began, found, share, processors)
            for run, owner, began, text, share, processors in await Statement(QUEUE)
            if (found := mine if self._is_mine(run, owner) else fair_queue.read(text)) is not None
        ]
        self.place.look(time.time(), mine, self.run.segments, others, busy=busy)
        behind = self.place.behind
        told = None if behind is None else f"run {behind.run}" + self._whose(behind)
        if told == self._told:
            return
        began, self._told = self._told is None, told
        say = self.db.detail if self._said else self.db.told  # once: runs that wait long may take turns
        if told is None:
            await self.log.events.event(Event.GOES_ON)
            say(f"run {self.run.id} goes on")
            self._said = True
            return
        await self.log.events.event(Event.WAITS, reason=told)
        if began:
            say(f"run {self.run.id} waits for {told}", WHY)

    def _is_mine(self, run: int, owner: str) -> bool:
        return self.place is not None and (self.place.run, self.place.owner) == (run, owner)

    def _whose(self, other: Contender) -> str:
        return "" if self.place is None or other.owner == self.place.owner else f" of {other.owner}"

    # -- before the loop ---------------------------------------------------------------------------

    async def beat(self) -> None:
        """Say that the run begins, and look: of its pace, its plan is all that is known."""
        if self._rows is None:  # of thousands of models, this takes a moment
            models = self.run.models.values()
            done = sum(map(self.run.rows_done, models))
            self._rows = done, max(done, self.run.epochs * sum(map(self.run.rows_of, models)))
        done, total = self._rows
        plan = self.run.options.plan
        expected = None if plan is None else plan.chosen.seconds
        left = None if expected is None else expected * (total - done) / max(total, 1)
        mine = self.standing(self.run.segments, left, total - done)
        if mine is None:
            return
        if time.monotonic() - self._beat_at >= BEAT_EVERY:
            self._beat_at = time.monotonic()
            await self.log.events.heartbeat(done, total, left, mine)
        await self.look(mine, busy=False)

    def wait_for_turn(self, attention: IncomingRequests) -> None:
        """Wait until the run may keep a segment busy: before it has trainers, which need memory and processors."""
        if self.place is None:
            return
        while True:
            self.recorder.finish()
            self.recorder.begin(self.beat())
            self.recorder.finish()
            if self.place.granted:
                return
            looked_at = time.monotonic()
            while time.monotonic() - looked_at < LOOK_EVERY:
                attention()
                time.sleep(LISTEN_EVERY)


WHY = "Runs share the processors: docs/operate.md says which of them goes first."
