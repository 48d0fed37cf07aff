"""The image's entry point, without Docker: as a plain account, with a private PostgreSQL that has the extension."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.embedded.account import Account
from cerebro_db.embedded.errors import ClusterError
from cerebro_db.embedded.extension import Sources
from cerebro_db.embedded.installation import Installation
from cerebro_db.embedded.prefix import Prefix
from tests.conftest import CLONE, TRAINER, connect

pytestmark = pytest.mark.throw_away

WITHIN = 60  # seconds
ATTACKER = "dbname=mallory options=-csearch_path=public"  # the name of a database


@dataclass
class Machine:
    """The folders of the image, below a temporary folder."""

    top: Path
    account: Account
    prefix: Prefix
    log: str = ""  # of the last start
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def stub(self, folder: str, program: str, text: str) -> Path:
        """A program that is found before the real one by those that have the folder on their path."""
        (self.top / folder).mkdir(exist_ok=True)
        file = self.top / folder / program
        file.write_text("#!/bin/bash\n" + text)
        file.chmod(0o755)
        return file.parent

    def folder(self, name: str) -> Path:
        self.account.own(self.top / name)
        return self.top / name

    def temporary(self, data: Path) -> Path:
        """The folder of the temporary files of starts with this data folder."""
        return self.folder(f"tmp_{data.name}")

    @property
    def path(self) -> str:
        return f"{self.top}/bin:{self.prefix.bin}:{self.prefix.of.bin}:/usr/bin:/bin"

    def start(self, data: Path, *arguments: str, stubs: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
        settings = {
            "PATH": f"{stubs}:{self.path}" if stubs else self.path,
            "PGDATA": str(data),
            "TMPDIR": str(self.temporary(data)),
            "CEREBRO_SCRIPTS": str(self.top / "scripts"),
            "CEREBRO_IRIS": str(self.top / "iris.sql"),
            "CEREBRO_SOCKETS": str(self.folder("sockets")),
            "POSTGRES_PASSWORD": "secret",
            "POSTGRES_INITDB_ARGS": "--no-sync",
            **env,
        }
        user: dict[str, Any] = {"extra_groups": []} if self.account.switch else {}
        if self.account.switch:
            user |= {"user": self.account.uid, "group": self.account.gid}
        with (self.top / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.top / "entrypoint.sh"), *arguments],
                env=settings,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **user,
            )
        self.running.append(process)
        return process

    def ends(self, process: subprocess.Popen[bytes]) -> int:
        code = process.wait(WITHIN)
        self.running.remove(process)
        self.log = (self.top / "log").read_text()
        return code

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)
        assert self.ends(process) == 0, self.log

    def connect(self, port: int, database: str = "cerebro") -> Any:
        """By the socket, without a password: as root, or as the account of the server."""
        return connect("", host=str(self.top / "sockets"), port=port, user="postgres", dbname=database)

    def wait_for_server(self, process: subprocess.Popen[bytes], port: int) -> None:
        """The address is that of the server that remains. The server of the first start has no address."""
        until = time.monotonic() + WITHIN
        while True:
            assert process.poll() is None and time.monotonic() < until, (self.top / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        while True:
            with contextlib.suppress(Exception):
                self.connect(port).close()
                return
            assert time.monotonic() < until, (self.top / "log").read_text()
            time.sleep(0.05)

    def ask(self, port: int, statement: str, database: str = "cerebro") -> Any:
        with closing(self.connect(port, database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0] if cursor.description else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    try:
        installation = Installation.choose()
    except ClusterError as error:
        pytest.skip(str(error))
    top = Path(tempfile.mkdtemp(prefix="cerebro-entry-", dir="/tmp"))
    top.chmod(0o755)
    prefix = Prefix(top / "prefix", installation)
    prefix.make()
    prefix.install_extension(Sources.find(), TRAINER)
    made = Machine(top, Account.get(), prefix)
    made.stub("bin", "pg_config", f'[[ $1 == --sharedir ]] && echo "{prefix.share}"\n')
    for file in ("docker/entrypoint.sh", "cerebro_db/embedded/iris.sql"):
        shutil.copy(CLONE / file, top)
        (top / Path(file).name).chmod(0o755)
    (top / "scripts").mkdir()
    yield made
    for process in made.running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(WITHIN)
    shutil.rmtree(top, ignore_errors=True)


# -- without a server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["--help", "-?", "--version", "-V", "--describe-config"])
def test_questions_that_need_no_data_folder(machine: Machine, argument: str) -> None:
    data = machine.top / "nowhere"
    assert machine.ends(machine.start(data, argument, POSTGRES_PASSWORD="")) == 0
    assert machine.log and not data.exists()


def test_a_folder_without_a_cluster_that_is_not_empty(machine: Machine) -> None:
    data = machine.folder("volume")
    cluster = machine.folder("volume/pgdata") / "PG_VERSION"
    cluster.write_text("15\n")
    assert machine.ends(machine.start(data)) == 1
    assert f"is not empty; it has: pgdata. Use a subfolder: set PGDATA to {data}/pgdata" in machine.log
    assert cluster.read_text() == "15\n" and [file.name for file in data.iterdir()] == ["pgdata"]


def test_a_file_system_of_its_own(machine: Machine) -> None:
    data = machine.folder("mounted")
    machine.folder("mounted/lost+found")
    assert machine.ends(machine.start(data)) == 1
    assert "it has: lost+found. Use a subfolder" in machine.log and (data / "lost+found").exists()


@pytest.mark.parametrize("program", ["initdb", "mv"])
def test_a_first_start_that_is_killed_while_it_makes_the_cluster(machine: Machine, program: str) -> None:
    """All processes at once, as at the end of a container. The next start begins again in an empty folder."""
    real = shutil.which(program, path=machine.path)
    stubs = machine.stub(f"killing_{program}", program, f'{real} "$@"; kill -9 0\n')
    data = machine.folder(f"killed_in_{program}")
    assert machine.ends(machine.start(data, stubs=stubs)) == -signal.SIGKILL
    assert list(data.rglob("PG_VERSION"))
    assert machine.ends(machine.start(data, POSTGRES_PASSWORD="")) == 1
    assert "it begins again" in machine.log and "set POSTGRES_PASSWORD" in machine.log
    assert not list(data.iterdir())


def test_a_first_start_that_fails(machine: Machine) -> None:
    data = machine.folder("failing")
    assert machine.ends(machine.start(data, POSTGRES_INITDB_ARGS="--no-such-option")) != 0
    assert "the first start failed" in machine.log
    assert not list(data.iterdir()) and not list(machine.temporary(data).iterdir())


# -- with a server -------------------------------------------------------------------------------------------------

SCRIPTS = {
    "a.sh": 'echo "unset: <$no_such_variable>"; version_of_a=1\n',
    "b.sh": 'psql -U "$POSTGRES_USER" -h "$CEREBRO_SOCKETS" -d "$POSTGRES_DB" -c "CREATE TABLE told (what text)"\n',
    "c.sql": "INSERT INTO told SELECT 'from ' || current_database();\n",
}


def told_port(port: int) -> tuple[str, ...]:
    return ("-c", f"port={port}", "-c", "fsync=off")


@pytest.fixture(scope="module")
def data(machine: Machine) -> Path:
    """The data folder of a first start with scripts, whose server listens on another port than 5432."""
    for name, text in SCRIPTS.items():
        (machine.top / "scripts" / name).write_text(text)
    made, port = machine.folder("data"), free_port()
    process = machine.start(made, *told_port(port), "-c", f"unix_socket_directories={machine.folder('sockets')}")
    machine.wait_for_server(process, port)
    log = (machine.top / "log").read_text()
    assert "unset: <>" in log and "the first start is complete" in log
    assert machine.ask(port, "SELECT what FROM told") == "from cerebro"
    assert machine.ask(port, "SELECT count(*) FROM iris") == 150
    assert machine.ask(port, "SHOW search_path") == '"$user", public'
    assert check_of_health(machine, made) == 0
    machine.stop(process)
    assert not (made / "cerebro_unfinished").exists() and not (made / "first_start").exists()
    assert not list(machine.temporary(made).iterdir())
    return made


def check_of_health(machine: Machine, data: Path) -> int:
    dockerfile = (CLONE / "docker/Dockerfile").read_text()
    check = json.loads(re.findall(r"HEALTHCHECK.*\\\n +CMD (\[.*\])", dockerfile)[0])
    return subprocess.run(check, env={"PATH": machine.path, "PGDATA": str(data)}, capture_output=True).returncode


def test_the_check_of_health_without_a_server(machine: Machine) -> None:
    assert check_of_health(machine, machine.top / "nowhere") != 0


def test_a_signal_ends_an_update(machine: Machine, data: Path) -> None:
    (data / "cerebro_version").write_text("0.0.0\n")
    here = machine.temporary(data) / "here"
    waiting = f'[[ "$*" == *--command=* ]] && exec {shutil.which("psql")} "$@"; touch {here}; exec sleep 100\n'
    process = machine.start(data, *told_port(free_port()), stubs=machine.stub("waiting", "psql", waiting))
    until = time.monotonic() + WITHIN
    while not here.exists():
        assert process.poll() is None and time.monotonic() < until, (machine.top / "log").read_text()
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert machine.ends(process) == 1 and time.monotonic() - began < 10
    here.unlink()
    assert "database system is shut down" in machine.log
    assert not (data / "postmaster.pid").exists() and not list(machine.temporary(data).iterdir())
    assert (data / "cerebro_version").read_text() == "0.0.0\n"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the stub: here no container ends with its process 1


def test_the_owner_of_a_database_gains_nothing_from_an_update(machine: Machine, data: Path) -> None:
    """The update runs as a superuser in databases that others own."""
    port = free_port()
    arguments = (*told_port(port), "-c", f"unix_socket_directories={machine.folder('sockets')}")
    process = machine.start(data, *arguments)
    machine.wait_for_server(process, port)
    machine.ask(port, "CREATE ROLE mallory")
    for name in ("mallory", ATTACKER):
        machine.ask(port, f'CREATE DATABASE "{name}" OWNER mallory')
        with closing(machine.connect(port, name)) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE EXTENSION cerebro_db CASCADE; SET SESSION AUTHORIZATION mallory")
            cursor.execute(
                "CREATE FUNCTION public.format(text, name) RETURNS text LANGUAGE plpgsql AS "
                "'BEGIN ALTER ROLE mallory SUPERUSER; RETURN ''SELECT 1''; END'"
            )
    machine.ask(port, "ALTER DATABASE mallory SET search_path = public, pg_catalog")
    machine.ask(port, "ALTER DATABASE cerebro SET default_transaction_read_only = on")
    machine.stop(process)

    extensions = machine.prefix.share / "extension"
    was = re.findall(r"default_version = '(.*)'", (extensions / "cerebro_db.control").read_text())[0]
    for name in ("cerebro_db", "cerebro_db_madlib"):
        control = extensions / f"{name}.control"
        control.write_text(control.read_text().replace(f"'{was}'", "'9.9.9'"))
        (extensions / f"{name}--{was}--9.9.9.sql").touch()
    process = machine.start(data, *arguments)
    machine.wait_for_server(process, port)
    versions = "SELECT array_agg(DISTINCT extversion) FROM pg_extension WHERE extname ~ '^cerebro_db'"
    for database in ("cerebro", "mallory", ATTACKER):
        assert machine.ask(port, versions, database) == ["9.9.9"], (machine.top / "log").read_text()
    assert not machine.ask(port, "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")
    machine.stop(process)
    assert (data / "cerebro_version").read_text() == "9.9.9\n"
