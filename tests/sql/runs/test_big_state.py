"""Large models through fit, cancel, resume, extension, dump and restore: all checksums, and the memory of a hop.

The state has 32 MB.  CEREBRO_BIG=1 adds a state of 2.5 GB and weights above 1 GB, which need some minutes, 16 GB of
memory and 40 GB of disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import connect
from tests.sql.lab import Lab, eventually
from tests.sql.memory import ADAM, SGD, Watch, compiled, model_of
from tests.sql.server.test_dump_restore import tool
from tests.thorough import TIMES

pytestmark = pytest.mark.throw_away
MB, GB = 1 << 20, 1 << 30
FRAMEWORK = 800 * MB  # the memory of a trainer with a tiny model, which is that of TensorFlow
BACKEND = 300 * MB  # the memory of a session: shared buffers (128 MB), the interpreter, copies of a chunk
OPTIONS = {"deterministic": True, "seed": 6}
BIG = bool(os.environ.get("CEREBRO_BIG"))


def available_memory() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


def require_room(state: int, tmp: Path) -> None:
    if state < GB:
        return
    if not BIG:
        pytest.skip("large: CEREBRO_BIG=1 runs it")
    if available_memory() < 6 * state or shutil.disk_usage(tmp).free < 14 * state:
        pytest.skip("not enough memory or disk")


def state_hash(lab: Lab, run: int) -> dict[int, tuple[bool, str]]:
    """For each configuration: whether the bytes of its last state have the hash in the log, and this hash."""
    found = {}
    storage = lab.value("SELECT storage FROM run WHERE run = %s", run)
    for key, hop, said in lab(
        "SELECT DISTINCT ON (model) model, hop, state_sha256 FROM hop WHERE run = %s ORDER BY model, hop DESC",
        run,
    ):
        digest = hashlib.sha256()
        table, which = lab.stored(storage, key, hop)
        with contextlib.closing(lab.connect()) as connection, connection.cursor("pieces", withhold=True) as pieces:
            pieces.itersize = 1000  # rows of 8 kB
            # On Greenplum, each segment that needed the state has a copy.
            pieces.execute(f"SELECT DISTINCT ON (start) payload FROM {table} WHERE {which} ORDER BY start")
            for (payload,) in pieces:
                digest.update(payload)
        found[key] = (digest.hexdigest() == said, said)
    return found


def table_hash(lab: Lab, table: str) -> list[Any]:
    chunks = f"{table}_weights" in lab.tables()
    found = lab(f"SELECT configuration, encode(sha256(weights), 'hex'), weights IS NULL FROM {table} ORDER BY 1")
    if chunks:
        found += lab(f"SELECT configuration, start, encode(sha256(payload), 'hex') FROM {table}_weights ORDER BY 1, 2")
    return found


@contextlib.contextmanager
def copy_of(lab: Lab, kind: str, folder: Path) -> Iterator[Lab]:
    """The lab's database after a dump and a restore."""
    file, name = folder / "copy", "copy_" + secrets.token_hex(3)
    # Without compression, because weights hardly compress.
    tool("pg_dump", lab.dsn, f"--format={kind}", "-Z", "0", "-f", str(file))
    lab(f"CREATE DATABASE {name}")
    there = make_dsn(**{**parse_dsn(lab.dsn), "dbname": name})
    try:
        if kind == "plain":
            tool("psql", there, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file))
        else:
            tool("pg_restore", there, "--exit-on-error", str(file))
        file.unlink()
        copied = Lab(there, lab.schema, lab.home)
        try:
            yield copied
        finally:
            copied.close()
    finally:
        file.unlink(missing_ok=True)
        lab("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)
        lab(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def own(fresh_database: str, cluster: Any) -> Iterator[Lab]:
    """A new database without anything else in it, because the test dumps all of it."""
    with contextlib.closing(connect(fresh_database)) as db, db.cursor() as cursor:
        cursor.execute("CREATE SCHEMA big")
    lab = Lab(fresh_database, "big", cluster.home)
    try:
        yield lab
    finally:
        lab.close()


@pytest.mark.parametrize(
    ("state", "optimizer", "per_parameter"),
    [
        pytest.param(32 * MB, "Adam", ADAM, id="32 MB"),
        pytest.param(32 * MB, "SGD", SGD, id="32 MB of weights", marks=pytest.mark.thorough),
        pytest.param(int(2.5 * GB), "Adam", ADAM, id="2.5 GB"),
        pytest.param(int(1.1 * GB), "SGD", SGD, id="1.1 GB of weights"),
    ],
)
def test_a_large_model(
    own: Lab, tmp_path: Path, state: int, optimizer: str, per_parameter: int, record_property: Any
) -> None:
    require_room(state, tmp_path)
    lab, epochs = own, 2
    lab.iris(segments=2)
    arch = lab.architecture(model_of(state, per_parameter))
    lab.selection("mst", [(arch, compiled(optimizer, 0.0001), "batch_size=64, epochs=1")])
    with Watch(lab) as watch:
        # Cancel in the first epoch, resume, extend.
        run = lab.submit("train", "grown", "mst", 1, options=OPTIONS)
        eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run) >= 1, 600, "a hop")
        if lab.value("SELECT cancel(%s)", run):
            lab.value("SELECT wait(%s)", run)
            eventually(lambda: not lab.sessions(), 60, "workers are gone")
        if lab.status(run) != "finished":
            lab("SELECT resume(%s)", run)
        lab("SELECT wait(%s)", run)
        if BIG or TIMES >= 5:  # tests/sql/server/test_dump_restore.py has both kinds of dumps
            with copy_of(lab, "plain", tmp_path) as copied:
                assert all(same for same, _ in state_hash(copied, run).values())
        lab("SELECT resume(%s, epochs => %s)", run, epochs)
    expected = state_hash(lab, run)
    assert all(same for same, _ in expected.values())
    (size, weights) = lab("SELECT max(state_bytes), max(weights_bytes) FROM hop WHERE run = %s", run)[0]
    assert size >= state
    large = weights > 500 * MB
    assert lab("SELECT weights IS NULL FROM grown") == [(large,)]
    if large:
        assert lab.value("SELECT sum(octet_length(payload)) FROM grown_weights") == weights
    with copy_of(lab, "custom", tmp_path) as copied:
        assert state_hash(copied, run) == expected
        assert table_hash(copied, "grown") == table_hash(lab, "grown")
        # The extension changes the bits, and is the same in both databases.
        copied("SELECT resume(%s, epochs => %s)", run, epochs + 1)
        extended = state_hash(copied, run)
    assert extended != expected
    lab("SELECT resume(%s, epochs => %s)", run, epochs + 1)
    assert state_hash(lab, run) == extended
    lab.told()
    warm = lab.fit("train", "grown", "mst", 1, warm_start=True, options=OPTIONS)
    assert not [line for line in lab.told() if "weights alone" in line]  # It has the whole state.
    assert lab.value("SELECT initial_sha256 FROM model WHERE run = %s", warm) == extended[1][1]
    seconds = lab(
        "SELECT hop, segment, round(extract(epoch FROM finished_at - started_at), 1)::float, seconds FROM hop"
        " WHERE run = %s ORDER BY hop",
        run,
    )
    told = f"state {size >> 20} MB: trainer {watch.trainer >> 20} MB, backend {watch.backend >> 20} MB\n"
    told += "\n".join(map(str, seconds))
    record_property("memory", told)
    print(told)
    assert watch.trainer < FRAMEWORK + 3 * size, told
    assert watch.backend < BACKEND + 3 * size, told
    assert watch.backend < BACKEND + 700 * MB, told  # A hop transfers the state in chunks, whatever its size.


def test_old_states_are_given_back_as_the_run_goes(lab: Lab) -> None:
    """The caller's SELECT stays open during the run, but does not prevent the space from being freed."""
    configurations, epochs, state = 3, 3, 10 * MB
    lab.iris(segments=2)
    arch = lab.architecture(model_of(state))
    rates = [0.0001 * (n + 1) for n in range(configurations)]
    lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=64, epochs=1") for rate in rates])

    def taken(cursor: Any) -> tuple[int, int]:
        cursor.execute(
            "SELECT COALESCE(sum(pg_total_relation_size(oid)), 0)::bigint, pg_database_size(current_database())"
            " FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
        )
        return cursor.fetchone()

    with Watch(lab) as watch, lab.db.cursor() as cursor:
        before = taken(cursor)
        watch.question = taken
        run = lab.fit("train", "pruned", "mst", epochs, options=OPTIONS)
        watch.question = None
        after = taken(cursor)
    (size,) = lab("SELECT max(state_bytes) FROM hop WHERE run = %s", run)[0]
    slack = 1.1  # the overhead of TOAST
    states, database = (max(one["answer"][place] for one in watch.samples) - before[place] for place in (0, 1))
    most = 2 * configurations * size * slack
    assert configurations * size <= states < most
    assert database < most + 8 * MB
    assert configurations * size <= after[0] - before[0] < configurations * size * slack
