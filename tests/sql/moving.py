"""A database with a finished run and an interrupted one, which is to be moved to another server or version."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded.installation import Installation
from tests.conftest import KILLABLE, connect
from tests.given_greenplum import GivenGreenplum
from tests.sql.lab import Lab, eventually, flower_model
from tests.sql.memory import compiled

OPTIONS = {"deterministic": True, "seed": 4}
EPOCHS = 8
VIEWS = ("run_plan", "learning_curve", "leaderboard", "hop_timeline", "run_time", "architectures")
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
    "profile",
    "added_architecture",
]


@dataclass
class Source:
    dsn: str
    lab: Lab  # alice's
    alice: str
    secret: str
    calm: int
    broken: int
    expected: dict[int, bytes]  # the states of both, in the end
    weights: Any
    seen: dict[str, list[Any]]  # what alice sees of her runs
    said: list[Any]  # by a registered model; nothing by a version without a registry


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


def all_of(lab: Lab) -> dict[str, list[Any]]:
    """What the user sees of their runs."""
    return {name: sorted(map(repr, lab(f"SELECT * FROM cerebro.{name}"))) for name in (*VIEWS, *TABLES)}


def said_by_registered(lab: Lab) -> list[Any]:
    """What the registered model says, with its name and its rights."""
    shared = lab('SELECT registered_model, role, "right" FROM registered_rights')
    return [*shared, *lab("SELECT * FROM predict('kept@production', 'SELECT * FROM garden', 'id') ORDER BY 1")]


@contextlib.contextmanager
def trained(cluster: clusters.Cluster, alice: str = "") -> Iterator[Source]:
    """A database of its own, with a finished run and an interrupted one."""
    alice = alice or "alice_" + secrets.token_hex(3)
    secret, name = secrets.token_hex(8), "src_" + secrets.token_hex(3)
    with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {alice} LOGIN PASSWORD '{secret}'")
        cursor.execute(f"GRANT cerebro_user TO {alice}")
        cursor.execute(f"CREATE DATABASE {name}")
    dsn = cluster.dsn(name)
    try:
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            cursor.execute("CREATE EXTENSION cerebro_db_madlib CASCADE")
            cursor.execute(f"CREATE SCHEMA work; ALTER SCHEMA work OWNER TO {alice}")
        lab = Lab(as_user(dsn, alice, secret), "work", cluster.home)
        lab.iris(segments=2)
        arch = lab.architecture(flower_model())
        lab("SELECT add_architecture('flower', %s, %s)", json.dumps(flower_model()), bytes(range(8)))
        lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=8, epochs=2") for rate in (0.001, 0.01)])
        calm = lab.fit("train", "calm", "mst", EPOCHS, validation_table="val", options=OPTIONS)
        with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
            broken = lab.submit("train", "broken", "mst", EPOCHS, validation_table="val", options=OPTIONS)
            eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", broken) >= 5, 60, "five hops")
            driver = lab.value("SELECT driver_pid FROM runs WHERE run = %s", broken)
            cursor.execute("SELECT pg_terminate_backend(%s)", (driver,))
        lab.ended(broken)
        assert lab.value("SELECT count(*) FROM hop WHERE run = %s", broken) < 2 * 2 * EPOCHS
        eventually(lambda: not lab.sessions(), 20, "workers are gone")
        said: list[Any] = []
        if lab.value("SELECT to_regprocedure('cerebro.register(text, text, integer, text, text, text)') IS NOT NULL"):
            lab("SELECT fit('train', 'plain', 'mst', epochs => 1)")
            lab("SELECT register('kept', 'plain', alias => 'production')")
            lab("SELECT share('kept', 'cerebro_user')")
            said = said_by_registered(lab)
        yield Source(dsn, lab, alice, secret, calm, broken, lab.states(calm), lab.weights("calm"), all_of(lab), said)
        lab.close()
    finally:
        with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"DROP ROLE IF EXISTS {alice}")
