"""The embedded cluster, on an extension of one function, so that it fails for its own reasons only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from typer.testing import CliRunner

import cerebro_db
from cerebro_db.client import cli, extension
from cerebro_db.client import cluster as clusters
from cerebro_db.client.cluster import Account, Cluster, ClusterError, Installation, Prefix
from cerebro_db.client.extension import Sources

HELLO = """\
CREATE FUNCTION hello() RETURNS text LANGUAGE plpython3u AS $python$
@cerebro@
return api.hello()
$python$;
"""

# --- assembling ------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return small_sources(tmp_path)


def small_sources(top: Path) -> Sources:
    shutil.copy(Sources.find().control, top)
    for folder in ("sql", "migrations", "cerebro_plpy", "cerebro_db/core", "cerebro_db/nn"):
        (top / folder).mkdir(parents=True)
    (top / "sql" / "20_hello.sql").write_text(HELLO)
    (top / "sql" / "10_table.sql").write_text("CREATE TABLE first (i int);\n")
    (top / "cerebro_db" / "__init__.py").write_text("")
    (top / "cerebro_plpy" / "__init__.py").write_text("")
    (top / "cerebro_plpy" / "api.py").write_text(
        "import json, os\n"
        "def hello():\n"
        "    return json.dumps({'file': __file__, 'uid': os.getuid(), 'environment': sorted(os.environ)})\n"
    )
    return Sources(top, top / "cerebro_db", top / "cerebro_plpy")


def test_one_version_everywhere() -> None:
    assert Sources.find().version == cerebro_db.__version__


def test_pieces_are_put_together_in_file_name_order(sources: Sources) -> None:
    (sources.root / "migrations" / "cerebro_db--0.0.9--0.1.0.sql").write_text(HELLO)
    made = extension.scripts(sources, "/opt/code")
    assert set(made) == {f"cerebro_db--{sources.version}.sql", "cerebro_db--0.0.9--0.1.0.sql"}
    script = made[f"cerebro_db--{sources.version}.sql"]
    assert script.startswith('\\echo Use "CREATE EXTENSION')
    assert script.index("CREATE TABLE first") < script.index("CREATE FUNCTION hello")
    assert all("@cerebro@" not in text and "from cerebro_plpy import api" in text for text in made.values())


@pytest.mark.parametrize(
    "code",
    ["/opt/code", "/a b/'c'", '/a"b', "/a$python$b/$$", "/@extschema@/x", "/größe/\U0001f600", "/back\\slash\nline"],
)
def test_the_preamble_quotes_any_path(code: str) -> None:
    line = extension.preamble(code)
    assert "$" not in line and "@" not in line and "\n" not in line
    before = list(sys.path)
    try:
        exec(line.replace("; from cerebro_plpy import api", ""), {})
        exec(line.replace("; from cerebro_plpy import api", ""), {})
        assert sys.path == [code, *before]
    finally:
        sys.path[:] = before


def test_a_misplaced_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="alone on its line"):
        extension.expand("x = 1; @cerebro@\n", "/opt/code")


def test_code_is_replaced_as_a_whole_and_writable_by_its_owner_only(sources: Sources, tmp_path: Path) -> None:
    to = tmp_path / "installed" / "python"
    (sources.plpy / "__pycache__").mkdir()
    (sources.plpy / "__pycache__" / "stale.pyc").write_bytes(b"x")
    (sources.plpy / "gone.py").write_text("")
    extension.install_code(sources, to, "/some/python")
    (sources.plpy / "gone.py").unlink()
    extension.install_code(sources, to, "/some/python")
    assert json.loads((to / "install.json").read_text())["trainer_python"] == "/some/python"
    assert not (to / "cerebro_plpy" / "gone.py").exists()
    assert not list(to.rglob("stale.pyc"))
    assert [entry.name for entry in to.parent.iterdir()] == ["python"]
    for file in to.rglob("*"):
        assert not file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_the_fingerprint_sees_every_change(sources: Sources) -> None:
    seen = {extension.fingerprint(sources, "/a", "/p"), extension.fingerprint(sources, "/b", "/p")}
    seen.add(extension.fingerprint(sources, "/a", "/q"))
    (sources.plpy / "api.py").write_text("# new\n")
    seen.add(extension.fingerprint(sources, "/a", "/p"))
    (sources.root / "sql" / "30_more.sql").write_text("-- more\n")
    seen.add(extension.fingerprint(sources, "/a", "/p"))
    assert len(seen) == 5


def test_make_install_puts_the_same_files_in_place(tmp_path: Path) -> None:
    clone = Path(__file__).resolve().parents[2]
    if not shutil.which("make") or not (clone / "Makefile").exists():
        pytest.skip("no make, or no clone")
    installation = Installation.choose()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    copy = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
    shutil.copytree(clone, copy, ignore=ignored)
    command = [
        "make",
        "-C",
        str(copy),
        "install",
        f"PG_CONFIG={installation.bin / 'pg_config'}",
        f"DESTDIR={tmp_path}/to",
    ]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    share = tmp_path / "to" / installation.share.relative_to("/")
    code = installation.share / "cerebro_db" / "python"
    for name, text in extension.scripts(Sources.find(), str(code)).items():
        assert (share / "extension" / name).read_text() == text
    assert (share / "cerebro_db" / "python" / "cerebro_plpy" / "__init__.py").exists()
    assert json.loads((share / "cerebro_db/python/install.json").read_text())["version"] == cerebro_db.__version__


# --- names and places --------------------------------------------------------------------------------------------


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRO_HOME", "/somewhere")
    assert clusters.home() == Path("/somewhere")
    monkeypatch.delenv("CEREBRO_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert clusters.home() == Path("/data/cerebro")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert clusters.home() == Path("/var/lib/cerebro")


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


# --- a real one --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that the server's account can enter: pytest's own are private."""
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
    # A name that is too long for a socket, on purpose.
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
    said = json.loads(str(ask(cluster, "SELECT hello()")))
    assert said["file"] == str(cluster.prefix.code / "cerebro_plpy" / "api.py")
    assert said["uid"] == Account.get().uid != 0
    assert not {"SECRET_OF_MINE", "PYTHONPATH", "PGHOST"} & set(said["environment"])
    assert ask(cluster, "SHOW search_path") == '"$user", public, cerebro'


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
    assert len(str(cluster.socket / f".s.PGSQL.{cluster.port}")) <= clusters.LONGEST_SOCKET
    if os.geteuid() == 0:  # then what the server runs is not its own to change
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
    assert ask(cluster, "SELECT hello()") == "new"

    with open(sources.root / "sql" / "20_hello.sql", "a") as file:
        file.write("CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1';\n")
    assert cluster.up(sources=sources).extension == "stale"
    assert cluster.up(sources=sources).extension == "stale"
    assert cluster.up(sources=sources, recreate=True).extension == "recreated"
    assert ask(cluster, "SELECT more()") == 1
    assert cluster.up(sources=sources).extension == "unchanged"


def test_a_newer_version_is_updated_to(made: tuple[Cluster, Sources]) -> None:
    cluster, sources = made
    control = sources.control.read_text()
    try:
        sources.control.write_text(control.replace(f"'{sources.version}'", "'9.9.9'"))
        upgrade = sources.root / "migrations" / f"cerebro_db--{cerebro_db.__version__}--9.9.9.sql"
        upgrade.write_text("CREATE FUNCTION newest() RETURNS int LANGUAGE sql AS 'SELECT 9';\n")
        assert cluster.up(sources=sources).extension == "updated"
        assert ask(cluster, "SELECT newest()") == 9
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
    assert failed.stderr.count("\n") == 1
    # The project's own SQL is not what this cluster was made with: better said now than at the first call.
    stale = subprocess.run([*command, "up"], env=environment, capture_output=True, text=True)
    assert stale.returncode == 1 and "cerebro up --recreate" in stale.stderr, stale


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to switch to")
def test_a_folder_that_the_account_cannot_enter_is_named(made: tuple[Cluster, Sources]) -> None:
    hidden = Path(tempfile.mkdtemp(prefix="cerebro-hidden-", dir="/tmp"))  # 0700
    try:
        with pytest.raises(ClusterError, match="cannot read"):
            Cluster("x", at=hidden / "home").up(sources=made[1])
    finally:
        shutil.rmtree(hidden)
