"""How much memory is available, to the server and to the nursery."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_memory(cgroup: Path = CGROUP) -> int | None:
    """Bytes of memory that are available on the machine, or in the container if that is less."""
    found = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            cache = re.search(r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text(), re.MULTILINE)
            used = int((cgroup / "memory.current").read_text()) - int(cache[1] if cache else 0)
            found.append(int(limit) - used)
    return min(found, default=None)
