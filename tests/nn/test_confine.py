"""What the kernel denies to a confined process. On older kernels confine() achieves less, and tests are skipped."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.nn import confine, system_calls

ROOT = Path(__file__).resolve().parents[2]

ATTEMPTS = r"""
import ctypes, errno, fcntl, json, os, platform, resource, signal, socket, subprocess, sys, threading
from cerebro_db.nn import system_calls
from cerebro_db.nn.confine import confine

scratch, compiled, outside, parent = *sys.argv[1:], os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
pipe, _ = os.pipe()
pidfd = os.pidfd_open(parent)
segment = libc.shmget(0, 4096, 0o1600)
answers = {"achieved": confine(scratch, compiled, closed=outside)}

def attempt(name, act):
    try:
        act()
        answers[name] = "done"
    except OSError as error:
        answers[name] = type(error).__name__

def call(name, *arguments):
    def act():
        if getattr(libc, name)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), name)
    return act

def result(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(*(ctypes.c_long(one) for one in (number, *arguments)))
    return ctypes.get_errno()

def libc_call(numbers, *arguments):
    if error := result(numbers[system_calls.PLACES[platform.machine()]], *arguments):
        raise OSError(error, "system call")

def write(path):
    with open(path, "w") as file:
        file.write("x")

def name_a_thread():  # as CUDA does
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait)
    thread.start()
    try:
        write("/proc/self/task/%d/comm" % thread.native_id)
    finally:
        may_end.set()
        thread.join()

attempt("tcp", lambda: socket.socket(socket.AF_INET))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX))
attempt("socket pair", lambda: socket.socketpair())
attempt("send a message", lambda: call("sendmsg", pipe, None, 0)())
attempt("read the secret", lambda: open(outside + "/secret").read())
attempt("list", lambda: os.listdir(outside))
attempt("overwrite", lambda: write(outside + "/secret"))
attempt("truncate", lambda: os.truncate(outside + "/secret", 0))
attempt("make a file", lambda: write(outside + "/more"))
attempt("remove a file", lambda: os.remove(outside + "/secret"))
attempt("write in scratch", lambda: write(scratch + "/own"))
attempt("read in scratch", lambda: open(scratch + "/own").read())
attempt("write among compiled", lambda: write(compiled + "/own"))
attempt("read among compiled", lambda: open(compiled + "/own").read())
attempt("symbolic link", lambda: os.symlink(outside + "/secret", scratch + "/link"))
attempt("hard link", lambda: os.link(outside + "/secret", scratch + "/link"))
attempt("move in", lambda: os.rename(outside + "/secret", scratch + "/taken"))
attempt("pipe", lambda: os.mkfifo(scratch + "/pipe"))
attempt("signal the parent", lambda: os.kill(parent, 0))
attempt("signal all", lambda: os.kill(-1, 0))
attempt("signal itself", lambda: os.kill(os.getpid(), 0))
attempt("ptrace", call("ptrace", 16, parent, None, None))
attempt("memory of the parent", lambda: open("/proc/%d/mem" % parent, "rb"))
attempt("descriptors of the parent", lambda: os.readlink("/proc/%d/fd/0" % parent))
attempt("signal the parent by descriptor", lambda: signal.pidfd_send_signal(pidfd, 0))
attempt("have signals sent", lambda: fcntl.fcntl(pipe, fcntl.F_SETOWN, parent))
attempt("have signals sent to an owner", call("fcntl", pipe, 15, ctypes.create_string_buffer(8)))
attempt("choose the signal", lambda: fcntl.fcntl(pipe, 10, signal.SIGKILL))
attempt("have signals sent by ioctl", lambda: fcntl.ioctl(pipe, 0x8901, b"\1\0\0\0"))
attempt("lease a file", lambda: fcntl.fcntl(os.open(scratch + "/own", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK))
attempt("limits of the parent", lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE))
attempt("priority of the parent", lambda: os.setpriority(os.PRIO_PROCESS, parent, 5))
attempt("priority of the account", lambda: os.setpriority(os.PRIO_USER, 0, 5))
attempt("priority of the group", lambda: os.setpriority(os.PRIO_PGRP, 0, 5))
attempt("processors of the parent", lambda: os.sched_setaffinity(parent, os.sched_getaffinity(0)))
attempt("scheduling of the parent", lambda: os.sched_setscheduler(parent, os.SCHED_OTHER, os.sched_param(0)))
attempt("scheduling parameters of the parent", lambda: os.sched_setparam(parent, os.sched_param(0)))
attempt("disk priority of the parent", lambda: libc_call(system_calls.OF_SORTS["ioprio_set"], 1, parent, 0))
attempt("disk priority of the account", lambda: libc_call(system_calls.OF_SORTS["ioprio_set"], 3, os.getuid(), 0))
attempt("mode", lambda: os.chmod(outside + "/secret", 0o644))
attempt("mode of the folder", lambda: os.chmod(outside, 0o755))
attempt("owner", lambda: os.chown(outside + "/secret", os.getuid(), os.getgid()))
attempt("times", lambda: os.utime(outside + "/secret", (0, 0)))
attempt("extended attribute", lambda: os.setxattr(outside + "/secret", "user.mine", b"1"))
attempt("watch the folder", call("inotify_init"))
attempt("shared memory of others", call("shmctl", segment, 0, None))
attempt("new session", lambda: os.setsid())
attempt("new namespaces", lambda: call("unshare", 0x10000000)())
attempt("child of the parent", lambda: libc_call(system_calls.CLONE, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0))
attempt("child in new namespaces", lambda: libc_call(system_calls.CLONE, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))
attempt("own limits", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)))
attempt("own priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0)))
attempt("own processors", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
attempt("own processors by number", lambda: os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0)))
thread = threading.Thread(target=lambda: attempt("in a thread", lambda: os.kill(parent, 0)))
attempt("start a thread", thread.start)
thread.join()
attempt("name a thread", name_a_thread)
attempt("run a program", lambda: subprocess.run(["/bin/true"], check=True))
ended = subprocess.run([sys.executable, "-c", "import os; os.abort()"], capture_output=True).returncode
answers["calls"] = {}
for name, number in system_calls.refused(platform.machine()).items():
    answers["calls"][name] = errno.errorcode[result(number, -1, -1, -1, -1, -1, -1)]
answers["unknown calls"] = [errno.errorcode[result(n, -1)] for n in (system_calls.NEWEST + 1, 500, 0x40000000 + 39)]
answers["clone3"] = errno.errorcode[result(435, 0, 0)]
answers["abort"] = "done" if ended < 0 else str(ended)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if sys.platform != "linux":
        pytest.skip("Linux only")
    scratch, compiled, outside = map(tmp_path_factory.mktemp, ("scratch", "compiled", "outside"))
    (outside / "secret").write_text("secret")
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, *map(str, (scratch, compiled, outside))],
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert (outside / "secret").read_text() == "secret" and len(list(outside.iterdir())) == 1
    return found


def has(answers: dict[str, Any], what: str) -> None:
    if what not in answers["achieved"]:
        pytest.skip(f"this kernel does not do: {what}")


def test_no_core_files_and_no_new_privileges_everywhere(answers: dict[str, Any]) -> None:
    assert answers["achieved"][:2] == ["no core files", "no new privileges"]


def test_sockets(answers: dict[str, Any]) -> None:
    has(answers, "no network or other sockets")
    for attempt in ("tcp", "unix socket", "socket pair", "send a message"):
        assert answers[attempt] == "PermissionError", attempt


ON_GPU = r"""
import ctypes, errno, fcntl, json, os, platform, socket, struct, sys
from cerebro_db.nn import system_calls
from cerebro_db.nn.confine import confine

scratch, outside = sys.argv[1:]
served = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
served.bind(outside + "/served")
served.listen()
libc = ctypes.CDLL(None, use_errno=True)
answers = {"achieved": confine(scratch, closed=outside, gpu=True)}

def attempt(name, act):
    try:
        answers[name] = act() or "done"
    except OSError as error:
        answers[name] = errno.errorcode[error.errno]

def listens():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        one.bind(f"\0cuda-uvmfd-test-{os.getpid()}")
        one.listen(16)
        attempt("accept", one.accept)

def unix(kind):
    return socket.socket(socket.AF_UNIX, kind)

def sends_without_connecting(kind):
    with unix(kind) as one:
        one.sendto(b"x", outside + "/served")

attempt("listen", listens)
attempt("socket pair", socket.socketpair)
attempt("messages", lambda: unix(socket.SOCK_STREAM).sendmsg([b"x"]))
attempt("have signals sent", lambda: fcntl.ioctl(unix(socket.SOCK_STREAM), 0x8901, struct.pack("i", os.getppid())))
attempt("interfaces", lambda: fcntl.ioctl(unix(socket.SOCK_STREAM), 0x8912, bytes(16)))
attempt("another ioctl", lambda: fcntl.ioctl(unix(socket.SOCK_STREAM), 0x5421, struct.pack("i", 1)) and None)
attempt("tcp", lambda: socket.socket(socket.AF_INET))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("datagrams", lambda: unix(socket.SOCK_DGRAM))
attempt("pair of datagrams", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("connect", lambda: unix(socket.SOCK_STREAM).connect(outside + "/served"))
attempt("connect to nobody", lambda: unix(socket.SOCK_STREAM).connect("/run/none"))
attempt("send to a stream", lambda: sends_without_connecting(socket.SOCK_STREAM))
attempt("send to a sequence", lambda: sends_without_connecting(socket.SOCK_SEQPACKET))
attempt("name in a file", lambda: unix(socket.SOCK_STREAM).bind(scratch + "/socket"))
served.settimeout(0)
answers["calls"] = {}
for name, number in system_calls.refused(platform.machine(), gpu=True).items():
    ctypes.set_errno(0)
    libc.syscall(*(ctypes.c_long(one) for one in (number, -1, -1, -1, -1, -1, -1)))
    answers["calls"][name] = errno.errorcode[ctypes.get_errno()]
print(json.dumps(answers))
"""


def test_with_a_gpu_there_are_sockets_that_lead_nowhere(tmp_path: Path) -> None:
    for name in ("scratch", "outside"):
        (tmp_path / name).mkdir()
    answers = json.loads(run_python(ON_GPU, str(tmp_path / "scratch"), str(tmp_path / "outside")))
    has(answers, "no network, and no connection by other sockets")
    has(answers, "writes files in its own folders only")
    assert answers["listen"] == answers["another ioctl"] == "done"
    for attempt in (
        "tcp",
        "netlink",
        "datagrams",
        "socket pair",
        "pair of datagrams",
        "accept",
        "messages",
        "send to a stream",
        "send to a sequence",
        "have signals sent",
        "interfaces",
    ):
        assert answers[attempt] == "EPERM", attempt
    assert answers["connect"] == answers["connect to nobody"] == answers["calls"].pop("connect") == "ECONNREFUSED"
    assert answers["name in a file"] == "EACCES"
    assert {name: found for name, found in answers["calls"].items() if found != "EPERM"} == {}
    refused = set(system_calls.refused(platform.machine()))
    assert refused - set(answers["calls"]) == {*system_calls.SOCKETS_ON_GPU, "connect"}


def test_devices_of_gpus_are_for_those_who_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda path: ["null", "nvidia0", "nvidiactl", "nvidia-uvm", "infiniband", "sda"])
    assert confine.devices(gpu=False) == ["/dev/null"]
    assert confine.devices(gpu=True) == ["/dev/null", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_every_refused_system_call(answers: dict[str, Any]) -> None:
    has(answers, "no network or other sockets")
    assert {name: found for name, found in answers["calls"].items() if found != "EPERM"} == {}
    assert len(answers["calls"]) > 100
    assert answers["unknown calls"] == ["ENOSYS"] * 3 and answers["clone3"] == "ENOSYS"


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    """A call that a header does not have is newer than the header, or does not exist there."""
    headers = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
    found = {machine: Path("/usr/include", header) for machine, header in headers.items()}
    if not all(header.exists() for header in found.values()):
        pytest.skip("the kernel's headers are not installed")
    for machine, header in found.items():
        place = system_calls.PLACES[machine]
        numbers = {
            name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
        }
        others: dict[str, tuple[int, ...]] = {**system_calls.OF_ITSELF, **system_calls.OF_SORTS}
        others |= {"clone": system_calls.CLONE, "clone3": system_calls.CLONE3, "fcntl": system_calls.FCNTL}
        others |= {"ioctl": system_calls.IOCTL}
        ours = {**system_calls.refused(machine), **{name: pair[place] for name, pair in others.items()}}
        assert {name: number for name, number in ours.items() if numbers.get(name, number) != number} == {}
        missing = {name for family in system_calls.REFUSED.values() for name in family} - set(ours)
        assert not missing & set(numbers), "a call of this machine that is not refused"


def test_other_processes(answers: dict[str, Any]) -> None:
    has(answers, "no hand on other processes")
    for attempt in (
        "signal the parent",
        "signal all",
        "signal the parent by descriptor",
        "have signals sent",
        "have signals sent to an owner",
        "choose the signal",
        "have signals sent by ioctl",
        "lease a file",
        "limits of the parent",
        "priority of the parent",
        "priority of the account",
        "priority of the group",
        "processors of the parent",
        "scheduling of the parent",
        "scheduling parameters of the parent",
        "disk priority of the parent",
        "disk priority of the account",
        "shared memory of others",
        "new session",
        "new namespaces",
        "child of the parent",
        "child in new namespaces",
        "in a thread",
        "ptrace",
        "memory of the parent",
    ):
        assert answers[attempt] == "PermissionError", attempt
    for attempt in ("own limits", "own priority", "own processors", "own processors by number", "start a thread"):
        assert answers[attempt] == "done", attempt
    assert answers["signal itself"] == answers["abort"] == "done"


def test_attributes_of_files(answers: dict[str, Any]) -> None:
    has(answers, "no attributes of files")
    for attempt in ("mode", "mode of the folder", "owner", "times", "extended attribute", "watch the folder"):
        assert answers[attempt] == "PermissionError", attempt


def test_the_kernel_stops_signals_by_itself(answers: dict[str, Any]) -> None:
    """Where Landlock has scopes, it stops them without the filter, too: on every architecture."""
    has(answers, "no signals to other processes")
    tried = """
import os
from cerebro_db.nn import confine, system_calls
system_calls.ARCHITECTURES = {}
print(confine.confine())
try:
    os.kill(os.getppid(), 0)
except PermissionError:
    print("refused")
"""
    assert run_python(tried).splitlines()[-1] == "refused"


def test_other_threads_would_stay_free() -> None:
    """A thread that was started before keeps its rights, so a process that has one is not confined at all."""
    tried = """
import threading
from cerebro_db.nn.confine import confine
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    confine()
except RuntimeError as error:
    print(error)
"""
    assert "several threads" in run_python(tried)


def test_a_process_that_was_forked_can_be_confined() -> None:
    """Its parent has the framework's threads; the new process has none of them, and can start new ones."""
    tried = """
import os, numpy, threading
from cerebro_db.nn.confine import confine
numpy.ones((300, 300)) @ numpy.ones((300, 300))
if not (child := os.fork()):
    achieved = confine()
    total = (numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()
    thread = threading.Thread(target=lambda: print(total, achieved[1]))
    thread.start()
    thread.join()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run_python(tried).splitlines() == ["27000000.0 no new privileges", "0"]


def run_python(source: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-u", "-c", source, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_files(answers: dict[str, Any]) -> None:
    has(answers, "writes files in its own folders only")
    for attempt in ("overwrite", "make a file", "remove a file", "symbolic link", "pipe"):
        assert answers[attempt] == "PermissionError", attempt
    # From one folder to another: EXDEV.
    assert answers["hard link"] in ("PermissionError", "OSError") and answers["move in"] in (
        "PermissionError",
        "OSError",
    )
    assert answers["read the secret"] == answers["list"] == answers["descriptors of the parent"] == "PermissionError"
    for attempt in (
        "write in scratch",
        "read in scratch",
        "write among compiled",
        "read among compiled",
        "run a program",
        "name a thread",
    ):
        assert answers[attempt] == "done", attempt
