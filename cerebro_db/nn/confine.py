"""Confines the trainer with the means that Linux offers without root.

A model is data and passes an allow-list, so confinement is a second line of defence, for a hole in a framework.  The
trainer runs as the server's own account.  Confined, it gets no new privileges, opens no sockets (the server's own
socket lets that account in; with a GPU some are allowed that lead nowhere), touches no other process, writes files only
in its own folders, reads files only where programs and libraries are, and changes no file's mode or times.  The
server's session also reads and writes the scratch folders, so there the trainer can make plain files and folders only,
and no link that would lead the session elsewhere.

Confinement lasts for the process and its children, and cannot be taken back.  The kernel confines one thread, and the
threads that this thread starts later; so the process must have no other thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Sequence

from . import system_calls

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def confine(*own: str, closed: str | None = None, gpu: bool = False) -> list[str]:
    """Give up what a trainer does not need, and say in words what was achieved.

    ``own``: folders to write files in.  ``closed``: a folder, the database's data folder, that shows whether reading is
    confined.  ``gpu``: whether the trainer needs what a GPU's driver needs.
    """
    if number_of_threads() > 1:
        raise RuntimeError("a process with several threads cannot be confined: its other threads would stay free")
    achieved = []
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        achieved.append("no core files")
    if LIBC is None or LIBC.prctl(PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        return achieved
    achieved.append("no new privileges")
    for step in (lambda: only_these_files(own, closed, gpu), lambda: without_system_calls(gpu)):
        with contextlib.suppress(OSError, AttributeError):
            achieved += step()
    return achieved


def number_of_threads() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return 1


# -- files: Landlock ---------------------------------------------------------------------------------------

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_FILE = 1 << 7, 1 << 8
OF_VERSION_1 = (1 << 13) - 1  # also: make devices, sockets, pipes and symbolic links
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # of versions 2, 3 and 5
OF_TCP = (1 << 2) - 1  # to bind and to connect, of version 4
SCOPES = (1 << 2) - 1  # no abstract Unix sockets of others and no signals to others, of version 6
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
SCRATCH = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_FILE
PROGRAMS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix", "/proc", "/sys")
SETTINGS = ("ld.so.cache", "localtime", "passwd", "nsswitch.conf", "os-release", "fonts", "nvidia", "OpenCL")  # in /etc
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
GPU = "nvidia"  # how the names of their devices begin


def only_these_files(own: Sequence[str], closed: str | None, gpu: bool) -> list[str]:
    libc = LIBC
    assert libc is not None
    version = libc.syscall(CREATE_RULESET, None, 0, VERSION)
    if version < 1:
        return []
    handled = OF_VERSION_1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if version >= since:
            handled |= right
    attributes = struct.pack("Q", handled)
    if version >= 4:
        attributes += struct.pack("Q", OF_TCP)
    if version >= 6:
        attributes += struct.pack("Q", SCOPES)
    rules = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        for path in readable():
            allow(rules, path, READ & handled)
        for path in devices(gpu):
            allow(rules, path, (READ | WRITE_FILE | TRUNCATE | IOCTL_DEV) & handled)
        # CUDA names its threads there; the kernel also checks that the entries are of this process.
        allow(rules, f"/proc/{os.getpid()}/task", (READ | WRITE_FILE | TRUNCATE) & handled)
        for folder in own:
            allow(rules, folder, SCRATCH & handled)
        if libc.syscall(RESTRICT_SELF, rules, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(rules)
    achieved = ["writes files in its own folders only"]
    if version >= 6:
        achieved.append("no signals to other processes")
    if closed is not None and is_closed(closed):
        achieved.append("reads programs, libraries and its own folders only")
    return achieved


def is_closed(folder: str) -> bool:
    try:
        os.listdir(folder)
    except PermissionError:
        return True
    return False


@functools.cache
def readable() -> set[str]:
    """The folders of programs and libraries: the system's, this environment's, this project's and the GPU's."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *sysconfig.get_paths().values()]
    libraries = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), os.environ.get("CUDA_HOME", "")]
    found = {here, *PROGRAMS, *(f"/etc/{name}" for name in SETTINGS), *environment, *libraries}
    return {path for path in found if path and os.path.isabs(path) and os.path.realpath(path) != "/"}


def devices(gpu: bool) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"/dev/{name}" for name in os.listdir("/dev") if name in DEVICES or gpu and name.startswith(GPU)]
    return []


def allow(rules: int, path: str, rights: int) -> None:
    libc = LIBC
    assert libc is not None
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # this system has no such path
    try:
        if not os.path.isdir(path):
            rights &= OF_FILES
        attributes = struct.pack("=Qi", rights, folder)
        if libc.syscall(ADD_RULE, rules, PATH_BENEATH, attributes, 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule", path)
    finally:
        os.close(folder)


# -- system calls: seccomp ---------------------------------------------------------------------------------


def without_system_calls(gpu: bool) -> list[str]:
    machine = platform.machine()
    if machine not in system_calls.ARCHITECTURES or sys.maxsize < 1 << 32:
        return []
    libc = LIBC
    assert libc is not None
    program = system_calls.compiled_filter(machine, gpu)
    lines = ctypes.create_string_buffer(program, len(program))
    attributes = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(lines))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, attributes, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    sockets = "no network, and no connection by other sockets" if gpu else "no network or other sockets"
    return [sockets, "no hand on other processes", "no attributes of files"]
