"""What a process of the server reports about itself and its machine, for ``cerebro.doctor()``."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from cerebro_db import __version__
from cerebro_db.core.protocol import EngineStarted, Inspected, ServerFacts

from ..platform.machine import memory_available, room
from . import installation, memory


def inspected(trainer: EngineStarted, seconds: float, threads: int | None, pid: int, folder: Path) -> Inspected:
    """The facts of a segment, with its trainer and its scratch folder."""
    return Inspected(
        facts=facts(),
        trainer=trainer,
        in_memory=folder.is_relative_to("/dev/shm"),
        seconds=seconds,
        threads=threads,
        resident=memory.resident(pid),
        scratch=room(folder),
        nice=os.getpriority(os.PRIO_PROCESS, pid),
    )


def facts() -> ServerFacts:
    """The facts of this process.  The doctor reads them on the coordinator and, by an order, on each segment."""
    import psycopg2  # only now: importing it takes a new session 20 ms

    installed, error = None, None
    try:
        installed = installation.installation()
    except Exception as problem:
        error = str(problem)
    return ServerFacts(
        host=socket.gethostname(),
        python=sys.version.split()[0],
        psycopg2=psycopg2.__version__.split()[0],
        version=__version__,
        code=str(installation.INSTALLATION),
        installed=installed,
        installed_error=error,
        code_writers=writers(installation.INSTALLATION),
        disk=room(Path.cwd()),
        shm=room(Path("/dev/shm")),
        memory=memory_available(),
    )


def writers(top: Path) -> str | None:
    """Who besides its owner may change the code that the server runs: 'others', 'server', or None."""
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
