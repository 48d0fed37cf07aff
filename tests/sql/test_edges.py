"""Faults at the edges: what is asked inside transactions, at the same time as something else, or of changed data."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, connect, eventually, flower_model, run

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
    session = connect(server, options=f"-csearch_path={flowers.schema},public,cerebro")
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


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {} SET payload = set_byte(payload, 700, get_byte(payload, 700) # 1) WHERE start = 0",
        "DELETE FROM {} WHERE start = 0",
        "DELETE FROM {}",
    ],
)
def test_a_state_that_was_changed_is_not_handed_out(flowers: Lab, change: str) -> None:
    number = flowers.fit("train", f"whole_{abs(hash(change))}", "mst", 1)
    ((table,),) = flowers(
        "SELECT 'cerebro_state.' || quote_ident(storage || '_2_' || max(h.hop) %% 2) FROM run r JOIN hop h USING (run)"
        " WHERE run = %s GROUP BY storage",
        number,
    )
    flowers(change.format(table))
    flowers.told()
    flowers("SELECT materialize(%s, %s)", number, f"changed_{number}")
    assert any("mst_key 2 is left out: its state is not the one that was committed" in line for line in flowers.told())
    assert flowers(f"SELECT mst_key, model_weights IS NULL FROM changed_{number}") == [(1, False)]
    ((other,),) = flowers("SELECT replace(%s, '_2_', '_1_')", table)
    flowers(change.format(other))
    with pytest.raises(psycopg2.Error, match="are not those that were committed"):
        flowers("SELECT materialize(%s, 'changed')", number)
    assert "changed" not in flowers.tables()


# -- replays -----------------------------------------------------------------------------------------------------


def test_only_the_same_work_is_replayed(flowers: Lab) -> None:
    number = flowers.fit("train", "first", "mst", 2, options={"deterministic": True, "seed": 1})
    again = flowers.fit("train", "again", "mst", 2, options={"replay": number})
    assert flowers.states(again) == flowers.states(number)
    flowers("CREATE TABLE other AS TABLE mst; CREATE TABLE other_summary AS TABLE mst_summary")
    flowers("UPDATE other SET fit_params = 'batch_size=17' WHERE mst_key = 2")
    with pytest.raises(psycopg2.Error, match=r"its configurations were others \(mst_key 2\)"):
        flowers.fit("train", "others", "other", 2, options={"replay": number})
    flowers("DELETE FROM other WHERE mst_key = 2")
    with pytest.raises(psycopg2.Error, match=r"its configurations were others \(mst_key 2\)"):
        flowers.fit("train", "others", "other", 2, options={"replay": number})
    flowers.pack("flowers", "repacked", "species", "sl, sw, pl, pw", segments=2, seed=99)
    with pytest.raises(psycopg2.Error, match="it had other rows"):
        flowers.fit("repacked", "others", "mst", 2, options={"replay": number})
    assert "others" not in flowers.tables()
