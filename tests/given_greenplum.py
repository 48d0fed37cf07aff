"""A Greenplum on this machine that the tests may kill, stop and start; it stands in for a throw-away cluster.

CEREBRO_TEST_KILLABLE_DSN names it, as a superuser.  Its folders, ports and programs are asked of the server itself; the
options with which it was started are in each folder's ``postmaster.opts``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn


@dataclass(frozen=True)
class Instance:
    """The coordinator (content -1) or a primary segment."""

    content: int
    folder: Path


class GivenGreenplum:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT content, datadir FROM gp_segment_configuration WHERE role = 'p' ORDER BY content")
            self.instances = [Instance(content, Path(folder)) for content, folder in cursor.fetchall()]
            cursor.execute("SELECT setting FROM pg_config WHERE name IN ('BINDIR', 'LIBDIR', 'SHAREDIR') ORDER BY name")
            bin, lib, share = (Path(setting) for (setting,) in cursor.fetchall())
        self.bin, self.lib = bin, lib
        self.home = share / "cerebro_db"  # the extension's code; trainers are known by it

    @property
    def data(self) -> Path:
        """The coordinator's data folder."""
        return self.instances[0].folder

    def dsn(self, database: str | None = None) -> str:
        return make_dsn(**{**parse_dsn(self._dsn), **({"dbname": database} if database else {})})

    def restart(self, mode: str = "fast") -> None:
        """As after a failure of the whole machine (immediate), or in order."""
        for one in self.instances:  # the coordinator first
            self._pg_ctl(one, "stop", "-m", mode)
        self.start()

    def start(self) -> None:
        for one in (*self.instances[1:], self.instances[0]):
            if self._pg_ctl(one, "status", stop=False).returncode != 0:
                self._pg_ctl(one, "start", "-l", str(one.folder) + ".out")
        self.wait()

    def wait(self, seconds: float = 120) -> None:
        """Until all segments answer."""
        deadline = time.monotonic() + seconds
        while not self.answers():
            assert time.monotonic() < deadline, "Greenplum does not answer"
            time.sleep(0.2)

    def answers(self) -> bool:
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(self._dsn)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM gp_dist_random('gp_id')")
            return cursor.fetchone() == (len(self.instances) - 1,)
        return False

    prepared = "SELECT gid FROM gp_dist_random('pg_prepared_xacts')"  # transactions that wait for their second phase

    def panics(self) -> int:
        """How often the server's log says that it panicked."""
        logs = [path for one in self.instances for path in (one.folder / "log").glob("*.csv")]
        return sum(path.read_text(errors="replace").count('"PANIC"') for path in logs)

    def _pg_ctl(self, one: Instance, action: str, *arguments: str, stop: bool = True) -> Any:
        owner = pwd.getpwuid(one.folder.stat().st_uid)
        # As its own tools do: processes of the coordinator would pass PGHOST on.
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(self.lib), "LC_ALL": "C.UTF-8"}
        role = "dispatch" if one.content < 0 else "execute"
        options = ["-o", f"-c gp_role={role}"] if action == "start" else []
        waits = [] if action == "status" else ["-w", "-t", "120"]
        command = [str(self.bin / "pg_ctl"), "-D", str(one.folder), "-s", action, *waits, *arguments, *options]
        who: dict[str, Any] = {"user": owner.pw_uid, "group": owner.pw_gid} if os.geteuid() == 0 else {}
        # To files, because the server keeps the pipes of its starter open.
        return subprocess.run(
            command, check=stop, env=environment, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **who,
        )  # fmt: skip
