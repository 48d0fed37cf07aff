"""The embedded cluster: a private PostgreSQL with the extension, for one person or one machine.

PostgreSQL finds its share folder relative to its own executable. So copies of ``postgres``, ``initdb``
and ``pg_ctl`` under a prefix of ours, with links to the rest of the system's installation, are a private
installation into which the extension goes: nothing of the system's is touched, several versions live
side by side, and no root is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import glob
import json
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
from psycopg2 import sql

from . import extension

ACCOUNT = "cerebro"  # the server's system account when root makes the cluster
SUPERUSER = "postgres"
DATABASE = "cerebro"
FIRST_PORT = 54320
LONGEST_SOCKET = 107  # bytes, a limit of the operating system
COPIED = ("postgres", "initdb", "pg_ctl")

HBA = """\
# Made by cerebro. The first line lets worker sessions log in; see docs/architecture.md.
local  all  +cerebro_worker  scram-sha-256
local  all  {superuser}  peer map=cerebro
local  all  all  scram-sha-256
host   all  all  127.0.0.1/32  scram-sha-256
host   all  all  ::1/128  scram-sha-256
"""


class ClusterError(Exception):
    """One line that says what is wrong, and what to do."""


# --- where things are ------------------------------------------------------------------------------------


def home() -> Path:
    """CEREBRO_HOME, or this user's (root: the machine's) place for it."""
    if named := os.environ.get("CEREBRO_HOME"):
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cerebro")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "cerebro"


@dataclass(frozen=True)
class Installation:
    """A PostgreSQL on this machine, as its pg_config describes it."""

    bin: Path
    share: Path
    lib: Path
    major: str

    @classmethod
    def of(cls, pg_config: str) -> Installation:
        def ask(what: str) -> str:
            try:
                return subprocess.run([pg_config, what], check=True, capture_output=True, text=True).stdout.strip()
            except (OSError, subprocess.CalledProcessError) as error:
                raise ClusterError(
                    f"{pg_config} {what} failed: {error}. Set PG_CONFIG to a working pg_config."
                ) from None

        version = ask("--version")
        found = re.search(r"(\d+)", version)
        if not found:
            raise ClusterError(f"{pg_config} says {version!r}, which is no version.")
        return cls(Path(ask("--bindir")), Path(ask("--sharedir")), Path(ask("--pkglibdir")), found.group(1))

    @property
    def has_server(self) -> bool:
        return (self.bin / "postgres").exists() and (self.bin / "initdb").exists()

    @property
    def has_plpython(self) -> bool:
        return (self.share / "extension" / "plpython3u.control").exists()

    @classmethod
    def choose(cls, major: str | None = None) -> Installation:
        """PG_CONFIG's, or the newest on this machine with plpython3u; of a given major version if one is given."""
        if named := os.environ.get("PG_CONFIG"):
            found = [cls.of(named)]
        else:
            places = glob.glob("/usr/lib/postgresql/*/bin/pg_config") + glob.glob("/usr/pgsql-*/bin/pg_config")
            on_path = shutil.which("pg_config")
            found = [cls.of(place) for place in [*places, *([on_path] if on_path and not places else [])]]
        found = sorted((one for one in found if one.has_server), key=lambda one: int(one.major), reverse=True)
        if major is not None:
            found = [one for one in found if one.major == major]
            if not found:
                raise ClusterError(
                    f"The cluster needs PostgreSQL {major}: apt-get install postgresql-plpython3-{major}"
                )
        if not found:
            raise ClusterError(
                "No PostgreSQL server here: apt-get install postgresql-plpython3-15 (or another version)"
            )
        for one in found:
            if one.has_plpython:
                return one
        raise ClusterError(f"PostgreSQL has no PL/Python: apt-get install postgresql-plpython3-{found[0].major}")


@dataclass(frozen=True)
class Prefix:
    """The private installation under ``top``: the system's layout below another root."""

    top: Path
    of: Installation

    def _inside(self, path: Path) -> Path:
        return self.top / path.relative_to(path.anchor)

    @property
    def bin(self) -> Path:
        return self._inside(self.of.bin)

    @property
    def share(self) -> Path:
        return self._inside(self.of.share)

    @property
    def code(self) -> Path:
        return self.share / extension.NAME / "python"

    @property
    def _stamp(self) -> Path:
        return self.bin / ".copied"

    def _seen(self) -> str:
        """Changes when the system's PostgreSQL is upgraded, or gets other extensions."""
        watched = [*(self.of.bin / name for name in COPIED), self.of.share, self.of.share / "extension"]
        return " ".join(f"{one.stat().st_mtime_ns}:{one.stat().st_size}" for one in watched)

    def make(self) -> None:
        seen = self._seen()
        if self._stamp.exists() and self._stamp.read_text() == seen:
            return
        self.bin.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            # Copies, not links: PostgreSQL follows links before it looks around. Renamed into place, since
            # a running executable cannot be written to.
            shutil.copy2(self.of.bin / name, self.bin / f".{name}")
            (self.bin / f".{name}").rename(self.bin / name)
        _link(self._inside(self.of.lib), self.of.lib)
        extensions = self.share / "extension"
        extensions.mkdir(parents=True, exist_ok=True)
        for entry in self.of.share.iterdir():
            if entry.name not in ("extension", extension.NAME):
                _link(self.share / entry.name, entry)
        for old in extensions.iterdir():
            if old.is_symlink() and not old.exists():
                old.unlink()
        for entry in (self.of.share / "extension").iterdir():
            # Ours may be installed in the system's PostgreSQL too, in another version.
            if not re.match(rf"{extension.NAME}(\.control|--)", entry.name):
                _link(extensions / entry.name, entry)
        self._stamp.write_text(seen)

    def install_extension(self, sources: extension.Sources, trainer_python: str) -> bool:
        """Brings the installed files up to date with the sources; True when there was something to do."""
        code = str(self.code)
        print_of = extension.fingerprint(sources, code, trainer_python)
        stamp = self.code.parent / "installed"
        if stamp.exists() and stamp.read_text() == print_of and self.code.exists():
            return False
        extensions = self.share / "extension"
        for old in [*extensions.glob(f"{extension.NAME}--*.sql"), extensions / f"{extension.NAME}.control"]:
            old.unlink(missing_ok=True)
        extension.install_code(sources, self.code, trainer_python)
        extension.install_scripts(sources, extensions, code)
        stamp.write_text(print_of)
        return True


def _link(link: Path, to: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        if os.readlink(link) == str(to):
            return
        link.unlink()
    link.symlink_to(to)


# --- who runs it -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """Whom the server runs as: the caller, or, for root, an unprivileged system account."""

    name: str
    uid: int
    gid: int
    switch: bool

    @classmethod
    def get(cls, create: bool = True) -> Account:
        if os.geteuid() != 0:
            return cls(_user_name(), os.geteuid(), os.getegid(), False)
        try:
            known = pwd.getpwnam(ACCOUNT)
        except KeyError:
            if not create:
                raise ClusterError(f"There is no account {ACCOUNT}: cerebro up makes it.") from None
            command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
            command += ["--shell", "/usr/sbin/nologin", ACCOUNT]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode not in (0, 9):  # 9: somebody else was quicker
                raise ClusterError(f"Could not make the account {ACCOUNT}: {done.stderr.strip()}") from None
            known = pwd.getpwnam(ACCOUNT)
        return cls(known.pw_name, known.pw_uid, known.pw_gid, True)

    def run(self, command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        who: dict[str, Any] = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}
        # Output goes to a file: the server inherits it, and would keep a pipe open for ever.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=0o077,
                **who,
            )
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read(), "")

    def own(self, path: Path, mode: int = 0o700) -> None:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def must_reach(self, path: Path) -> None:
        if self.switch and self.run(["/usr/bin/test", "-r", str(path)], {}).returncode != 0:
            raise ClusterError(
                f"The account {self.name} cannot read {path}: let others enter its folders, "
                "or set CEREBRO_HOME to a place outside private folders."
            )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container run with a number for a user
        return getpass.getuser()


# --- the cluster -----------------------------------------------------------------------------------------


@dataclass
class Up:
    """What ``up`` did."""

    created: bool = False
    started: bool = False
    files_changed: bool = False
    extension: str = "unchanged"  # created | updated | recreated | stale | unchanged


class Cluster:
    def __init__(self, name: str = "default", at: Path | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", name):
            raise ClusterError(f"A cluster is named by letters, digits, dots, dashes and underscores, not {name!r}.")
        self.name = name
        self.home = at if at is not None else home()
        self.path = self.home / "clusters" / name
        self.data = self.path / "data"
        self.log = self.path / "log"
        self._marker = self.path / "cluster.json"

    # What is known about it, kept in a file that also says that the folder is ours.

    @property
    def exists(self) -> bool:
        try:
            return (self.data / "PG_VERSION").exists() and self._marker.exists()
        except PermissionError:
            raise ClusterError(
                f"{self.path} belongs to somebody else: set CEREBRO_HOME to a place of your own."
            ) from None

    def facts(self) -> dict[str, Any]:
        try:
            facts = json.loads(self._marker.read_text())
        except FileNotFoundError:
            raise ClusterError(f"There is no cluster {self.name!r} in {self.home}: cerebro up makes it.") from None
        except PermissionError:
            raise ClusterError(f"{self._marker} belongs to somebody else.") from None
        except ValueError:
            facts = None
        if not isinstance(facts, dict) or facts.get("made_by") != extension.NAME:
            raise ClusterError(f"{self.path} was not made by cerebro: left alone.")
        return facts

    def _keep(self, facts: dict[str, Any]) -> None:
        beside = self._marker.with_suffix(".new")
        beside.write_text(json.dumps(facts, indent=1) + "\n")
        beside.chmod(0o644)
        beside.rename(self._marker)

    @property
    def socket(self) -> Path:
        return Path(self.facts()["socket"])

    @property
    def port(self) -> int:
        return int(self.facts()["port"])

    def dsn(self, database: str = DATABASE, user: str = SUPERUSER) -> str:
        facts = self.facts()
        host = quote(facts["socket"], safe="")
        return f"postgresql://{quote(user)}@/{quote(database, safe='')}?host={host}&port={facts['port']}"

    def connect(self, database: str = DATABASE) -> Any:
        connection = psycopg2.connect(self.dsn(database), connect_timeout=10)
        connection.autocommit = True
        return connection

    @property
    def prefix(self) -> Prefix:
        major = (self.data / "PG_VERSION").read_text().strip() if self.exists else None
        return Prefix(self.home / "prefix", Installation.choose(major))

    # Life and death.

    def up(
        self,
        *,
        listen: str | None = None,
        port: int | None = None,
        recreate: bool = False,
        trainer_python: str | None = None,
        sources: extension.Sources | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Up:
        """Makes, starts and equips the cluster, as far as that is not done. Safe to repeat."""
        sources = sources or extension.Sources.find()
        trainer_python = trainer_python or _this_python()
        did = Up()
        account = Account.get()
        self._make_folders()
        with self._locked():
            prefix = self.prefix
            if not self.running():  # a running server keeps the files it was started with
                prefix.make()
            try:
                did.files_changed = prefix.install_extension(sources, trainer_python)
            except ValueError as error:
                raise ClusterError(f"The extension's sources are incomplete: {error}") from None
            for needed in (prefix.bin / "postgres", prefix.code / "install.json", Path(trainer_python)):
                account.must_reach(needed)
            if not self.exists:
                self._create(account, prefix, listen, port, settings)
                did.created = True
            else:
                self._change(account, listen, port, settings)
            if not self.running():
                self._start(account, prefix)
                did.started = True
            did.extension = self._equip(sources, str(prefix.code), recreate)
        return did

    def _make_folders(self) -> None:
        try:
            for folder in (self.home, self.home / "clusters"):
                if not folder.exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    folder.chmod(0o755 if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise ClusterError(
                f"Cannot make {self.home}: {error.strerror}. Set CEREBRO_HOME to another place."
            ) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time: two ``up`` at once would make the same cluster twice."""
        try:
            lock = open(self.home / ".lock", "w")  # noqa: SIM115  closed below
        except PermissionError:
            raise ClusterError(f"{self.home} belongs to somebody else: set CEREBRO_HOME to your own.") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _environment(self) -> dict[str, str]:
        """What the server, and so every function and trainer in it, may see of the caller's environment."""
        wanted = re.compile(r"LANG|LC_.*|TZ|LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|XLA_FLAGS|TF_.*")
        kept = {name: value for name, value in os.environ.items() if wanted.fullmatch(name)}
        return {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.path / "home")}

    def _create(
        self, account: Account, prefix: Prefix, listen: str | None, port: int | None, settings: Mapping[str, str] | None
    ) -> None:
        if self.path.exists():
            if not self._marker.exists():
                raise ClusterError(f"{self.path} was not made by cerebro: move it away, or choose another --name.")
            self.facts()
            shutil.rmtree(self.path)  # a half-made one of ours
        self.path.mkdir(mode=0o755)
        self.path.chmod(0o755)
        facts: dict[str, Any] = {
            "made_by": extension.NAME,
            "port": port or self._free_port(),
            "listen": listen or "",
            "socket": str(self.path / "socket"),
            "settings": dict(settings or {}),
        }
        self._keep(facts)
        for folder in (self.data, self.log, self.path / "home"):
            account.own(folder)
        self._place_socket(account)
        made = account.run(
            [
                str(prefix.bin / "initdb"),
                "-D",
                str(self.data),
                "-U",
                SUPERUSER,
                "--auth-local=peer",
                "--encoding=UTF8",
                "--auth-host=scram-sha-256",
                "--locale=C.UTF-8",
                "--data-checksums",
            ],
            self._environment(),
        )
        if made.returncode != 0:
            shutil.rmtree(self.path)
            raise ClusterError(f"initdb failed: {_last_line(made.stdout)}")
        who = sorted({account.name, _user_name()})
        self._put(account, "pg_ident.conf", "".join(f'cerebro "{name}" {SUPERUSER}\n' for name in who))
        self._put(account, "pg_hba.conf", HBA.format(superuser=SUPERUSER))
        config = self.data / "postgresql.conf"
        text = (
            config.read_text()
            + "\n# cerebro's own come from cerebro.conf; what follows this line wins.\ninclude 'cerebro.conf'\n"
        )
        self._put(account, "postgresql.conf", text)

    def _put(self, account: Account, name: str, text: str) -> None:
        file = self.data / name
        file.write_text(text)
        file.chmod(0o600)
        if account.switch:
            os.chown(file, account.uid, account.gid)

    def _change(
        self, account: Account, listen: str | None, port: int | None, settings: Mapping[str, str] | None
    ) -> None:
        old = self.facts()
        new = dict(old)
        if listen is not None:
            new["listen"] = listen
        if port is not None:
            new["port"] = port
        if settings is not None:
            new["settings"] = dict(settings)
        if new != old:
            if self.running():
                self._stop(account)
            self._keep(new)

    def _place_socket(self, account: Account) -> None:
        """A folder for the socket that only the owner enters, with a name short enough."""
        facts = self.facts()
        place = self.path / "socket"
        if len(os.fsencode(str(place / f".s.PGSQL.{facts['port']}"))) > LONGEST_SOCKET:
            place = Path(facts["socket"])
            kept = place.parent == Path("/tmp") and not place.is_symlink() and place.is_dir()
            if not (kept and place.stat().st_uid == account.uid):
                place = Path(tempfile.mkdtemp(prefix="cerebro-", dir="/tmp"))
        account.own(place)
        self._keep({**facts, "socket": str(place)})

    def _free_port(self) -> int:
        taken = set()
        for other in (self.home / "clusters").glob("*/cluster.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                taken.add(int(json.loads(other.read_text())["port"]))
        for port in range(FIRST_PORT, FIRST_PORT + 1000):
            if port not in taken:
                with socket.socket() as probe, contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    return port
        raise ClusterError(f"No free port from {FIRST_PORT} on: give one with --port.")

    def _start(self, account: Account, prefix: Prefix) -> None:
        self._place_socket(account)
        facts = self.facts()
        settings = {
            "listen_addresses": facts["listen"],
            "port": str(facts["port"]),
            "unix_socket_directories": facts["socket"],
            "password_encryption": "scram-sha-256",
            "shared_buffers": "256MB",
            "max_connections": "100",
            "max_wal_size": "4GB",
            "wal_compression": "on",
            "jit": "off",
            "logging_collector": "on",
            "log_directory": str(self.log),
            "log_filename": "postgresql-%a.log",
            "log_truncate_on_rotation": "on",
            "log_rotation_age": "1d",
            "log_rotation_size": "0",
            "log_line_prefix": "%m [%p] %q%u@%d ",
            **facts["settings"],
        }
        if int(prefix.of.major) >= 14:
            # A fit that nobody waits for any more ends before it tells of its progress in vain.
            settings = {"client_connection_check_interval": "10s", **settings}
        quoted = {name: "'" + value.replace("'", "''") + "'" for name, value in settings.items()}
        lines = "".join(f"{name} = {value}\n" for name, value in quoted.items())
        self._put(account, "cerebro.conf", "# Written anew at each start by cerebro.\n" + lines)
        startup = self.log / "startup.log"
        for attempt in range(20):
            startup.unlink(missing_ok=True)
            command = self._pg_ctl(prefix, "start", "-w", "-t", "120", "-l", str(startup))
            if account.run(command, self._environment()).returncode == 0:
                return
            why = self._why(startup)
            if attempt == 19 or not re.search("shared memory|lock file", why):
                raise ClusterError(f"PostgreSQL did not start: {why} (logs: {self.log})")
            time.sleep(0.5)  # a killed server is still on its way out

    def _why(self, startup: Path) -> str:
        """The reason in the log, rather than pg_ctl's advice to look there."""
        lines: list[str] = []
        for file in [*sorted(self.log.glob("postgresql-*.log"), key=lambda one: one.stat().st_mtime), startup]:
            with contextlib.suppress(OSError):
                lines += file.read_text(errors="replace").splitlines()
        fatal = [number for number, line in enumerate(lines) if "FATAL: " in line]
        if not fatal:
            return "no reason given"
        line = lines[fatal[-1]]
        if "contains errors" in line and fatal[-1] > 0:  # the line before says which
            line = lines[fatal[-1] - 1]
        return re.sub(r"^.*?(?:FATAL|LOG): +", "", line)

    def _pg_ctl(self, prefix: Prefix, *arguments: str) -> list[str]:
        return [str(prefix.bin / "pg_ctl"), "-D", str(self.data), "-s", *arguments]

    def running(self) -> bool:
        # Its socket is in a private folder: who answers there is the server. A process id in a stale file
        # may belong to anything.
        return self.exists and _answers(self.socket / f".s.PGSQL.{self.port}")

    def down(self, mode: str = "fast") -> bool:
        """Stops it; False when it was not running."""
        self.facts()
        with self._locked():
            if not self.running():
                return False
            self._stop(Account.get(create=False), mode)
            return True

    def _stop(self, account: Account, mode: str = "fast") -> None:
        stopped = account.run(self._pg_ctl(self.prefix, "stop", "-w", "-t", "120", "-m", mode), self._environment())
        if stopped.returncode != 0:
            raise ClusterError(f"PostgreSQL did not stop: {_last_line(stopped.stdout)} (logs: {self.log})")

    def restart(self, mode: str = "fast") -> None:
        account = Account.get(create=False)
        with self._locked():
            if self.running():
                self._stop(account, mode)
            self._start(account, self.prefix)

    def reload(self) -> None:
        with contextlib.closing(self.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)  # the postmaster takes the signal when it gets to it

    def destroy(self) -> None:
        """Stops it and removes its folder, data and all."""
        facts = self.facts()  # refuses a folder that is not ours
        with self._locked():
            if self.running():
                self._stop(Account.get(create=False), "immediate")
            place = Path(facts["socket"])
            if place.parent != self.path and place.parent == Path("/tmp") and place.name.startswith("cerebro-"):
                shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(self.path)

    # The database and the extension in it.

    def _equip(self, sources: extension.Sources, code: str, recreate: bool) -> str:
        with contextlib.closing(self.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
                cursor.execute(
                    sql.SQL('ALTER DATABASE {} SET search_path = "$user", public, cerebro').format(
                        sql.Identifier(DATABASE)
                    )
                )
        with contextlib.closing(self.connect()) as connection:
            try:
                did = equip(connection, sources.version, recreate)
            except psycopg2.Error as error:
                raise ClusterError(f"The extension could not be installed: {' '.join(str(error).split())}") from error
        facts = self.facts()
        script = extension.script_hash(sources, code)
        if did in ("created", "recreated", "updated"):
            self._keep({**facts, "script": script})
        elif facts.get("script") != script:
            return "stale"
        return did

    def status(self) -> dict[str, Any]:
        facts = self.facts()
        running = self.running()
        shown: dict[str, Any] = {
            "name": self.name,
            "state": "running" if running else "stopped",
            "folder": str(self.path),
        }
        if running:
            with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SHOW server_version")
                shown["PostgreSQL"] = cursor.fetchone()[0].split()[0]
                cursor.execute("SELECT extversion FROM pg_extension WHERE extname = %s", (extension.NAME,))
                shown["cerebro_db"] = (cursor.fetchone() or ["not installed"])[0]
        shown["DSN"] = self.dsn()
        shown["listens on"] = f"{facts['listen']}:{facts['port']}" if facts["listen"] else "its socket only"
        shown["disk"] = _size(self.path)
        shown["log"] = str(self.log)
        return shown

    def psql(self, arguments: list[str], database: str = DATABASE) -> list[str]:
        """The command line of psql on this database."""
        facts = self.facts()
        program = self.prefix.of.bin / "psql"
        where = ["-h", facts["socket"], "-p", str(facts["port"]), "-U", SUPERUSER, "-d", database]
        # Without this each error ends with where in our Python it was raised.
        return [str(program), *where, "-v", "SHOW_CONTEXT=never", *arguments]


def equip(connection: Any, version: str, recreate: bool = False) -> str:
    """The extension at ``version`` into the database of a superuser's connection."""
    name = sql.Identifier(extension.NAME)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = %s", (extension.NAME,))
        found = cursor.fetchone()
        if found is not None and not recreate:
            if found[0] == version:
                return "unchanged"
            cursor.execute(sql.SQL("ALTER EXTENSION {} UPDATE TO {}").format(name, sql.Literal(version)))
            return "updated"
        if found is not None:
            cursor.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(name))
        cursor.execute(sql.SQL("CREATE EXTENSION {} CASCADE").format(name))
        return "created" if found is None else "recreated"


def throw_away(
    trainer_python: str | None = None,
    settings: Mapping[str, str] | None = None,
    sources: extension.Sources | None = None,
) -> Cluster:
    """A cluster of its own in a temporary folder, with this clone's extension; ``remove`` takes it away."""
    # Below /tmp itself when root: the server's account cannot enter a private TMPDIR.
    base = Path(tempfile.mkdtemp(prefix=f"cerebro-{secrets.token_hex(2)}-", dir="/tmp" if os.geteuid() == 0 else None))
    base.chmod(0o755)
    cluster = Cluster("test", at=base)
    try:
        quick = {"fsync": "off", "shared_buffers": "128MB", "max_wal_size": "1GB"}
        cluster.up(trainer_python=trainer_python, settings={**quick, **(settings or {})}, sources=sources)
    except BaseException:
        remove(cluster)
        raise
    return cluster


def remove(cluster: Cluster) -> None:
    """Undoes ``throw_away``."""
    with contextlib.suppress(ClusterError):
        cluster.destroy()
    shutil.rmtree(cluster.home, ignore_errors=True)


def _this_python() -> str:
    """This environment's interpreter, not by way of a link in somebody's clone."""
    here = Path(sys.executable)
    return str(here.parent.resolve() / here.name)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _size(top: Path) -> str:
    total = 0
    for folder, _, files in os.walk(top):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, file)).st_size
    return f"{total / 1e6:.0f} MB"
