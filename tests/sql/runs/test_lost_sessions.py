"""A run goes on when its worker sessions end while they are idle or are being opened, whatever ends them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, eventually, flower_model, run
from tests.thorough import landing

SEGMENTS = 2
OPEN = "SELECT pid, state FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %s of run %%'"
LOCKED = " AND wait_event_type = 'Lock'"
FAULTS = "SELECT event, detail FROM event WHERE run = %s AND event IN ('unit failed', 'model failed')"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    model = lab.architecture(flower_model())
    # With one model and two segments, one session is always idle. A visit must be long enough to end it: on Greenplum
    # each of the queries for that takes as long as such a visit on PostgreSQL.
    passes = 300 if lab.greenplum else 40
    lab.selection("mst", [(model, f"optimizer='SGD(lr=0.01)', {CROSS}", f"batch_size=2, epochs={passes}")])
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
            waits = (
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment 0 of run %'" + LOCKED
            )
            end(place, eventually(lambda: place(waits), 60, "it is opened again")[0][0])  # noqa: B023
        blocker.rollback()
    status = place.value("SELECT wait(%s, 120)", run_id)
    assert status == "finished", place("SELECT message FROM runs WHERE run = %s", run_id)
    assert not [detail for event, detail in place(FAULTS, run_id) if event == "model failed"]


SEGMENT = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment%%'"


def evaluate(output: str) -> str:
    return f"SELECT madlib_keras_evaluate('served', 'seen', '{output}', false, 1)"


def predict(output: str) -> str:
    """Of enough rows for worker sessions."""
    return f"SELECT madlib_keras_predict('served', 'many', 'id', 'sl, sw, pl, pw', '{output}', 'response', false, 1)"


@pytest.fixture(scope="module")
def served(place: Lab) -> Lab:
    """The place with a trained model, and a table of many rows."""
    if place.greenplum:
        pytest.skip("there no session is kept, and what a worker session reads is read on segments")
    place.fit("train", "served", "mst", 1)
    place(
        "CREATE TABLE many AS SELECT row_number() OVER () AS id, sl, sw, pl, pw FROM flowers, generate_series(1, 1500)"
    )
    # What worker sessions read, and the caller's session does not.
    place("CREATE TABLE blocked ()")
    place("CREATE FUNCTION looks() RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN"
          " IF current_setting('application_name') LIKE 'cerebro_db segment%%' THEN PERFORM FROM blocked; END IF;"
          " RETURN true; END $$")  # fmt: skip
    place("CREATE VIEW seen AS SELECT * FROM train WHERE looks()")
    place("CREATE VIEW seen_summary AS SELECT * FROM train_summary")
    return place


@pytest.mark.thorough  # tests/sql/runs/test_waiting.py replaces one that died while it waited
@pytest.mark.parametrize("call", [evaluate, predict])
def test_kept_sessions_that_have_ended_are_replaced(served: Lab, call: Callable[[str], str]) -> None:
    name = f"{call.__name__}_kept"
    with contextlib.closing(served.connect()) as session:
        run(session, call(f"{name}_1"))
        kept = served.waiting()
        assert len(kept) >= SEGMENTS
        end(served, max(kept))
        run(session, call(f"{name}_2"))
    assert served(f"SELECT count(*) FROM {name}_2") == served(f"SELECT count(*) FROM {name}_1")


def ended_at_work(served: Lab, statement: str, lock: str, times: int) -> Any:
    """The error of a statement, of whose worker sessions one is ended so many times while it waits for a lock."""
    raised: list[Any] = []

    def say() -> None:
        try:
            with contextlib.closing(served.connect()) as session:
                run(session, statement)
        except psycopg2.Error as error:
            raised.append(error)

    thread = threading.Thread(target=say)
    with contextlib.closing(served.connect()) as blocker:
        blocker.autocommit = False
        run(blocker, f"LOCK TABLE {lock}")
        thread.start()
        for _ in range(times):
            ((waits, *_), *_) = eventually(lambda: served(SEGMENT + LOCKED), 60, "a worker session waits")
            before = [pid for (pid,) in served(SEGMENT)]
            end(served, waits)
            gone = f"{SEGMENT} AND pid = ANY(%s)"
            eventually(lambda: not served(gone, before), 60, "the others have ended, too")  # noqa: B023
        blocker.rollback()
    thread.join(120)
    assert not thread.is_alive()
    return raised[0] if raised else None


LOCKS = [(evaluate, "blocked IN ACCESS EXCLUSIVE MODE"), (predict, "pg_catalog.pg_depend IN SHARE MODE")]


@pytest.mark.parametrize(("call", "lock"), landing(LOCKS, LOCKS[1]))
def test_a_session_that_ends_at_work_is_replaced_once(served: Lab, call: Callable[[str], str], lock: str) -> None:
    """Evaluating and predicting repeat the whole work once; then the error says what to do."""
    name = f"{call.__name__}_lost"
    assert ended_at_work(served, call(f"{name}_1"), lock, 1) is None
    assert served.value(f"SELECT count(*) FROM {name}_1") > 0
    error = ended_at_work(served, call(f"{name}_2"), lock, 2)
    assert error.pgcode in ("57P01", "08006") and "Repeat the call" in error.diag.message_hint, error
    assert not served("SELECT 1 FROM pg_class WHERE relname LIKE %s", f"{name}_2%")
    staged = "SELECT relname FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relname ~ '^predict_'"
    assert not served(staged)
    served.require_no_orphans()


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
        "standard_conforming_strings": "off",
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


# -- a run that ends before it begins ---------------------------------------------------------------------------


@contextlib.contextmanager
def nobody_begins(place: Lab) -> Iterator[None]:
    """Sessions of this user that are about to begin a run wait until this ends."""
    with contextlib.closing(place.connect()) as holder:
        run(holder, "SELECT pg_advisory_lock(hashtextextended('cerebro_db owner ' || current_user, 0))")
        yield


def begun_by(place: Lab, output: str, statement: str, timeout: str = "0") -> tuple[threading.Thread, list[Any], int]:
    """A thread with a call that creates a run, what it raised, and the number of the run, which is on record."""
    raised: list[Any] = []

    def call() -> None:
        with contextlib.closing(place.connect(application_name=f"caller of {output}")) as connection:
            run(connection, f"SET statement_timeout = '{timeout}'")
            try:
                run(connection, statement)
            except psycopg2.Error as error:
                raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    ((number,),) = eventually(
        lambda: place("SELECT run FROM runs WHERE model_table LIKE %s AND status = 'created'", f"%.{output}"), 60
    )
    return thread, raised, number


# A call that waits and one that does not end with the same statement.
EARLY = landing(itertools.product(["cancel", "timeout"], [True, False]), ("cancel", False), ("timeout", True))


@pytest.mark.parametrize(("way", "waits"), EARLY)
def test_a_call_is_cancelled_or_times_out_before_its_run_begins(place: Lab, way: str, waits: bool) -> None:
    output = f"early_{way}_{waits}".lower()
    fit = f"SELECT fit('train', '{output}', 'mst', epochs => 1, wait => {waits})"
    with nobody_begins(place):
        thread, raised, number = begun_by(place, output, fit, "5s" if way == "timeout" else "0")
        if way == "cancel":
            caller = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            assert place(caller, f"caller of {output}") == [(True,)]
        thread.join(60)
        assert raised and raised[0].pgcode == "57014"
        ((status, ended, message),) = place("SELECT status, ended, message FROM runs WHERE run = %s", number)
        assert (status, ended) == ("cancelled", True) and way[:6] in message
    assert place.value("SELECT resume(%s)", number) == number
    assert place.status(number) == "finished"


@pytest.mark.parametrize("waits", landing([True, False], False))
def test_a_run_is_cancelled_before_it_begins(place: Lab, waits: bool) -> None:
    """Nobody begins it afterwards; resume() does."""
    output = f"unbegun_{waits}".lower()
    with nobody_begins(place):
        fit = f"SELECT fit('train', '{output}', 'mst', epochs => 1, wait => {waits})"
        thread, raised, number = begun_by(place, output, fit)
        assert place.value("SELECT cancel(%s)", number) is True
        assert place.status(number) == "cancelled" and place.value("SELECT wait(%s, 5)", number) == "cancelled"
        assert place.value("SELECT cancel(%s)", number) is False
    thread.join(60)
    assert "was cancelled before it began" in str(raised[0]) and "resume" in raised[0].diag.message_hint
    assert place.status(number) == "cancelled"
    assert place("SELECT count(*) FROM event WHERE run = %s AND event = 'started'", number) == [(0,)]
    assert place.value("SELECT resume(%s, wait => %s)", number, waits) == number
    assert place.value("SELECT wait(%s, 60)", number) == "finished"
