"""A hot standby: predictions, judging and the views work there, and whatever writes is refused with a reason."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cerebro_db.embedded.account import Account
from cerebro_db.embedded.cluster import Cluster
from cerebro_db.embedded.files import DATABASE, SUPERUSER
from tests.conftest import connect
from tests.sql.lab import Lab, eventually, run

pytestmark = pytest.mark.throw_away


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab("CREATE TABLE leaves AS SELECT i AS id, i % 9 AS length, CASE i % 3 WHEN 0 THEN 'oak' ELSE 'ash' END AS tree"
        " FROM generate_series(1, 600) i")  # fmt: skip
    options = '{"seed": 1, "deterministic": true}'
    lab("SELECT train('leaves', 'trees', target => 'tree', budget => NULL, max_configurations => 2, epochs => 2,"
        " options => %s)", options)  # fmt: skip
    return lab


@pytest.fixture(scope="module")
def standby(place: Lab, cluster: Cluster) -> Iterator[Any]:
    """A session of a hot standby of the tests' server."""
    account = Account.get(create=False)
    folder = Path(tempfile.mkdtemp(prefix="cerebro-", dir="/tmp"))
    account.own(folder)
    data, socket, log = folder / "data", folder / "socket", folder / "log"
    for each in (socket, log):
        account.own(each)
    programs, place_of = cluster.prefix.bin, cluster.record()

    def obey(*command: str) -> None:
        done = account.run(list(command), {"PATH": "/usr/bin:/bin", "HOME": str(folder)})
        assert done.returncode == 0, done.stdout

    access = cluster.data / "pg_hba.conf"
    before = access.read_text()
    account.write(access, f"local  replication  {SUPERUSER}  peer map=cerebro\n{before}")
    cluster.reload()
    try:
        where = ["-h", place_of.socket, "-p", str(place_of.port), "-U", SUPERUSER]
        # The program of the tests' copy of PostgreSQL may be missing there.
        obey(str(cluster.prefix.of.bin / "pg_basebackup"), *where, "-D", str(data), "-R", "-X", "stream", "-c", "fast")
        settings = f"-c unix_socket_directories={socket} -c log_directory={log} -c listen_addresses="
        control = [str(programs / "pg_ctl"), "-D", str(data), "-s", "-w"]
        obey(*control, "-o", settings, "-l", str(log / "startup.log"), "start")
        try:
            dsn = f"postgresql://{SUPERUSER}@/{DATABASE}?host={socket}&port={place_of.port}"
            with contextlib.closing(connect(dsn)) as session:
                run(session, f"SET search_path = {place.schema}, public, cerebro, madlib")
                (at,) = place("SELECT pg_current_wal_lsn()::text")[0]
                eventually(lambda: run(session, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", at)[0][0], 60)
                yield session
        finally:
            obey(*control, "-m", "immediate", "stop")
    finally:
        account.write(access, before)
        cluster.reload()
        shutil.rmtree(folder, ignore_errors=True)


def test_it_is_a_standby(standby: Any) -> None:
    assert run(standby, "SELECT pg_is_in_recovery()") == [(True,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT key_value, class, probability FROM predict('trees', 'TABLE leaves') ORDER BY 1",
        "SELECT * FROM confusion_matrix('trees', 'TABLE leaves') ORDER BY 1, 2",
        "SELECT column_name, loss_before FROM importance('trees', 'TABLE leaves')",
        "SELECT configuration, status, rank, validation_loss FROM leaderboard WHERE model_table LIKE '%trees' ORDER"
        " BY 1",
        "SELECT run, status FROM runs ORDER BY 1",
    ],
)
def test_what_reads_answers_as_on_the_primary(place: Lab, standby: Any, query: str) -> None:
    answer = run(standby, query)
    assert answer and answer == place(query)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT train('leaves', 'more_trees', target => 'tree')",
        "SELECT pack('leaves', 'leaves_packed', 'tree')",
        "SELECT madlib_keras_predict('trees', 'leaves', 'id', 'length', 'told', mst_key => 1)",
        "SELECT forget((SELECT max(run) FROM runs))",
    ],
)
def test_what_writes_is_refused(standby: Any, statement: str) -> None:
    with pytest.raises(psycopg2.Error, match="read-only"):
        run(standby, statement)


def test_a_run_of_the_primary_looks_interrupted(place: Lab, standby: Any) -> None:
    """Its sessions are those of the primary; after a promotion it would be interrupted."""
    long = place.value(
        "SELECT fit('leaves', 'long_trees', '[{\"units\": 4}]', target => 'tree', epochs => 100000, wait => false)"
    )
    try:
        eventually(lambda: run(standby, "SELECT 1 FROM runs WHERE run = %s", long), 60)
        assert run(standby, "SELECT status FROM runs WHERE run = %s", long) == [("interrupted",)]
        assert place("SELECT status FROM runs WHERE run = %s", long) == [("running",)]
    finally:
        place("SELECT cancel(%s)", long)
        place("SELECT wait(%s)", long)
