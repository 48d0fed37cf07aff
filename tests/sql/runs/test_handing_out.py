"""Users are told of a finished run whose models are in no table, and how to get them."""

from __future__ import annotations

import contextlib

import pytest

from cerebro_db import client
from tests.sql.lab import CROSS, Lab, eventually, flower_model, run

UNTOLD = "SELECT message FROM runs WHERE run = %s"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(segments=1)
    model = lab.architecture(flower_model())
    lab.selection("mst", [(model, f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=16, epochs=1")])
    return lab


def told_and_made(place: Lab, run_id: int, output: str) -> None:
    """Each place where users look says that there is no table, and what it says to do makes it."""
    place.told()
    assert place.value("SELECT wait(%s, 30)", run_id) == "finished"
    warned = [text for text in place.told() if text.startswith("WARNING")]
    message = place.value(UNTOLD, run_id)
    assert "its models are in no table" in message and len(warned) == 1 and message in warned[0]
    assert place.value("SELECT message FROM run_progress WHERE run = %s", run_id) == message
    with (
        client.connect(place.dsn) as cerebro,
        pytest.raises(client.RunFailed, match=rf"(?s)in no table.*materialize\({run_id}"),
    ):
        cerebro.handle(run_id).wait(30)
    place(message.partition("; ")[2].removesuffix(" makes it"))
    assert place.value(f"SELECT count(*) FROM {output}") == 1
    assert place.value(UNTOLD, run_id) is None
    assert place.value("SELECT wait(%s, 30)", run_id) == "finished" and not place.told()


def test_a_session_that_ends_before_it_has_made_the_tables(place: Lab) -> None:
    with contextlib.closing(place.connect()) as blocker:
        blocker.autocommit = False
        run(blocker, "CREATE TABLE slow (x integer)")  # nobody can create that table until this transaction ends
        run_id = place.submit("train", "slow", "mst", 1)
        driver = place.value("SELECT driver_pid FROM runs WHERE run = %s", run_id)
        eventually(lambda: place("SELECT 1 FROM event WHERE run = %s AND event = 'finished'", run_id), 60, "trained")
        assert place.value("SELECT wait(%s, 0.2)", run_id) == "finishing", "it still makes its tables"
        assert place.value(UNTOLD, run_id) is None
        # On Greenplum another session makes the tables for the driver.
        waiting = (
            "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE NOT l.granted AND (l.pid = %s OR a.application_name LIKE 'cerebro_db recorder%%')"
        )
        ((maker,),) = eventually(lambda: place(waiting, driver), 30, "it waits")
        place("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [driver, maker])
        gone = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY (%s)"
        eventually(lambda: not place(gone, [driver, maker]), 30, "it is gone")
        blocker.rollback()
    told_and_made(place, run_id, "slow")


def test_a_caller_that_rolls_back(place: Lab) -> None:
    with contextlib.closing(place.connect()) as caller:
        caller.autocommit = False
        run(caller, "SAVEPOINT before")
        run_id = place.fit("train", "undone", "mst", 1, on=caller)
        assert run(caller, UNTOLD, run_id) == [(None,)], "its own transaction sees the tables"
        assert place.value(UNTOLD, run_id) is None, "the caller may still commit them"
        run(caller, "ROLLBACK TO SAVEPOINT before")
        assert "its models are in no table" in run(caller, UNTOLD, run_id)[0][0]
        caller.rollback()
        told_and_made(place, run_id, "undone")


def test_an_extended_run_has_newer_models_than_its_table(place: Lab) -> None:
    run_id = place.fit("train", "longer", "mst", 1)
    assert place.value(UNTOLD, run_id) is None
    with contextlib.closing(place.connect()) as caller:
        caller.autocommit = False
        run(caller, "SELECT resume(%s, epochs => 2)", run_id)
        caller.rollback()
    assert "its models are in no table" in place.value(UNTOLD, run_id)
    place("SELECT materialize(%s, 'longer_2')", run_id)
    assert place.value(UNTOLD, run_id) is None
