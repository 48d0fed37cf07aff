"""Training in the caller's own session: for tables that no other session sees, or on request."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.lab import CROSS, Lab, eventually, flower_model, run, trainer_processes, verb
from tests.thorough import tries

PACK = "SELECT pack_plain('flowers', %s, 'species', 'sl, sw, pl, pw', segments => %s, seed => 1)"
VALIDATE = "SELECT pack_like('garden', %s, 'species', 'sl, sw, pl, pw', %s)"
FIT = "SELECT cerebro.fit(%s, %s, 'mst', epochs => 3, validation_table => %s, evaluate_every => 1, options => %s)"
SAME = {"deterministic": True, "seed": 5}


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=2)
    model = lab.architecture(flower_model())
    lab.selection(
        "mst",
        [(model, f"optimizer='Adam(learning_rate={rate})', {CROSS}", "batch_size=16") for rate in (0.1, 0.01)],
    )
    return lab


@contextlib.contextmanager
def transaction(lab: Lab) -> Iterator[Any]:
    connection = lab.connect()
    try:
        run(connection, "BEGIN")
        yield connection
    finally:
        connection.close()


def weights(connection: Any, table: str) -> list[tuple[int, bytes]]:
    return [
        (key, bytes(value)) for key, value in run(connection, f"SELECT configuration, weights FROM {table} ORDER BY 1")
    ]


def test_a_resume_waits_for_whoever_has_the_lock_of_its_run(flowers: Lab) -> None:
    """For instance a cancel, or another claim, whose transaction is open."""
    flowers(PACK, "locked", 2)
    options = json.dumps({**SAME, "execution": "session"})
    number = flowers.value(FIT, "locked", "locked_out", None, options)
    with contextlib.closing(flowers.connect()) as holder, ThreadPoolExecutor(1) as pool:
        run(holder, "SELECT pg_advisory_lock(hashtextextended(%s, 0))", f"cerebro_db run {number}")
        with contextlib.closing(flowers.connect()) as other:
            resumed = pool.submit(run, other, "SELECT resume(%s, epochs => 4)", number)
            waits = (
                "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND query LIKE 'SELECT resume%%' AND state = 'active'"
            )
            eventually(lambda: flowers(waits, other.get_backend_pid()), 60, "the call is under way")
            time.sleep(1)
            assert not resumed.done() and flowers.status(number) == "finished"
            run(holder, "SELECT pg_advisory_unlock_all()")
            resumed.result(timeout=120)
    assert flowers("SELECT DISTINCT epoch FROM locked_out_info") == [(4,)]


def test_one_transaction_packs_trains_evaluates_and_predicts(flowers: Lab) -> None:
    with transaction(flowers) as mine:
        run(mine, PACK, "fresh", 2)
        run(mine, VALIDATE, "fresh_val", "fresh")
        ((number,),) = run(mine, FIT, "fresh", "fresh_out", "fresh_val", json.dumps(SAME))
        assert any(
            "training in this session" in line and "'fresh' is visible only in this" in line for line in mine.notices
        )
        assert not any("cerebro_progress" in line for line in mine.notices)
        run(mine, "SELECT madlib_keras_evaluate('fresh_out', 'fresh_val', 'fresh_judged', false, 1)")
        run(mine, "SELECT madlib_keras_predict('fresh_out', 'garden', 'id', 'sl, sw, pl, pw', 'fresh_said', 'response',"
                  " false, 1)")  # fmt: skip
        ((loss, judged, said),) = run(
            mine, "SELECT validation_loss, (SELECT loss FROM fresh_judged), (SELECT count(*) FROM fresh_said)"
                  " FROM fresh_out_info WHERE configuration = 1")  # fmt: skip
        assert loss == pytest.approx(judged, abs=1e-6) and said == 30
        if not flowers.greenplum:  # there a session that reads this log can lose its rows (docs/operate.md)
            assert flowers("SELECT count(*) FROM cerebro.runs WHERE run = %s", number) == [(0,)], "committed too early"
        assert flowers("SELECT to_regclass('fresh')") == [(None,)]
        inside = weights(mine, "fresh_out")
        run(mine, "COMMIT")
    assert flowers.status(number) == "finished"
    assert flowers("SELECT count(*), count(DISTINCT segment) FROM cerebro.hop WHERE run = %s", number) == [(12, 2)]
    saving = flowers.value("SELECT max((seconds ->> 'save')::float8) FROM cerebro.hop WHERE run = %s", number)
    assert saving < 5
    # Worker sessions find the same numbers, bit for bit; and they can train the run on.
    ((again,),) = flowers(FIT, "fresh", "again_out", "fresh_val", json.dumps(SAME))
    assert weights(flowers.db, "again_out") == inside
    flowers("SELECT cerebro.resume(%s, 4)", number)
    flowers("SELECT cerebro.resume(%s, 4)", again)
    assert weights(flowers.db, "again_out") == weights(flowers.db, "fresh_out") != inside
    assert flowers("SELECT max(epoch) FROM cerebro.learning_curve WHERE run = %s", number) == [(4,)]


def test_a_rollback_leaves_nothing(flowers: Lab) -> None:
    before = flowers("SELECT count(*) FROM cerebro.run"), flowers("SELECT count(*) FROM pg_class")
    with transaction(flowers) as mine:
        run(mine, PACK, "gone", 1)
        run(mine, FIT, "gone", "gone_out", None, None)
        run(mine, "ROLLBACK")
    assert before == (flowers("SELECT count(*) FROM cerebro.run"), flowers("SELECT count(*) FROM pg_class"))


def test_temporary_tables(flowers: Lab) -> None:
    with contextlib.closing(flowers.connect()) as mine:
        run(mine, PACK, "pg_temp.brief", 1)
        run(mine, VALIDATE, "pg_temp.brief_val", "brief")
        run(mine, FIT, "brief", "pg_temp.brief_out", "brief_val", None)
        assert run(mine, "SELECT count(*), min(status) FROM brief_out_info") == [(2, "finished")]
        run(mine, "SELECT madlib_keras_evaluate('brief_out', 'brief_val', 'pg_temp.brief_judged', false, 2)")
        assert run(mine, "SELECT loss > 0 FROM brief_judged") == [(True,)]
        with pytest.raises(errors.InvalidParameterValue, match="cannot be driven by another session"):
            run(mine, "SELECT cerebro.fit('brief', 'never', 'mst', epochs => 1, wait => false)")
        with pytest.raises(errors.FeatureNotSupported, match="temporary table, which worker sessions cannot see"):
            run(mine, FIT, "brief", "never", None, '{"execution": "workers"}')


def test_on_request(flowers: Lab) -> None:
    flowers.told()
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'cerebro_w_%'"
    flowers("SELECT cerebro._dismiss_waiting()")
    ((number,),) = flowers(FIT, "train", "asked_out", "val", '{"execution": "session"}')
    assert any("because execution is 'session'" in line for line in flowers.told())
    assert flowers.value(sessions) == 0
    assert flowers.status(number) == "finished"
    flowers("SELECT cerebro.resume(%s, 4)", number)
    assert flowers.value(sessions) == 0
    assert flowers("SELECT min(status), max(epochs_done) FROM cerebro.leaderboard WHERE run = %s", number) == [
        ("finished", 4)
    ]
    with pytest.raises(errors.InvalidParameterValue, match="option 'execution' cannot be"):
        flowers(FIT, "train", "never", None, '{"execution": "here"}')
    with pytest.raises(errors.InvalidParameterValue, match="stop_when needs another session"):
        flowers("SELECT cerebro.fit('train', 'never', 'mst', epochs => 1, stop_when => 'SELECT 1 AS model',"
                """ options => '{"execution": "session"}')""")  # fmt: skip


def test_workers_on_request_need_a_commit(flowers: Lab) -> None:
    with transaction(flowers) as mine:
        run(mine, PACK, "unseen", 1)
        with pytest.raises(psycopg2.Error, match="not committed, so worker sessions cannot see it"):
            run(mine, FIT, "unseen", "never", None, '{"execution": "workers"}')


def test_committed_tables_train_in_worker_sessions_though_the_transaction_has_written(flowers: Lab) -> None:
    with transaction(flowers) as mine:
        run(mine, "CREATE TABLE notes (i int); INSERT INTO notes VALUES (1)")
        run(mine, FIT, "train", "beside_out", None, None)
        assert not any("training in this session" in line for line in mine.notices)
        run(mine, "ROLLBACK")


def test_one_bad_configuration_fails_alone(flowers: Lab) -> None:
    model = flowers.value("SELECT max(model_id) FROM arch")
    flowers.selection(
        "mixed",
        [(model, f"optimizer='SGD(learning_rate={rate})', {CROSS}", "batch_size=16") for rate in ("1e38", "0.01")],
    )
    with transaction(flowers) as mine:
        run(mine, PACK, "part", 2)
        run(mine, "SELECT cerebro.fit('part', 'part_out', 'mixed', epochs => 2, options => %s)", json.dumps(SAME))
        assert run(mine, "SELECT configuration, status FROM part_out_info ORDER BY 1") == [
            (1, "failed"),
            (2, "finished"),
        ]


def test_a_search_in_one_transaction(flowers: Lab) -> None:
    space = {"learning_rate": {"log_uniform": [0.001, 0.1]}, "batch_size": 16}
    with transaction(flowers) as mine:
        run(mine, PACK, "sought", 2)
        method = {"name": "asha", "sampler": {"name": "tpe", "startup": 3}}
        run(mine, *verb("search", "sought", "sought_out", space, epochs=4, method=method, max_configurations=6))
        assert run(mine, "SELECT count(*), bool_or(status = 'finished') FROM sought_out_info") == [(6, True)]


# -- cancels, ends and other sessions --------------------------------------------------------------------------


def processes(lab: Lab, pid: int) -> set[int]:
    """The processes of a session: on Greenplum those of the segments, too."""
    if not lab.greenplum:
        return {pid}
    same = "SELECT sess_id FROM pg_stat_activity WHERE pid = %s"
    return {pid, *(one for (one,) in lab(f"SELECT pid FROM {lab.everywhere} WHERE sess_id = ({same})", pid))}


def trainers_of(lab: Lab, sessions: set[int]) -> set[int]:
    if lab.home is None:
        pytest.skip("the trainers are on another machine")
    return {pid for pid, session in trainer_processes(lab.home) if session in sessions}


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_an_end_in_the_middle_of_a_visit(flowers: Lab, end: str) -> None:
    model = flowers.value("SELECT max(model_id) FROM arch")
    flowers("DROP TABLE IF EXISTS long_mst, long_mst_summary")
    flowers.selection("long_mst", [(model, f"optimizer='SGD()', {CROSS}", "batch_size=16, epochs=100000")])
    with transaction(flowers) as mine, ThreadPoolExecutor(1) as thread:
        ((pid,),) = run(mine, "SELECT pg_backend_pid()")
        run(mine, PACK, "ended", 2)
        fitting = thread.submit(run, mine, "SELECT cerebro.fit('ended', 'ended_out', 'long_mst', epochs => 3)")
        eventually(lambda: trainers_of(flowers, processes(flowers, pid)), 60, "a trainer starts")
        time.sleep(2)  # into a visit that would take minutes
        ours = processes(flowers, pid)
        assert not fitting.done() and len(trainers_of(flowers, ours)) == (2 if flowers.greenplum else 1)
        began = time.monotonic()
        flowers(f"SELECT {end}(%s)", pid)
        error = fitting.exception(30)
        assert time.monotonic() - began < 3
        eventually(lambda: not trainers_of(flowers, ours), 10, "trainers end")
        if end == "pg_terminate_backend":
            assert isinstance(error, psycopg2.OperationalError)
            return
        assert isinstance(error, errors.QueryCanceled)
        run(mine, "ROLLBACK")
        run(mine, "BEGIN")
        run(mine, PACK, "ended", 2)
        run(mine, FIT, "ended", "ended_out", None, None)
        assert run(mine, "SELECT count(*) FROM ended_out") == [(2,)]
        run(mine, "ROLLBACK")
    assert flowers("SELECT to_regclass('ended')") == [(None,)]


def test_a_cancel_at_any_moment(flowers: Lab) -> None:
    fit = "SELECT cerebro.fit('often', 'often_out', 'mst', epochs => 2)"
    with transaction(flowers) as mine:
        run(mine, PACK, "often", 2)
        run(mine, "SAVEPOINT packed")
        run(mine, fit)  # templates of trainers are ready then
        run(mine, "ROLLBACK TO packed")
        began = time.monotonic()
        run(mine, fit)
        whole = time.monotonic() - began
        heard = 0
        moments = tries(8)
        for moment in range(moments):
            run(mine, "ROLLBACK TO packed")
            run(mine, "SET statement_timeout = %s", max(20, int(1000 * whole * moment / moments)))
            try:
                run(mine, fit)
            except psycopg2.Error as error:
                assert error.pgcode == "57014", error
                heard += 1
            else:
                run(mine, "RESET statement_timeout")
        assert heard >= moments / 2
        run(mine, "ROLLBACK TO packed; RESET statement_timeout")
        run(mine, fit)
        assert run(mine, "SELECT count(*), min(status) FROM often_out_info") == [(2, "finished")]
        run(mine, "COMMIT")
    assert flowers("SELECT count(*) FROM often_out") == [(2,)]


def test_others_read_the_log_while_it_grows_and_is_committed(flowers: Lab) -> None:
    """Each statement of Python is a subtransaction, and readers may not take one of these for aborted."""
    logs = ("attempt", "configuration", "event", "heartbeat", "hop", "model", "run")
    over = threading.Event()

    def read() -> None:
        with contextlib.closing(flowers.connect()) as another:
            while not over.is_set():
                for log in logs:
                    run(another, f"SELECT count(*) FROM cerebro.{log}")

    def counts(connection: Any, number: int) -> dict[str, int]:
        found = {log: run(connection, f"SELECT count(*) FROM cerebro.{log} WHERE run = %s", number) for log in logs}
        return {log: rows[0][0] for log, rows in found.items()}

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with transaction(flowers) as mine:
            run(mine, PACK, "read", 2)
            ((number,),) = run(mine, "SELECT cerebro.fit('read', 'read_out', 'mst', epochs => 20)")
            inside = counts(mine, number)
            run(mine, "COMMIT")
    finally:
        over.set()
        reader.join()
    assert inside["hop"] == 80
    assert counts(flowers.db, number) == inside


# -- on Greenplum ------------------------------------------------------------------------------------------------


@pytest.mark.greenplum
def test_the_limits_harm_no_table_that_an_open_transaction_has_made(flowers: Lab) -> None:
    """Its rows in the catalogs were lost if such a query read them: Greenplum 7.0.0 took them for aborted."""
    make = "BEGIN CREATE TABLE made_{0} (i int) DISTRIBUTED BY (i); EXCEPTION WHEN division_by_zero THEN NULL; END"
    with contextlib.closing(flowers.connect()) as mine:
        run(mine, "BEGIN")
        for number in range(8):
            run(mine, f"DO $$BEGIN {make.format(number)}; END$$")
        flowers("CREATE TABLE written_meanwhile (i int)")
        flowers("SELECT * FROM cerebro.limits")
        run(mine, "COMMIT")
    for number in range(8):
        assert flowers(f"SELECT count(*) FROM made_{number}") == [(0,)]


@pytest.mark.greenplum
def test_beside_runs_in_worker_sessions(flowers: Lab) -> None:
    """Greenplum 7.0.0 can lose rows of the log (docs/operate.md).  No call succeeds with such a log."""
    ((busy,),) = flowers("SELECT cerebro.fit('train', 'busy_out', 'mst', epochs => 100000, wait => false)")
    outcomes = []
    try:
        for turn in range(4):
            with transaction(flowers) as mine:
                run(mine, PACK, f"turn{turn}", 2)
                try:
                    ((number,),) = run(mine, FIT, f"turn{turn}", f"turn{turn}_out", None, None)
                except psycopg2.Error as error:
                    outcomes.append(error)
                    continue
                assert any("the log of this run can lose rows" in line for line in mine.notices)
                assert run(mine, "SELECT count(*) FROM cerebro.hop WHERE run = %s", number) == [(12,)]
                run(mine, "COMMIT")
                outcomes.append(number)
            assert flowers(f"SELECT count(*), min(status) FROM turn{turn}_out_info") == [(2, "finished")]
        assert flowers.status(busy) == "running"
    finally:
        flowers("SELECT cerebro.cancel(%s)", busy)
    assert any(isinstance(one, int) for one in outcomes), outcomes


@pytest.mark.greenplum
def test_a_call_finds_that_its_log_has_lost_rows(flowers: Lab) -> None:
    """Whatever is lost, and whenever: it fails."""
    over = threading.Event()

    def harm() -> None:
        with contextlib.closing(flowers.connect()) as another:
            run(another, "CREATE TABLE harm (i int)")
            while not over.is_set():
                run(another, "INSERT INTO harm SELECT generate_series(1, 20)")
                run(another, "SELECT count(*) FROM cerebro.hop a JOIN cerebro.hop b ON a.hop = b.epoch")

    harming = threading.Thread(target=harm)
    harming.start()
    found = set()
    try:
        for turn in range(3):
            with transaction(flowers) as mine:
                run(mine, PACK, f"harmed{turn}", 2)
                with pytest.raises(psycopg2.Error) as failed:
                    run(mine, f"SELECT cerebro.fit('harmed{turn}', 'harmed_out', 'mst', epochs => 20)")
                found.add(failed.value.diag.message_primary.partition(": ")[2])
    finally:
        over.set()
        harming.join()
    assert found and all("rows of its log are missing" in one for one in found), found


@pytest.mark.greenplum
def test_each_segment_trains_in_the_sessions_process_there(flowers: Lab) -> None:
    """Rows do not leave their segment, and the trainers end with the call."""
    primaries = flowers.value("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    with transaction(flowers) as mine:
        ((pid,),) = run(mine, "SELECT pg_backend_pid()")
        run(mine, PACK, "spread", primaries)
        ((number,),) = run(mine, FIT, "spread", "spread_out", None, None)
        places = run(mine, "SELECT DISTINCT segment, worker_pid FROM cerebro.hop WHERE run = %s ORDER BY 1", number)
        assert [segment for segment, _ in places] == list(range(primaries))
        here = f"SELECT gp_execution_segment(), pid FROM {flowers.everywhere} WHERE pid IN %s ORDER BY 1"
        assert flowers(here, tuple(worker for _, worker in places)) == places
        assert not trainers_of(flowers, processes(flowers, pid))


@pytest.mark.greenplum
def test_several_parts_on_one_segment(flowers: Lab) -> None:
    """They share the process of the session there, and its trainer."""
    primaries = flowers.value("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    with transaction(flowers) as mine:
        run(mine, PACK, "many", primaries + 2)
        run(mine, VALIDATE, "many_val", "train")
        ((number,),) = run(mine, FIT, "many", "many_out", "many_val", json.dumps(SAME))
        assert run(mine, "SELECT count(DISTINCT segment), count(DISTINCT worker_pid), count(*) FROM cerebro.hop"
                         " WHERE run = %s", number) == [(primaries + 2, primaries, 6 * (primaries + 2))]  # fmt: skip
        inside = weights(mine, "many_out")
        run(mine, "COMMIT")
    flowers(FIT, "many", "many_again", "many_val", json.dumps(SAME))
    assert weights(flowers.db, "many_again") == inside
