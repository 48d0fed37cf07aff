"""A database with finished and interrupted runs, dumped and restored: here, and on a server that knows nobody."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded import throw_away
from cerebro_db.embedded.installation import Installation
from tests.conftest import KILLABLE, TRAINER, connect
from tests.given_greenplum import GivenGreenplum
from tests.sql.lab import Lab, eventually, flower_model
from tests.sql.memory import compiled

pytestmark = pytest.mark.throw_away
OPTIONS = {"deterministic": True, "seed": 4}
EPOCHS = 8
VIEWS = ("run_plan", "learning_curve", "leaderboard", "hop_timeline", "run_time")
TABLES = [
    "run",
    "architecture",
    "configuration",
    "model",
    "event",
    "attempt",
    "hop",
    "evaluation",
    "decision",
    "heartbeat",
    "request",
    "added_architecture",
]


@dataclass
class Source:
    lab: Lab  # alice's
    alice: str
    secret: str
    calm: int
    broken: int
    expected: dict[int, bytes]


def tool(name: str, dsn: str, *arguments: str, stop: bool = True) -> str:
    """A client program of the server's on a database."""
    given = GivenGreenplum(KILLABLE) if KILLABLE else None
    program = (given or Installation.choose()).bin / name
    libraries = {"LD_LIBRARY_PATH": str(given.lib)} if given else {}
    where = ["-d", dsn] if name != "pg_restore" or "-f" not in arguments else []
    done = subprocess.run(
        [str(program), *where, *arguments], capture_output=True, text=True, env={**os.environ, **libraries}
    )
    assert done.returncode == 0 or not stop, done.stderr[-2000:]
    return done.stderr


def as_user(dsn: str, user: str, secret: str) -> str:
    return make_dsn(**{**parse_dsn(dsn), "user": user, "password": secret})


def states(lab: Lab, run: int) -> dict[int, bytes]:
    return lab.states(run)


def all_of(lab: Lab) -> dict[str, list[Any]]:
    """What the user sees of their runs."""
    return {name: sorted(map(repr, lab(f"SELECT * FROM cerebro.{name}"))) for name in (*VIEWS, *TABLES)}


@pytest.fixture(scope="module")
def source(cluster: clusters.Cluster) -> Iterator[tuple[str, Source]]:
    alice, secret, name = "alice_" + secrets.token_hex(3), secrets.token_hex(8), "src_" + secrets.token_hex(3)
    with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {alice} LOGIN PASSWORD '{secret}'")
        cursor.execute(f"GRANT cerebro_user TO {alice}")
        cursor.execute(f"CREATE DATABASE {name}")
    dsn = cluster.dsn(name)
    try:
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            cursor.execute("CREATE EXTENSION cerebro_db_madlib CASCADE")
            cursor.execute(f"CREATE SCHEMA work AUTHORIZATION {alice}")
        lab = Lab(as_user(dsn, alice, secret), "work", cluster.home)
        lab.iris(segments=2)
        arch = lab.architecture(flower_model())
        lab("SELECT add_architecture('flower', %s)", json.dumps(flower_model()))
        lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=8, epochs=2") for rate in (0.001, 0.01)])
        calm = lab.fit("train", "calm", "mst", EPOCHS, validation_table="val", options=OPTIONS)
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            broken = lab.submit("train", "broken", "mst", EPOCHS, validation_table="val", options=OPTIONS)
            eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", broken) >= 5, 60, "five hops")
            driver = lab.value("SELECT driver_pid FROM runs WHERE run = %s", broken)
            cursor.execute("SELECT pg_terminate_backend(%s)", (driver,))
        eventually(lambda: lab.status(broken) != "running", 20, "the driver is gone")
        assert lab.value("SELECT count(*) FROM hop WHERE run = %s", broken) < 2 * 2 * EPOCHS
        eventually(lambda: not lab.sessions(), 20, "workers are gone")
        yield dsn, Source(lab, alice, secret, calm, broken, lab.states(calm))
        lab.close()
    finally:
        with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"DROP ROLE IF EXISTS {alice}")


@pytest.fixture(scope="module")
def dumps(source: tuple[str, Source], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dumps")
    made = {"custom": folder / "src.dump", "plain": folder / "src.sql"}
    for kind, file in made.items():
        tool("pg_dump", source[0], f"--format={kind}", "-f", str(file))
    return made


@contextlib.contextmanager
def restored(dsn: str, dump: Path, source: Source) -> Iterator[Lab]:
    """Alice's session in a new database of a server, filled from a dump."""
    name = "back_" + secrets.token_hex(3)
    with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    there = make_dsn(**{**parse_dsn(dsn), "dbname": name})
    try:
        if dump.suffix == ".sql":
            tool("psql", there, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump))
        else:
            tool("pg_restore", there, "--exit-on-error", "-j", "2", str(dump))
        lab = Lab(as_user(there, source.alice, source.secret), "work", None)
        try:
            yield lab
        finally:
            lab.close()
    finally:
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def check(there: Lab, source: Source) -> None:
    """All that was there is there; the broken run goes on to the same bits, and the next run has the next number."""
    assert there.status(source.calm) == "finished"
    assert there.status(source.broken) in ("interrupted", "cancelled", "failed")
    assert all_of(there) == all_of(source.lab)
    assert there.weights("calm") == source.lab.weights("calm")
    assert there.states(source.calm) == source.expected
    assert there.value("SELECT resume(%s)", source.broken) == source.broken
    assert there.states(source.broken) == source.expected
    assert there.weights("broken") == there.weights("calm")
    run = there.fit("train", "fresh", "mst", 1, options=OPTIONS)
    assert run > source.broken
    assert there.value("SELECT min(event_id) FROM event WHERE run = %s", run) > there.value(
        "SELECT max(event_id) FROM event WHERE run = %s", source.calm
    )
    there("SELECT resume(%s, epochs => %s)", source.calm, EPOCHS + 1)  # a finished one can be extended
    there("SELECT forget(%s)", source.broken)
    strange = (
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
        " AND relowner <> current_user::regrole"
    )
    assert there.value(strange) == 0


@pytest.mark.parametrize("kind", ["custom", "plain"])
def test_into_another_database(source: tuple[str, Source], dumps: dict[str, Path], kind: str) -> None:
    with restored(source[0], dumps[kind], source[1]) as there:
        check(there, source[1])


@pytest.mark.slow
def test_into_another_server(
    cluster: clusters.Cluster, source: tuple[str, Source], dumps: dict[str, Path], tmp_path: Path
) -> None:
    """Its secret is another, so are the numbers of its roles; with the old server's logins and without."""
    known = source[1]
    other = throw_away.create(TRAINER)
    try:
        with contextlib.closing(connect(other.dsn())) as db, db.cursor() as cursor:
            for number in range(3):
                cursor.execute(f"CREATE ROLE somebody{number}")
            cursor.execute(f"CREATE ROLE {known.alice} LOGIN PASSWORD '{known.secret}'")
            cursor.execute(f"GRANT cerebro_user TO {known.alice}")
        with restored(other.dsn(), dumps["custom"], known) as there:
            check(there, known)
        # The old server's roles, passwords and all: what exists is said to exist.
        tool("pg_dumpall", cluster.dsn(), "--roles-only", "-f", str(tmp_path / "roles.sql"))
        tool("psql", other.dsn(), "-q", "-f", str(tmp_path / "roles.sql"), stop=False)
        with restored(other.dsn(), dumps["plain"], known) as there:
            check(there, known)
    finally:
        throw_away.remove(other)


@pytest.mark.slow
def test_a_dump_does_not_end_a_run(source: tuple[str, Source], cluster: clusters.Cluster) -> None:
    """pg_dump locks every table against TRUNCATE for as long as it takes, longer than a run waits for a lock."""
    lab = source[1].lab
    with contextlib.closing(psycopg2.connect(source[0])) as reader, reader.cursor() as cursor:
        run = lab.submit("train", "beside", "mst", EPOCHS, options=OPTIONS)
        eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run) >= 5, 60, "five hops")
        storage = lab.value("SELECT storage FROM run WHERE run = %s", run)
        for leaf in (f"{storage}_shared_0", f"{storage}_shared_1"):
            cursor.execute(f'LOCK TABLE cerebro_state."{leaf}" IN ACCESS SHARE MODE')
        assert lab.value("SELECT wait(%s, 100)", run) == "finished"
    assert lab.states(run) == source[1].expected
    lab("SELECT forget(%s)", run)
