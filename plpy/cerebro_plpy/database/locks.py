"""Locks by name that last until the end of the caller's transaction."""

from __future__ import annotations

import time

from cerebro_db.core.errors import InUse

from .access import Database
from .polling import LISTEN_EVERY

PATIENCE = 60.0  # seconds; anybody can take such a lock, and nobody may make another session wait for ever
TRY = "pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended({}, 0))"


def of_run(run: int) -> str:
    """The name of the lock of whoever claims or forgets a run."""
    return f"cerebro_db run {run}"


def take(db: Database, name: str, what: str) -> None:
    """Wait for a lock, listening for a cancel; ``what`` is in use if another session keeps it too long."""
    deadline = time.monotonic() + PATIENCE
    while not db.value(f"SELECT {TRY.format('$1')}", ("text",), name):
        if time.monotonic() > deadline:
            raise InUse(f"{what} is in use by another session's transaction", hint="Try again when it has ended.")
        time.sleep(LISTEN_EVERY)  # the next question listens for a cancel
