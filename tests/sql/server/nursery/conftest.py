"""A server that is not there, for the tests of the nursery: this process stands for its postmaster."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro_db.nn import processes
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import installation, nursery_connection, nursery_process, trainer
from tests.conftest import CLONE
from tests.sql.lab import eventually
from tests.sql.server.nursery.trials import no_cancel, nurseries

# For ten seconds, a nursery waits for the end of sessions that have closed their connections.  Here these sessions are
# this process, which lives on.  So it waits a second.
PROGRAM = f"""
import sys

sys.path.insert(0, {str(CLONE)!r})
from cerebro_db.nn import nursery

nursery.ENDS_WITHIN = 1.0
nursery.main()
"""


@pytest.fixture(scope="module")
def ending() -> Iterator[dict[int, str]]:
    """The nurseries that were told to end, with their births; the tests do not wait one by one."""
    told: dict[int, str] = {}
    yield told
    for pid, birth in told.items():
        eventually(lambda pid=pid, birth=birth: not processes.lives(pid, birth), 30, "the nursery ends")


@contextlib.contextmanager
def pretended(data: Path, ending: dict[int, str]) -> Iterator[Path]:
    """The data folder of a server that is not there."""
    told = {"trainer_python": sys.executable, "keep_ready": 600}
    program = data / "installed" / "cerebro_db" / "nn" / "nursery.py"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patched:
        for module in (nursery_connection, nursery_process, installation, trainer):
            patched.setattr(module, "installation", lambda: told)
        patched.setattr(nursery_connection, "INSTALLATION", CLONE)
        patched.setattr(nursery_process, "INSTALLATION", data / "installed")
        patched.setattr(nursery_connection, "_version", None)  # of another installation
        patched.setattr(nursery_connection.os, "getppid", os.getpid)
        patched.chdir(data)
        try:
            yield data
        finally:
            for folder in data.glob("pgsql_tmp_cerebro/*/nursery-*"):
                for pid in nurseries(folder):
                    ending[pid] = born(pid)
                    os.kill(pid, signal.SIGTERM)


@pytest.fixture
def server(tmp_path: Path, ending: dict[int, str]) -> Iterator[Path]:
    with pretended(tmp_path, ending) as data:
        yield data


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, ending: dict[int, str]) -> Iterator[Path]:
    with pretended(tmp_path_factory.mktemp("data"), ending) as data:
        yield data


@pytest.fixture
def place(lasting: Path) -> Iterator[Path]:
    """A folder of the test, in the data folder of a server whose nursery and template the tests of a file share."""
    folder = lasting / f"of-{len(list(lasting.glob('of-*')))}"
    folder.mkdir()
    yield folder
    nursery_connection.dismiss(no_cancel)
    kept = lambda: [one for one in folder.glob("*/kept-*") if one.is_dir()]  # noqa: E731
    eventually(lambda: not kept(), 30, "no trainer is kept for the next test")
