"""Faults at the edges: what is asked inside transactions, at the same time as something else, or of changed data."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from cerebro_db.core.protocol import messages
from cerebro_plpy.database import locks
from tests.sql.lab import CROSS, Lab, connect, eventually, flower_model, run
from tests.sql.users import equip, fit, town
from tests.thorough import landing

LONG = 10_000  # epochs of a run that is ended before it is done


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=2)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, f"optimizer='Adam(lr=0.0{n})', {CROSS}", "batch_size=16") for n in (1, 2)])
    return lab


@pytest.fixture
def going(flowers: Lab) -> Iterator[int]:
    """A run that goes on until the end of the test."""
    number = flowers.submit("train", f"going_{time.monotonic_ns()}", "mst", LONG)
    eventually(lambda: flowers("SELECT 1 FROM hop WHERE run = %s", number), 60, "a hop")
    yield number
    flowers("SELECT cancel(%s)", number)
    flowers("SELECT wait(%s, 60)", number)


# -- whether a run is alive ------------------------------------------------------------------------------------


def test_a_transaction_sees_who_is_there_now(flowers: Lab, server: str) -> None:
    session = connect(server, options=f"-csearch_path={flowers.schema},public,cerebro,madlib")
    session.autocommit = False
    run(session, "SELECT count(*) FROM pg_stat_activity")  # the server keeps what this shows until the end
    number = flowers.submit("train", "seen", "mst", LONG)
    try:
        eventually(lambda: flowers("SELECT 1 FROM hop WHERE run = %s", number), 60, "a hop")
        assert run(session, "SELECT status FROM runs WHERE run = %s", number) == [("running",)]
        assert run(session, "SELECT status FROM run_progress WHERE run = %s", number) == [("running",)]
        with pytest.raises(psycopg2.Error, match="is running"):
            run(session, "SELECT forget(%s)", number)
        session.rollback()
        run(session, "SELECT status FROM runs WHERE run = %s", number)
        # The driver dies without a word; the transaction that saw it alive notices.
        driver = flowers.value("SELECT driver_pid FROM runs WHERE run = %s", number)
        flowers("SELECT pg_terminate_backend(%s)", driver)
        assert run(session, "SELECT wait(%s, 30)", number)[0][0] in ("interrupted", "failed", "cancelled")
    finally:
        session.close()
        flowers("SELECT cancel(%s)", number)


# -- at the same time --------------------------------------------------------------------------------------------


def test_forgetting_and_resuming_at_once_have_one_winner(flowers: Lab) -> None:
    number = flowers.fit("train", "forgotten", "mst", 1)
    session, other = flowers.connect(), flowers.connect()
    session.autocommit = False
    errors: list[Any] = []

    def resume() -> None:
        try:
            run(other, "SELECT resume(%s, epochs => 3)", number)
        except psycopg2.Error as error:
            errors.append(error)

    run(session, "SELECT forget(%s)", number)
    thread = threading.Thread(target=resume)
    thread.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%cerebro_db run%%' OR query LIKE '%%resume(%%'"
    eventually(lambda: flowers(waits), 30, "the resume has begun")
    time.sleep(1)
    assert thread.is_alive()
    session.commit()
    thread.join(60)
    assert "there is no run" in str(errors[0])
    for table in ("run", "event", "model", "attempt", "hop", "heartbeat"):
        assert flowers.value(f"SELECT count(*) FROM cerebro.{table} WHERE run = %s", number) == 0
    session.close()
    other.close()


def test_what_others_plant_stops_nobody_from_forgetting(flowers: Lab) -> None:
    number = flowers.fit("train", "planted", "mst", 1)
    storage = flowers.value("SELECT storage FROM run WHERE run = %s", number)
    flowers(f'CREATE SEQUENCE cerebro_state."{storage}_1_x"')
    flowers("SELECT forget(%s)", number)
    left = flowers("SELECT relname FROM pg_class WHERE starts_with(relname, %s)", storage)
    assert left == [(f"{storage}_1_x",)], "what is not ours stays"
    flowers(f'DROP SEQUENCE cerebro_state."{storage}_1_x"')


# -- what is handed out ------------------------------------------------------------------------------------------


def test_a_run_under_way_is_not_handed_out(flowers: Lab, going: int) -> None:
    with pytest.raises(psycopg2.Error, match="is being trained"):
        flowers("SELECT materialize(%s, 'too_early')", going)
    assert "too_early" not in flowers.tables()


# -- replays -----------------------------------------------------------------------------------------------------


def test_only_the_same_work_is_replayed(flowers: Lab) -> None:
    number = flowers.fit("train", "first", "mst", 2, options={"deterministic": True, "seed": 1})
    again = flowers.fit("train", "again", "mst", 2, options={"replay": number})
    assert flowers.states(again) == flowers.states(number)
    flowers("CREATE TABLE other AS TABLE mst; CREATE TABLE other_summary AS TABLE mst_summary")
    flowers("UPDATE other SET fit_params = 'batch_size=17' WHERE mst_key = 2")
    with pytest.raises(psycopg2.Error, match=r"its configurations were others \(configuration 2\)"):
        flowers.fit("train", "others", "other", 2, options={"replay": number})
    flowers("DELETE FROM other WHERE mst_key = 2")
    with pytest.raises(psycopg2.Error, match=r"its configurations were others \(configuration 2\)"):
        flowers.fit("train", "others", "other", 2, options={"replay": number})
    flowers.pack("flowers", "repacked", "species", "sl, sw, pl, pw", segments=2, seed=99)
    with pytest.raises(psycopg2.Error, match="it had other rows"):
        flowers.fit("repacked", "others", "mst", 2, options={"replay": number})
    assert "others" not in flowers.tables()


# -- what others can do to a run ---------------------------------------------------------------------------------


def test_a_locked_state_table_holds_up_no_other_run(flowers: Lab) -> None:
    """A transaction that has dropped or locked states, and does not end, as a forgotten psql does."""
    if flowers("SELECT current_setting('gp_enable_global_deadlock_detector', true)") == [("off",)]:
        pytest.skip("without its global deadlock detector, DELETE locks whole tables on Greenplum")
    number = flowers.fit("train", "locked", "mst", 1)
    with contextlib.closing(flowers.connect()) as session:
        session.autocommit = False
        run(session, "SELECT forget(%s)", number)
        flowers("SET statement_timeout = '60s'")
        try:
            flowers.fit("train", "beside_it", "mst", 1)
            assert flowers.value("SELECT used FROM limits WHERE name = 'state_bytes'") > 0
        finally:
            flowers("RESET statement_timeout")
        session.rollback()


def test_an_advisory_lock_that_somebody_keeps_can_be_left_alone(flowers: Lab) -> None:
    """Anybody can take such a lock, and nobody may make another session wait for ever."""
    number = flowers.fit("train", "kept", "mst", 1)
    for lock in (f"run {number}", f"owner {flowers.value('SELECT current_user')}"):
        leave_alone(flowers, number, f"cerebro_db {lock}")
    assert flowers("SELECT resume(%s, epochs => 2)", number) == [(number,)]


def leave_alone(flowers: Lab, number: int, name: str) -> None:
    """Another session has the lock of this name, for which to resume the run would wait."""
    with contextlib.closing(flowers.connect()) as session:
        run(session, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", name)
        flowers("SET statement_timeout = '1s'")
        try:
            with pytest.raises(psycopg2.errors.QueryCanceled):
                flowers("SELECT resume(%s, epochs => 2)", number)
        finally:
            flowers("RESET statement_timeout")
        # It ends by itself, too: after a minute, and here after a second.
        patience = "DO $$ import sys; sys.modules['cerebro_plpy.database.locks'].PATIENCE = {} $$ LANGUAGE plpython3u"
        flowers(patience.format(1.0))
        try:
            with pytest.raises(psycopg2.errors.ObjectInUse, match="another session holds the lock") as caught:
                flowers("SELECT resume(%s, epochs => 2)", number)
        finally:
            flowers(patience.format(locks.PATIENCE))
        assert "pg_locks" in caught.value.diag.message_hint


PLANTED = (
    '{"rows": -9000000000000000000, "of": 1}',
    '{"rows": 9000000000000000000, "of": 1, "loss": 1e400}',
    '{"rows": []}',
    "{",
)


# tests/core/test_protocol.py leaves out what is no report.
@pytest.mark.parametrize("reported", landing(PLANTED, *PLANTED[:2]))
def test_planted_progress_changes_no_run(flowers: Lab, reported: str) -> None:
    """The rows of a view can raise notices that look like those of a trainer."""
    notice = messages.PROGRESS + reported
    flowers("DROP VIEW IF EXISTS telling, telling_summary")
    flowers(
        "CREATE OR REPLACE FUNCTION tell() RETURNS boolean LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE NOTICE '%', $n${notice}$n$; PERFORM pg_sleep(1.5); RETURN true; END $$"
    )
    flowers(
        "CREATE VIEW telling AS SELECT * FROM train WHERE tell(); CREATE VIEW telling_summary AS TABLE train_summary"
    )
    number = flowers.fit("telling", f"told_{abs(hash(reported))}", "mst", 2)
    assert flowers("SELECT status, percent FROM run_progress WHERE run = %s", number) == [("finished", 100.0)]
    assert flowers.value("SELECT min(rows_done) >= 0 FROM heartbeat WHERE run = %s", number)


# -- runs of several users with one number -------------------------------------------------------------------------


def test_an_administrator_says_whose_run_it_means(server: str) -> None:
    """A user can write a row of its own with the number of another user's run."""
    with town(server) as root:
        bob, mallory = root.user("bob", "cerebro_user"), root.user("mallory", "cerebro_user")
        admin, monitor = root.user("admin", "cerebro_admin"), root.user("monitor", "cerebro_monitor")
        equip(bob)
        number = fit(bob)
        session = (
            "SELECT jsonb_build_object('pid', pid, 'backend_start', backend_start) FROM cerebro_internal._sessions()"
        )
        for user in (bob, mallory):
            if user is mallory:
                columns = root(
                    "SELECT string_agg(attname, ', ') FROM pg_attribute"
                    " WHERE attrelid = 'cerebro.run'::regclass AND attnum > 0 AND attname <> 'owner'"
                )[0]
                root(
                    f"INSERT INTO cerebro.run (owner, {columns}) SELECT %s, {columns} FROM cerebro.run WHERE run = %s",
                    mallory.name,
                    number,
                )
                user("INSERT INTO cerebro.event (run, event) VALUES (%s, 'created')", number)
            # Both runs seem to be under way: in the sessions of this test.
            user(
                f"INSERT INTO cerebro.event (run, event, detail) SELECT %s, 'started', ({session} WHERE pid ="
                " pg_backend_pid())",
                number,
            )
        assert admin("SELECT owner::text, status FROM cerebro.runs WHERE run = %s ORDER BY 1", number) == sorted(
            [(bob.name, "running"), (mallory.name, "running")]
        )
        for call in ("cancel(%s)", "forget(%s)", "wait(%s, 0)"):
            error = admin.refused(f"SELECT cerebro.{call}", number, why=psycopg2.Error)
            assert f"several users have a run {number}: {bob.name}, {mallory.name}" in str(error)
            assert "owner =>" in error.diag.message_hint
        asked = "SELECT owner::text FROM cerebro.event WHERE run = %s AND event = 'cancel requested'"
        error = monitor.refused("SELECT cerebro.cancel(%s, %s)", number, bob.name)
        assert root(asked, number) == []
        assert admin("SELECT cerebro.cancel(%s, %s)", number, mallory.name) == [True]
        assert root(asked, number) == [mallory.name]
        assert bob("SELECT cerebro.cancel(%s)", number) == [True]  # a user's own run needs no name
        bob.refused("SELECT cerebro.cancel(%s, %s)", number, mallory.name, why=psycopg2.errors.UndefinedObject)
        mallory.log_in()  # its run is interrupted
        admin("SELECT cerebro.forget(%s, %s)", number, mallory.name)
        assert root("SELECT owner::text FROM cerebro.run WHERE run = %s", number) == [bob.name]


# -- what a session shares with its other functions --------------------------------------------------------------


def test_a_first_call_leaves_the_garbage_collector_as_it_was(flowers: Lab, server: str) -> None:
    for turn, is_on in (("enable", True), ("disable", False)):
        with contextlib.closing(connect(server)) as session:
            run(session, f"DO $$ import gc; gc.{turn}() $$ LANGUAGE plpython3u")
            run(session, "SELECT cerebro_internal._madlib_object_table(NULL, 'madlib')")
            run(session, f"DO $$ import gc; assert gc.isenabled() is {is_on} $$ LANGUAGE plpython3u")


def test_a_temporary_table_is_refused_by_name(server: str) -> None:
    """An ordinary user's other session has no rights on the schema of the temporary table."""
    with town(server) as root:
        user = root.user("passing", "cerebro_user")
        user("CREATE TEMPORARY TABLE passing AS SELECT i AS x, i % 2 AS y FROM generate_series(1, 100) i")
        error = user.refused(
            "SELECT cerebro.train('passing', 'models', target => 'y')", why=errors.ObjectNotInPrerequisiteState
        )
        assert str(error.diag.message_primary).startswith("cerebro.train: 'passing' is temporary")
