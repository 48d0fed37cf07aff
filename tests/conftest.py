"""The server for the tests: that of CEREBRO_TEST_DSN, else a throw-away cluster, else a container.

CEREBRO_TEST_DSN must name a superuser. The extension is created in its database if it is missing there. The throw-away
cluster has this clone's extension. CEREBRO_TEST_KILLABLE_DSN does the same, and allows the tests to kill, stop and
change the server that it names: a Greenplum on this machine that nobody else uses.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.embedded import extension, throw_away
from cerebro_db.embedded.cluster import Cluster
from cerebro_db.embedded.database import equip
from cerebro_db.embedded.errors import ClusterError
from cerebro_db.embedded.installation import Installation
from tests import thorough
from tests.given_greenplum import GivenGreenplum

pytest.register_assert_rewrite("tests.nn.other_engine")  # its tests are inherited

CLONE = Path(__file__).resolve().parents[1]
KILLABLE = os.environ.get("CEREBRO_TEST_KILLABLE_DSN")
GIVEN = KILLABLE or os.environ.get("CEREBRO_TEST_DSN")
NOT_OURS = "CEREBRO_TEST_DSN names a server that is not ours"
HAS_TENSORFLOW = find_spec("tensorflow") is not None
ENGINE = "tensorflow" if HAS_TENSORFLOW else "jax"  # for tests to which it does not matter
BOTH_ENGINES = [pytest.param("tensorflow", marks=pytest.mark.tensorflow), "jax"]
if not HAS_TENSORFLOW:
    os.environ.setdefault("KERAS_BACKEND", "jax")  # for tests that import Keras themselves
TRAINER = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)


def connect(dsn: str, **more: Any) -> Any:
    """A psycopg2 connection that commits each statement."""
    connection = psycopg2.connect(dsn, **more)
    connection.autocommit = True
    return connection


# --- what this machine has -----------------------------------------------------------------------------------


def has_docker() -> bool:
    if not shutil.which("docker"):
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, timeout=10
        )
        return asked.returncode == 0
    return False


def has_gpu() -> bool:
    if not shutil.which("nvidia-smi"):
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=20)
        return asked.returncode == 0 and "GPU" in asked.stdout
    return False


def chromium() -> str | None:
    """The path of the browser that looks at reports."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "docker": (has_docker, "no Docker engine answers"),
    "gpu": (has_gpu, "no GPU here"),
    "no_gpu": (lambda: not has_gpu(), "this machine has a GPU"),
    "browser": (lambda: chromium() is not None, "no Chromium here"),
    "dbt": (
        lambda: shutil.which("dbt") is not None,
        "no dbt in the PATH: pip install dbt-core==1.11.16 dbt-postgres==1.10.0 in an environment of its own",
    ),
    "tensorflow": (lambda: HAS_TENSORFLOW, "this environment has no TensorFlow"),
    "onnx": (
        lambda: all(map(find_spec, ("tf2onnx", "onnx", "onnxruntime"))),
        "tf2onnx, onnx and onnxruntime are optional: pip install tf2onnx onnx onnxruntime",
    ),
    "needs_cluster": (lambda: not GIVEN or bool(KILLABLE), NOT_OURS),
    "throw_away": (lambda: not GIVEN, "about PostgreSQL's own ways, on a throw-away cluster"),
    "same_machine": (lambda: is_here(GIVEN), "CEREBRO_TEST_DSN names a server on another machine"),
    "thorough": (lambda: thorough.TIMES >= 5, "CEREBRO_THOROUGH=5 runs it: make test-thorough"),
    "greenplum": (lambda: _is_greenplum(GIVEN), "CEREBRO_TEST_DSN names no Greenplum"),
}


def is_here(dsn: str | None) -> bool:
    host = parse_dsn(dsn).get("host", "/") if dsn else "/"
    return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")


def _is_greenplum(dsn: str | None) -> bool:
    if not dsn:
        return False
    with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('gp_role', true) IS NOT NULL")
        return bool(cursor.fetchone()[0])


def pytest_configure() -> None:
    """Tests send Ctrl-C to themselves. A shell may have started this process with Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PGOPTIONS"] = "-c cerebro.details=on"  # tests look at what is done, and not only at what people need


# The folders follow each other, because the tests of tests/client share a connection, which no other test may break in
# between.  With several processes, long files begin first and short ones come last.
FOLDERS = ("sql", "client", "nn", "embedded", "core")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> tuple[int, int, str]:
        its = (place for place, folder in enumerate(FOLDERS) if CLONE / "tests" / folder in item.path.parents)
        place = next(its, 0)
        return place, -item.path.stat().st_size, item.path.name

    items.sort(key=order)
    known: dict[str, bool] = {}
    for item in items:
        for need, (there, reason) in NEEDS.items():
            if item.get_closest_marker(need):
                if need not in known:
                    known[need] = there()
                if not known[need]:
                    item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """The collector need not look at Keras and TensorFlow again and again: that takes a third of a second each time."""
    gc.freeze()


# --- the server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster | GivenGreenplum]:
    """The throw-away cluster itself, for tests that restart it or read its files; or a Greenplum that may be killed."""
    if KILLABLE:
        yield GivenGreenplum(KILLABLE)
        return
    if GIVEN:
        pytest.skip(NOT_OURS)
    made = throw_away.create(TRAINER)
    try:
        yield made
    finally:
        throw_away.remove(made)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a superuser on a database that has the extension."""
    if GIVEN:
        with contextlib.closing(connect(GIVEN)) as connection:
            equip(connection, extension.Sources.find().version)
            with connection.cursor() as cursor:  # equip leaves MADlib's schema alone where cerebro_db was there before
                cursor.execute("CREATE EXTENSION IF NOT EXISTS cerebro_db_madlib")
        yield GIVEN
        return
    try:
        Installation.choose()
    except ClusterError as error:
        if not has_docker():
            pytest.fail(f"no server to test on: {error} Or set CEREBRO_TEST_DSN.", pytrace=False)
        yield from _container(request.getfixturevalue("image"))
        return
    yield request.getfixturevalue("cluster").dsn()


@pytest.fixture(scope="session")
def image() -> str:
    """The image of this clone. It stays, so that the next session builds only what has changed since."""
    from testcontainers.core.image import DockerImage

    made = DockerImage(path=str(CLONE), dockerfile_path="docker/Dockerfile", tag="cerebro_db:test", clean_up=False)
    return str(made.build())


def _container(image: str) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    password = secrets.token_hex(8)
    with DockerContainer(image).with_env("POSTGRES_PASSWORD", password).with_exposed_ports(5432) as container:
        # The server of the first start is ready before that, and has no network address.
        wait_for_logs(container, "(?s)the first start is complete.*ready to accept connections", timeout=120)
        where = {"host": container.get_container_host_ip(), "port": container.get_exposed_port(5432)}
        dsn = make_dsn(user="postgres", password=password, dbname="cerebro", **where)
        with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute('ALTER DATABASE cerebro SET search_path = "$user", public, cerebro')
        yield dsn


@pytest.fixture
def data_folder(server: str) -> Path:
    """The data folder of the server (Greenplum: of the coordinator)."""
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.current_setting('data_directory')")
        folder = Path(cursor.fetchone()[0])
    if not is_here(server) or not os.access(folder, os.R_OK):
        pytest.skip("the server's files cannot be looked at from here")
    return folder


@pytest.fixture
def db(server: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A superuser's connection (autocommit). Its first schema belongs to the test and is dropped afterwards."""
    schema = "t_" + re.sub(r"\W", "_", request.node.name.lower())[:40] + "_" + secrets.token_hex(3)
    with contextlib.closing(connect(server)) as connection:
        name = sql.Identifier(schema)
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            cursor.execute(sql.SQL("SET search_path = {}, public, cerebro").format(name))
        try:
            yield connection
        finally:
            connection.close()  # releases its locks; the test may have left it in any state, so a new one cleans up
            with contextlib.closing(connect(server)) as another, another.cursor() as cursor:
                cursor.execute("SET client_min_messages = warning")
                cursor.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


@pytest.fixture
def fresh_database(server: str) -> Iterator[str]:
    """The DSN of a new database with the extension. The database is dropped after the test."""
    with new_database(server) as dsn:
        yield dsn


@contextlib.contextmanager
def new_database(server: str) -> Iterator[str]:
    """The DSN of a new database with the extension, which is dropped afterwards."""
    name = "t_" + secrets.token_hex(5)
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        cursor.execute(
            sql.SQL('ALTER DATABASE {} SET search_path = "$user", public, cerebro').format(sql.Identifier(name))
        )
    dsn = make_dsn(**{**parse_dsn(server), "dbname": name})
    try:
        with contextlib.closing(connect(dsn)) as connection:
            equip(connection, extension.Sources.find().version)
        yield dsn
    finally:
        with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
            # Not DROP … WITH (FORCE), which Greenplum 7 does not have.
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
