"""Many small models on few segments: several visits share an order and a transaction, and states are appended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import psycopg2
import pytest

from cerebro_db.core.sql import shown, sql
from cerebro_plpy.runs.record import state_tables
from tests.sql.lab import CROSS, Lab, eventually, flower_model, run, trainer_processes

MODELS, SEGMENTS, EPOCHS = 16, 2, 30
# Each visit takes some milliseconds, so several share an order.
SELECTION = "optimizer='SGD(lr=0.0{})', " + CROSS


@pytest.fixture(scope="module")
def small(lab: Lab) -> Lab:
    lab.iris(segments=SEGMENTS)
    arch = lab.architecture(flower_model())
    lab.selection("small", [(arch, SELECTION.format(n + 1), "batch_size=1") for n in range(MODELS)])
    return lab


def statuses(lab: Lab, run_id: int) -> set[tuple[str, str | None]]:
    return set(lab("SELECT status, reason FROM leaderboard WHERE run = %s", run_id))


ORDERS = """
SELECT segment, max(worker_pid) FROM attempt a WHERE run = %s
   AND NOT EXISTS (SELECT FROM hop h WHERE (h.run, h.model, h.hop) = (a.run, a.model, a.hop))
 GROUP BY segment, started_at HAVING count(*) >= 3
"""


@pytest.mark.throw_away
@pytest.mark.thorough  # tests/core/test_driver.py loses trainers in orders of many; tests/core/test_series.py
def test_a_trainer_that_dies_in_an_order_of_many_is_one_death(small: Lab) -> None:
    assert small.home is not None
    run_id = small.submit("train", "died", "small", EPOCHS)
    for _ in range(2):
        eventually(lambda: small(ORDERS, run_id), 120, "an order of several visits")
        found = small(ORDERS, run_id)
        pids = [pid for pid, parent in trainer_processes(small.home) if found and parent == found[0][1]]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
    assert small.value("SELECT wait(%s, 120)", run_id) == "finished"
    assert statuses(small, run_id) == {("finished", None)}
    assert small.value("SELECT count(*) FROM event WHERE run = %s AND event = 'unit failed'", run_id) >= 3


@contextlib.contextmanager
def reader(lab: Lab) -> Iterator[None]:
    """Locks the state tables one after the other and holds all locks for a while, as pg_dump does, again and again."""
    connection, over = lab.connect(), threading.Event()
    connection.autocommit = False

    def read() -> None:
        while not over.is_set():
            with contextlib.suppress(psycopg2.Error), connection.cursor() as cursor:
                cursor.execute(
                    "SELECT relname FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
                    " ORDER BY random()"
                )
                for (name,) in cursor.fetchall():
                    cursor.execute(f'LOCK TABLE cerebro_state."{name}" IN ACCESS SHARE MODE')
                    time.sleep(0.02)
                over.wait(1.5)
            connection.rollback()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        connection.close()


def test_a_reader_of_all_state_tables_stops_no_run(small: Lab) -> None:
    with reader(small):
        run_id = small.fit("train", "read", "small", 14)
    assert statuses(small, run_id) == {("finished", None)}


def test_emptying_a_table_changes_no_setting_of_its_transaction(small: Lab) -> None:
    small("CREATE TABLE emptied AS SELECT 1 AS x")
    statement = shown(state_tables.emptied_sql([sql("emptied")], sql("DELETE FROM emptied")))
    session, other = small.connect(), small.connect()
    for connection in (session, other):
        connection.autocommit = False
    for held in (False, True):
        if held:
            run(other, "SELECT * FROM emptied")
        run(session, "SET LOCAL lock_timeout = '7s'")
        run(session, "INSERT INTO emptied VALUES (2)")
        run(session, statement)
        assert run(session, "SHOW lock_timeout") == [("7s",)]
        assert run(session, "SELECT * FROM emptied") == []
        session.commit()
    other.close()
    session.close()


@pytest.mark.throw_away
def test_the_disk_that_was_announced_is_enough(small: Lab) -> None:
    """And when a run has finished, only the last state of each model is left.  Greenplum has copies besides."""
    small.told()
    run_id = small.fit("train", "counted", "small", 12)
    (needs,) = [line for line in small.told() if "of disk for model states" in line]
    size = (
        "SELECT sum(pg_relation_size(c.oid)) FROM pg_class c, run r WHERE r.run = %s"
        " AND relnamespace = 'cerebro_state'::regnamespace AND starts_with(relname, storage)"
    )
    assert "up to 2 MB" in needs  # 1 MB, and 16 models with six states of one page
    assert small.value(size, run_id) <= MODELS * state_tables.PAGE
    assert len(small.states(run_id)) == MODELS


@pytest.mark.throw_away
def test_a_call_leaves_no_file_of_its_states_open(small: Lab) -> None:
    """A session that trains all day would have the files of all its runs open."""
    names = "SELECT relname, pg_relation_filenode(oid)::text FROM pg_class WHERE starts_with(relname::text, %s)"
    with contextlib.closing(small.connect()) as session:
        for number in range(2):
            run_id = small.fit("train", f"open_{number}", "small", 1, on=session)
            files = {
                file: name for name, file in small(names, small.value("SELECT storage FROM run WHERE run = %s", run_id))
            }
            assert len(files) >= 4
            run(session, "SELECT 1")  # now it hears what it may close
            folder = f"/proc/{session.info.backend_pid}/fd"
            opened = {os.path.basename(os.readlink(f"{folder}/{number}")) for number in os.listdir(folder)}
            assert [name for file, name in files.items() if file in opened] == []


def test_a_resume_that_is_refused_leaves_no_trace(small: Lab) -> None:
    run_id = small.fit("train", "kept", "small", 1)
    events = small("SELECT event_id, event FROM event WHERE run = %s ORDER BY 1", run_id)
    with pytest.raises(psycopg2.Error, match="is finished"):
        small("SELECT resume(%s, wait => false)", run_id)
    assert small("SELECT event_id, event FROM event WHERE run = %s ORDER BY 1", run_id) == events
    small("ALTER TABLE kept RENAME TO moved; CREATE TABLE kept (x integer)")
    with pytest.raises(psycopg2.Error, match="kept"):
        small("SELECT resume(%s, epochs => 30)", run_id)
    assert small("SELECT event_id, event FROM event WHERE run = %s ORDER BY 1", run_id) == events
    # Nobody waits for a run in the background, so it may train: its models can be handed out later.
    small("SELECT resume(%s, epochs => 2, wait => false)", run_id)
    small("SELECT wait(%s, 60)", run_id)
    assert "its model tables were not made" in small.value("SELECT message FROM runs WHERE run = %s", run_id)
    small("SELECT materialize(%s, 'later')", run_id)
    assert small.value("SELECT count(*) FROM later") == MODELS
