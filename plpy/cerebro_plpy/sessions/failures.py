"""Errors of worker sessions and trainers, and what each of them concerns: an order, a session or the whole run."""

from __future__ import annotations

import re

import psycopg2

from cerebro_db.core.errors import MAKE_ROOM, CerebroError, CorruptState, OutOfResources, SessionEnded

from ..platform import SEGMENTS_DOWN, Platform

CANCELLED = "57014"
LOCK_TIMEOUT = "55P03"
AGAIN = "Repeat the call; SELECT cerebro.resume(run) continues a run."
# The SQLSTATEs of a session that somebody, or a timeout, has ended; None where it could not say anything.
SESSION_ENDED = (None, CANCELLED, "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "08003", "08006")


class Refused(Exception):
    """A segment or its trainer answered an order with an error."""

    def __init__(self, error: CerebroError) -> None:
        super().__init__(error.message)
        self.error = error


def session_was_lost(error: psycopg2.Error, platform: Platform) -> bool:
    """Whether a session ended, or lost its segment, for a reason that says nothing about its statement."""
    return error.pgcode in SESSION_ENDED or platform.lost_a_segment(error)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def cause_of(error: BaseException) -> str:
    """The first line without the process of a segment that Greenplum names at its end: one cause has one text."""
    return re.sub(r"\s*\([^()]*\bpid=\d+\)$", "", first_line(error))


def failure_of(where: str, error: psycopg2.Error, platform: Platform) -> CerebroError:
    """The error for a statement that failed for a reason of the database's: it concerns the whole run."""
    diagnosis = error.diag
    if error.pgcode is None:  # The connection broke. On Greenplum a terminated session says no more than that.
        return SessionEnded(
            f"{where}: its process was terminated ({first_line(error)})",
            hint=f"The server's log says why. {AGAIN}",
        )
    message = f"{where}: {diagnosis.message_primary or first_line(error)}"
    if error.pgcode in ("53100", "53200"):
        failure: CerebroError = OutOfResources(message, hint=MAKE_ROOM)
    elif platform.lost_a_segment(error):
        failure = CerebroError(message, hint=f"{SEGMENTS_DOWN} Then SELECT cerebro.resume(run) goes on.")
    elif error.pgcode == LOCK_TIMEOUT:
        hint = (
            "Another session held a lock that was needed. Try again when it has ended, or SELECT cerebro.resume(run)."
        )
        failure = CerebroError(message, hint=hint)
    elif error.pgcode == "42P01":
        failure = CorruptState(message, hint="A table that the run needs was dropped.")
    else:
        ended = error.pgcode in SESSION_ENDED
        failure = CerebroError(message, hint=AGAIN if ended else diagnosis.message_hint)
    failure.detail = diagnosis.message_detail
    failure.sqlstate = error.pgcode
    return failure
