"""What the kernel denies to a confined process. On older kernels confine() achieves less, and tests are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

ATTEMPTS = r"""
import ctypes, json, os, signal, socket, subprocess, sys
from cerebro_db.nn.confine import confine

scratch, compiled, outside, parent = *sys.argv[1:], os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
answers = {"achieved": confine(scratch, compiled)}

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

def write(path):
    with open(path, "w") as file:
        file.write("x")

attempt("tcp", lambda: socket.socket(socket.AF_INET))
attempt("unix socket", lambda: socket.socket(socket.AF_UNIX))
attempt("socket pair", lambda: socket.socketpair())
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
attempt("run a program", lambda: subprocess.run(["/bin/true"], check=True))
ended = subprocess.run([sys.executable, "-c", "import os; os.abort()"], capture_output=True).returncode
answers["abort"] = "done" if ended < 0 else str(ended)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if sys.platform != "linux":
        pytest.skip("Linux only")
    scratch, compiled, outside = map(tmp_path_factory.mktemp, ("scratch", "compiled", "outside"))
    (outside / "secret").write_text("secret")
    # Its parent works in the folder that must be closed to it, as a database's session does.
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, *map(str, (scratch, compiled, outside))],
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (outside / "secret").read_text() == "secret" and len(list(outside.iterdir())) == 1
    return found


def has(answers: dict[str, Any], what: str) -> None:
    if what not in answers["achieved"]:
        pytest.skip(f"this kernel does not do: {what}")


def test_no_core_files_and_no_new_privileges_everywhere(answers: dict[str, Any]) -> None:
    assert answers["achieved"][:2] == ["no core files", "no new privileges"]


def test_sockets(answers: dict[str, Any]) -> None:
    has(answers, "no network or other sockets")
    assert answers["tcp"] == answers["unix socket"] == "PermissionError"
    assert answers["socket pair"] == "done"


def test_other_processes(answers: dict[str, Any]) -> None:
    has(answers, "no hand on other processes")
    for attempt in ("signal the parent", "signal all", "ptrace", "memory of the parent"):
        assert answers[attempt] == "PermissionError", attempt
    assert answers["signal itself"] == answers["abort"] == "done"


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
    ):
        assert answers[attempt] == "done", attempt
