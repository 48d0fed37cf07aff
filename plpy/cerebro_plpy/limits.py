"""What the current role may take, checked before it is taken; ``cerebro.limits`` has the figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

from cerebro_db.core.errors import LimitExceeded

from .db import Database
from .sessions import Session

SEE = "SELECT * FROM cerebro.limits shows what holds and what you use; cerebro_admin sets it with cerebro.set_limits()."
FIGURES = "SELECT name::pg_catalog.text AS name, allowed, used FROM cerebro.limits"
Figures = dict[str, tuple[Any, int]]  # name -> allowed (None: no limit), used


def of(db: Database) -> Figures:
    return {row["name"]: (row["allowed"], row["used"]) for row in db.rows(FIGURES)}


def of_session(session: Session) -> Figures:
    return {name: (allowed, used) for name, allowed, used in session.run(FIGURES)}


def require(figures: Figures, name: str, more: int, say: Callable[[int, int], str]) -> None:
    """``say`` words the refusal from what is allowed and what is used already."""
    allowed, used = figures[name]
    if allowed is not None and used + more > allowed:
        raise LimitExceeded(say(allowed, used), hint=SEE)


def require_run(figures: Figures, segments: int) -> None:
    """One more run on so many segments."""
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


def require_states(figures: Figures, states: Iterable[int], stored: int) -> None:
    """Disk for two states of each configuration; ``stored`` is what of it is there already."""
    wanted = 2 * sum(states)
    require(
        figures,
        "state_bytes",
        max(0, wanted - stored),
        lambda allowed, used: (
            f"model states of up to {wanted:,} bytes, with {used - stored:,} bytes of other runs, are more than"
            f" the {allowed:,} that you may store; cerebro.forget(run) frees what an old run holds"
        ),
    )
