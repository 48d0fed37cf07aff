"""Shared by the tests of the nursery: trainers of a pretended server, and the processes that there are."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cerebro_db.core import protocol
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.core.trainers import frames
from cerebro_db.core.trainers.nursery_messages import StartTrainer
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import nursery_connection
from tests.nn import configurations as c

JAX = TrainerSettings(engine="jax", threads=1, deterministic=True)

WITHIN = 120.0  # seconds


def no_cancel() -> None:
    """Nobody cancels."""


def nurseries(folder: Path) -> list[int]:
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (one / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(folder) in command:
                found.append(int(one.name))
    return found


def the_nursery() -> int:
    """That of the data folder in which this process works."""
    (pid,) = [pid for folder in Path.cwd().glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
    return pid


def the_others(*known: int) -> list[int]:
    """The nurseries that live, but for those that are known."""
    found = [pid for folder in Path.cwd().glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
    return [pid for pid in found if born(pid) and pid not in known]


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def scratch(server: Path, name: str = "scratch") -> Path:
    """A scratch folder of this session."""
    folder = server / name / f"{os.getpid()}-{born(os.getpid())}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def started(
    server: Path, name: str = "scratch", *, confined: bool = False, gpu: bool = False
) -> nursery_connection.Child:
    folder = scratch(server, name)
    order = StartTrainer("jax", [str(folder)], [str(server), str(folder)] if confined else [], gpu)
    return nursery_connection.Child(order, folder / "log", no_cancel)


def answer(child: nursery_connection.Child, order: Any) -> Any:
    os.set_blocking(child.orders, True)
    os.write(child.orders, frames.encode(protocol.encode(order)))
    decoder = frames.Decoder()
    while True:
        assert select.select([child.answers], [], [], WITHIN)[0], "no answer"
        piece = os.read(child.answers, 1 << 20)
        assert piece, "the trainer ended"
        for document in decoder.feed(piece):
            return protocol.decode_reply(order, document)


def linear() -> c.Json:
    return c.configuration(c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=1)), "mse", "SGD")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
