"""A cancel that is accepted ends the run, whatever the run does in that moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sql.lab import CROSS, Lab, eventually, flower_model, natural_fit, run
from tests.thorough import landing

CANCEL = "SELECT cerebro.cancel(%s)"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(segments=1)
    lab.selection("mst", [(lab.architecture(flower_model()), f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=16")])
    return lab


@contextlib.contextmanager
def transaction(place: Lab) -> Iterator[Any]:
    with contextlib.closing(place.connect()) as connection:
        connection.autocommit = False
        yield connection


@contextlib.contextmanager
def no_hop(place: Lab) -> Iterator[None]:
    """No visit can be committed meanwhile."""
    with transaction(place) as blocker:
        run(blocker, "LOCK TABLE cerebro.hop IN SHARE ROW EXCLUSIVE MODE")
        yield


class Call:
    """A statement that another session runs meanwhile."""

    def __init__(self, place: Any, statement: str, *values: Any) -> None:
        self._connection = place.connect()
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run, args=(statement, values))
        self._thread.start()

    def _run(self, statement: str, values: Any) -> None:
        try:
            self.answer = run(self._connection, statement, *values)[0][0]
        except Exception as error:
            self.answer = error

    def over(self, within: float) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()

    def end(self) -> Any:
        assert self.over(60), "it hangs"
        self._connection.close()
        return self.answer


def next_run(place: Lab) -> int:
    return place.value("SELECT last_value + is_called::integer FROM cerebro.run_id")


@contextlib.contextmanager
def slow_limits(place: Lab) -> Iterator[None]:
    """Whoever asks for the limits of a run waits until no other session has the lock 4712."""
    function = "SELECT pg_get_functiondef('cerebro_internal._trainer_limit(name, name)'::regprocedure)"
    before = place.value(function)
    # The lock is given back at once: the call asks for its limits before it has a run, too.
    wait = "BEGIN PERFORM pg_catalog.pg_advisory_lock_shared(4712); PERFORM pg_catalog.pg_advisory_unlock_shared(4712);"
    place(before.replace("BEGIN", wait, 1))
    try:
        yield
    finally:
        place(before)


@pytest.mark.parametrize("wait", landing([True, False], False))  # the session that begins it claims it in the same way
def test_between_the_claim_of_a_run_and_its_commit(place: Lab, wait: bool) -> None:
    """The session that begins the run has read its status, and has not committed that it begins."""
    number = next_run(place)
    with slow_limits(place), transaction(place) as first, transaction(place) as second:
        run(first, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"cerebro_db run {number}")
        call = Call(place, *natural_fit("train", f"begun_{wait}", "mst", 300, wait=wait))
        eventually(lambda: place("SELECT 1 FROM cerebro.runs WHERE run = %s", number), 60, "the run is on record")
        run(second, "SELECT pg_advisory_xact_lock(4712)")
        first.rollback()
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 4712"
        eventually(lambda: place(waits), 60, "the run is being claimed")
        cancel = Call(place, CANCEL, number)
        cancel.over(1)
        second.rollback()
    assert cancel.end() is True
    call.end()
    assert place.value("SELECT cerebro.wait(%s, 60)", number) == "cancelled"


def test_a_run_that_nobody_has_begun(place: Lab) -> None:
    number = next_run(place)
    with transaction(place) as first:
        run(first, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"cerebro_db run {number}")
        call = Call(place, *natural_fit("train", "unbegun", "mst", 1, wait=False))
        submitted = "SELECT 1 FROM cerebro.event WHERE run = %s AND event = 'submitted'"
        eventually(lambda: place(submitted, number), 60, "it is submitted")
        assert run(first, CANCEL, number) == [(True,)]
        first.commit()
    assert "cancelled before it began" in str(call.end())
    assert place.status(number) == "cancelled"


def test_a_request_that_is_committed_when_all_visits_are_done(place: Lab) -> None:
    if place.greenplum:
        pytest.skip("a fault of Greenplum 7.0.0: beside other sessions, an open transaction loses rows")
    with transaction(place) as caller:
        number = place.submit("train", "done", "mst", 5)
        assert run(caller, CANCEL, number) == [(True,)]
        recorder = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'DO %%finished%%'"
        name = f"cerebro_db recorder of run {number}"
        eventually(lambda: place.status(number) == "finished" or place(recorder, name), 60, "it would finish")
        caller.commit()
    assert place.value("SELECT cerebro.wait(%s, 60)", number) == "cancelled"
    assert place.value("SELECT to_regclass('done')") is None
    place("SELECT cerebro.resume(%s)", number)
    assert place.status(number) == "finished" and place.value("SELECT count(*) FROM done") == 1


def test_a_session_that_dies_before_it_hears_it(place: Lab) -> None:
    with transaction(place) as caller:
        number = place.submit("train", "dead", "mst", 1000)
        assert run(caller, CANCEL, number) == [(True,)]
        place.end_driver(number)
        eventually(lambda: place.status(number) == "interrupted", 60, "the driver is gone")
        caller.commit()
    assert place.status(number) == "cancelled"
    message, ended = place("SELECT message, ended_at IS NOT NULL FROM cerebro.runs WHERE run = %s", number)[0]
    assert "was cancelled" in message and ended


def test_a_run_that_makes_its_tables(place: Lab) -> None:
    """It is finishing, and nothing is left to cancel, to resume or to forget."""
    with transaction(place) as blocker:
        run(blocker, "CREATE TABLE finishing (x integer)")  # nobody can create that table until this transaction ends
        number = place.submit("train", "finishing", "mst", 1)
        eventually(lambda: place.status(number) == "finishing", 60, "all models are trained")
        assert place.value("SELECT cerebro.wait(%s, 0.2)", number) == "finishing"
        assert place("SELECT status, percent FROM cerebro.run_progress WHERE run = %s", number) == [("finishing", 100)]
        assert place("SELECT ended, message FROM cerebro.runs WHERE run = %s", number) == [(False, None)]
        place.told()
        assert place.value(CANCEL, number) is False
        assert "is making its model tables" in place.told()[0]
        for refused in ("SELECT cerebro.resume(%s, epochs => 2)", "SELECT cerebro.forget(%s)"):
            with pytest.raises(Exception, match="is finishing"):
                place(refused, number)
        blocker.rollback()
    assert place.value("SELECT cerebro.wait(%s, 60)", number) == "finished"
    assert place.value("SELECT count(*) FROM finishing") == 1 and place.value(CANCEL, number) is False


def test_a_transaction_that_would_not_see_the_run(place: Lab) -> None:
    with transaction(place) as caller:
        run(caller, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(Exception, match="does not see what happens"):
            run(caller, CANCEL, 1)
