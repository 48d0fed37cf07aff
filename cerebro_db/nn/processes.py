"""Processes as the nursery sees them: starting and ending children, and telling whether a process still lives."""

from __future__ import annotations

import contextlib
import os
import signal


def spawned(command: list[str], streams: list[int], environment: dict[str, str], folder: str) -> int:
    """The process id of a new process that leads a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(folder)
        for target, stream in enumerate([os.dup(stream) for stream in streams]):
            os.dup2(stream, target)
        os.execve(command[0], command, {**os.environ, **environment})
    finally:
        os._exit(127)


def kill(pid: int) -> None:
    """End a child and the processes of its session."""
    for end in (os.killpg, os.kill):  # the child may not lead its session yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def born(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if it is gone, or if that cannot be found out."""
    try:
        state, start = _state_and_start(pid)
    except OSError:
        return ""
    return "" if state in "ZX" else start


def lives(pid: int, birth: str) -> bool:
    """Whether a process that was born then is still there.

    When in doubt it is: if no descriptor is free to look, or if none was when its birth was to be noted (empty).
    """
    try:
        state, start = _state_and_start(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return state not in "ZX" and birth in ("", start)


def _state_and_start(pid: int) -> tuple[str, str]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].decode().split()
    return fields[0], fields[19]


def memory(pid: int) -> int:
    """The bytes of memory of a process, its part of what it shares with others."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
