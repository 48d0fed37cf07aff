"""Large weights are put into the model table by two sessions: the tables are those that one session makes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.names import Name
from cerebro_db.core.sql import quoted
from tests.sql.lab import CROSS, Lab, eventually, layer, run, sequential

OPTIONS = {"seed": 1}
LARGE = 17 << 20  # bytes of weights, at least
LEFT = "SELECT relname::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relname ~ '_models$'"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """A lab with three configurations of a large model.  The other session inserts the second one."""
    if lab.greenplum:
        pytest.skip("on Greenplum one session makes the tables")
    lab.iris(segments=1)
    layers = [layer("Dense", f"hidden{units}", units=units, activation="relu") for units in (2000, 2300)]
    model = lab.architecture(sequential([4], *layers, layer("Dense", "out", units=3, activation="softmax")))
    rows = [(model, f"optimizer='SGD(lr=0.0{n})', {CROSS}", "batch_size=64") for n in (1, 2, 3)]
    lab.selection("mst", rows)
    return lab


@pytest.fixture(scope="module")
def trained(place: Lab) -> int:
    number = place.fit("train", "together", "mst", 1, options=OPTIONS)
    assert place.value("SELECT min(weights_bytes) FROM hop WHERE run = %s", number) >= LARGE
    return number


def hashes(lab: Lab, table: str) -> list[tuple[object, ...]]:
    return lab(f"SELECT mst_key, encode(sha256(model_weights), 'hex') FROM {table} ORDER BY 1")


def state(lab: Lab, run_id: int, model: int) -> str:
    """The table of the last state of a model."""
    storage, hop = lab(
        "SELECT storage, max(h.hop) FROM run r JOIN hop h USING (run) WHERE run = %s AND model = %s GROUP BY 1",
        run_id, model,
    )[0]  # fmt: skip
    return lab.stored(storage, model, hop)[0]


def reshaped(lab: Lab, table: str, order: str, change: str = "payload") -> None:
    """Store the rows of a state in another order, or others."""
    lab(f"CREATE TABLE moved AS SELECT __dist_key__, hop, start, {change} AS payload FROM {table}")
    lab(f"TRUNCATE {table}; INSERT INTO {table} SELECT * FROM moved ORDER BY {order}; DROP TABLE moved")


def test_they_are_those_of_one_session(place: Lab, trained: int) -> None:
    place("SELECT materialize(%s, 'alone')", trained)
    assert hashes(place, "together") == hashes(place, "alone")
    assert [key for key, _ in hashes(place, "together")] == [1, 2, 3]
    assert place.columns("together") == place.columns("alone")
    shape = (
        "SELECT c.relowner, c.relacl, c.relpersistence, c.reloptions, c.relnatts, c.reltablespace, c.relam,"
        " array_agg(a.attstorage ORDER BY attnum) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.oid = %s::regclass AND attnum > 0 GROUP BY c.oid"
    )
    assert place(shape, "together") == place(shape, "alone")
    assert not place(LEFT)


def test_a_run_goes_on_in_the_transaction_that_made_its_tables(place: Lab) -> None:
    """Which holds a lock on the table that it has moved."""
    with contextlib.closing(place.connect()) as session:
        session.autocommit = False
        number = place.fit("train", "twice", "mst", 1, on=session, options=OPTIONS)
        run(session, f"SELECT cerebro.resume({number}, epochs => 2)")
        session.commit()
    assert [key for key, _ in hashes(place, "twice")] == [1, 2, 3] and not place(LEFT)


class Trained:
    """A fit in a session of its own, which has trained its models and waits before it makes the tables."""

    def __init__(self, lab: Lab, session: Any, output: str) -> None:
        self.session = session
        self.ended: list[psycopg2.Error] = []
        ((self.pid,),) = run(session, "SELECT pg_backend_pid()")
        self.thread = threading.Thread(target=self._fit, args=(lab, output))
        self.thread.start()
        finished = "SELECT run FROM event JOIN run_plan USING (run) WHERE event = 'finished' AND model_table ~ %s"
        ((self.run,),) = eventually(lambda: lab(finished, output), 120, "it has trained")

    def _fit(self, lab: Lab, output: str) -> None:
        try:
            lab.fit("train", output, "mst", 1, on=self.session, options=OPTIONS)
        except psycopg2.Error as error:
            self.ended.append(error)

    def join(self) -> None:
        self.thread.join(120)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def trained_until_tables(lab: Lab, output: str) -> Iterator[Trained]:
    """Within it the fit waits; afterwards it makes the tables."""
    name = f"cerebro_db table {Name(lab.schema, output)}"
    with contextlib.closing(lab.connect()) as blocker, contextlib.closing(lab.connect()) as session:
        run(blocker, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", name)
        fit = Trained(lab, session, output)
        try:
            yield fit
        finally:
            run(blocker, "SELECT pg_advisory_unlock_all()")
            fit.join()


def test_a_state_whose_rows_have_another_order(place: Lab, trained: int) -> None:
    with trained_until_tables(place, "reordered") as fit:
        for model in (1, 2):
            reshaped(place, state(place, fit.run, model), "start DESC")
    assert not fit.ended
    assert hashes(place, "reordered") == hashes(place, "together")
    assert not place(LEFT)


def test_a_state_that_was_changed(place: Lab, trained: int) -> None:
    with trained_until_tables(place, "damaged") as fit:
        reshaped(place, state(place, fit.run, 2), "start", "set_byte(payload, 100, get_byte(payload, 100) # 1)")
    assert not fit.ended and any("configuration 2 is left out" in line for line in fit.session.notices)
    assert hashes(place, "damaged") == [row for row in hashes(place, "together") if row[0] != 2]


def test_default_privileges_of_the_schema_hold(place: Lab) -> None:
    schema = quoted(place.schema)
    place(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO cerebro_monitor")
    try:
        place.fit("train", "for_others", "mst", 1, options=OPTIONS)
    finally:
        place(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} REVOKE SELECT ON TABLES FROM cerebro_monitor")
    assert place.value("SELECT has_table_privilege('cerebro_monitor', 'for_others', 'SELECT')")


@contextlib.contextmanager
def locked(lab: Lab, table: str) -> Iterator[None]:
    with contextlib.closing(lab.connect()) as blocker:
        blocker.autocommit = False
        run(blocker, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        blocker.rollback()


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_call_that_ends_while_rows_are_inserted(place: Lab, trained: int, end: str) -> None:
    output = f"ended_by_{end}"
    with contextlib.ExitStack() as until:
        with trained_until_tables(place, output) as fit:
            until.enter_context(locked(place, state(place, fit.run, 2)))
            waits = (
                "SELECT 1 FROM pg_stat_activity"
                " WHERE application_name ~ 'cerebro_db recorder' AND wait_event_type = 'Lock'"
            )

            def end_it() -> None:
                eventually(lambda: place(waits), 60, "the other session waits for the state")
                place(f"SELECT {end}(%s)", fit.pid)

            ending = threading.Thread(target=end_it)
            ending.start()
        ending.join(60)
    assert len(fit.ended) == 1
    assert output not in place.tables() and place(LEFT)
    place("SELECT materialize(%s, %s)", fit.run, output)
    assert hashes(place, output) == hashes(place, "together")
    assert not place(LEFT)


def test_a_caller_that_rolls_back(place: Lab) -> None:
    with contextlib.closing(place.connect()) as caller:
        caller.autocommit = False
        number = place.fit("train", "undone", "mst", 1, on=caller, options=OPTIONS)
        assert run(caller, "SELECT count(*) FROM undone") == [(3,)]
        caller.rollback()
    assert "undone" not in place.tables() and place(LEFT)
    place("SELECT forget(%s)", number)
    assert not place(LEFT)
