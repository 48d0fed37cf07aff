"""The limits of the current role, checked before anything is taken; the view cerebro.limits has the figures."""

from __future__ import annotations

import time
from typing import Any, Callable

from cerebro_db.core.errors import LimitExceeded
from cerebro_db.core.sql import Sql, sql

from ..database.access import Database
from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY
from ..platform import machine
from ..segment import nursery_connection

SEE = "SELECT * FROM cerebro.limits shows the limits and your use; cerebro_admin sets them with cerebro.set_limits()."
FIGURES = sql("SELECT name::pg_catalog.text AS name, allowed, used FROM cerebro.limits")
LEAVE_WITHIN = 2.0  # seconds that dismissed sessions get to end

Figures = dict[str, tuple[Any, int]]  # name -> allowed (None: no limit), used
Ask = Callable[[Sql], list[tuple[Any, ...]]]  # through the caller's session or another one of the same user


def of(db: Database) -> Figures:
    return answered(asking(db))


def asking(db: Database) -> Ask:
    return lambda statement: [tuple(row.values()) for row in db.rows(statement)]


def answered(ask: Ask) -> Figures:
    return {name: (allowed, used) for name, allowed, used in ask(FIGURES)}


def segments_allowed(db: Database) -> int | None:
    """How many segments all running runs of the user may have together; None: there is no limit."""
    allowed: int | None = db.value(sql("SELECT segments FROM cerebro._own_limits"))
    return allowed


def waiting_seconds(db: Database) -> int:
    """How long what a call has opened may wait for the next call of its session; 0: not at all."""
    return int(db.value(sql("SELECT waiting_seconds FROM cerebro._own_limits")))


def require(figures: Figures, name: str, more: int, refusal: Callable[[int, int], str]) -> None:
    """``refusal`` makes the message from what is allowed and what is used already."""
    allowed, used = figures[name]
    if allowed is not None and used + more > allowed:
        raise LimitExceeded(refusal(allowed, used), hint=SEE)


def require_run(ask: Ask, segments: int, listen: Listen) -> None:
    """Room for one more run on so many segments.  The session of a run that has just ended gets a moment to go."""
    deadline = time.monotonic() + LEAVE_WITHIN
    while True:
        figures = answered(ask)
        try:
            return _require_run(figures, segments)
        except LimitExceeded:
            if not figures["running_runs"][1] or time.monotonic() > deadline:
                raise
        listen()
        time.sleep(LISTEN_EVERY)


def _require_run(figures: Figures, segments: int) -> None:
    require(
        figures,
        "running_runs",
        1,
        lambda allowed, used: f"you have {used} runs under way, and may have {allowed} at once",
    )
    require(
        figures,
        "segments",
        segments,
        lambda allowed, used: (
            f"a run on {segments} segments is more than you may have: {allowed} at once"
            + (f", and {used} are in use by your other runs" if used else "")
        ),
    )


def require_connections(figures: Figures, wanted: int) -> None:
    require(
        figures,
        "connections",
        wanted,
        lambda allowed, used: (
            f"{wanted} worker connections are wanted, and the server has {max(0, allowed - used)} to spare"
            f" ({used} in use, {allowed} for everybody; the others are kept free)"
        ),
    )


def require_states(figures: Figures, wanted: int, stored: int) -> None:
    """Disk for the states of a run; ``stored`` bytes of them are there already."""
    require(
        figures,
        "state_bytes",
        max(0, wanted - stored),
        lambda allowed, used: (
            f"model states of up to {wanted:,} bytes, with {used - stored:,} bytes of other runs, are more than"
            f" the {allowed:,} that you may store; cerebro.forget(run) frees what an old run holds"
        ),
    )


def make_room(ask: Ask, connections: int, listen: Listen, trainers: int = 0) -> None:
    """End kept teams of all users if so many connections, or new trainers, would not find room.

    Resident predictors end only if memory is short: they have no connection.
    """

    def short_of() -> tuple[bool, bool]:
        """Whether connections are short, and whether memory is."""
        # Without this PostgreSQL shows who was connected when this transaction looked first.
        ask(sql("SELECT pg_catalog.pg_stat_clear_snapshot()"))
        allowed, used = answered(ask)["connections"]
        free = machine.memory_available()
        memory = free is not None and trainers > 0 and free < machine.memory_of_trainers(trainers)
        return used + connections > allowed, memory

    connections_short, memory_short = short_of()
    if not connections_short and not memory_short:
        return
    kept = memory_short and nursery_connection.dismiss(listen)
    if ask(sql("SELECT cerebro._dismiss_waiting()"))[0][0] or kept:
        deadline = time.monotonic() + LEAVE_WITHIN
        while any(short_of()) and time.monotonic() < deadline:
            listen()
            time.sleep(LISTEN_EVERY)
