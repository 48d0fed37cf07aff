"""Recovery of runs after kills, cancels, stops and conflicts: nothing committed is lost, and nothing is left behind.

Each run is continued after its failure, and must have the bits of a run without failures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import (
    Lab,
    adam_and_sgd,
    commits_that_wait,
    eventually,
    fit_statement,
    flower_model,
    run,
    trainer_processes,
)

SEGMENTS, EPOCHS, CONFIGURATIONS = 2, 5, 2
LONG = 1000  # epochs of runs that are stopped and never finish
HOPS = SEGMENTS * EPOCHS * CONFIGURATIONS
# With synchronous_commit, what the log shows before a crash is there after it, too.
OPTIONS = {"deterministic": True, "seed": 9, "synchronous_commit": True}


@dataclass
class Calm:
    """The run without failures, whose results every other run must have."""

    run: int
    weights: dict[int, bytes]
    states: dict[int, bytes]


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    model = lab.architecture(flower_model())
    # Small batches make a hop long enough to interrupt it.
    lab.selection("mst", adam_and_sgd(model, epochs=14))
    return lab


@pytest.fixture(scope="module")
def calm(place: Lab) -> Calm:
    run_id = place.fit("train", "calm", "mst", EPOCHS, validation_table="val", options=OPTIONS)
    return Calm(run_id, place.weights("calm"), place.states(run_id))


# -- helpers -------------------------------------------------------------------------------------------------


class Caller(threading.Thread):
    """A thread that executes a statement in a session of its own."""

    def __init__(self, lab: Lab, statement: str, *values: Any, before: str | None = None) -> None:
        super().__init__(daemon=True)
        self.connection = lab.connect()
        self.pid = self.connection.info.backend_pid
        if before:
            run(self.connection, before)
        self.statement, self.values = statement, values
        self.result: Any = None
        self.error: psycopg2.Error | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = run(self.connection, self.statement, *self.values)[0][0]
        except psycopg2.Error as error:
            self.error = error

    def done(self, within: float = 120) -> Caller:
        self.join(within)
        assert not self.is_alive(), f"still waiting after {within:.0f} s: {self.statement}"
        return self


def caller(lab: Lab, output: str, epochs: int = EPOCHS) -> Caller:
    more = {"validation_table": "val", "options": OPTIONS}
    return Caller(lab, *fit_statement("madlib_fit_multiple_model", "train", output, "mst", epochs, more))


def submitted(lab: Lab, output: str, epochs: int = EPOCHS) -> int:
    return lab.submit("train", output, "mst", epochs, validation_table="val", options=OPTIONS)


def the_run(lab: Lab, output: str) -> int:
    """The number of the run whose output table has this name."""
    name = f"{lab.schema}.{output}"
    eventually(lambda: lab("SELECT 1 FROM run WHERE model_table = %s", name), 60, "the run is on record")
    return lab.value("SELECT max(run) FROM run WHERE model_table = %s", name)


def hops(lab: Lab, run_id: int) -> int:
    return lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id)


def hops_of(lab: Lab, run_id: int, key: int) -> int:
    return lab.value("SELECT count(*) FROM hop WHERE run = %s AND model = %s", run_id, key)


def under_way(lab: Lab, run_id: int, least: int = 3) -> int:
    eventually(lambda: hops(lab, run_id) >= least, 120, f"{least} hops")
    return hops(lab, run_id)


def workers(lab: Lab, application: str = "cerebro_db segment %") -> list[int]:
    found = lab(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY application_name", application
    )
    return [pid for (pid,) in found]


def stopped_after(lab: Lab, run_id: int, least: int) -> None:
    under_way(lab, run_id, least)
    driver = lab.value("SELECT driver_pid FROM runs WHERE run = %s", run_id)
    # Two statements, because Greenplum would execute a single one in a process of a segment.
    lab("SELECT pg_cancel_backend(%s)", driver)
    assert lab.value("SELECT wait(%s, 30)", run_id) == "cancelled"


def resumed_to_the_same_bits(lab: Lab, run_id: int, calm: Calm, output: str, least: int = 0) -> None:
    before = lab("SELECT model, hop, state_sha256, finished_at FROM hop WHERE run = %s", run_id)
    assert least <= len(before) < HOPS
    if lab.status(run_id) != "finished":
        lab("SELECT resume(%s)", run_id)
    same_bits(lab, run_id, calm, output)
    after = set(lab("SELECT model, hop, state_sha256, finished_at FROM hop WHERE run = %s", run_id))
    assert set(before) <= after, "what was committed is what it was, and was not trained again"


def same_bits_so_far(lab: Lab, run_id: int, calm: Calm, least: int) -> None:
    """For a run that does not finish: each state equals the state of the calm run after the same hop."""
    assert hops(lab, run_id) >= least
    compared = lab(
        "SELECT a.state_sha256 = b.state_sha256 FROM hop a JOIN hop b USING (model, hop, epoch, segment)"
        " WHERE a.run = %s AND b.run = %s", run_id, calm.run
    )  # fmt: skip
    assert len(compared) >= min(least, HOPS) and all(same for (same,) in compared)
    gaps = "SELECT model FROM hop WHERE run = %s GROUP BY model HAVING count(*) <> max(hop)"
    assert not lab(gaps, run_id)
    lab.require_no_orphans()


def same_bits(lab: Lab, run_id: int, calm: Calm, output: str) -> None:
    assert lab.status(run_id) == "finished"
    assert hops(lab, run_id) == HOPS
    assert lab.states(run_id) == calm.states
    assert lab.weights(output) == calm.weights
    lab.require_no_orphans()


# -- cancel, terminate, timeout ------------------------------------------------------------------------------


def wanted_to_end(place: Lab, who: Caller, run_id: int, end: Callable[[], Any], within: float = 10.0) -> psycopg2.Error:
    """Call ``end``; the caller must get an error within the time, and no session or trainer may remain."""
    under_way(place, run_id)
    began = time.monotonic()
    end()
    who.done(within)
    took = time.monotonic() - began
    assert took < within, f"{took:.1f} s"
    assert who.error is not None
    place.require_no_orphans()
    return who.error


def test_a_cancel_and_a_timeout(place: Lab, calm: Calm) -> None:
    who = caller(place, "ended", LONG)
    run_id = the_run(place, "ended")
    error = wanted_to_end(place, who, run_id, lambda: place("SELECT cancel(%s)", run_id))
    assert error.pgcode == "57014" and f"run {run_id} was cancelled" in error.diag.message_primary
    assert f"resume({run_id})" in error.diag.message_hint
    assert place.status(run_id) == "cancelled"
    assert "ended" not in place.tables()
    assert run(who.connection, "SELECT 1") == [(1,)], "the session lives"
    # A timeout can occur at any moment, also while the trainers start.
    again = Caller(place, "SELECT resume(%s)", run_id, before="SET statement_timeout = '1500ms'").done(20)
    assert again.error is not None and "statement timeout" in str(again.error)
    assert place.status(run_id) == "cancelled"
    same_bits_so_far(place, run_id, calm, 3)


@pytest.mark.thorough  # test_names_taken.py ends a driver, and the crash below interrupts a run that is resumed
def test_the_driver_is_terminated(place: Lab, calm: Calm) -> None:
    who = caller(place, "terminated", LONG)
    run_id = the_run(place, "terminated")
    error = wanted_to_end(place, who, run_id, lambda: place("SELECT pg_terminate_backend(%s)", who.pid))
    assert error.pgcode in ("57P01", None)
    eventually(lambda: place.status(run_id) == "interrupted", 10, "its session is gone, and the run is known to be")
    least = hops(place, run_id)
    again = Caller(place, "SELECT resume(%s)", run_id)
    under_way(place, run_id, least + 3)
    again.connection.cancel()
    again.done(20)
    same_bits_so_far(place, run_id, calm, least + 3)


def test_a_run_whose_recorder_is_lost_has_failed_and_can_be_resumed(place: Lab, calm: Calm) -> None:
    """The run must not appear as running, although the driver's session is still open."""
    who = caller(place, "unrecorded", LONG)
    run_id = the_run(place, "unrecorded")
    (recorder,) = eventually(lambda: workers(place, "cerebro_db recorder%"), 30, "the recorder is there")
    error = wanted_to_end(place, who, run_id, lambda: place("SELECT pg_terminate_backend(%s)", recorder))
    assert "record" in error.diag.message_primary
    assert run(who.connection, "SELECT 1") == [(1,)]
    assert place.status(run_id) == "failed"


# -- lost processes and sessions -----------------------------------------------------------------------------


def test_trainers_and_worker_sessions_are_replaced(place: Lab, calm: Calm) -> None:
    """The run continues without help, and the log says what happened."""
    run_id = submitted(place, "replaced")
    under_way(place, run_id)
    for pid in workers(place):
        place("SELECT pg_terminate_backend(%s)", pid)
        under_way(place, run_id, hops(place, run_id) + 1)
    if place.home is not None:
        for parent in workers(place):
            # On Greenplum a trainer belongs to a process of a segment, and not to one that the coordinator knows.
            trainers = trainer_processes(place.home)
            children = [pid for pid, its_parent in trainers if place.greenplum or its_parent == parent]
            assert children, "each worker has its trainer"
            os.kill(children[0], signal.SIGKILL)
            under_way(place, run_id, hops(place, run_id) + 1)
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished"
    same_bits(place, run_id, calm, "replaced")
    told = place("SELECT detail ->> 'reason' FROM event WHERE run = %s AND event = 'unit failed'", run_id)
    assert told, "at least one of them died at work, which is on record"
    tries = place.value("SELECT count(*) FROM attempt WHERE run = %s", run_id)
    assert HOPS <= tries <= HOPS + 4, "one that died before its attempt was on record has left none"


@pytest.mark.throw_away
@pytest.mark.thorough  # tests/core/test_driver.py loses sessions at each moment, also before their first visit
def test_sessions_lost_while_models_are_built_are_nobodys_fault(place: Lab, calm: Calm) -> None:
    """Two sessions and then a trainer end before the first hop.  This does not count as a configuration's failure."""
    assert place.home is not None
    run_id = submitted(place, "unbuilt")
    building = (
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %%' AND state = 'active'"
        " AND query LIKE '%%_work(%%' AND NOT EXISTS (SELECT FROM event WHERE run = %s AND event = 'built')"
    )
    for _ in range(2):
        pid = eventually(lambda: place(building, run_id), 60, "a trainer builds")[0][0]
        place("SELECT pg_terminate_backend(%s)", pid)
        eventually(lambda pid=pid: pid not in workers(place), 30, "it is gone")
    pid = eventually(lambda: place(building, run_id), 60, "a trainer builds again")[0][0]
    ours = lambda: [one for one, parent in trainer_processes(place.home) if parent == pid]  # noqa: E731
    os.kill(eventually(ours, 30, "the trainer is there")[0], signal.SIGKILL)
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished"
    assert not place("SELECT detail FROM event WHERE run = %s AND event = 'model failed'", run_id)
    same_bits(place, run_id, calm, "unbuilt")


def crashed(place: Lab) -> bool:
    """Whether the server has ended the main session."""
    try:
        place("SELECT 1")
    except psycopg2.Error:
        return True
    return False


def back(place: Lab) -> None:
    def there() -> bool:
        with contextlib.suppress(psycopg2.Error):
            return bool(place("SELECT 1"))
        place.close()
        return False

    eventually(there, 60, "the server is back")


@pytest.mark.needs_cluster
@pytest.mark.thorough  # the next test kills processes of the server
def test_a_crash(place: Lab, calm: Calm) -> None:
    """A kill -9 of a worker's backend makes PostgreSQL restart."""
    run_id = submitted(place, "crashed")
    least = under_way(place, run_id)
    os.kill(workers(place)[0], signal.SIGKILL)
    time.sleep(0.5)
    back(place)
    assert place.status(run_id) == "interrupted"
    place.require_no_orphans()
    resumed_to_the_same_bits(place, run_id, calm, "crashed", least)
    assert not place.abandoned(), "later workers took away what the killed ones had left"


@pytest.mark.throw_away
def test_a_crash_takes_only_the_last_commits_that_did_not_wait(place: Lab) -> None:
    """And what is trained again has the same bits."""
    place("CREATE TABLE waited (setting text)")
    place("GRANT INSERT ON waited TO PUBLIC")
    place(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" INSERT INTO {place.schema}.waited VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    place("CREATE TRIGGER note AFTER INSERT ON cerebro.hop FOR EACH ROW EXECUTE FUNCTION note()")
    run_id = place.submit("train", "hurried", "mst", LONG, options={**OPTIONS, "synchronous_commit": False})

    def on_record() -> dict[tuple[int, int], str]:
        rows = place("SELECT model, hop, state_sha256 FROM hop WHERE run = %s", run_id)
        return {(model, hop): sha256 for model, hop, sha256 in rows}

    def lost_in_a_crash() -> set[tuple[int, int]]:
        # These processes write the log to the disk, and so does every commit that waits.
        writers = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')"
        )
        stopped = [pid for (pid,) in place(writers)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        # A heartbeat waits for the disk, and takes everything before it there.
        newer = "SELECT count(*) > 2 FROM hop WHERE run = %s AND finished_at > (SELECT max(at) FROM heartbeat)"
        eventually(lambda: place.value(newer, run_id), 120, "hops that came after the last heartbeat")
        stopped += workers(place, "cerebro_db recorder%")
        os.kill(stopped[-1], signal.SIGSTOP)  # the next heartbeat
        before = on_record()
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: crashed(place), 60, "the server ends all sessions")
        back(place)
        assert place.status(run_id) == "interrupted"
        place.require_no_orphans()
        kept = on_record()
        assert all(before.get(hop, sha256) == sha256 for hop, sha256 in kept.items())
        assert not place("SELECT model FROM hop WHERE run = %s GROUP BY model HAVING count(*) <> max(hop)", run_id)
        place("SELECT resume(%s, wait => false)", run_id)
        eventually(lambda: before.keys() <= on_record().keys(), 120, "the lost hops are trained again")
        after = on_record()
        assert all(after[hop] == sha256 for hop, sha256 in before.items())
        return before.keys() - kept.keys()

    try:
        assert any(lost_in_a_crash() for _ in range(8)), "no commit was lost: they waited for the disk"
        place("SELECT cancel(%s)", run_id)
        assert place.value("SELECT wait(%s, 30)", run_id) == "cancelled"
        assert place("SELECT DISTINCT setting FROM waited") == [("off",)]
        place.require_no_orphans()
        assert not place.abandoned(), "later workers took away what the killed ones had left"
    finally:
        place("DROP TRIGGER note ON cerebro.hop; DROP FUNCTION note(); DROP TABLE waited")


@pytest.mark.throw_away
def test_a_session_lost_on_its_way_back_from_commit(place: Lab, calm: Calm) -> None:
    """The driver does not hear that a hop is committed.  It reads the log, so the hop neither fails nor is repeated."""
    with commits_that_wait(place, "new.model = 1 AND new.hop = 3") as (one_waits, end_it):
        run_id = submitted(place, "dawdling")
        one_waits()
        assert hops_of(place, run_id, 1) == 2, "what waits is not seen yet"
        end_it()
        assert place.value("SELECT wait(%s, 120)", run_id) == "finished"
    same_bits(place, run_id, calm, "dawdling")
    assert place.value("SELECT count(*) FROM attempt WHERE run = %s AND model = 1 AND hop = 3", run_id) == 1
    assert not place("SELECT 1 FROM event WHERE run = %s AND event = 'unit failed'", run_id)


# -- concurrent calls ----------------------------------------------------------------------------------------


def test_two_resumes_have_one_winner(place: Lab, calm: Calm) -> None:
    run_id = submitted(place, "contested", LONG)
    under_way(place, run_id, 2)
    place("SELECT cancel(%s)", run_id)
    assert place.value("SELECT wait(%s, 30)", run_id) == "cancelled"
    both = [Caller(place, "SELECT resume(%s)", run_id) for _ in range(2)]
    eventually(lambda: not all(one.is_alive() for one in both), 60, "the loser hears of it")
    (winner,) = [one for one in both if one.is_alive()]
    (loser,) = [one for one in both if one is not winner]
    assert loser.error is not None and loser.error.pgcode == "55006"
    assert f"process id {winner.pid}" in loser.error.diag.message_primary and loser.error.diag.message_hint
    eventually(lambda: place.status(run_id) == "running", 60, "the winner drives it")
    with pytest.raises(psycopg2.Error) as caught:
        place("SELECT forget(%s)", run_id)
    assert caught.value.pgcode == "55006"
    under_way(place, run_id, hops(place, run_id) + 2)
    winner.connection.cancel()  # as Ctrl-C does
    winner.done(20)
    assert winner.error is not None and winner.error.pgcode == "57014" and place.status(run_id) == "cancelled"
    same_bits_so_far(place, run_id, calm, 4)


def test_an_extension_that_is_cancelled_replaces_the_tables_when_it_ends(place: Lab, calm: Calm) -> None:
    """It replaces only the tables of its own run, and leaves tables of the same name from another run alone."""
    run_id = place.fit("train", "grown", "mst", 1, validation_table="val", options=OPTIONS)
    shorter = place.weights("grown")
    who = Caller(place, "SELECT resume(%s, epochs => %s)", run_id, EPOCHS)
    under_way(place, run_id, SEGMENTS * CONFIGURATIONS + 1)
    who.connection.cancel()
    assert who.done(20).error is not None
    assert place.weights("grown") == shorter, "the result of before is there until there is a new one"
    place("UPDATE grown_summary SET run = %s", calm.run)
    done = hops(place, run_id)
    with pytest.raises(psycopg2.Error, match="already exists") as caught:
        place("SELECT resume(%s)", run_id)
    assert caught.value.pgcode == "42P07" and "wait => false" in caught.value.diag.message_hint
    assert place.weights("grown") == shorter
    assert hops(place, run_id) == done and place.status(run_id) == "cancelled", "it is said before the training"
    # What the hint proposes.
    place("SELECT resume(%s, wait => false)", run_id)
    assert place.value("SELECT wait(%s, 60)", run_id) == "finished"
    place("DROP TABLE grown, grown_info, grown_summary")
    place("SELECT materialize(%s, 'grown')", run_id)
    same_bits(place, run_id, calm, "grown")


# -- missing or damaged tables -------------------------------------------------------------------------------


@pytest.mark.thorough  # test_many_small.py has a run whose name is taken, and hands out its models
def test_the_name_of_the_result_is_taken_meanwhile(place: Lab, calm: Calm) -> None:
    who = caller(place, "taken")
    run_id = the_run(place, "taken")
    place("CREATE TABLE taken (x int)")
    who.done()
    assert who.error is not None and who.error.pgcode == "42P07"
    assert place.columns("taken") == [("x", "integer")], "somebody's table is left alone"
    assert place.status(run_id) == "finished", "it has trained all the same"
    place("SELECT materialize(%s, 'elsewhere')", run_id)
    same_bits(place, run_id, calm, "elsewhere")


def test_the_packed_table_is_dropped_or_changed(place: Lab, calm: Calm) -> None:
    place("CREATE TABLE kept AS TABLE train; CREATE TABLE kept_summary AS TABLE train_summary")
    try:
        run_id = submitted(place, "rootless")
        stopped_after(place, run_id, 2)
        place("DROP TABLE train CASCADE")
        with pytest.raises(psycopg2.Error, match="does not exist") as caught:
            place("SELECT resume(%s)", run_id)
        assert caught.value.diag.message_hint
        assert place.status(run_id) == "failed"
        place.require_no_orphans()
        # The table is restored with one wrong bit.
        place("CREATE TABLE train AS TABLE kept")
        (name,) = [column for column, kind in place.columns("train") if kind == "bytea" and "features" in column]
        place(f'UPDATE train SET "{name}" = set_byte("{name}", 5, get_byte("{name}", 5) # 1)')
        with pytest.raises(psycopg2.Error, match="not those that were packed") as caught:
            place("SELECT resume(%s)", run_id)
        assert caught.value.pgcode == "XX001" and caught.value.diag.message_hint
        place("DROP TABLE train; CREATE TABLE train AS TABLE kept")
        resumed_to_the_same_bits(place, run_id, calm, "rootless", 2)
    finally:
        place("DROP TABLE IF EXISTS train, kept_summary CASCADE; ALTER TABLE kept RENAME TO train")


def test_a_state_with_other_bytes_is_not_trained_on(place: Lab, calm: Calm) -> None:
    run_id = submitted(place, "rotten")
    stopped_after(place, run_id, 4)
    storage = place.value("SELECT storage FROM run WHERE run = %s", run_id)
    hop = place.value("SELECT max(hop) FROM hop WHERE run = %s AND model = 1", run_id)
    table, which = place.stored(storage, 1, hop)
    place(f"CREATE TABLE sound AS SELECT * FROM {table} WHERE {which}")
    at = "octet_length(payload) - 3"
    place(f"UPDATE {table} SET payload = set_byte(payload, {at}, get_byte(payload, {at}) # 1) WHERE {which}")
    place("SELECT resume(%s)", run_id)
    board = dict(place("SELECT configuration, status FROM leaderboard WHERE run = %s", run_id))
    assert board == {1: "failed", 2: "finished"}
    reason = place.value("SELECT reason FROM leaderboard WHERE run = %s AND configuration = 1", run_id)
    assert "checksum" in reason, reason
    assert place.weights("rotten")[2] == calm.weights[2]
    # After the state is restored from a backup, the configuration continues.
    table, _ = place.stored(storage, 1, hop)
    place(
        f"UPDATE {table} t SET payload = s.payload FROM sound s"
        " WHERE (t.model, t.hop, t.start) = (s.model, s.hop, s.start)"
    )
    place("SELECT resume(%s, retry_failed => true)", run_id)
    same_bits(place, run_id, calm, "rotten")


# -- without a waiting caller --------------------------------------------------------------------------------


def test_a_submitted_run_needs_nobody_and_can_be_forgotten(place: Lab, calm: Calm) -> None:
    run_id = submitted(place, "alone")  # The session that submitted it has already ended.
    assert place.value("SELECT wait(%s, 0.1)", run_id) in ("created", "running")
    assert place.value("SELECT wait(%s)", run_id) == "finished"
    same_bits(place, run_id, calm, "alone")
    storage = place.value("SELECT storage FROM run WHERE run = %s", run_id)
    left = "SELECT count(*) FROM pg_class WHERE starts_with(relname, %s)"
    assert place.value(left, storage) > 0
    place("SELECT forget(%s)", run_id)
    assert place.value(left, storage) == 0
    for table in (
        "run",
        "configuration",
        "architecture",
        "model",
        "event",
        "attempt",
        "hop",
        "evaluation",
        "decision",
        "heartbeat",
        "request",
    ):
        assert place.value(f"SELECT count(*) FROM cerebro.{table} WHERE run = %s", run_id) == 0
    assert place.weights("alone") == calm.weights, "the model tables are the user's and stay"


def test_a_client_that_is_gone(place: Lab, calm: Calm) -> None:
    """The driver notices the loss when it next sends something.  Until then the run continues, and nothing is lost."""
    who = caller(place, "orphaned")
    run_id = the_run(place, "orphaned")
    under_way(place, run_id)
    with socket.socket(fileno=os.dup(who.connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)  # as if the client's process had died
    how = place.ended(run_id, 120, "the driver has noticed")
    assert how in ("interrupted", "finished")
    place.require_no_orphans()
    if how == "finished":
        if "orphaned" not in place.tables():
            place("SELECT materialize(%s, 'orphaned')", run_id)
        same_bits(place, run_id, calm, "orphaned")
    else:
        resumed_to_the_same_bits(place, run_id, calm, "orphaned", 3)
