"""The embedded cluster, with an extension of one function (small_sources.py)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from small_sources import small_sources
from typer.testing import CliRunner

import cerebro_db
from cerebro_db.client import cli
from cerebro_db.embedded import files, installation, throw_away
from cerebro_db.embedded.account import Account
from cerebro_db.embedded.cluster import Cluster
from cerebro_db.embedded.errors import ClusterError
from cerebro_db.embedded.extension import Sources
from cerebro_db.embedded.installation import Installation
from cerebro_db.embedded.prefix import Prefix
from cerebro_db.embedded.server import with_advice
from tests.conftest import TRAINER
from tests.sql.lab import eventually

# --- names and folders -------------------------------------------------------------------------------------------


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRO_HOME", "/somewhere")
    assert files.home() == Path("/somewhere")
    monkeypatch.delenv("CEREBRO_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert files.home() == Path("/data/cerebro")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert files.home() == Path("/var/lib/cerebro")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "-x", "x" * 41])
def test_a_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(ClusterError):
        Cluster(name)


def test_the_prefix_has_the_layout_of_the_system() -> None:
    debian = Installation(Path("/usr/lib/postgresql/15/bin"), Path("/usr/share/postgresql/15"), Path("/usr/lib"), "15")
    prefix = Prefix(Path("/p"), debian)
    assert (prefix.bin, prefix.share) == (Path("/p/usr/lib/postgresql/15/bin"), Path("/p/usr/share/postgresql/15"))


def test_destroy_leaves_alone_what_is_not_ours(tmp_path: Path) -> None:
    cluster = Cluster("mine", at=tmp_path)
    with pytest.raises(ClusterError, match="no cluster"):
        cluster.destroy()
    cluster.data.mkdir(parents=True)
    with pytest.raises(ClusterError, match="no cluster"):
        cluster.destroy()
    (cluster.path / "cluster.json").write_text('{"made_by": "somebody"}')
    with pytest.raises(ClusterError, match="not made by cerebro"):
        cluster.destroy()
    assert cluster.data.exists()


def test_files_that_vanish_while_a_cluster_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends removes its own files meanwhile, or makes a last one."""
    of_cluster = files.ClusterFiles("brief", tmp_path)
    of_cluster.data.mkdir(parents=True)
    monkeypatch.setattr(files.ClusterFiles, "socket", of_cluster.path / "socket")
    removed, calls = shutil.rmtree, []

    def vanishing(path: Path, **more: object) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(path)
        if len(calls) == 2:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        removed(path)

    monkeypatch.setattr(files.shutil, "rmtree", vanishing)
    of_cluster.remove()
    assert len(calls) == 3 and not of_cluster.path.exists()


def test_the_version_of_a_cluster_counts_for_more_than_pg_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for major in ("14", "16"):
        folder = tmp_path / major
        (folder / "extension").mkdir(parents=True)
        for name in ("postgres", "initdb", "extension/plpython3u.control"):
            (folder / name).touch()
        program = folder / "pg_config"
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "PostgreSQL {major}.1" || echo {folder}\n')
        program.chmod(0o755)
    monkeypatch.setattr(installation, "PACKAGED", (f"{tmp_path}/*/pg_config",))
    monkeypatch.setenv("PG_CONFIG", str(tmp_path / "16" / "pg_config"))
    assert [Installation.choose(major).major for major in (None, "16", "14")] == ["16", "16", "14"]
    with pytest.raises(ClusterError, match="The cluster needs PostgreSQL 13"):
        Installation.choose("13")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_CONFIG", str(tmp_path / "pg_config"))
    with pytest.raises(ClusterError, match="PG_CONFIG"):
        Installation.choose()
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch()
    (tmp_path / "pg_config").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "PostgreSQL 16.4 (Debian)" || echo {tmp_path}\n'
    )
    (tmp_path / "pg_config").chmod(0o755)
    with pytest.raises(ClusterError, match="apt-get install postgresql-plpython3-16"):
        Installation.choose()
    with pytest.raises(ClusterError, match="needs PostgreSQL 13"):
        Installation.choose("13")


# --- a real cluster ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that the server's account can enter. pytest's temporary folders are private."""
    top = Path(tempfile.mkdtemp(prefix="cerebro-place-", dir="/tmp"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


@pytest.fixture(scope="module")
def made(place: Path) -> Iterator[tuple[Cluster, Sources]]:
    try:
        Installation.choose()
    except ClusterError as error:
        pytest.skip(str(error))
    (place / "sources").mkdir()
    sources = small_sources(place / "sources")
    # The name is too long for a socket on purpose.
    cluster = Cluster("small", at=place / ("long-" * 18))
    environment = dict(os.environ)
    os.environ.update(SECRET_OF_MINE="x", PYTHONPATH="/nowhere", PGHOST="/nowhere")
    try:
        assert cluster.up(sources=sources, settings={"fsync": "off"}).extension == "created"
    finally:
        os.environ.clear()
        os.environ.update(environment)
    yield cluster, sources
    place_of_socket = cluster.socket
    cluster.destroy()
    assert not cluster.path.exists()
    assert not place_of_socket.exists()


def ask(cluster: Cluster, query: str) -> object:
    with contextlib.closing(cluster.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def test_it_runs_the_extension_as_nobody_special(made: tuple[Cluster, Sources]) -> None:
    cluster, _ = made
    said = json.loads(str(ask(cluster, "SELECT cerebro.hello()")))
    assert said["file"] == str(cluster.prefix.code / "cerebro_plpy" / "api.py")
    assert said["uid"] == Account.get().uid != 0
    assert not {"SECRET_OF_MINE", "PYTHONPATH", "PGHOST"} & set(said["environment"])


def test_the_time_zones_and_dictionaries_are_there(made: tuple[Cluster, Sources]) -> None:
    assert ask(made[0], "SELECT ('2024-07-01 12:00+00'::timestamptz AT TIME ZONE 'Europe/Berlin')::text") == (
        "2024-07-01 14:00:00"
    )
    assert ask(made[0], "SELECT to_tsvector('english', 'hopping models')::text") == "'hop':1 'model':2"


def test_the_system_is_not_touched(made: tuple[Cluster, Sources]) -> None:
    prefix = made[0].prefix
    ours = prefix.share / "extension"
    assert not (ours / "cerebro_db.control").is_symlink()
    assert (ours / "plpython3u.control").is_symlink()
    assert ours.resolve().is_relative_to(made[0].home)


def test_private_folders(made: tuple[Cluster, Sources]) -> None:
    cluster, _ = made
    account = Account.get()
    for folder in (cluster.data, cluster.log, cluster.socket):
        found = folder.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == account.uid, folder
    assert cluster.socket.parent == Path("/tmp")
    assert len(str(cluster.socket / f".s.PGSQL.{cluster.port}")) <= files.LONGEST_SOCKET
    if os.geteuid() == 0:  # then the server's account cannot change the programs that it runs
        assert {file.lstat().st_uid for file in cluster.prefix.top.rglob("*")} == {0}


def test_the_first_rule_admits_workers_by_password(made: tuple[Cluster, Sources]) -> None:
    cluster, _ = made
    rules = [line.split() for line in (cluster.data / "pg_hba.conf").read_text().splitlines()]
    assert next(rule for rule in rules if rule and rule[0] != "#") == [
        "local",
        "all",
        "+cerebro_worker",
        "scram-sha-256",
    ]
    with contextlib.closing(cluster.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE ROLE cerebro_worker; CREATE ROLE w1 LOGIN PASSWORD 'right' IN ROLE cerebro_worker")
        cursor.execute("CREATE ROLE alice LOGIN")
    where = {"host": str(cluster.socket), "port": cluster.port, "dbname": "cerebro"}
    psycopg2.connect(user="w1", password="right", **where).close()
    for user, password in (("w1", "wrong"), ("alice", "")):
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(user=user, password=password, **where)


def test_up_is_quick_to_repeat_and_tells_what_changed(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    again = cluster.up(sources=sources)
    assert (again.created, again.started, again.files_changed, again.extension) == (False, False, False, "unchanged")

    (sources.plpy / "api.py").write_text("def hello():\n    return 'new'\n")
    again = cluster.up(sources=sources)
    assert (again.files_changed, again.extension) == (True, "unchanged")
    assert ask(cluster, "SELECT cerebro.hello()") == "new"

    with open(sources.root / "sql" / "20_hello.sql", "a") as file:
        file.write("CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1';\n")
    assert cluster.up(sources=sources).extension == "stale"
    assert cluster.up(sources=sources).extension == "stale"
    assert cluster.up(sources=sources, recreate=True).extension == "recreated"
    assert ask(cluster, "SELECT cerebro.more()") == 1
    assert cluster.up(sources=sources).extension == "unchanged"


def test_a_newer_version_is_updated_to(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    control = sources.control.read_text()
    try:
        sources.control.write_text(control.replace(f"'{sources.version}'", "'9.9.9'"))
        upgrade = sources.root / "migrations" / f"cerebro_db--{cerebro_db.__version__}--9.9.9.sql"
        upgrade.write_text("CREATE FUNCTION newest() RETURNS int LANGUAGE sql AS 'SELECT 9';\n")
        assert cluster.up(sources=sources).extension == "updated"
        assert ask(cluster, "SELECT cerebro.newest()") == 9
    finally:
        sources.control.write_text(control)
        cluster.up(sources=sources, recreate=True)


def test_it_survives_a_kill(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    pid = int((cluster.data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, 9)
    for _ in range(100):
        if not cluster.running():
            break
        subprocess.run(["sleep", "0.05"], check=True)
    did = cluster.up(sources=sources)
    assert did.started and not did.created
    assert ask(cluster, "SELECT 1") == 1


def test_listening_is_asked_for(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    assert ask(cluster, "SHOW listen_addresses") == ""
    assert cluster.up(sources=sources, listen="127.0.0.1").started
    with contextlib.closing(cluster.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE ROLE bi LOGIN PASSWORD 'chart'")
    psycopg2.connect(host="127.0.0.1", port=cluster.port, dbname="cerebro", user="bi", password="chart").close()
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(host="127.0.0.1", port=cluster.port, dbname="cerebro", user="postgres")
    assert cluster.up(sources=sources, listen="").started


def test_a_taken_port_is_named_with_what_to_do(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    before = cluster.port
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ClusterError, match=r"taken by another program.*--port N"):
            cluster.up(sources=sources, listen="127.0.0.1", port=other.getsockname()[1])
    assert cluster.up(sources=sources, listen="", port=before).started


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("could not create any TCP/IP sockets", "--port N"),
        ('initdb: error: invalid locale name "C.UTF-8"', "localedef -i C -f UTF-8 C.UTF-8"),
        ("could not write to file: No space left on device", "CEREBRO_HOME"),
    ],
)
def test_reasons_with_advice(reason: str, advice: str) -> None:
    told = with_advice(reason)
    assert told.startswith(reason) and advice in told
    assert with_advice("the logs give no reason") == "the logs give no reason"


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="Set CEREBRO_HOME to another folder"):
        Cluster("x", at=tmp_path / "file" / "home").up()
    (tmp_path / "home" / ".lock").mkdir(parents=True)
    with pytest.raises(ClusterError, match="Cannot write to .*Set CEREBRO_HOME"):
        Cluster("x", at=tmp_path / "home").up()


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"]])
def test_help_names_the_environment(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli.app, arguments).output
    assert "CEREBRO_HOME" in shown and "PG_CONFIG" in shown


def test_a_setting_that_is_wrong_is_named(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    with pytest.raises(ClusterError, match="shared_buffers"):
        cluster.up(sources=sources, settings={"shared_buffers": "a lot"})
    assert cluster.up(sources=sources, settings={"fsync": "off"}).started


def test_the_command(made: tuple[Cluster, Sources], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = made
    monkeypatch.setenv("CEREBRO_HOME", str(cluster.home))
    monkeypatch.setenv("CEREBRO_CLUSTER", "small")

    def say(*arguments: str) -> str:
        done = CliRunner().invoke(cli.app, list(arguments))
        assert done.exit_code == 0, done
        return done.output

    assert say("dsn").strip() == cluster.dsn()
    assert "running" in say("status") and cluster.dsn() in say("status")
    assert "stopped" in say("down") and "not running" in say("down")
    assert "stopped" in say("status")
    refused = CliRunner().invoke(cli.app, ["destroy"], input="n\n")
    assert refused.exit_code != 0 and cluster.exists
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "cerebro_db.client.cli"]
    cluster.restart()
    asked = subprocess.run([*command, "psql", "-Atc", "SELECT 6*7"], env=environment, capture_output=True, text=True)
    assert asked.stdout == "42\n", asked
    failed = subprocess.run([*command, "dsn", "-n", "nobody"], env=environment, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("cerebro: There is no cluster 'nobody'")
    assert "cerebro up --name nobody makes it" in failed.stderr and failed.stderr.count("\n") == 1
    # The cluster was made from other SQL than the project's. ``up`` says so, because the first call would fail.
    stale = subprocess.run([*command, "up"], env=environment, capture_output=True, text=True)
    assert stale.returncode == 1 and "cerebro up --recreate" in stale.stderr, stale


def test_up_has_the_framework_imported_for_whoever_trains_next() -> None:
    try:
        cluster = throw_away.create(TRAINER)
    except ClusterError as error:
        pytest.skip(str(error))
    try:

        def templates() -> list[str]:
            """The processes of this cluster that have imported a framework, or are importing it."""
            found = subprocess.run(["pgrep", "-f", f"{cluster.home}.*/nn/template.py"], capture_output=True, text=True)
            return found.stdout.split()

        assert not templates()
        done = CliRunner().invoke(cli.app, ["up", "--name", "test"], env={"CEREBRO_HOME": str(cluster.home)})
        assert done.exit_code == 0 and "running already" in done.output and "table iris was made" in done.output, done
        assert ask(cluster, "SELECT count(DISTINCT species) * 1000 + count(*) FROM iris") == 3150
        with contextlib.closing(cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM iris")
        assert not cluster.add_iris() and ask(cluster, "SELECT count(*) FROM iris") == 0, "a table of that name stays"
        eventually(templates, 60, "TensorFlow is imported")
    finally:
        throw_away.remove(cluster)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to switch to")
def test_a_folder_that_the_account_cannot_enter_is_named(made: tuple[Cluster, Sources]) -> None:
    hidden = Path(tempfile.mkdtemp(prefix="cerebro-hidden-", dir="/tmp"))  # 0700
    try:
        with pytest.raises(ClusterError, match="cannot read"):
            Cluster("x", at=hidden / "home").up(sources=made[1])
    finally:
        shutil.rmtree(hidden)
