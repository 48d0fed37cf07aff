"""Trainers as a database session has them: forks of a template, from a nursery of this process of pytest.

An interpreter that imports the framework costs 3 to 5 seconds of a processor, a fork of a template a tenth of one.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

from cerebro_db.core.trainers.nursery_messages import Ended, Message, NotStarted, Started, StartTrainer, receive, send

NURSERY = Path(__file__).resolve().parents[2] / "cerebro_db" / "nn" / "nursery.py"
STDERR = 2
KEEP = 600  # seconds without a trainer until templates end
numbers = count()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


class Nursery:
    """It ends, and removes its folder, when this process has ended."""

    def __init__(self, pid: int) -> None:
        self.environment = environment()
        self.homes = Path(tempfile.mkdtemp(prefix="cerebro-forks-"))
        self.folder = self.homes / "nursery"
        self.folder.mkdir()
        command = [sys.executable, "-I", "-B", str(NURSERY), str(self.folder), str(pid), str(KEEP)]
        subprocess.run(command, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL)

    def connection(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.connect(str(self.folder / "socket"))
        receive(channel)  # its welcome
        return channel

    def home(self) -> str:
        folder = self.homes / f"{os.getpid()}-{next(numbers)}"
        folder.mkdir()
        return str(folder)


nursery_of = cache(Nursery)


def nursery() -> Nursery | None:
    """None: this process's environment is another one than the nursery's, so its forks would have the wrong one."""
    one = nursery_of(os.getpid())
    return one if one.environment == environment() else None


class Fork:
    """What subprocess.Popen is for a program."""

    def __init__(self, nursery: Nursery, engine: str) -> None:
        self.connection = nursery.connection()
        its_input, ours_in = os.pipe()
        ours_out, its_output = os.pipe()
        order = StartTrainer(engine, [nursery.home()], [])
        send(self.connection, order, [its_input, its_output, STDERR])
        os.close(its_input)
        os.close(its_output)
        self.stdin, self.stdout = os.fdopen(ours_in, "wb", buffering=0), os.fdopen(ours_out, "rb", buffering=0)
        self.returncode: int | None = None
        started = self._message(None)
        if isinstance(started, NotStarted):
            raise RuntimeError(started.why)
        assert isinstance(started, Started)
        self.pid = started.pid

    def _message(self, timeout: float | None) -> Message:
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise subprocess.TimeoutExpired("a trainer", timeout or 0)
        return receive(self.connection)[0]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = self._message(timeout)
            assert isinstance(ended, Ended)
            self.returncode = ended.status
            self.connection.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self.connection.close()  # the nursery kills a trainer that still lives
