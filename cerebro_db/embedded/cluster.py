"""The embedded cluster: a private PostgreSQL server with the extension, for one person or one machine."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg2

from . import extension
from .account import Account
from .database import create_database, equip
from .errors import ClusterError
from .files import DATABASE, SUPERUSER, ClusterFiles
from .installation import Installation
from .prefix import Prefix
from .server import Server, is_running

IRIS = Path(__file__).with_name("iris.sql")


@dataclass
class UpResult:
    """What ``up`` did."""

    created: bool = False
    started: bool = False
    files_changed: bool = False
    extension: str = "unchanged"  # created, updated, recreated, unchanged or stale


class Cluster(ClusterFiles):
    """One embedded cluster. Its name is unique within a home."""

    # --- make, start, stop, remove ---------------------------------------------------------------------

    def up(
        self,
        *,
        listen: str | None = None,
        port: int | None = None,
        recreate: bool = False,
        trainer_python: str | None = None,
        sources: extension.Sources | None = None,
        settings: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> UpResult:
        """Makes and starts the cluster and installs the extension, as far as that is not done. Safe to repeat.

        ``say`` gets a sentence before each step that takes seconds.
        """
        sources = sources or extension.Sources.find()
        trainer_python = trainer_python or _this_python()
        result = UpResult()
        account = Account.get()
        self.make_home()
        with self.locked():
            prefix = self.prefix
            if not self.running():  # the files of a running server must not change
                prefix.make()
            try:
                result.files_changed = prefix.install_extension(sources, trainer_python)
            except ValueError as error:
                raise ClusterError(f"The extension's sources are incomplete: {error}") from None
            for needed in (prefix.bin / "postgres", prefix.code / "install.json", Path(trainer_python)):
                account.must_reach(needed)
            server = Server(self, account, prefix)
            if not self.exists:
                say(f"Making the cluster {self.name} in {self.path}")
                self.make(account, listen, port, dict(settings or {}))
                server.initialize()
                result.created = True
            else:
                self._change(server, listen, port, settings)
            if not self.running():
                say("Starting the server")
                server.start()
                result.started = True
            say("Looking at the database and the extension")
            result.extension = self._equip(sources, recreate)
        return result

    def down(self, mode: str = "fast") -> bool:
        """Stops the server. Returns False if it was not running."""
        self.record()  # raises an error if there is no such cluster
        with self.locked():
            if not self.running():
                return False
            self._server().stop(mode)
            return True

    def restart(self, mode: str = "fast") -> None:
        with self.locked():
            server = self._server()
            if self.running():
                server.stop(mode)
            server.start()

    def reload(self) -> None:
        """Lets the server read its configuration files again."""
        with contextlib.closing(self.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)  # the server handles the signal a moment later

    def destroy(self) -> None:
        """Stops the server and removes the cluster with all its data."""
        self.record()  # raises an error if the folder was not made by cerebro
        with self.locked():
            if self.running():
                self._server().stop("immediate")
            self.remove()

    # --- look and connect ------------------------------------------------------------------------------

    @property
    def prefix(self) -> Prefix:
        major = (self.data / "PG_VERSION").read_text().strip() if self.exists else None
        return Prefix(self.home / "prefix", Installation.choose(major))

    def running(self) -> bool:
        return is_running(self)

    def connect(self, database: str = DATABASE) -> Any:
        """A superuser's connection that commits each statement."""
        connection = psycopg2.connect(self.dsn(database), connect_timeout=10)
        connection.autocommit = True
        return connection

    def warm_up(self) -> None:
        """Whoever starts a cluster will train in it soon: the framework is imported meanwhile."""
        with (
            contextlib.suppress(psycopg2.Error),
            contextlib.closing(self.connect()) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT cerebro.warm_up()")

    def add_iris(self) -> bool:
        """Makes the table iris of the examples in the schema public. Returns False if a relation has that name."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('public.iris') IS NULL")
            missing: bool = cursor.fetchone()[0]
            if missing:
                cursor.execute(IRIS.read_text())
        return missing

    def status(self) -> dict[str, Any]:
        """Label and value for each line of ``cerebro status``."""
        record = self.record()
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
        shown["listens on"] = f"{record.listen}:{record.port}" if record.listen else "its socket only"
        shown["disk"] = f"{self.size() / 1e6:.0f} MB"
        shown["log"] = str(self.log)
        return shown

    def psql(self, arguments: list[str], database: str = DATABASE) -> list[str]:
        """The command line of psql for this database."""
        record = self.record()
        program = self.prefix.of.bin / "psql"
        where = ["-h", record.socket, "-p", str(record.port), "-U", SUPERUSER, "-d", database]
        # Without SHOW_CONTEXT=never, psql shows the Python traceback of each error.
        return [str(program), *where, "-v", "SHOW_CONTEXT=never", *arguments]

    # --- the steps of up -------------------------------------------------------------------------------

    def _server(self) -> Server:
        return Server(self, Account.get(create=False), self.prefix)

    def _change(self, server: Server, listen: str | None, port: int | None, settings: Mapping[str, str] | None) -> None:
        """Records the new address, port and settings. A running server is stopped if one of them has changed."""
        old = self.record()
        new = replace(
            old,
            listen=old.listen if listen is None else listen,
            port=old.port if port is None else port,
            settings=old.settings if settings is None else dict(settings),
        )
        if new != old:
            if self.running():
                server.stop()
            self.keep(new)

    def _equip(self, sources: extension.Sources, recreate: bool) -> str:
        """The database and the extension in it. Returns what was done, or "stale" (see ``UpResult``)."""
        with contextlib.closing(self.connect("postgres")) as connection:
            create_database(connection)
        with contextlib.closing(self.connect()) as connection:
            try:
                done = equip(connection, sources.version, recreate)
            except psycopg2.Error as error:
                raise ClusterError(f"The extension could not be installed: {' '.join(str(error).split())}") from error
        record = self.record()
        script = extension.script_hash(sources)
        if done != "unchanged":
            self.keep(replace(record, script=script))
        elif record.script != script:
            return "stale"  # the same version, created from an SQL script that differed
        return done


def _this_python() -> str:
    """This environment's interpreter. Not sys.executable as it is, which may lead through a link in a clone."""
    here = Path(sys.executable)
    return str(here.parent.resolve() / here.name)
