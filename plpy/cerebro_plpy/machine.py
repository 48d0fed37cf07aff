"""What the machine has: processors, memory, disk."""

from __future__ import annotations

import contextlib
import os


def megabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{max(1, round(size / 2**20)):,} MB"


def disk_available() -> int:
    room = os.statvfs(os.getcwd())
    return room.f_bavail * room.f_frsize


def memory_available() -> int | None:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
