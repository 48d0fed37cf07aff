"""A run goes on when its worker sessions end while they are idle or are being opened, whatever ends them."""

from __future__ import annotations

import contextlib

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, eventually, flower_model, run

SEGMENTS = 2
OPEN = "SELECT pid, state FROM pg_stat_activity WHERE application_name = 'cerebro_db segment %s'"
LOCKED = " AND wait_event_type = 'Lock'"
FAULTS = "SELECT event, detail FROM event WHERE run = %s AND event IN ('unit failed', 'model failed')"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    model = lab.architecture(flower_model())
    # With one model and two segments, one session is always idle. Small batches make a visit long enough to end it.
    lab.selection("mst", [(model, f"optimizer='SGD(lr=0.01)', {CROSS}", "batch_size=2, epochs=40")])
    return lab


def session_of(place: Lab, segment: int, *states: str) -> int:
    """A session of the segment in one of these states (none: any state)."""

    def found() -> list[int]:
        return [pid for pid, state in place(OPEN, segment) if not states or state in states]

    return eventually(found, 60, f"segment {segment} has a session")[0]


def end(place: Lab, pid: int) -> None:
    place("SELECT pg_terminate_backend(%s)", pid)
    eventually(lambda: not place("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid), 30, "it has ended")


def test_idle_sessions_are_replaced_without_a_failed_attempt(place: Lab) -> None:
    run_id = place.submit("train", "idle", "mst", 4)
    under_way = "SELECT segment FROM segments_now WHERE run = %s AND NOT done"
    ended = 0
    while ended < 2:
        ((busy,),) = eventually(lambda: place(under_way, run_id), 60, "a visit is under way")
        pid = session_of(place, 1 - busy)
        # If the visit is the same as before, the other segment had no work: its session was idle.
        if place("SELECT state FROM pg_stat_activity WHERE pid = %s", pid) == [("idle",)]:
            end(place, pid)
            ended += place(under_way, run_id) == [(busy,)]
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished", place(
        "SELECT message FROM runs WHERE run = %s", run_id
    )
    assert not place(FAULTS, run_id)


def test_sessions_that_end_while_they_are_opened_are_opened_again(place: Lab) -> None:
    run_id = place.submit("train", "opened", "mst", 3)
    eventually(lambda: place("SELECT 1 FROM hop WHERE run = %s", run_id), 60, "a hop")
    with contextlib.closing(place.connect()) as blocker:
        blocker.autocommit = False
        # A new session looks there for the settings that this server has.
        run(blocker, "LOCK TABLE pg_catalog.pg_settings IN ACCESS EXCLUSIVE MODE")
        end(place, session_of(place, 0))
        for _ in range(2):
            waits = "SELECT pid FROM pg_stat_activity WHERE application_name = 'cerebro_db segment 0'" + LOCKED
            end(place, eventually(lambda: place(waits), 60, "it is opened again")[0][0])  # noqa: B023
        blocker.rollback()
    status = place.value("SELECT wait(%s, 120)", run_id)
    assert status == "finished", place("SELECT message FROM runs WHERE run = %s", run_id)
    assert not [detail for event, detail in place(FAULTS, run_id) if event == "model failed"]


def test_settings_of_the_database_do_not_end_a_run(place: Lab) -> None:
    """Timeouts, and defaults with which a worker session could not write its log."""
    settings = {
        "statement_timeout": "40ms",
        "lock_timeout": "1ms",
        "idle_in_transaction_session_timeout": "5ms",
        "idle_session_timeout": "40ms",
        "transaction_timeout": "40ms",
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "row_security": "off",
    }
    known = {name for (name,) in place("SELECT name FROM pg_settings")}
    database = place.value("SELECT current_database()")
    with contextlib.closing(place.connect()) as session:  # its settings are those from before
        for name in known.intersection(settings):
            place(f"ALTER DATABASE {database} SET {name} = '{settings[name]}'")
        try:
            run_id = place.fit("train", "settings", "mst", 2, on=session)
            assert run(session, "SELECT resume(%s, epochs => 3, wait => false)", run_id) == [(run_id,)]
            assert run(session, "SELECT wait(%s, 120)", run_id) == [("finished",)]
        finally:
            place("SET default_transaction_read_only = off")
            for name in known.intersection(settings):
                place(f"ALTER DATABASE {database} RESET {name}")
            place("RESET default_transaction_read_only")
    assert not place(FAULTS, run_id)
    assert place.value("SELECT count(*) FROM hop WHERE run = %s", run_id) == 3 * SEGMENTS
    with pytest.raises(psycopg2.Error, match="is finished"):
        place("SELECT resume(%s)", run_id)
