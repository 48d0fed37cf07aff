"""Processes that compute beside a benchmark, as on a server that has other work."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

# Until its parent is gone, which may be killed.
COMPUTE = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Within it, so many processes compute.

    Each is in a session of its own, because Linux shares the processors among sessions.
    """
    others = [subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()
