"""Placement on a real Greenplum: the processes and segments that train, and bits equal to PostgreSQL's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import connect
from tests.sql.lab import eventually

pytestmark = pytest.mark.greenplum

ARCHITECTURE = {
    "class_name": "Sequential",
    "config": {
        "name": "mlp",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "dtype": "float32", "name": "x"}},
            {"class_name": "Dense", "config": {"name": "hidden", "units": 16, "activation": "relu"}},
            {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}},
        ],
    },
}


KILLS = 3  # of processes of segments, each a moment later after the start of a run
EPOCHS = 100  # of a run that is cancelled: a cancel takes effect after about a second
DETERMINISTIC = json.dumps({"deterministic": True, "seed": 3})
HASHES = "SELECT model, hop, state_sha256 FROM cerebro.hop WHERE run = %s ORDER BY 1, 2"
HASHES_OF = "SELECT array_agg(state_sha256 ORDER BY model, hop) FROM cerebro.hop WHERE run = %s"


@pytest.fixture
def sql(db: Any) -> Any:
    def run(statement: str, *values: Any) -> list[tuple]:
        with db.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def packed(sql: Any) -> None:
    sql(
        "CREATE TABLE rows AS SELECT i AS id, ARRAY[i % 7, i % 5, i % 3, 1]::real[] AS x, i % 3 AS y"
        " FROM generate_series(1, 900) i DISTRIBUTED BY (id)"
    )
    sql("SELECT pack_plain('rows', 'packed', 'y', 'x', seed => 1)")
    sql("SELECT madlib.load_keras_model('arch', %s::json)", json.dumps(ARCHITECTURE))
    sql(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[$$optimizer='adam',"
        " loss='categorical_crossentropy', metrics=['accuracy']$$], ARRAY['batch_size=16, epochs=1', 'batch_size=32'])"
    )


def test_a_session_without_segments_cannot_create_the_extension(fresh_database: str) -> None:
    """In utility mode; a cluster of Apache Cloudberry without segments is always in it."""
    with contextlib.closing(connect(fresh_database)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP EXTENSION IF EXISTS cerebro_db_madlib; DROP EXTENSION cerebro_db")
    alone = connect(fresh_database, options="-c gp_role=utility")
    refused = pytest.raises(errors.FeatureNotSupported, match="this session has none .gp_role is utility.")
    with contextlib.closing(alone), alone.cursor() as cursor, refused:
        cursor.execute("CREATE EXTENSION cerebro_db")


def test_a_cancel_while_the_interpreter_is_made_ready(sql: Any, packed: None, server: str) -> None:
    ((schema,),) = sql("SELECT current_schema()")
    for moment in range(10, 130, 10):
        with contextlib.closing(psycopg2.connect(server)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(f"SET search_path = {schema}, public, cerebro, madlib; SET statement_timeout = {moment}")
            with contextlib.suppress(psycopg2.Error):
                cursor.execute(f"SELECT pack_plain('rows', 'early_{moment}', 'y', 'x')")
            cursor.execute("RESET statement_timeout")
            late = f"SELECT pack_plain('rows', 'late_{moment}', 'y', 'x')"
            try:
                cursor.execute(late)
            except psycopg2.errors.ExternalRoutineException as error:
                # The server sends the signal twice. If both come before the first line of ours, Greenplum keeps the
                # second one for the next Python.
                assert str(error).startswith("KeyboardInterrupt")
                cursor.execute(late)


def test_buffers_lie_where_their_keys_say(sql: Any, packed: None) -> None:
    ((layout,),) = sql("SELECT layout FROM packed_summary")
    ((primaries,),) = sql("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    keys = [partition["key"] for partition in layout["partitions"]]
    assert sql("SELECT DISTINCT gp_segment_id, __dist_key__ FROM packed ORDER BY 1") == list(enumerate(keys))
    assert len(keys) == primaries
    assert max(p["rows"] for p in layout["partitions"]) - min(p["rows"] for p in layout["partitions"]) <= 1


def test_each_segment_trains_in_one_process_of_its_own(sql: Any, packed: None, server: str) -> None:
    seen: set[tuple[int, int]] = set()
    over = threading.Event()

    def watch() -> None:
        with contextlib.closing(psycopg2.connect(server)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            while not over.wait(0.2):
                cursor.execute("SELECT gp_execution_segment(), pid FROM gp_dist_random('pg_stat_activity')")
                seen.update(cursor.fetchall())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ((run,),) = sql("SELECT madlib_fit_multiple_model('packed', 'out', 'mst', 3)")
    finally:
        over.set()
        watcher.join()
    places = sql("SELECT DISTINCT segment, worker_pid FROM cerebro.hop WHERE run = %s ORDER BY 1", run)
    assert [segment for segment, _ in places] == list(range(len(places)))  # one process for each segment
    ((primaries,),) = sql("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    assert len(places) == primaries
    assert set(places) <= seen  # and it runs on this segment
    assert sql("SELECT count(DISTINCT trainer_pid) FROM cerebro.hop WHERE run = %s", run) == [(primaries,)]
    assert sql(
        "SELECT count(*) FROM cerebro.attempt a JOIN cerebro.hop h USING (run, model, hop)"
        " WHERE run = %s AND a.worker_pid <> h.worker_pid",
        run,
    ) == [(0,)]


def test_a_segment_can_have_several_trainers(sql: Any, packed: None) -> None:
    ((primaries,),) = sql("SELECT count(*)::integer FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    sql("SELECT pack_plain('rows', 'more', 'y', 'x', segments => %s, seed => 1)", primaries + 1)
    ((run,),) = sql("SELECT madlib_fit_multiple_model('more', 'out', 'mst', 1)")
    assert sql("SELECT count(DISTINCT worker_pid), count(*) FROM cerebro.hop WHERE run = %s", run) == [
        (primaries + 1, 2 * (primaries + 1))
    ]


def test_a_table_says_which_segments_get_rows(sql: Any, packed: None) -> None:
    primaries = sql(
        "SELECT dbid, content FROM gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY content"
    )
    chosen = primaries[1:]
    sql("CREATE TABLE chosen (dbid int)")
    sql("INSERT INTO chosen SELECT unnest(%s)", [dbid for dbid, _ in chosen])
    sql("SELECT pack_plain('rows', 'partly', 'y', 'x', distribution_rules => 'chosen')")
    assert sql("SELECT DISTINCT gp_segment_id FROM partly ORDER BY 1") == [(content,) for _, content in chosen]
    assert sql("SELECT segments FROM partly_summary") == [(len(chosen),)]
    sql("SELECT madlib.training_preprocessor_dl('rows', 'as_madlib', 'y', 'x', distribution_rules => 'chosen')")
    assert sql("SELECT distribution_rules, __internal_gpu_config__ FROM as_madlib_summary") == [
        ([dbid for dbid, _ in chosen], [content for _, content in chosen])
    ]
    ((run,),) = sql("SELECT madlib_fit_multiple_model('partly', 'partial', 'mst', 1, validation_table => 'packed')")
    assert sql("SELECT count(DISTINCT segment), sum(rows) FROM hop WHERE run = %s", run) == [(len(chosen), 2 * 900)]
    # Validation rows may be on other segments than the training rows.
    sql("SELECT pack_like('rows', 'seen', 'y', 'x', 'partly', NULL, 'all_segments')")
    sql("SELECT madlib_fit_multiple_model('partly', 'partial2', 'mst', 1, validation_table => 'seen')")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("VALUES (2), (2)", "contains duplicate dbids"),
        ("VALUES (2), (77)", "invalid dbid:77 in the distribution rules table"),
        ("VALUES (1)", "invalid dbid:1 in"),  # the coordinator
        ("SELECT 2 WHERE false", "is empty"),
    ],
)
def test_a_table_of_segments_that_makes_no_sense(sql: Any, packed: None, rows: str, message: str) -> None:
    sql(f"CREATE TABLE chosen (dbid) AS {rows}")
    with pytest.raises(psycopg2.Error, match=message):
        sql("SELECT pack_plain('rows', 'partly', 'y', 'x', distribution_rules => 'chosen')")
    assert sql("SELECT to_regclass('partly')") == [(None,)]


def test_rules_that_name_nothing(sql: Any, packed: None) -> None:
    for rules, message in (("nowhere", r"segments_to_use table \(nowhere\) doesn't exist"), ("rows", "dbid")):
        with pytest.raises(psycopg2.Error, match=message) as caught:
            sql("SELECT pack_plain('rows', 'partly', 'y', 'x', distribution_rules => %s)", rules)
        assert caught.value.diag.message_hint
    if not any(gpus for (gpus,) in sql("SELECT cerebro_internal._gpus() FROM gp_dist_random('gp_id')")):
        with pytest.raises(psycopg2.Error, match="No GPUs configured on hosts"):
            sql("SELECT pack_plain('rows', 'partly', 'y', 'x', distribution_rules => 'gpu_segments')")
        with pytest.raises(psycopg2.Error, match="No GPUs configured on host"):
            sql("SELECT madlib_fit_multiple_model('packed', 'fast', 'mst', 1, use_gpus => true)")


def test_commits_wait_for_the_disk(sql: Any, packed: None) -> None:
    """Each segment has a log of its own, so a crash could lose a hop and keep later ones."""
    with pytest.raises(psycopg2.Error, match="'synchronous_commit' cannot be false on Greenplum") as caught:
        sql(
            "SELECT fit('packed', 'hurried', 'mst', epochs => 1, options => %s)",
            json.dumps({"synchronous_commit": False}),
        )
    assert "write-ahead log of its own" in caught.value.diag.message_hint


def test_a_cancel_at_any_moment_of_packing(sql: Any, packed: None, db: Any) -> None:
    """After a cancel within Python, Greenplum's own handler left sessions whose next call crashed the server."""
    pack = "SELECT pack_plain('rows', 'again', 'y', 'x', seed => 1)"
    began = time.monotonic()
    sql(pack)
    whole = time.monotonic() - began
    heard = 0
    for moment in range(20):
        sql("DROP TABLE IF EXISTS again, again_summary")
        sql("SET statement_timeout = %s", max(20, int(1000 * whole * moment / 20)))
        try:
            sql(pack)
        except psycopg2.Error as error:
            assert error.pgcode == "57014"
            heard += 1
        sql("RESET statement_timeout")
    assert heard >= 10
    sql("DROP TABLE IF EXISTS again, again_summary")
    sql(pack)
    ((again,), (once,)) = sql("SELECT layout FROM again_summary UNION ALL SELECT layout FROM packed_summary")
    assert again["partitions"] == once["partitions"]


@pytest.mark.same_machine
def test_a_segments_process_is_killed_in_the_middle_of_a_hop(sql: Any, packed: None, server: str) -> None:
    """The segment ends all its processes and restarts.  Its unfinished units are repeated with the same bits."""
    fit = "SELECT fit('packed', %s, 'slow', epochs => 4, wait => %s, options => %s)"
    options = json.dumps({"deterministic": True, "seed": 3})
    sql(
        "CREATE TABLE slow AS"
        " SELECT mst_key, model_id, compile_params, 'batch_size=4, epochs=30' AS fit_params FROM mst"
    )
    sql("CREATE TABLE slow_summary AS SELECT * FROM mst_summary")
    sql(fit, "calm", True, options)
    ((run,),) = sql(fit, "stormy", False, options)
    unfinished = (
        "SELECT a.worker_pid FROM cerebro.attempt a LEFT JOIN cerebro.hop h USING (run, model, hop)"
        " WHERE a.run = %s AND a.hop > 2 AND h.run IS NULL"
    )
    with contextlib.closing(psycopg2.connect(server)) as connection, connection.cursor() as cursor:
        connection.autocommit = True

        def wait() -> None:
            with contextlib.suppress(psycopg2.Error):  # The transaction fails with the segment.
                cursor.execute("SELECT cerebro.wait(%s, 180)", (run,))

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'cerebro_db wait'"))
        ((victim,), *_) = eventually(lambda: sql(unfinished, run), 120, "a hop is under way")
        os.kill(victim, signal.SIGKILL)
        waiter.join()
        cursor.execute("SELECT cerebro.wait(%s, 180)", (run,))  # Python in this session still works.
        assert cursor.fetchone() == ("finished",)
    with pytest.raises(psycopg2.Error):  # This session has also lost its processes on the segment, and reports it once.
        sql("SELECT count(*) FROM packed")
    ((again,),) = sql("SELECT count(*) FROM cerebro.event WHERE run = %s AND event = 'unit failed'", run)
    assert again >= 1
    weights = "SELECT configuration, encode(sha256(weights), 'hex') FROM {} ORDER BY 1"
    assert sql(weights.format("stormy")) == sql(weights.format("calm"))


@pytest.mark.same_machine
def test_the_error_after_a_lost_segment_says_that_the_run_finished(sql: Any, packed: None, server: str) -> None:
    """The caller's own transaction has lost its segment, but the models are there."""
    ((schema,),) = sql("SELECT current_schema()")
    sql(
        "CREATE TABLE slow AS"
        " SELECT mst_key, model_id, compile_params, 'batch_size=4, epochs=20' AS fit_params FROM mst"
    )
    sql("CREATE TABLE slow_summary AS SELECT * FROM mst_summary")
    with contextlib.closing(psycopg2.connect(server)) as connection, ThreadPoolExecutor(1) as thread:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(f"SET search_path = {schema}, public, cerebro, madlib")
        ended = thread.submit(cursor.execute, "SELECT madlib_fit_multiple_model('packed', 'out', 'slow', 3)")
        under_way = "SELECT a.worker_pid FROM attempt a JOIN run r USING (run) WHERE a.hop > 1 AND r.model_table = %s"
        (victim, *_), *_ = eventually(lambda: sql(under_way, f"{schema}.out"), 120, "a hop is under way")
        os.kill(victim, signal.SIGKILL)
        error = ended.exception(180)
        assert isinstance(error, psycopg2.Error) and error.pgcode == "58M01"
        assert f"finished and its models are in {schema}.out" in error.diag.message_primary
        assert error.diag.message_hint
        cursor.execute("SELECT count(*) FROM out")
        assert cursor.fetchone() == (2,)


@pytest.mark.same_machine
@pytest.mark.parametrize("how", ["warm_start", "replace"])
def test_a_fit_that_has_lost_a_segment_replaces_the_tables(sql: Any, packed: None, server: str, how: str) -> None:
    ((schema,),) = sql("SELECT current_schema()")
    sql(
        "CREATE TABLE slow AS"
        " SELECT mst_key, model_id, compile_params, 'batch_size=4, epochs=20' AS fit_params FROM mst"
    )
    sql("CREATE TABLE slow_summary AS SELECT * FROM mst_summary")
    ((first,),) = sql("SELECT fit('packed', 'kept', 'mst', epochs => 1)")
    made_by = "SELECT run FROM kept_summary"
    assert sql(made_by) == [(first,)]
    with contextlib.closing(psycopg2.connect(server)) as connection, ThreadPoolExecutor(1) as thread:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(f"SET search_path = {schema}, public, cerebro, madlib")
        ended = thread.submit(cursor.execute, f"SELECT fit('packed', 'kept', 'slow', epochs => 3, {how} => true)")
        under_way = (
            "SELECT a.worker_pid, run FROM attempt a JOIN run r USING (run) WHERE a.hop > 1 AND r.model_table = %s"
            " AND run > %s"
        )
        (victim, second), *_ = eventually(lambda: sql(under_way, f"{schema}.kept", first), 120, "a hop is under way")
        os.kill(victim, signal.SIGKILL)
        error = ended.exception(180)
        assert isinstance(error, psycopg2.Error) and error.pgcode == "58M01", error
        assert f"run {second} finished" in error.diag.message_primary
        assert "DROP TABLE" not in (error.diag.message_hint or "")

    def is_replaced() -> bool:
        # This session has also lost its processes there, and says so once.  Greenplum says that a table does not exist
        # if it is replaced while a query waits for it.
        with contextlib.suppress(psycopg2.Error):
            return bool(sql(made_by) == [(second,)])
        return False

    eventually(is_replaced, 60, "the models are those of the second run")
    assert sql("SELECT count(*) FROM kept") == [(2,)]
    assert sql("SELECT status FROM runs WHERE run = %s", second) == [("finished",)]


@pytest.mark.same_machine
def test_a_segments_process_is_killed_between_the_phases_of_a_commit(sql: Any, packed: None, server: str) -> None:
    """A new process of that segment finishes what the old one prepared, though it never saw the session's SET ROLE."""
    options = json.dumps({"deterministic": True, "seed": 3})
    sql("SELECT fit('packed', 'calm', 'mst', epochs => 4, options => %s)", options)
    ((schema,),) = sql("SELECT current_schema()")
    models = f"{schema}.stormy"
    stopped = Path("/dev/shm", f"cerebro_test_{os.getpid()}")
    stopped.unlink(missing_ok=True)
    # A deferred trigger runs while its segment prepares. This one stops the segment that has the log, once. The segment
    # that trained and has the new state is prepared meanwhile.
    sql(
        "CREATE FUNCTION stop_once() RETURNS trigger LANGUAGE plpython3u AS $$\n"
        "import os, signal\n"
        "here = int(plpy.execute(\"SELECT current_setting('gp_contentid') AS v\")[0]['v'])\n"
        f"if TD['new']['hop'] > 2 and TD['new']['segment'] != here and not os.path.exists('{stopped}'):\n"
        f"    with open('{stopped}.new', 'w') as file:\n"
        "        file.write('%d %d' % (os.getpid(), TD['new']['worker_pid']))\n"
        f"    os.rename('{stopped}.new', '{stopped}')\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "$$"
    )
    sql(
        "CREATE CONSTRAINT TRIGGER stop_once AFTER INSERT ON cerebro.hop DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION stop_once()"
    )

    def ask(statement: str) -> list[tuple]:
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(server)) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchall()
        return []

    try:
        ((run,),) = sql("SELECT fit('packed', 'stormy', 'mst', epochs => 4, wait => false, options => %s)", options)
        eventually(stopped.exists, 120, "a commit is stopped")
        sleeper, victim = map(int, stopped.read_text().split())
        try:
            eventually(lambda: ask("SELECT gid FROM gp_dist_random('pg_prepared_xacts')"), 30, "a segment is prepared")
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: not Path("/proc", str(victim)).exists(), 30)
            eventually(lambda: ask("SELECT count(*) FROM gp_dist_random('gp_id')"), 60, "the segment is back")
        finally:
            os.kill(sleeper, signal.SIGCONT)
        finished = f"SELECT 1 FROM cerebro.runs WHERE run = {run} AND status = 'finished'"
        eventually(lambda: ask(f"{finished} AND to_regclass('{models}') IS NOT NULL"), 180, "the run finishes")
    finally:
        stopped.unlink(missing_ok=True)
        with contextlib.closing(psycopg2.connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER stop_once ON cerebro.hop")
            connection.commit()
    weights = "SELECT configuration, encode(sha256(weights), 'hex') FROM {} ORDER BY 1"
    assert ask(weights.format(models)) == ask(weights.format(f"{schema}.calm"))


@pytest.mark.same_machine
def test_a_segments_process_is_killed_just_after_a_run_was_submitted(sql: Any, packed: None, server: str) -> None:
    """Whatever the run's sessions do at that moment, it goes on, with the same bits."""
    ((schema,),) = sql("SELECT current_schema()")
    calm = "SELECT fit('packed', 'calm', 'mst', epochs => 2, options => %s)"
    ((calm,),) = sql(calm, DETERMINISTIC)
    ((ports,),) = sql("SELECT string_agg(port::text, '|') FROM gp_segment_configuration WHERE content >= 0")
    of_segment = re.compile(rf"postgres: +({ports}), cerebro_w_\S+ {parse_dsn(server)['dbname']} .* seg\d+ ")

    def processes() -> list[int]:
        """Those of the segments that work for a session of a run."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                said = (folder / "cmdline").read_bytes().decode(errors="replace") if folder.name.isdigit() else ""
                if of_segment.match(said):
                    found.append(int(folder.name))
        return found

    def ask(statement: str, *values: Any) -> list[tuple]:
        with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET search_path = {schema}, public, cerebro, madlib")
            cursor.execute(statement, values or None)
            return cursor.fetchall()

    def waited(run: int) -> list[tuple]:
        with contextlib.suppress(psycopg2.Error):  # while the segment is starting again
            return ask("SELECT cerebro.wait(%s, 180)", run)
        return []

    for attempt in range(KILLS):
        submit = "SELECT fit('packed', %s, 'mst', epochs => 2, wait => false, options => %s)"
        ((run,),) = ask(submit, f"submitted{attempt}", DETERMINISTIC)
        time.sleep(0.15 * attempt)
        (victim, *_) = eventually(lambda: sorted(processes(), reverse=True), 30, "a session has a process on a segment")
        os.kill(victim, signal.SIGKILL)
        assert eventually(lambda run=run: waited(run), 180, "the run ends") == [("finished",)]
        assert ask(HASHES, run) == ask(HASHES, calm)
        assert ask(f"SELECT count(*) FROM submitted{attempt}") == [(2,)]


@pytest.fixture
def interrupted(fresh_database: str) -> tuple[str, int, int]:
    """A database with a finished run and an interrupted one that does the same: (its DSN, the finished, the other)."""
    with contextlib.closing(connect(fresh_database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT i AS id, ARRAY[i % 7, 1] AS x, i % 3 AS y"
                       " FROM generate_series(1, 90) i DISTRIBUTED BY (id)")  # fmt: skip
        cursor.execute("SELECT pack_plain('kept', 'packed', 'y', 'x', seed => 1)")
        model = json.loads(json.dumps(ARCHITECTURE).replace("[null, 4]", "[null, 2]"))
        cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", (json.dumps(model),))
        cursor.execute("SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[$$optimizer='adam',"
                       " loss='categorical_crossentropy'$$], ARRAY['batch_size=16, epochs=1'])")  # fmt: skip
        fit = "SELECT cerebro.fit('packed', %s, 'mst', epochs => %s, wait => %s, options => %s)"
        cursor.execute(fit, ("out", EPOCHS, True, DETERMINISTIC))
        calm = cursor.fetchone()[0]
        cursor.execute(fit, ("later", EPOCHS, False, DETERMINISTIC))
        run = cursor.fetchone()[0]
        hops = "SELECT 1 FROM cerebro.hop WHERE run = %s HAVING count(*) >= 4"
        eventually(lambda: cursor.execute(hops, (run,)) or cursor.fetchall(), 60, "four hops")
        cursor.execute("SELECT cerebro.cancel(%s)", (run,))
        cursor.execute("SELECT cerebro.wait(%s)", (run,))
        assert cursor.fetchone() == ("cancelled",)
    return fresh_database, calm, run


def tool(dsn: str, name: str, *arguments: str) -> str:
    """One of Greenplum's own programs on a database; returns its messages."""
    with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT setting FROM pg_config WHERE name IN ('BINDIR', 'LIBDIR') ORDER BY name")
        (programs,), (libraries,) = cursor.fetchall()
    done = subprocess.run(
        [str(Path(programs, name)), "-d", dsn, *arguments],
        capture_output=True, text=True, check=True, env={**os.environ, "LD_LIBRARY_PATH": libraries},
    )  # fmt: skip
    return done.stderr


@contextlib.contextmanager
def moved(database: str, server: str, folder: Path) -> Iterator[str]:
    """The DSN of a new database of a server, restored from a dump of another database."""
    dump, name = str(folder / f"{secrets.token_hex(3)}.sql"), f"t_{secrets.token_hex(5)}"
    tool(database, "pg_dump", "-f", dump)
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    dsn = make_dsn(**{**parse_dsn(server), "dbname": name})
    try:
        assert "ERROR" not in tool(dsn, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", dump)
        yield dsn
    finally:
        with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(f"DROP DATABASE {name}")


def resumed(dsn: str, calm: int, run: int) -> None:
    """The interrupted run ends with the bits of the finished one, which can be extended."""
    with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT run, status FROM cerebro.runs ORDER BY run")
        assert cursor.fetchall() == [(calm, "finished"), (run, "cancelled")]
        cursor.execute("SELECT cerebro.resume(%s)", (run,))
        cursor.execute(f"SELECT ({HASHES_OF}) = ({HASHES_OF})", (run, calm))
        assert cursor.fetchone() == (True,)
        cursor.execute("SELECT cerebro.resume(%s, epochs => %s)", (calm, EPOCHS + 1))
        predict = (
            "SELECT madlib.madlib_keras_predict('public.later', 'public.kept', 'id', 'x', 'public.said', 'response',"
            " false, 1)"
        )
        cursor.execute(predict)
        cursor.execute("SELECT count(*) FROM public.said")
        assert cursor.fetchone() == (90,)


@pytest.mark.same_machine
def test_a_dump_is_restored_without_an_error(interrupted: Any, server: str, tmp_path: Path) -> None:
    """By Greenplum's own programs, and twice: a restored database can be dumped and restored as well."""
    database, calm, run = interrupted
    with moved(database, server, tmp_path) as once, moved(once, server, tmp_path) as twice:
        resumed(twice, calm, run)


@pytest.mark.same_machine
def test_a_dump_is_restored_to_another_number_of_segments(interrupted: Any, server: str, tmp_path: Path) -> None:
    """Runs keep their parts; rows that are packed anew are spread over the segments that are there."""
    other = os.environ.get("CEREBRO_TEST_OTHER_DSN")
    if not other:
        pytest.skip("CEREBRO_TEST_OTHER_DSN names no Greenplum with another number of segments")
    database, calm, run = interrupted
    with moved(database, other, tmp_path) as there:
        resumed(there, calm, run)
        with contextlib.closing(connect(there)) as connection, connection.cursor() as cursor:
            cursor.execute("SET search_path = public, cerebro, madlib")
            cursor.execute("SELECT pack_plain('kept', 'anew', 'y', 'x', seed => 1)")
            cursor.execute(
                "SELECT count(DISTINCT gp_segment_id), (SELECT count(*) FROM gp_dist_random('gp_id')) FROM anew"
            )
            used, there_are = cursor.fetchone()
            assert used == there_are
            cursor.execute("SELECT segments FROM anew_summary UNION ALL SELECT segments FROM packed_summary")
            (new,), (old,) = cursor.fetchall()
            assert new == there_are != old
            cursor.execute("SELECT cerebro.fit('anew', 'fresh', 'mst', epochs => 1)")


class Queued:
    """A user in a resource queue of its own, and sessions of this user."""

    def __init__(self, sql: Any, server: str, statements: int) -> None:
        self.sql, self.server, self.statements = sql, server, statements
        ((self.schema,),) = sql("SELECT current_schema()")
        self.user = f"u_{secrets.token_hex(4)}"
        self.limit = f"resource queue {self.user}_queue lets {{}} run at a time"
        sql(f"CREATE RESOURCE QUEUE {self.user}_queue WITH (ACTIVE_STATEMENTS = {statements})")
        sql(f"CREATE ROLE {self.user} LOGIN IN ROLE cerebro_user RESOURCE QUEUE {self.user}_queue")
        sql(f"GRANT ALL ON SCHEMA {self.schema} TO {self.user}")
        sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {self.schema} TO {self.user}")
        self.connections: list[Any] = []

    def session(self) -> Any:
        connection = connect(self.server)
        self.connections.append(connection)
        with connection.cursor() as cursor:
            cursor.execute(f"SET search_path = {self.schema}, cerebro, madlib; SET SESSION AUTHORIZATION {self.user}")
        return connection

    def __call__(self, statement: str, *values: Any) -> list[tuple]:
        connection = self.session()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return cursor.fetchall()
        finally:
            self.notices = connection.notices
            connection.close()

    def fill(self, statements: int) -> list[Any]:
        """Sessions that have so many statements under way; they end when the sessions are closed."""
        holding = [self.session() for _ in range(statements)]
        for connection in holding:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN; DECLARE held CURSOR FOR SELECT 1; FETCH held")
        return holding

    def end(self) -> None:
        sql, user = self.sql, self.user
        for connection in self.connections:
            connection.close()
        eventually(lambda: not sql("SELECT 1 FROM pg_locks WHERE locktype = 'resource queue'"), 30, "nothing is queued")
        for (run,) in sql(OWNED, user):
            sql("SELECT forget(%s, %s)", run, user)
        sql(f"DROP OWNED BY {user}")
        sql(f"SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")
        sql(f"DROP ROLE {user}; DROP RESOURCE QUEUE {user}_queue")


@pytest.fixture
def queued(sql: Any, packed: None, server: str) -> Iterator[Callable[[int], Queued]]:
    if sql("SHOW gp_resource_manager") != [("queue",)]:
        pytest.skip("this cluster has no resource queues (gp_resource_manager)")
    users: list[Queued] = []

    def made(statements: int) -> Queued:
        users.append(Queued(sql, server, statements))
        return users[-1]

    try:
        yield made
    finally:
        for user in reversed(users):  # a later one may be in the queue of an earlier one
            user.end()


FIT = "SELECT cerebro.fit('packed', 'queued', 'mst', epochs => 2, validation_table => 'packed', options => %s)"
SUBMIT = FIT.replace("epochs", "wait => false, epochs")
OWNED = "SELECT run FROM cerebro.run_plan WHERE owner = %s"


@pytest.mark.parametrize("statements", [2, 4])
def test_a_run_with_fewer_statements_than_segments(sql: Any, queued: Callable[[int], Queued], statements: int) -> None:
    """It trains on fewer segments at a time, with the same bits."""
    ((calm,),) = sql(FIT.replace("queued", "calm"), DETERMINISTIC)
    user = queued(statements)
    ((run,),) = user(FIT, DETERMINISTIC)
    limit = user.limit.format(f"{statements} statements")
    assert any(limit in notice and "will work at a time" in notice for notice in user.notices), user.notices
    assert sql(HASHES, run) == sql(HASHES, calm)


def test_other_calls_with_fewer_statements_than_segments(sql: Any, queued: Callable[[int], Queued]) -> None:
    ((calm,),) = sql(FIT.replace("queued", "calm"), DETERMINISTIC)
    user = queued(3)
    ((run,),) = user(SUBMIT, DETERMINISTIC)
    assert user("SELECT cerebro.wait(%s)", run) == [("finished",)]
    assert sql(HASHES, run) == sql(HASHES, calm)
    user("SELECT madlib.madlib_keras_predict('queued', 'rows', 'id', 'x', 'said', 'response', false, 1)")
    assert user("SELECT count(*) FROM said") == [(900,)]
    ((status, found, advice),) = user(
        "SELECT status, found, advice FROM cerebro.doctor() WHERE check_name = 'statements'"
    )
    assert status == "warning" and user.limit.format("3 statements") in found and "ALTER RESOURCE QUEUE" in advice


def test_a_queue_that_is_large_enough(sql: Any, queued: Callable[[int], Queued]) -> None:
    ((primaries,),) = sql("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    user = queued(primaries + 2)
    user(FIT, DETERMINISTIC)
    assert not any("resource queue" in notice for notice in user.notices)


def test_a_queue_in_which_a_call_would_wait_for_itself(sql: Any, queued: Callable[[int], Queued]) -> None:
    """It is refused before anything begins."""
    user = queued(1)
    for call in (FIT, SUBMIT):
        with pytest.raises(psycopg2.Error, match=user.limit.format("1 statement")) as caught:
            user(call, DETERMINISTIC)
        assert caught.value.pgcode == "53400" and "ALTER RESOURCE QUEUE" in caught.value.diag.message_hint
    checks = user("SELECT status, found FROM cerebro.doctor() WHERE status = 'problem'")
    assert any(user.limit.format("1 statement") in found for _, found in checks)
    sql(f"ALTER RESOURCE QUEUE {user.user}_queue WITH (ACTIVE_STATEMENTS = 2)")
    with pytest.raises(psycopg2.Error, match=user.limit.format("2 statements")):
        user(SUBMIT, DETERMINISTIC)
    assert sql(OWNED, user.user) == []
    ((run,),) = user(FIT, DETERMINISTIC)
    with pytest.raises(psycopg2.Error, match=user.limit.format("2 statements")):
        user("SELECT cerebro.resume(%s, epochs => 3, wait => false)", run)


def test_a_train_plans_for_the_segments_that_its_queue_lets_work(sql: Any, queued: Callable[[int], Queued]) -> None:
    """One of three at a time: it plans for a third of the work."""
    sql("CREATE TABLE many AS SELECT i AS id, ARRAY[i % 7, 1] AS x, i % 3 AS y FROM generate_series(1, 6000) i")
    planned = {}
    for statements in (3, 20):
        user = queued(statements)
        user(
            "SELECT cerebro.train('many', %s, target => 'y', inputs => 'x', budget => '25 seconds', dry_run => true)",
            user.user,
        )
        (plan,) = re.findall(
            r"at most ([\d,]+) configurations? of .* trains at most ([\d,]+) epochs?", "".join(user.notices)
        )
        planned[statements] = [int(number.replace(",", "")) for number in plan]
    few, many = (configurations * epochs for configurations, epochs in planned.values())
    assert few < many / 2, planned


def test_two_users_share_a_queue(sql: Any, queued: Callable[[int], Queued]) -> None:
    """Each of two runs on three segments could use five statements; they have three besides their callers' own."""
    one, two = queued(5), queued(1)
    sql(f"ALTER ROLE {two.user} RESOURCE QUEUE {one.user}_queue")
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda user: user(FIT.replace("queued", user.user), DETERMINISTIC)[0][0], (one, two)))
    assert sql(HASHES, runs[0]) == sql(HASHES, runs[1])


def test_a_full_queue_is_waited_for(sql: Any, queued: Callable[[int], Queued]) -> None:
    """Longer than sessions of runs wait for a lock."""
    user = queued(4)
    holding = user.fill(3)
    with user.session().cursor() as cursor:
        cursor.execute("SET statement_timeout = '5s'")
        began = time.monotonic()
        with pytest.raises(psycopg2.errors.QueryCanceled):
            cursor.execute(FIT, (DETERMINISTIC,))
        assert time.monotonic() - began < 12
    with ThreadPoolExecutor(1) as thread:
        fitted = thread.submit(user, FIT, DETERMINISTIC)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'ResourceQueue' AND usename LIKE 'cerebro_w_%%'"
        eventually(lambda: sql(waits), 60, "a session of the run is in the queue")
        time.sleep(15)
        assert not fitted.done()
        for connection in holding:
            connection.close()
        ((run,),) = fitted.result(120)
    assert sql("SELECT status FROM cerebro.runs WHERE run = %s", run) == [("finished",)]


def test_a_cancel_while_the_queue_is_full(sql: Any, queued: Callable[[int], Queued]) -> None:
    """It is heard at once, and its record does not wait for the queue either."""
    user = queued(4)
    connection, errors = user.session(), []

    def fit() -> None:
        with connection.cursor() as cursor:
            try:
                cursor.execute(FIT.replace(", 2,", ", 500,"), (DETERMINISTIC,))
            except psycopg2.Error as error:
                errors.append(error)

    fitting = threading.Thread(target=fit, daemon=True)
    fitting.start()
    hops = "SELECT run FROM cerebro.hop JOIN cerebro.run USING (run) WHERE model_table = %s"
    ((run,), *_) = eventually(lambda: sql(hops, f"{user.schema}.queued"), 60, "a hop")
    holding = user.fill(3)  # They wait for their places, too.
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'ResourceQueue'"
        " AND application_name LIKE 'cerebro_db %%'"
    )
    eventually(lambda: sql(waits)[0][0] >= 2, 60, "sessions of the run are in the queue")
    time.sleep(12)
    assert fitting.is_alive()
    began = time.monotonic()
    connection.cancel()
    fitting.join(20)
    assert time.monotonic() - began < 6
    assert errors[0].pgcode == "57014"
    assert sql("SELECT status FROM cerebro.runs WHERE run = %s", run) == [("cancelled",)]
    eventually(lambda: sql(waits) == [(0,)], 10, "its sessions are gone")
    assert len(holding) == 3


def test_the_log_of_a_run_lies_on_one_segment(sql: Any) -> None:
    """All tables that have a run, so that joins of the log move no rows."""
    found = sql(
        "SELECT c.relname, pg_get_table_distributedby(c.oid) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'r' AND a.attname = 'run'"
    )
    assert len(found) >= 12 and {by for _, by in found} == {"DISTRIBUTED BY (run)"}, found
