"""The image: the conventions of the image postgres, stops, kills and upgrades, on a real Docker engine."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from tests.conftest import connect

pytestmark = pytest.mark.docker

WITHIN = 120  # seconds
SCRIPTS = "/docker-entrypoint-initdb.d"
FIT = "SELECT cerebro.fit('public.iris', 'public.%s', '[{}]', target => 'species', epochs => %s, segments => 2%s)"


class Container:
    """A container of the image, and how to reach the server in it."""

    def __init__(self, image: str, **env: str) -> None:
        env = {"POSTGRES_PASSWORD": "secret", **env}
        self.user, self.database = env.get("POSTGRES_USER", "postgres"), env.get("POSTGRES_DB", "cerebro")
        self.password = env["POSTGRES_PASSWORD"]
        self.it = DockerContainer(image).with_envs(**env).with_exposed_ports(5432)

    def __enter__(self) -> Container:
        self.it.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.it.stop()

    def connect(self) -> Any:
        where = {"host": self.it.get_container_host_ip(), "port": self.it.get_exposed_port(5432)}
        return connect("", user=self.user, password=self.password, dbname=self.database, connect_timeout=5, **where)

    def answers(self) -> bool:
        assert self.it.get_wrapped_container().status != "exited", self.log()
        with contextlib.suppress(psycopg2.OperationalError):
            self.connect().close()
            return True
        self.it.reload()
        return False

    def ready(self) -> Container:
        eventually(self.answers, "the server answers")
        return self

    def ask(self, statement: str, *values: object) -> Any:
        """The first value of a statement's answer."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchone()[0] if cursor.description else None

    def fit(self, name: str, epochs: int = 1, more: str = "") -> int:
        return int(self.ask(FIT % (name, epochs, more)))

    def predictions(self, name: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM cerebro.predict('public.{name}', 'SELECT * FROM public.iris')"))

    def runs(self, *command: str) -> tuple[int, str]:
        """The exit status and the output of a command in the container, as root."""
        done = self.it.get_wrapped_container().exec_run(list(command), user="root")
        return done.exit_code, done.output.decode()

    def processes(self) -> dict[int, tuple[str, str]]:
        """The state and the command line of each process, by its number."""
        program = """for p in /proc/[0-9]*; do
            echo "${p#/proc/} $(sed -n 's/^State:.\\(.\\).*/\\1/p' $p/status) $(tr '\\0' ' ' <$p/cmdline)"; done"""
        found = re.findall(r"^(\d+) (\w) (.*)$", self.runs("bash", "-c", f"{program} 2>/dev/null")[1], re.MULTILINE)
        return {int(pid): (state, command) for pid, state, command in found}

    def started_by_nursery(self, program: str) -> list[int]:
        return [pid for pid, (state, command) in self.processes().items() if program in command and state != "Z"]

    def zombies(self) -> list[int]:
        return [pid for pid, (state, _) in self.processes().items() if state == "Z"]

    def log(self) -> str:
        return b"".join(self.it.get_logs()).decode()


def eventually(holds: Callable[[], object], what: str, within: float = WITHIN) -> None:
    until = time.monotonic() + within
    while not holds():
        assert time.monotonic() < until, f"not within {within} s: {what}"
        time.sleep(0.2)


def once(image: str, *command: str, **settings: Any) -> tuple[int, str]:
    """The exit status and the log of a container that ends by itself."""
    container = DockerClient().client.containers.run(image, list(command), detach=True, **settings)
    try:
        return container.wait(timeout=WITHIN)["StatusCode"], container.logs().decode()
    finally:
        container.remove(force=True, v=True)


def scripts(folder: Path, **texts: str) -> Path:
    """A folder of scripts for the first start. A name such as ``a_sh`` stands for ``a.sh``."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.fixture
def volume() -> Iterator[str]:
    made = DockerClient().client.volumes.create()
    yield made.id
    made.remove(force=True)


@pytest.fixture(scope="module")
def plain(image: str) -> Iterator[Container]:
    """A container in which only the password is set."""
    with Container(image) as container:
        yield container.ready()


# -- the conventions of the image postgres -------------------------------------------------------------------


def test_what_is_there_without_settings(plain: Container) -> None:
    assert plain.ask("SELECT count(*) FROM iris") == 150
    assert plain.ask("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'cerebro'") == "postgres"
    assert plain.ask("SHOW data_checksums") == "on"
    first = plain.ask("SELECT auth_method || user_name::text FROM pg_hba_file_rules ORDER BY line_number LIMIT 1")
    assert first == "scram-sha-256{+cerebro_worker}"
    assert plain.runs("stat", "-c", "%U", "/proc/1")[1].strip() == "postgres"
    assert "POSTGRES_PASSWORD" not in plain.runs("cat", "/proc/1/environ")[1]
    code, output = plain.runs("psql", "-U", "postgres", "-d", "cerebro", "-Atc", "SELECT current_user")
    assert (code, output) == (0, "postgres\n"), "root in the container needs no password"
    plain.fit("plain")
    assert plain.predictions("plain") == 150
    problems = plain.ask(
        "SELECT array_agg(found) FROM cerebro.doctor() WHERE component = 'worker login' AND status <> 'ok'"
    )
    assert problems is None


def test_the_check_of_health(plain: Container) -> None:
    """Run by this test, because not every engine runs it."""
    check = plain.it.get_wrapped_container().attrs["Config"]["Healthcheck"]["Test"]
    assert check[0] == "CMD" and plain.runs(*check[1:])[0] == 0
    assert plain.runs("env", "PGDATA=/nowhere", *check[1:])[0] != 0


def test_the_engine_finds_it_healthy(plain: Container) -> None:
    """Podman without systemd starts no check by itself, and has to be told to."""
    container = plain.it.get_wrapped_container()

    def status() -> str:
        container.reload()
        return str(container.attrs["State"]["Health"]["Status"])

    if shutil.which("podman"):
        subprocess.run(["podman", "healthcheck", "run", container.id], capture_output=True)
    eventually(lambda: status() == "healthy", "the engine finds it healthy", 60)


def test_variables_and_scripts(image: str, tmp_path: Path) -> None:
    """With the class of testcontainers for the image postgres."""
    script = """[ "$0" = %s ] || where=sourced
        psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<SQL
        INSERT INTO told VALUES ('${where:-executed} as $(id -un)')
        SQL
        """.replace("\n        ", "\n")
    folder = scripts(
        tmp_path / "scripts",
        a_sql="CREATE TABLE told (what text)",
        b_sh="#!/bin/bash\n" + script % f"{SCRIPTS}/b.sh",
        c_sh=script % f"{SCRIPTS}/c.sh",
        d_sql=FIT % ("at_first", 1, ""),
        e_txt="nothing",
    )
    (folder / "b.sh").chmod(0o755)
    (folder / "f.sql.gz").write_bytes(gzip.compress(b"INSERT INTO told VALUES ('packed')"))
    made = PostgresContainer(image, username="Olivia", password="it's", dbname="Shop", driver=None)
    made.with_envs(POSTGRES_INITDB_ARGS="--wal-segsize=32 '--locale=C'", PGDATA="/var/lib/postgresql/data/here")
    made.with_volume_mapping(str(folder), SCRIPTS, "ro").with_command(["-c", "work_mem=7MB"])
    with made as container:
        where = {"host": container.get_container_host_ip(), "port": container.get_exposed_port(5432)}
        with closing(connect("", user="Olivia", password="it's", dbname="Shop", **where)) as connection:
            cursor = connection.cursor()

            def ask(statement: str) -> Any:
                cursor.execute(statement)
                return cursor.fetchone()[0]

            assert ask("SELECT array_agg(what) FROM told") == ["executed as postgres", "sourced as postgres", "packed"]
            assert ask("SELECT count(*) FROM cerebro.predict('at_first', 'SELECT * FROM iris')") == 150
            assert (ask("SHOW wal_segment_size"), ask("SHOW work_mem"), ask("SHOW lc_collate")) == ("32MB", "7MB", "C")
            assert ask("SHOW data_directory") == "/var/lib/postgresql/data/here"
            assert ask("SELECT array_agg(rolname::text) FROM pg_roles WHERE rolsuper") == ["Olivia"]
            assert ask("SELECT count(*) FROM pg_database WHERE datname = 'cerebro'") == 0
        log = b"".join(container.get_logs()).decode()
        assert f"ignoring {SCRIPTS}/e.txt" in log and "it's" not in log


def test_a_password_from_a_file(image: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    secret.chmod(0o600)  # root's: the entry point reads it before it gives up its rights
    made = Container(image, POSTGRES_PASSWORD="", POSTGRES_PASSWORD_FILE="/run/secrets/word")
    made.password = "from a file"
    made.it.with_volume_mapping(str(secret), "/run/secrets/word", "ro")
    with made as container:
        assert container.ready().ask("SELECT 1") == 1


def test_trust_needs_no_password(image: str) -> None:
    with Container(image, POSTGRES_PASSWORD="", POSTGRES_HOST_AUTH_METHOD="trust") as container:
        assert container.ready().ask("SELECT 1") == 1
        assert "log in as any user" in container.log()
        container.fit("trusting")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "set POSTGRES_PASSWORD (or POSTGRES_PASSWORD_FILE)"),
        ({"POSTGRES_USER": "a", "POSTGRES_USER_FILE": "/etc/hostname"}, "set POSTGRES_USER or POSTGRES_USER_FILE"),
    ],
)
def test_settings_that_are_refused(image: str, environment: dict[str, str], told: str) -> None:
    code, log = once(image, environment=environment)
    assert code == 1 and told in log


def test_another_program_of_the_image(image: str) -> None:
    code, output = once(image, "psql", "--version")
    assert code == 0 and "psql (PostgreSQL) 15" in output


@pytest.mark.parametrize(("user", "number"), [("postgres", "999"), ("12345:12345", "12345")])
def test_another_account_that_can_write_only_to_its_folders(image: str, user: str, number: str) -> None:
    made = Container(image, PGDATA="/var/lib/postgresql/data/here", PGHOST="/tmp")
    made.it.with_kwargs(user=user, read_only=True).with_tmpfs_mount("/tmp")
    made.it.with_command(["-c", "unix_socket_directories=/tmp"])
    with made as container:
        container.ready().fit("unprivileged")
        assert container.predictions("unprivileged") == 150
        assert container.runs("stat", "-c", "%u", "/proc/1")[1].strip() == number
        asked = ["psql", "-U", "postgres", "-w", "-Atc", "SELECT current_user"]  # by the socket
        words = {"PGPASSWORD": "secret"}
        done = container.it.get_wrapped_container().exec_run(asked, user=user, environment=words)
        assert done.output.decode() == "postgres\n"


def test_rules_of_cloudnative_pg(image: str, tmp_path: Path) -> None:
    """Its first rule keeps worker sessions from the socket, so they log in by TCP."""
    rules = ("local all all peer map=local", "host all +cerebro_worker 127.0.0.1/32 scram-sha-256")
    written = "\n".join((*rules, "host all all all scram-sha-256"))
    folder = scripts(tmp_path / "scripts", a_sh=f"cat >$PGDATA/pg_hba.conf <<'HBA'\n{written}\nHBA\n")
    made = Container(image)
    made.it.with_volume_mapping(str(folder), SCRIPTS, "ro")
    with made as container:
        container.ready().fit("peers")
        assert container.predictions("peers") == 150
        rows = "SELECT array_agg(found::text) FROM cerebro.doctor() WHERE component = 'worker login' AND status = 'ok'"
        assert any("logs in by 127.0.0.1" in row for row in container.ask(rows))
        assert 'Peer authentication failed for user "cerebro_w_' in container.log()


# -- stops, kills and upgrades -------------------------------------------------------------------------------


def test_stop_and_start(image: str) -> None:
    with Container(image) as container:
        run = container.ready().fit("kept")
        interrupted = container.fit("long", 150, ", wait => false")
        hops = "SELECT count(*) FROM cerebro.hop WHERE run = %s"
        eventually(lambda: container.ask(hops, interrupted) > 4, "it trains")
        began = time.monotonic()
        container.it.get_wrapped_container().stop(timeout=30)
        assert time.monotonic() - began < 20, "the engine need not kill it"
        assert "database system is shut down" in container.log()
        container.it.get_wrapped_container().start()
        container.ready()
        assert container.ask("SELECT status FROM cerebro.runs WHERE run = %s", run) == "finished"
        assert container.predictions("kept") == 150
        assert container.ask("SELECT status FROM cerebro.runs WHERE run = %s", interrupted) == "interrupted"
        done = container.ask(hops, interrupted)
        assert done > 4
        container.ask("SELECT cerebro.resume(%s)", interrupted)
        assert container.ask("SELECT status FROM cerebro.runs WHERE run = %s", interrupted) == "finished"
        assert container.ask("SELECT epochs_done FROM cerebro.leaderboard WHERE run = %s", interrupted) == 150
        assert container.log().count("the first start is complete") == 1 and "updating" not in container.log()


@pytest.mark.parametrize("victim", ["backend", "worker", "trainer", "template", "nursery"])
def test_a_killed_process_where_the_postmaster_is_process_1(image: str, plain: Container, victim: str) -> None:
    """PostgreSQL restarts after the end of a process of its own. A run is interrupted then, and continues."""
    run = plain.fit(f"killed_{victim}", 120, ", wait => false")
    hops = "SELECT count(*) FROM cerebro.hop WHERE run = %s"
    eventually(lambda: plain.ask(hops, run) > 4, "it trains")
    before = plain.log().count("terminating any other active server processes")
    with closing(plain.connect()) as idle:
        if victim == "backend":
            pids = [idle.info.backend_pid]
        elif victim == "worker":
            pids = [plain.ask("SELECT worker_pid FROM cerebro.hop_timeline WHERE run = %s LIMIT 1", run)]
        elif victim == "trainer":
            pids = [plain.ask("SELECT max(trainer_pid) FROM cerebro.hop_timeline WHERE run = %s", run)]
        else:
            pids = plain.started_by_nursery(f"/{victim}.py")
        assert pids and plain.runs("bash", "-c", f"kill -9 {' '.join(map(str, pids))}")[0] == 0
        time.sleep(3)
    plain.ready()
    restarted = plain.log().count("terminating any other active server processes") > before
    assert restarted == (victim in ("backend", "worker", "nursery"))
    status = "SELECT status FROM cerebro.runs WHERE run = %s"
    eventually(lambda: plain.ask(status, run) != "running" or plain.ask(hops, run) > 40, "its end is noticed")
    interrupted = plain.ask(status, run) == "interrupted"
    assert interrupted == restarted, plain.ask("SELECT message FROM cerebro.runs WHERE run = %s", run)
    if interrupted:
        plain.ask("SELECT cerebro.resume(%s, wait => false)", run)
    plain.ask("SELECT cerebro.wait(%s)", run)
    assert plain.ask(status, run) == "finished"
    assert plain.predictions(f"killed_{victim}") == 150
    plain.fit(f"after_{victim}")
    eventually(lambda: not plain.zombies(), "no zombie is left", 20)
    assert plain.processes()[1][1].startswith("postgres")


def test_a_killed_nursery_restarts_nothing_with_an_init(image: str) -> None:
    made = Container(image)
    made.it.with_kwargs(init=True)
    with made as container:
        container.ready().fit("before")
        (nursery,) = container.started_by_nursery("/nursery.py")
        container.runs("bash", "-c", f"kill -9 {nursery}")
        container.fit("afterwards")
        assert container.predictions("afterwards") == 150
        assert "terminating any other active server processes" not in container.log()
        eventually(lambda: not container.zombies(), "no zombie is left", 20)


def test_an_interrupted_first_start_begins_again(image: str, tmp_path: Path) -> None:
    folder = scripts(tmp_path / "scripts", a_sh="[ -e /tmp/again ] || { touch /tmp/again; echo here; sleep 600; }\n")
    made = Container(image)
    made.it.with_volume_mapping(str(folder), SCRIPTS, "ro")
    with made as container:
        eventually(lambda: "here\n" in container.log(), "the script runs")
        container.it.get_wrapped_container().kill()
        container.it.get_wrapped_container().start()
        assert container.ready().ask("SELECT count(*) FROM iris") == 150
        assert "it begins again" in container.log()


def test_a_first_start_that_fails_leaves_an_empty_folder(image: str, tmp_path: Path, volume: str) -> None:
    folder = scripts(tmp_path / "scripts", a_sql="SELECT 1 / 0")
    data = {volume: {"bind": "/var/lib/postgresql/data"}}
    both = {**data, str(folder): {"bind": SCRIPTS, "mode": "ro"}}
    code, log = once(image, environment={"POSTGRES_PASSWORD": "secret"}, volumes=both)
    assert code != 0 and "division by zero" in log and "the first start failed" in log
    assert once(image, "ls", "-A", "/var/lib/postgresql/data", volumes=data) == (0, "")


UPGRADED = r"""FROM {image}
RUN cd /usr/share/postgresql/15/extension \
 && sed -i "s/^default_version.*/default_version = '9.9.9'/" cerebro_db.control cerebro_db_madlib.control \
 && was=$(ls cerebro_db--?.?.?.sql | sed 's/.*--\(.*\).sql/\1/') \
 && echo "DO \$\$ BEGIN IF current_database() = 'other' THEN RAISE 'not in other'; END IF; END \$\$;" \
    >cerebro_db--$was--9.9.9.sql \
 && touch cerebro_db_madlib--$was--9.9.9.sql
"""


def test_a_new_image_on_an_old_volume(image: str, volume: str) -> None:
    """The extension is updated in each database; where that fails, the log has the command."""
    client = DockerClient().client
    newer, _ = client.images.build(fileobj=io.BytesIO(UPGRADED.format(image=image).encode()))
    version = "SELECT array_agg(DISTINCT extversion) FROM pg_extension WHERE extname ~ '^cerebro_db'"
    mount = (volume, "/var/lib/postgresql/data", "rw")
    old = Container(image)
    old.it.with_volume_mapping(*mount)
    with old as container:
        container.ready().fit("old")
        was = container.ask(version)
        container.ask("CREATE DATABASE other")
        code, output = container.runs(
            "psql", "-U", "postgres", "-d", "other", "-c", "CREATE EXTENSION cerebro_db CASCADE"
        )
        assert code == 0, output
        container.it.get_wrapped_container().stop(timeout=30)
    stranger, new = Container(newer.id, POSTGRES_USER="stranger"), Container(newer.id)
    stranger.it.with_volume_mapping(*mount)
    new.it.with_volume_mapping(*mount)
    try:
        stranger.user = "postgres"
        with stranger as container:
            assert container.ready().ask(version) == was != ["9.9.9"]
            assert "Set POSTGRES_USER to a superuser" in container.log()
            container.it.get_wrapped_container().stop(timeout=30)
        with new as container:
            assert container.ready().ask(version) == ["9.9.9"]
            assert container.predictions("old") == 150
            told = container.log()
            assert "not in other" in told and "the database other keeps its version" in told
            assert "ALTER EXTENSION cerebro_db UPDATE" in told and "the database cerebro" not in told
            container.ask("DROP DATABASE other")
            for _ in range(2):  # the first start tries again, and the second one has nothing to do
                container.it.get_wrapped_container().restart(timeout=30)
                container.ready()
            assert container.log().count("updating the databases") == 2
    finally:
        client.images.remove(newer.id, force=True)
