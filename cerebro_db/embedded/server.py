"""Makes the data folder of an embedded cluster, and starts and stops its PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from . import settings
from .account import Account, user_name
from .errors import ClusterError
from .files import SUPERUSER, ClusterFiles
from .prefix import Prefix

START_ATTEMPTS = 20
START_PAUSE = 0.5  # seconds between two attempts
# What the server, and so every function and trainer in it, sees of the caller's environment.
PASSED_ON = re.compile(r"TZ|LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|XLA_FLAGS|TF_.*")


def is_running(files: ClusterFiles) -> bool:
    """Whether the server answers at its socket.

    The socket is in a private folder, so only this cluster's server can answer there. The process id in a stale
    postmaster.pid may belong to any process.
    """
    if not files.exists:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(files.socket / f".s.PGSQL.{files.port}"))
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class Server:
    """The server of one cluster: its files, the account that it runs as, and the PostgreSQL installation."""

    files: ClusterFiles
    account: Account
    prefix: Prefix

    def initialize(self) -> None:
        """initdb, and the configuration files that do not change later."""
        files = self.files
        command = [str(self.prefix.bin / "initdb"), "-D", str(files.data), "-U", SUPERUSER]
        command += ["--auth-local=peer", "--auth-host=scram-sha-256"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums"]
        made = self.account.run(command, self._environment())
        if made.returncode != 0:
            shutil.rmtree(files.path)
            raise ClusterError(f"initdb failed: {with_advice(_last_line(made.stdout))}")
        self._write("pg_ident.conf", settings.ident([self.account.name, user_name()]))
        self._write("pg_hba.conf", settings.HBA)
        self._write("postgresql.conf", (files.data / "postgresql.conf").read_text() + settings.INCLUDE)

    def start(self) -> None:
        """Writes cerebro.conf and starts the server."""
        files = self.files
        files.place_socket(self.account)
        self._write("cerebro.conf", settings.cerebro_conf(files.record(), files.log, int(self.prefix.of.major)))
        startup = files.log / "startup.log"
        for attempt in range(START_ATTEMPTS):
            startup.unlink(missing_ok=True)
            if self._pg_ctl("start", "-l", str(startup)) is None:
                return
            reason = self._reason(startup)
            # A server that was killed a moment ago still holds its shared memory and its lock file.
            if attempt == START_ATTEMPTS - 1 or not re.search("shared memory|lock file", reason):
                raise ClusterError(f"PostgreSQL did not start: {with_advice(reason)} (logs: {files.log})")
            time.sleep(START_PAUSE)

    def stop(self, mode: str = "fast") -> None:
        failed = self._pg_ctl("stop", "-m", mode)
        if failed is not None:
            raise ClusterError(f"PostgreSQL did not stop: {_last_line(failed)} (logs: {self.files.log})")

    def _pg_ctl(self, action: str, *arguments: str) -> str | None:
        """Runs pg_ctl and waits until it is done. Returns its output if it failed, else None."""
        command = [str(self.prefix.bin / "pg_ctl"), "-D", str(self.files.data), "-s", action, "-w", "-t", "120"]
        done = self.account.run([*command, *arguments], self._environment())
        return done.stdout if done.returncode != 0 else None

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        # _reason and ADVICE look for English words.
        return {
            **kept,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.files.path / "home"),
        }

    def _write(self, name: str, text: str) -> None:
        self.account.write(self.files.data / name, text)

    def _reason(self, startup: Path) -> str:
        """The reason why the server did not start, from its logs. pg_ctl only says where the logs are."""
        lines: list[str] = []
        logs = sorted(self.files.log.glob("postgresql-*.log"), key=lambda log: log.stat().st_mtime)
        for file in [*logs, startup]:
            with contextlib.suppress(OSError):
                lines += file.read_text(errors="replace").splitlines()
        fatal = [number for number, line in enumerate(lines) if "FATAL: " in line]
        if not fatal:
            return "the logs give no reason"
        line = lines[fatal[-1]]
        if "contains errors" in line and fatal[-1] > 0:  # the line before it names the setting
            line = lines[fatal[-1] - 1]
        return re.sub(r"^.*?(?:FATAL|LOG): +", "", line)


ADVICE = {
    r"TCP/IP socket|Address already in use": "The address or the port is taken by another program, or is not this"
    " machine's. cerebro up --port N takes another port; --listen '' listens on the socket only.",
    r"invalid locale|locale name": "The system lacks the locale C.UTF-8. As root, localedef -i C -f UTF-8 C.UTF-8"
    " makes it.",
    r"No space left": "Free some disk space, or set CEREBRO_HOME to a folder on another disk.",
    r"shared memory": "Another server may use this data folder, or the machine allows too little shared memory.",
}


def with_advice(reason: str) -> str:
    """The server's reason for a failure, and what to do about it where that is known."""
    advice = next((text for pattern, text in ADVICE.items() if re.search(pattern, reason)), None)
    return reason if advice is None else f"{reason.rstrip('.')}. {advice}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
