"""What a piece of work takes of the machine: seconds, CPU seconds of all its processes, memory, disk.

Every process that the suite starts, the server with its backends and trainers included, is a descendant of
the suite's own: a subreaper, so also those that were started to outlive their parents. A process that ended
has its CPU time added to its parent's account. So the accounts of all that live, with what they inherited,
are exact whenever one looks; only memory and disk have to be sampled. And the children of a parent that ignores
their end (Ray's raylet does), whose time the kernel adds to nobody's: it is taken as it was when last seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVERY = 0.5  # seconds between samples; one takes some milliseconds
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Taken:
    """By one piece of work; memory and disk at their highest, above what was there before."""

    wall: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    others: float = 0.0  # processors that somebody else kept busy meanwhile


class Meter:
    """Measures while its body runs."""

    def __init__(self, server: int | None = None, folders: Iterable[Path] = (), idle: int = 0) -> None:
        """``idle``: the memory that there was in use before anything began."""
        self.server, self.folders, self.idle = server, list(folders), idle
        self.taken = Taken()
        self._unheeded: dict[int, float] = {}  # CPU seconds of processes whose parent does not inherit them
        self._stop = threading.Event()

    def __enter__(self) -> Meter:
        bury_orphans(self.server)  # those of the one before
        self._disk = disk(self.folders)
        self._cpu, self._machine = cpu_of_all(self.server), cpu_of_machine()
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.taken.wall = time.monotonic() - self._began
        self._stop.set()
        self._sampler.join()
        self._look()  # at the least once, however short it was
        for pid in bury_orphans(self.server):
            self._unheeded.pop(pid, None)  # its parent went first, and we have inherited from it
        self.taken.cpu = cpu_of_all(self.server) - self._cpu + sum(self._unheeded.values())
        self.taken.others = max(0.0, cpu_of_machine() - self._machine - self.taken.cpu) / (
            time.monotonic() - self._began
        )

    def _sample(self) -> None:
        while not self._stop.wait(EVERY):
            self._look()

    def _look(self) -> None:
        processes = descendants()
        for pid, parent in processes.items():
            if ignores_ends(parent):
                self._unheeded[pid] = max(cpu(pid), self._unheeded.get(pid, 0.0))  # it may have ended just now
        self.taken.memory = max(self.taken.memory, memory(processes) - self.idle)
        self.taken.disk = max(self.taken.disk, disk(self.folders) - self._disk)


def adopt_orphans() -> None:
    """From now on every descendant of this process stays one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def bury_orphans(server: int | None, within: float = 20.0) -> set[int]:
    """Wait for what a rival left behind to end; kill what does not."""
    buried: set[int] = set()
    deadline = time.monotonic() + within
    while left := [pid for pid in children().get(os.getpid(), []) if pid != server]:
        buried.update(left)
        for pid in left:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    return buried


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            found[int(stat[1])].append(int(name))
    return found


def descendants(of: int | None = None) -> dict[int, int]:
    """All processes below one (this one), without it, and their parents."""
    below, found = children(), {}
    look_at = [of or os.getpid()]
    while look_at:
        parent = look_at.pop()
        for pid in below.get(parent, []):
            found[pid] = parent
            look_at.append(pid)
    return found


def ignores_ends(pid: int) -> bool:
    """Whether a process ignores SIGCHLD, so that nothing of its children is left when they end."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def cpu_of_all(server: int | None) -> float:
    """CPU seconds of the server's processes, and of all descendants of ours, those that have ended included.

    A trainer whose session has ended is a child of ours until it has ended, too.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = {*descendants(), *([server, *descendants(server)] if server else [])}
    return ended.ru_utime + ended.ru_stime + sum(cpu(pid) for pid in living)


def cpu_of_machine() -> float:
    """Seconds that its processors were busy."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, file.readline().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / TICKS


def cpu(pid: int) -> float:
    """Its own CPU seconds and those of its children that have ended."""
    stat = _stat(pid)
    return sum(map(int, stat[11:15])) / TICKS if stat else 0.0


def memory(pids: Iterable[int]) -> int:
    """Bytes; what processes share is divided among them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return total


def disk(folders: Iterable[Path]) -> int:
    """Bytes that files take there."""
    total, look_at = 0, [os.fspath(folder) for folder in folders]
    while look_at:
        with contextlib.suppress(FileNotFoundError), os.scandir(look_at.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        look_at.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks << 9
    return total


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: state, parent, …"""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []
