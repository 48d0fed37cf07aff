"""Finds the PostgreSQL installations on this machine and chooses one for the embedded cluster."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

# Where Debian and the PostgreSQL project's RPM packages put each version.
PACKAGED = ("/usr/lib/postgresql/*/bin/pg_config", "/usr/pgsql-*/bin/pg_config")


@dataclass(frozen=True)
class Installation:
    """A PostgreSQL installation, as its pg_config describes it."""

    bin: Path
    share: Path
    lib: Path
    major: str

    @classmethod
    def of(cls, pg_config: str) -> Installation:
        """The installation that this pg_config belongs to."""
        version = _ask(pg_config, "--version")
        found = re.search(r"(\d+)", version)
        if not found:
            raise ClusterError(f"{pg_config} --version printed {version!r}, which contains no version number.")
        bin, share, lib = (Path(_ask(pg_config, option)) for option in ("--bindir", "--sharedir", "--pkglibdir"))
        return cls(bin, share, lib, found.group(1))

    @property
    def has_server(self) -> bool:
        return (self.bin / "postgres").exists() and (self.bin / "initdb").exists()

    @property
    def has_plpython(self) -> bool:
        return (self.share / "extension" / "plpython3u.control").exists()

    @classmethod
    def choose(cls, major: str | None = None) -> Installation:
        """The installation of PG_CONFIG, else the newest one that has plpython3u.

        ``major``: of a cluster that exists; its version counts for more than PG_CONFIG.
        """
        named = os.environ.get("PG_CONFIG")
        found = [cls.of(named)] if named else []
        if not found or major not in (None, found[0].major):
            programs = [program for pattern in PACKAGED for program in glob.glob(pattern)]
            on_path = shutil.which("pg_config")
            if not programs and on_path:
                programs = [on_path]
            found = [cls.of(program) for program in programs]
        servers = [installation for installation in found if installation.has_server]
        if major is not None:
            servers = [server for server in servers if server.major == major]
            if not servers:
                raise ClusterError(
                    f"The cluster needs PostgreSQL {major}: apt-get install postgresql-plpython3-{major}"
                )
        if not servers:
            raise ClusterError(
                "This machine has no PostgreSQL server: apt-get install postgresql-plpython3-15 (or another version)"
            )
        servers.sort(key=lambda server: int(server.major), reverse=True)
        for server in servers:
            if server.has_plpython:
                return server
        raise ClusterError(f"PostgreSQL has no PL/Python: apt-get install postgresql-plpython3-{servers[0].major}")


def _ask(pg_config: str, option: str) -> str:
    try:
        return subprocess.run([pg_config, option], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClusterError(f"{pg_config} {option} failed: {error}. Set PG_CONFIG to a working pg_config.") from None
