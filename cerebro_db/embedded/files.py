"""Where the files of an embedded cluster are, and the record of how the cluster is set up.

    HOME/prefix/                    the private PostgreSQL installations (prefix.py)
    HOME/clusters/NAME/             one folder per cluster
        cluster.json                the record; a folder without it was not made by cerebro and stays untouched
        data/ log/ home/ socket/    PGDATA, the logs, the server's HOME, and the folder of its socket

HOME is CEREBRO_HOME, or else ``home()``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.trainers import shared_memory
from .account import Account
from .errors import ClusterError
from .extension import NAME

SUPERUSER = "postgres"
DATABASE = "cerebro"
FIRST_PORT = 54320
LONGEST_SOCKET = 107  # bytes; a limit of the operating system


def home() -> Path:
    """CEREBRO_HOME, else /var/lib/cerebro for root, else the user's data folder."""
    if named := os.environ.get("CEREBRO_HOME"):
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cerebro")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "cerebro"


def option_of(name: str) -> str:
    """The option that a command needs for a cluster of this name, with a space before it; empty if it needs none."""
    return "" if name == os.environ.get("CEREBRO_CLUSTER", "default") else f" --name {name}"


@dataclass(frozen=True)
class Record:
    """How a cluster is set up."""

    port: int
    socket: str  # the folder of the socket
    listen: str = ""  # an address, or empty for the socket only
    settings: dict[str, str] = field(default_factory=dict)  # those that ``up`` was given
    script: str | None = None  # the hash of the SQL script that the extension was last created or updated with


class ClusterFiles:
    """The paths of one cluster and its record."""

    def __init__(self, name: str = "default", at: Path | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", name):
            raise ClusterError(
                f"{name!r} cannot be the name of a cluster: use up to 40 letters, digits, dots, dashes and underscores,"
                " beginning with a letter or digit."
            )
        self.name = name
        self.home = at if at is not None else home()
        self.path = self.home / "clusters" / name
        self.data = self.path / "data"
        self.log = self.path / "log"
        self._record = self.path / "cluster.json"

    # --- the record ------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        try:
            return (self.data / "PG_VERSION").exists() and self._record.exists()
        except PermissionError:
            raise ClusterError(f"{self.path} belongs to another user: set CEREBRO_HOME to a folder of yours.") from None

    def record(self) -> Record:
        """The record. Raises an error if there is none, or if another program made the folder."""
        try:
            read: Any = json.loads(self._record.read_text())
        except FileNotFoundError:
            raise ClusterError(
                f"There is no cluster {self.name!r} in {self.home}: cerebro up{option_of(self.name)} makes it."
            ) from None
        except PermissionError:
            raise ClusterError(f"{self._record} belongs to another user.") from None
        except ValueError:
            read = None
        if not isinstance(read, dict) or read.pop("made_by", None) != NAME:
            raise ClusterError(f"{self.path} was not made by cerebro: it is left as it is.")
        try:
            return Record(**read)
        except TypeError as error:
            raise ClusterError(f"{self._record} cannot be read: {error}.") from None

    def keep(self, record: Record) -> None:
        """Writes the record."""
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps({"made_by": NAME, **asdict(record)}, indent=1) + "\n")
        new.chmod(0o644)
        new.rename(self._record)

    @property
    def socket(self) -> Path:
        return Path(self.record().socket)

    @property
    def port(self) -> int:
        return self.record().port

    def dsn(self, database: str = DATABASE, user: str = SUPERUSER) -> str:
        record = self.record()
        host = quote(record.socket, safe="")
        return f"postgresql://{quote(user)}@/{quote(database, safe='')}?host={host}&port={record.port}"

    # --- folders ---------------------------------------------------------------------------------------

    def make_home(self) -> None:
        try:
            for folder in (self.home, self.home / "clusters"):
                if not folder.exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    folder.chmod(0o755 if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise ClusterError(
                f"Cannot make {self.home}: {error.strerror}. Set CEREBRO_HOME to another folder."
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time changes the clusters of a home: two ``up`` would make the same cluster twice."""
        try:
            lock = open(self.home / ".lock", "w")  # noqa: SIM115  closed below
        except PermissionError:
            raise ClusterError(f"{self.home} belongs to another user: set CEREBRO_HOME to a folder of yours.") from None
        except OSError as error:
            raise ClusterError(
                f"Cannot write to {self.home}: {error.strerror}. Set CEREBRO_HOME to another folder."
            ) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def make(self, account: Account, listen: str | None, port: int | None, settings: dict[str, str]) -> None:
        """Makes the folders and the record of a new cluster."""
        if self.path.exists():
            if not self._record.exists():
                raise ClusterError(f"{self.path} was not made by cerebro: move it away, or choose another --name.")
            self.record()
            shutil.rmtree(self.path)  # an earlier ``up`` was interrupted before the data folder was complete
        self.path.mkdir(mode=0o755)
        self.path.chmod(0o755)
        self.keep(Record(port or self._free_port(), str(self.path / "socket"), listen or "", settings))
        for folder in (self.data, self.log, self.path / "home"):
            account.own(folder)
        self.place_socket(account)

    def place_socket(self, account: Account) -> None:
        """Makes the folder of the socket: only the account can enter it, and its path is short enough."""
        record = self.record()
        folder = self.path / "socket"
        if len(os.fsencode(str(folder / f".s.PGSQL.{record.port}"))) > LONGEST_SOCKET:
            folder = Path(record.socket)
            if folder.parent != Path("/tmp") or not shared_memory.is_of(folder, account.uid):
                folder = Path(tempfile.mkdtemp(prefix="cerebro-", dir="/tmp"))
        account.own(folder)
        self.keep(replace(record, socket=str(folder)))

    def remove(self) -> None:
        """Removes the cluster's folder, the folder of its socket, and what its server has left in shared memory."""
        folder = self.socket
        with contextlib.suppress(FileNotFoundError):
            account = self.data.stat().st_uid
            in_memory = shared_memory.folder_of(self.data, account)
            if shared_memory.is_of(in_memory, account):
                shutil.rmtree(in_memory, ignore_errors=True)
        if folder.parent != self.path and folder.parent == Path("/tmp") and folder.name.startswith("cerebro-"):
            shutil.rmtree(folder, ignore_errors=True)
        while self.path.exists():
            # A process that ends meanwhile removes its own files, or makes a last one in an emptied folder.
            with contextlib.suppress(FileNotFoundError):
                try:
                    shutil.rmtree(self.path)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for folder, _, files in os.walk(self.path):
            for file in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, file)).st_size
        return total

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
        raise ClusterError(f"The ports {FIRST_PORT} to {FIRST_PORT + 999} are all taken: choose one with --port.")
