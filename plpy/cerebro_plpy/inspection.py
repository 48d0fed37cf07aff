"""What one process of the server can say of itself and its machine, for ``cerebro.doctor()``."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db import __version__

from . import trainer
from .machine import memory_available, room


def facts() -> dict[str, Any]:
    """Asked on the coordinator, and by way of a worker session on every segment."""
    installed, error = None, None
    try:
        installed = trainer.installation()
    except Exception as problem:
        error = str(problem)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "psycopg2": psycopg2.__version__.split()[0],
        "version": __version__,
        "code": str(trainer.INSTALLATION),
        "installed": installed,
        "installed_error": error,
        "code_writers": writers(trainer.INSTALLATION),
        "disk": room(Path.cwd()),
        "shm": room(Path("/dev/shm")),
        "memory": memory_available(),
    }


def writers(top: Path) -> str | None:
    """Who besides its owner may change the code that the server runs; None: nobody."""
    me, others = False, None
    for folder, _, files in os.walk(top):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            me = me or os.access(path, os.W_OK)
            if os.stat(path).st_mode & 0o022:
                others = path
    above = top.parent
    if others is None and above.stat().st_mode & 0o022 and not above.stat().st_mode & 0o1000:
        others = str(above)
    if others is not None:
        return "others"
    return "server" if me or os.access(above, os.W_OK) else None


def resident(pid: int) -> int | None:
    """Bytes of memory that a process has."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None
