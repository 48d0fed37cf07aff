"""The system account that the server of the embedded cluster runs as."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ClusterError

ACCOUNT = "cerebro"  # used only when root makes the cluster: PostgreSQL refuses to run as root
ACCOUNTS = Path("/etc/passwd")
# useradd's exit statuses
EXISTS = 9
LOCKED = (1, 10)  # another process changes the accounts
PATIENCE = 20.0  # seconds for that process to finish


@dataclass(frozen=True)
class Account:
    """The caller's own account, or, when the caller is root, an unprivileged system account."""

    name: str
    uid: int
    gid: int
    switch: bool  # whether commands must switch from root to this account

    @classmethod
    def get(cls, create: bool = True) -> Account:
        if os.geteuid() != 0:
            return cls(user_name(), os.geteuid(), os.getegid(), False)
        try:
            known = pwd.getpwnam(ACCOUNT)
        except KeyError:
            if not create:
                raise ClusterError(f"The system account {ACCOUNT} does not exist: cerebro up makes it.") from None
            known = _create()
        return cls(known.pw_name, known.pw_uid, known.pw_gid, True)

    def run(self, command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs a command as this account. Its output and errors are together in ``stdout``."""
        user: dict[str, Any] = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}
        # The output goes to a file. A server that the command starts inherits the output, and would keep a pipe
        # open for as long as it runs.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=0o077,
                **user,
            )
            output.seek(0)
            return subprocess.CompletedProcess(command, done.returncode, output.read(), "")

    def own(self, path: Path, mode: int = 0o700) -> None:
        """Makes the folder if it is missing, and gives it to this account."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def write(self, file: Path, text: str) -> None:
        """Writes a file that only this account can read."""
        file.write_text(text)
        file.chmod(0o600)
        if self.switch:
            os.chown(file, self.uid, self.gid)

    def must_reach(self, path: Path) -> None:
        """Raises an error if this account cannot read the file."""
        if self.switch and self.run(["/usr/bin/test", "-r", str(path)], {}).returncode != 0:
            raise ClusterError(
                f"The account {self.name} cannot read {path}: let other accounts enter the folders above it, "
                "or set CEREBRO_HOME to a folder that is not inside a private folder."
            )


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container that runs with a numeric user the user has no name
        return getpass.getuser()


def _create() -> pwd.struct_passwd:
    with ACCOUNTS.open("rb") as accounts:
        # Newer versions of useradd can make the account twice at one moment, and the first one is lost.
        fcntl.flock(accounts, fcntl.LOCK_EX)
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(ACCOUNT)
        return _created()


def _created() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += ["--shell", "/usr/sbin/nologin", ACCOUNT]
    until = time.monotonic() + PATIENCE
    while True:  # another process may be making it at the same moment
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode in (0, EXISTS):
            return pwd.getpwnam(ACCOUNT)
        if done.returncode not in LOCKED or time.monotonic() > until:
            raise ClusterError(f"Could not make the system account {ACCOUNT}: {done.stderr.strip()}")
        time.sleep(0.2)
