"""Starting the nursery, the process of this server that starts trainers, where a session finds none."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from pathlib import Path
from typing import Any

from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY
from .installation import INSTALLATION, cannot_start, installation, last_lines

KEEP_READY = 1800  # seconds without a trainer until templates end, unless install.json says otherwise

# Freed memory goes back to the system, at no cost in speed: blocks up to the threshold come from a heap that keeps some
# of it, larger blocks from huge pages.  (C libraries other than glibc ignore this.)
MALLOC = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456:glibc.malloc.hugetlb=1"


def start(folder: Path, listen: Listen) -> None:
    """Start the nursery.  When this returns, it can be connected to, unless somebody has killed it."""
    installed = installation()
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "GLIBC_TUNABLES": MALLOC,
        "OPENBLAS_NUM_THREADS": "1",  # NumPy's own threads are never used, and would be there when a template forks
    }
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "XLA_FLAGS"):  # they say where the GPU's libraries are
        if name in os.environ:
            environment[name] = os.environ[name]
    program = INSTALLATION / "cerebro_db" / "nn" / "nursery.py"
    command = [installed["trainer_python"], "-I", "-B", str(program), str(folder), str(os.getppid()), keep_ready()]
    try:
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=os.getcwd(),
                env=environment,
                close_fds=True,
                start_new_session=True,
            )
    except OSError as error:
        raise cannot_start(command[0], error) from error
    try:
        status = waited_for(process, listen)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if status > 0:
        raise cannot_start(command[0], OSError(last_lines(folder / "log") or f"exit status {status}"))


def waited_for(process: subprocess.Popen[Any], listen: Listen) -> int:
    """The exit status of a process."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LISTEN_EVERY)
        listen()


def keep_ready() -> str:
    seconds = installation().get("keep_ready", KEEP_READY)
    usable = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < math.inf
    return str(seconds if usable else KEEP_READY)
