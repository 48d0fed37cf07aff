"""The confinement of a running trainer, seen from outside: its descriptors, environment, limits and files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENGINE
from tests.sql.users import town

pytestmark = pytest.mark.same_machine

OPENING = {"engine": ENGINE, "threads": 1, "deterministic": True, "gpu": None}


@pytest.fixture(scope="module")
def trainer(server: str) -> Iterator[dict[str, Any]]:
    """A running trainer of a plain user, and what it says about itself."""
    with town(server) as root:
        user = root.user("trainee", "cerebro_user")
        (opened,) = user("SELECT cerebro_internal._worker_open(%s)", json.dumps(OPENING))
        report = json.loads(user("SELECT cerebro_internal._work(%s)", json.dumps({"order": "inspect"}))[0])["ok"]
        yield {
            "proc": Path("/proc") / str(opened["trainer_pid"]),
            "worker": opened["worker_pid"],
            "started": report["trainer"],
        }


def words(trainer: dict[str, Any], name: str) -> dict[str, str]:
    lines = (trainer["proc"] / name).read_text().splitlines()
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}


def test_it_has_its_pipes_its_log_and_nothing_of_the_sessions(data_folder: Path, trainer: dict[str, Any]) -> None:
    held = {int(entry.name): os.readlink(entry) for entry in (trainer["proc"] / "fd").iterdir()}
    assert held[0].startswith("pipe:") and held[1] == held[2] and held[1].endswith(f"/trainer-{ENGINE}.log")
    scratch = os.path.dirname(held[1])
    for number, target in held.items():
        assert not target.startswith(("socket:", str(data_folder / "base"), str(data_folder / "pg_wal"))), (
            number,
            target,
        )
        if target.startswith("/") and not target.startswith((scratch, "/dev/", "/proc/", "/sys/", "/usr/")):
            raise AssertionError(f"descriptor {number} is {target}")
    theirs = {os.readlink(entry) for entry in Path(f"/proc/{trainer['worker']}/fd").iterdir()}
    shared = {target for target in held.values() if target in theirs} - {"/dev/null"}
    assert all(target.startswith("pipe:") for target in shared) and len(shared) <= 2
    assert os.readlink(trainer["proc"] / "cwd") == scratch
    assert stat.S_IMODE(os.stat(scratch).st_mode) == 0o700


def test_its_environment_is_made_for_it(trainer: dict[str, Any]) -> None:
    environment = dict(entry.split("=", 1) for entry in (trainer["proc"] / "environ").read_text().split("\0") if entry)
    wanted = {"PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "XLA_FLAGS", "GLIBC_TUNABLES"}
    wanted |= {"OPENBLAS_NUM_THREADS"}
    # Some versions of glibc split GLIBC_TUNABLES into several variables.
    assert {name for name in environment if not name.startswith("glibc.")} <= wanted
    assert environment["HOME"] == environment["TMPDIR"]  # those of the template; a fork changes its own
    assert os.readlink(trainer["proc"] / "cwd").partition("-")[0].endswith(f"/{trainer['worker']}")
    arguments = (trainer["proc"] / "cmdline").read_text().split("\0")
    assert arguments[1:3] == ["-I", "-B"]


def test_what_the_kernel_was_asked_for(trainer: dict[str, Any]) -> None:
    status, limits = words(trainer, "status"), (trainer["proc"] / "limits").read_text()
    achieved = trainer["started"]["confinement"]
    assert "no core files" in achieved
    assert any(line.split()[4:6] == ["0", "0"] for line in limits.splitlines() if line.startswith("Max core file size"))
    assert (trainer["proc"] / "oom_score_adj").read_text().strip() == "1000"
    assert int(status["NoNewPrivs"]) == ("no new privileges" in achieved)
    assert (int(status["Seccomp"]) == 2) == ("no network or other sockets" in achieved)
    # Every thread of it: one that began before would be free.
    threads = [words({"proc": task}, "status") for task in (trainer["proc"] / "task").iterdir()]
    assert {(one["NoNewPrivs"], one["Seccomp"]) for one in threads} == {(status["NoNewPrivs"], status["Seccomp"])}
    fields = (trainer["proc"] / "stat").read_text().rpartition(")")[2].split()
    assert fields[2] == fields[3] == trainer["proc"].name, "a session and a process group of its own"
    assert "nursery.py" in Path(f"/proc/{fields[1]}/cmdline").read_text(), "its parent ends it with its session"


def test_the_account_is_the_servers_so_the_data_folder_is_closed_to_it(trainer: dict[str, Any]) -> None:
    """On Linux 5.13 or later with Landlock, the trainer must be confined to its folders."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < (5, 13):
        pytest.skip("no Landlock")
    achieved = trainer["started"]["confinement"]
    if not any(word.startswith("writes files") for word in achieved):
        pytest.skip("Landlock is not enabled")
    assert "reads programs, libraries and its own folders only" in achieved
