"""The resources that a piece of work uses: seconds, CPU seconds of all its processes, memory, disk.

Every process that the suite starts, including the server with its backends and trainers, is a descendant of the suite's
process.  That process is a subreaper, so this also holds for processes that outlive their parents.  When a process
ends, the kernel adds its CPU time to its parent's.  So the CPU times of all living processes, with the times of their
ended children, are exact at any moment.  Only memory and disk are sampled.  The exception are the children of a parent
that ignores their end, as Ray's raylet does.  The kernel adds their time to no process, so their last sample counts.
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

EVERY = 0.5  # seconds between samples
PAUSES = 20  # times as long as a sample takes: it takes 100 ms where there are thousands of files
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Taken:
    """The resources of one piece of work.  Memory and disk are peaks, above what was in use before."""

    wall: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    disk: int = 0
    others: float = 0.0  # processors that other processes of the machine kept busy


class Meter:
    """A context manager that measures its body."""

    def __init__(self, server: int | None = None, folders: Iterable[Path] = (), idle: int = 0) -> None:
        """``idle`` is the memory that was in use before the suite began its work."""
        self.server, self.folders, self.idle = server, list(folders), idle
        self.taken = Taken()
        self._unheeded: dict[int, float] = {}  # CPU seconds of processes whose parent does not inherit them
        self._stop = threading.Event()

    def __enter__(self) -> Meter:
        bury_orphans(self.server)  # the processes of the contender before
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
        self._look()  # at least one sample, also of very short work
        for pid in bury_orphans(self.server):
            self._unheeded.pop(pid, None)  # Its parent ended first, so its time is now in ours.
        self.taken.cpu = cpu_of_all(self.server) - self._cpu + sum(self._unheeded.values())
        self.taken.others = max(0.0, cpu_of_machine() - self._machine - self.taken.cpu) / (
            time.monotonic() - self._began
        )

    def _sample(self) -> None:
        pause = EVERY
        while not self._stop.wait(pause):
            began = time.monotonic()
            self._look()
            pause = max(EVERY, PAUSES * (time.monotonic() - began))

    def _look(self) -> None:
        processes = descendants()
        for pid, parent in processes.items():
            if ignores_ends(parent):
                self._unheeded[pid] = max(cpu(pid), self._unheeded.get(pid, 0.0))  # cpu() is 0 if it has just ended.
        self.taken.memory = max(self.taken.memory, memory(processes) - self.idle)
        self.taken.disk = max(self.taken.disk, disk(self.folders) - self._disk)


def adopt_orphans() -> None:
    """Make this process a subreaper, so that its descendants stay its descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not let this process adopt orphans")


def bury_orphans(server: int | None, within: float = 20.0) -> set[int]:
    """Wait until the remaining processes of a rival have ended, and kill those that do not end."""
    buried: set[int] = set()
    deadline = time.monotonic() + within
    while left := [pid for pid in children().get(os.getpid(), []) if not belongs_to(pid, server)]:
        buried.update(left)
        for pid in left:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)
    return buried


def belongs_to(pid: int, server: int | None) -> bool:
    """Whether a process is the server or its nursery, which stays for later calls and works in the same folder."""
    with contextlib.suppress(OSError):
        return server is not None and os.readlink(f"/proc/{pid}/cwd") == os.readlink(f"/proc/{server}/cwd")
    return False


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            found[int(stat[1])].append(int(name))
    return found


def descendants(of: int | None = None) -> dict[int, int]:
    """All descendants of a process (by default of this one), each with its parent."""
    below, found = children(), {}
    look_at = [of or os.getpid()]
    while look_at:
        parent = look_at.pop()
        for pid in below.get(parent, []):
            found[pid] = parent
            look_at.append(pid)
    return found


def ignores_ends(pid: int) -> bool:
    """Whether a process ignores SIGCHLD.  Then the CPU time of its children is lost when they end."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def cpu_of_all(server: int | None) -> float:
    """CPU seconds of the server's processes and of all our descendants, including those that have ended.

    A trainer whose session has ended is our child until it has also ended.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = {*descendants(), *([server, *descendants(server)] if server else [])}
    return ended.ru_utime + ended.ru_stime + sum(cpu(pid) for pid in living)


def cpu_of_machine() -> float:
    """The busy seconds of all processors of the machine."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, file.readline().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / TICKS


def cpu(pid: int) -> float:
    """The CPU seconds of a process and of its children that have ended."""
    stat = _stat(pid)
    return sum(map(int, stat[11:15])) / TICKS if stat else 0.0


def memory(pids: Iterable[int]) -> int:
    """The bytes of memory of these processes.  Memory that processes share is divided among them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return total


def disk(folders: Iterable[Path]) -> int:
    """The bytes of the files in these folders."""
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
    """The fields of /proc/<pid>/stat from the third field (state, parent, …)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []
