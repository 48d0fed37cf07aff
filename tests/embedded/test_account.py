"""The system account that root makes for the embedded server."""

from __future__ import annotations

import os
import pwd
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cerebro_db.embedded import account
from cerebro_db.embedded.errors import ClusterError


@pytest.fixture
def useradd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A useradd that ends as the file ``statuses`` says, a line for each call."""
    command = tmp_path / "useradd"
    command.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\nstatus=$(head -n 1 statuses)\nsed -i 1d statuses\n'
        'echo "useradd: says $status" >&2\nexit "$status"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "statuses"


def made(monkeypatch: pytest.MonkeyPatch) -> str:
    """The account that is made; that of root stands for it, because this machine may have no other."""
    monkeypatch.setattr(account, "ACCOUNT", "root")
    return account._created().pw_name


@pytest.mark.parametrize("statuses", ["0", "9", "1 0", "10 1 9"], ids=lambda text: text.replace(" ", "-"))
def test_two_processes_make_the_account_at_once(useradd: Path, statuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new machine the processes of the tests do so; useradd refuses the second while the first has the files."""
    useradd.write_text("".join(f"{status}\n" for status in statuses.split()))
    assert made(monkeypatch) == pwd.getpwnam("root").pw_name
    assert not useradd.read_text()


@pytest.mark.parametrize(("statuses", "patience"), [("3", 20.0), ("1", -1.0)])
def test_an_account_that_cannot_be_made(
    useradd: Path, statuses: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    useradd.write_text(f"{statuses}\n")
    monkeypatch.setattr(account, "PATIENCE", patience)
    with pytest.raises(ClusterError, match=f"useradd: says {statuses}"):
        made(monkeypatch)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes accounts")
def test_one_account_is_made_by_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock, useradd of Debian 13 makes it twice, with two numbers."""
    name = f"cerebro-t{os.getpid()}"
    monkeypatch.setattr(account, "ACCOUNT", name)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = [one.result().pw_uid for one in [threads.submit(account._create) for _ in range(4)]]
        assert set(found) == {pwd.getpwnam(name).pw_uid}
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)
