"""Workers that wait: the sessions of a call that went well stay, with their trainers, for this session's next call.

Starting a framework takes seconds, often more than the work.  What waits is bounded and gives way: one team per
session, as long as the administrator lets it (``cerebro.set_limits``), until the session ends, and only until somebody
else lacks connections or memory.  A session is used again by the user it was opened for, if it would be opened in just
the same way now; in between it is as empty as a new one, but for the trainer and the rows that it holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2

from cerebro_db.core.names import quote

from . import limits, machine
from .db import Database
from .interrupts import Listen
from .logins import WORKER, Owner
from .sessions import LISTEN_EVERY, configured

if TYPE_CHECKING:
    from .team import Seat, Steps, Team

APPLICATION = "cerebro_db waiting"  # how such a session is known, to people and to cerebro._dismiss_waiting()
KEEP_WITHIN = "3s"  # a worker that takes longer to settle down is not kept
LEAVE_WITHIN = 2.0  # seconds
LONGER = 5  # seconds that a session outlasts its trainer, which takes its files away first


@dataclass
class Kept:
    """A team that waits, and all that another call must have in common with it."""

    user: Owner
    dist_keys: list[int]
    openings: list[dict[str, Any]]  # what each trainer was started with
    seats: list[Seat]


_kept: Kept | None = None  # this session's


def keep(team: Team) -> bool:
    """Let a team that has nothing to do wait; False if it may not, or there is the least doubt about it."""
    global _kept
    if not worthwhile(team):
        return False
    user = Owner.current(team.db)
    seconds, _ = limits.of(team.db)["waiting_seconds"]
    if not seconds or not user.enrolled:
        return False
    team.listen = lambda: None  # the work is done and on record: a cancel that comes now finds nothing to stop
    for seat in team.seats:
        seat.session.listen = team.listen

    def settle(seat: Seat) -> Steps:
        # What code that the owner's statements ran may have left: settings, temporary tables, locks, cursors.
        yield "DISCARD ALL", None
        yield "SET ROLE " + quote(user.name), None
        yield configured(
            statement_timeout=KEEP_WITHIN,
            application_name=APPLICATION,
            idle_session_timeout=f"{seconds + LONGER}s",
        )
        yield from team.order(seat, {"work": "rest", "seconds": seconds})

    team.run_all({seat.segment: settle(seat) for seat in team.seats})
    _kept = Kept(user, team.dist_keys, [team.opening(seat.segment) for seat in team.seats], team.seats)
    team.seats = []
    return True


def take(team: Team) -> bool:
    """Have the team that waits work again, if this call would open the same one; else end it."""
    global _kept
    kept, _kept = _kept, None
    if kept is None:
        return False
    team.seats = kept.seats
    for seat in team.seats:
        seat.session.listen = team.listen
    openings = [team.opening(segment) for segment in range(len(team.dist_keys))]
    if (kept.user, kept.dist_keys, kept.openings) != (Owner.current(team.db), team.dist_keys, openings):
        team.close()
        return False

    def back_to_work(seat: Seat) -> Steps:
        yield configured(
            statement_timeout="0",
            application_name=team.application(seat.segment),
            idle_session_timeout="0",
            **team.settings,
        )
        yield "SET ROLE " + quote(kept.user.name), None  # refused if the worker role is no longer a member
        rows = yield team.open_trainer(seat.segment)
        seat.returned(rows[0][0])

    try:
        team.run_all({seat.segment: back_to_work(seat) for seat in team.seats})
    except psycopg2.Error:
        return False  # one of them is gone, or may no longer act for its user; all are closed
    return True


def worthwhile(team: Team) -> bool:
    """Not on Greenplum, where DISCARD ALL does not reach the segments, whose idle processes end by themselves; not with
    a GPU, whose memory a framework never gives back; not for a driver that was submitted, which has no next call."""
    if team.dialect.greenplum or team.options.get("gpus"):
        return False
    return not str(team.db.value("SELECT session_user AS u")).startswith(WORKER)


def make_room(db: Database, connections: int, listen: Listen, trainers: int = 0) -> None:
    """Have workers that wait end, everybody's, where so many connections or new trainers would not find room."""

    def short() -> bool:
        db.value("SELECT pg_catalog.pg_stat_clear_snapshot()")  # who is connected now, not when we looked first
        allowed, used = limits.of(db)["connections"]
        free = machine.memory_available()
        return used + connections > allowed or (free is not None and free < trainers * machine.FRAMEWORK)

    if short() and db.value("SELECT cerebro._dismiss_waiting()"):
        deadline = time.monotonic() + LEAVE_WITHIN
        while short() and time.monotonic() < deadline:
            listen()
            time.sleep(LISTEN_EVERY)
