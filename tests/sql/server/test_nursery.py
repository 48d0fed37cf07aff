"""The nursery: trainers as forks of templates, what they inherit, and who ends when.  Most of it needs no server."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import resource
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cerebro_db.core import protocol
from cerebro_db.core.errors import TrainerFailed
from cerebro_db.core.protocol import Describe, Rest, StartEngine, TrainerSettings
from cerebro_db.core.trainers import frames, scratch_names, shared_memory
from cerebro_db.core.trainers import nursery_messages as messages
from cerebro_db.core.trainers.nursery_messages import Started, StartTrainer, send
from cerebro_db.embedded import throw_away
from cerebro_db.embedded.account import Account
from cerebro_db.embedded.cluster import Cluster
from cerebro_db.nn import kept_trainers, processes, templates
from cerebro_db.nn import nursery as process
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import installation, nursery_connection, nursery_process, trainer
from cerebro_plpy.segment.scratch import remove_leftovers
from cerebro_plpy.segment.trainer import TrainerProcess, cpu_seconds
from tests.conftest import GIVEN, NOT_OURS, TRAINER, connect
from tests.nn import configurations as c
from tests.sql.lab import CROSS, Lab, eventually, flower_model, trainer_processes
from tests.thorough import landing, tries

CLONE = Path(__file__).parents[3]
JAX = TrainerSettings(engine="jax", threads=1, deterministic=True)
WITHIN = 120.0  # seconds


def no_cancel() -> None:
    """Nobody cancels."""


@pytest.fixture(scope="module")
def ending() -> Iterator[dict[int, str]]:
    """The nurseries that were told to end, with their births.

    For ten seconds, a nursery waits for the end of sessions that have closed their connections.  Here these sessions
    are this process, which lives on.  So the tests do not wait one by one.
    """
    told: dict[int, str] = {}
    yield told
    for pid, birth in told.items():
        eventually(lambda pid=pid, birth=birth: not processes.lives(pid, birth), 30, "the nursery ends")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: Any, ending: dict[int, str]) -> Iterator[Path]:
    """The data folder of a server that is not there; this process stands for its postmaster."""
    told = {"trainer_python": sys.executable, "keep_ready": 600}
    for module in (nursery_connection, nursery_process, installation, trainer):
        monkeypatch.setattr(module, "installation", lambda: told)
    for module in (nursery_connection, nursery_process):
        monkeypatch.setattr(module, "INSTALLATION", CLONE)
    monkeypatch.setattr(nursery_connection, "_version", None)  # of another installation
    monkeypatch.setattr(nursery_connection.os, "getppid", os.getpid)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for folder in tmp_path.glob("pgsql_tmp_cerebro/*/nursery-*"):
        for pid in nurseries(folder):
            ending[pid] = born(pid)
            os.kill(pid, signal.SIGTERM)


def nurseries(folder: Path) -> list[int]:
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (one / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(folder) in command:
                found.append(int(one.name))
    return found


def the_nursery(server: Path) -> int:
    (pid,) = [pid for folder in server.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
    return pid


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def started(
    server: Path, name: str = "scratch", *, confined: bool = False, gpu: bool = False
) -> nursery_connection.Child:
    folder = scratch(server, name)
    order = StartTrainer("jax", [str(folder)], [str(server), str(folder)] if confined else [], gpu)
    return nursery_connection.Child(order, folder / "log", no_cancel)


def scratch(server: Path, name: str = "scratch") -> Path:
    """A scratch folder of this session."""
    folder = server / name / f"{os.getpid()}-{born(os.getpid())}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


def test_a_trainer_is_a_fork_that_knows_nothing_of_others(server: Path) -> None:
    first, second = started(server, "first"), started(server, "second", confined=True)
    try:
        for child, folder in ((first, "first"), (second, "second")):
            assert answer(child, StartEngine(JAX, None)).pid == child.pid
            assert child._started is not None and child._started.template
            place = Path(f"/proc/{child.pid}")
            assert (place / "cwd").resolve() == scratch(server, folder)
            open_files = [os.readlink(one) for one in (place / "fd").iterdir()]
            assert not [one for one in open_files if "socket:" in one], "no way to the nursery, none to a session"
            log = str(scratch(server, folder) / "log")
            assert [one for one in open_files if one.startswith(str(server))] == [log] * open_files.count(log)
        ours = {os.readlink(f"/proc/self/fd/{one}") for one in (first.orders, first.answers)}
        others = {os.readlink(one) for one in Path(f"/proc/{second.pid}/fd").iterdir()}
        assert not ours & others, "the pipes of one trainer are not open in another"
        assert answer(first, Describe(linear(), c.HOUSES)).parameters == 5
        assert set(children(the_nursery(server))) > {first.pid, second.pid}
    finally:
        first.kill()
        second.kill()
    assert not first.alive and not born(first.pid)


@pytest.mark.parametrize("keep_ready", [600, 0])
def test_a_trainer_with_a_gpu_is_confined_in_another_way(server: Path, monkeypatch: Any, keep_ready: int) -> None:
    """A fork of a template, and an interpreter of its own."""
    told = {"trainer_python": sys.executable, "keep_ready": keep_ready}
    for module in (nursery_connection, nursery_process, installation):
        monkeypatch.setattr(module, "installation", lambda: told)
    found = []
    for gpu in (False, True):
        child = started(server, confined=True, gpu=gpu)
        try:
            found.append(answer(child, StartEngine(JAX, None)).confinement)
            assert child.pid and child._started is not None and child._started.template == (keep_ready > 0)
        finally:
            child.kill()
    if "no network or other sockets" not in found[0]:
        pytest.skip("this kernel has no filter for system calls")
    assert "no network, and no connection by other sockets" in found[1]
    assert len(found[0]) == len(found[1])


def linear() -> c.Json:
    return c.configuration(c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=1)), "mse", "SGD")


def test_a_trainer_ends_with_its_connection(server: Path) -> None:
    """Also in the middle of a computation, which a stopped process stands for."""
    child = started(server)
    answer(child, StartEngine(JAX, None))
    os.kill(child.pid, signal.SIGSTOP)
    child.close()
    eventually(lambda: not born(child.pid), 30, "the trainer ends")


def test_how_a_trainer_ended_is_known(server: Path) -> None:
    child = started(server)
    answer(child, StartEngine(JAX, None))
    os.kill(child.pid, signal.SIGSEGV)
    assert child.end(within=30) == (-signal.SIGSEGV, None)
    child.kill()
    child = started(server)
    answer(child, StartEngine(JAX, None))
    os.close(child.orders)
    child.orders = -1
    assert child.end(within=30) == (0, None)
    child.kill()


def test_no_signal_goes_to_a_number_that_may_be_anothers_by_now(monkeypatch: Any) -> None:
    struck: list[int] = []
    monkeypatch.setattr(processes.os, "killpg", lambda pid, number: struck.append(pid))
    monkeypatch.setattr(processes.os, "kill", lambda pid, number: None)
    host = process.Nursery.__new__(process.Nursery)
    session = process.ConnectedSession(None, 1, "", trainer=1001)  # type: ignore[arg-type]
    session.open = False
    host._kill_trainer(session)
    host._trainer_ended(session, 0)
    host._kill_trainer(session)
    assert struck == [1001]


def test_a_session_of_which_the_start_is_not_known_keeps_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    """Such a session connected while the nursery had no free descriptor.  As long as its process is there, it lives."""
    monkeypatch.chdir(tmp_path)
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    here, me = process.Nursery(tmp_path, os.getpid(), 0), os.getpid()
    sessions = {"unknown": (me, ""), "lives": (me, born(me)), "another": (me, "1"), "gone": (ended.pid, "")}
    for name, (pid, birth) in sessions.items():
        (tmp_path / name).mkdir()
        session = templates.ConnectedSession(None, pid, birth, folders=[str(tmp_path / name)])  # type: ignore[arg-type]
        here.left.append(process.Leftover(session, time.monotonic()))
    assert here._sweep()
    eventually(
        lambda: {path.name for path in tmp_path.iterdir()} == {"unknown", "lives"}, 30, "the others' are removed"
    )
    assert [left.session.born for left in here.left] == ["", born(me)]


def test_a_nursery_that_dies_takes_its_trainers_along_and_is_replaced(server: Path) -> None:
    child = started(server)
    answer(child, StartEngine(JAX, None))
    first = the_nursery(server)
    os.kill(first, signal.SIGKILL)
    assert child.end(within=30) == (None, None)
    eventually(lambda: not born(child.pid), 30, "the trainer ends")
    child.kill()
    again = started(server)
    assert answer(again, StartEngine(JAX, None)).pid == again.pid
    assert the_nursery(server) != first
    again.kill()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def the_others(server: Path, *known: int) -> list[int]:
    found = [pid for folder in server.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
    return [pid for pid in found if born(pid) and pid not in known]


def test_a_stopped_nursery_gets_a_successor_and_does_no_harm_when_it_goes_on(server: Path) -> None:
    mine, others = started(server, "mine"), started(server, "others")
    for child in (mine, others):
        assert answer(child, StartEngine(JAX, None)).pid == child.pid
    first, killed = the_nursery(server), others.pid
    with stopped(first):
        began = time.monotonic()
        assert nursery_connection.report(no_cancel).trainers == 0, "another nursery answers"
        assert time.monotonic() - began < 3 * nursery_connection.ANSWERS_WITHIN + 5
        (second,) = the_others(server, first)
        third = started(server, "third")
        assert answer(third, StartEngine(JAX, None)).pid == third.pid
        assert answer(mine, Describe(linear(), c.HOUSES)).parameters == 5, "its trainers go on"
        others.kill()  # which the nursery cannot do now
        eventually(lambda: not born(killed), 30, "its session ends it")
    assert mine.alive
    mine.kill()
    assert not mine.alive
    os.kill(first, signal.SIGTERM)
    eventually(lambda: not born(first), 60, "it ends")
    assert third.alive
    fourth = started(server, "fourth")
    assert answer(fourth, StartEngine(JAX, None)).pid == fourth.pid
    assert the_others(server) == [second]
    third.kill()
    fourth.kill()


@pytest.fixture
def to_be_ended(server: Path) -> Iterator[list[TrainerProcess]]:
    found: list[TrainerProcess] = []
    yield found
    for one in found:
        one.kill()


def trainers_in(folder: Path) -> list[int]:
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(one / "cwd") == str(folder) and born(int(one.name)):
                found.append(int(one.name))
    return found


@pytest.mark.parametrize(
    ("kills", "victim"),
    landing(
        itertools.product([trainer.MOST_STARTS - 1, 100], ["nursery", "trainer"]),
        (trainer.MOST_STARTS - 1, "nursery"), (trainer.MOST_STARTS - 1, "trainer"), (100, "trainer"),
    ),
)  # fmt: skip
def test_a_start_that_somebody_kills_is_repeated(
    server: Path, monkeypatch: Any, to_be_ended: list[TrainerProcess], victim: str, kills: int
) -> None:
    # Without templates, and with an interpreter that is slow to come, a start takes long enough to be met.
    slow = server / "python"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    told = {"trainer_python": str(slow), "keep_ready": 0}
    for module in (nursery_connection, nursery_process, installation, trainer):
        monkeypatch.setattr(module, "installation", lambda: told)
    killed: set[int] = set()

    def kill() -> None:
        """Called while the start is waited for."""
        found = the_others(server, *killed) if victim == "nursery" else trainers_in(scratch(server))
        for pid in found:
            if len(killed) < kills and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(TrainerFailed) if kills > trainer.MOST_STARTS else contextlib.nullcontext() as failed:
        one = TrainerProcess([scratch(server)], JAX, kill)
        to_be_ended.append(one)
        assert one.started().pid == one.pid
    if failed is None:
        assert len(killed) == kills
        assert one.order(Describe(linear(), c.HOUSES)).parameters == 5
    else:
        assert re.search("not started in 3 attempts|does not answer", str(failed.value)), str(failed.value)
        assert failed.value.sqlstate == "58000"
        assert len(killed) >= trainer.MOST_STARTS


def test_a_nursery_that_is_stopped_with_an_order_is_replaced(
    server: Path, monkeypatch: Any, to_be_ended: list[TrainerProcess]
) -> None:
    nursery_connection.report(no_cancel)
    first = the_nursery(server)
    stops: list[int] = []

    def stop_and_send(connection: socket.socket, message: Any, streams: list[int] | None = None) -> None:
        if isinstance(message, StartTrainer) and not stops:
            stops.append(first)
            os.kill(first, signal.SIGSTOP)
        send(connection, message, streams)

    monkeypatch.setattr(nursery_connection, "send", stop_and_send)
    try:
        one = TrainerProcess([scratch(server)], JAX, no_cancel)
        to_be_ended.append(one)
        assert one.pid == one.started().pid
        assert stops and len(the_others(server, first)) == 1
    finally:
        os.kill(first, signal.SIGCONT)
    eventually(lambda: not born(first), 30, "the first nursery has nothing to do")
    assert trainers_in(scratch(server)) == [one.pid]
    assert one.order(Describe(linear(), c.HOUSES)).parameters == 5


def test_a_trainer_that_is_ended_while_it_rests(server: Path, to_be_ended: list[TrainerProcess]) -> None:
    one = TrainerProcess([scratch(server)], JAX, no_cancel)
    to_be_ended.append(one)
    one.rest(Rest(60))
    one.kill()
    for ask in (one.settle, one.call):
        with pytest.raises(TrainerFailed, match="the trainer was ended"):
            ask()


def test_a_new_nursery_removes_what_servers_that_are_gone_left_in_shared_memory(server: Path) -> None:
    gone, there, moved = (server / name for name in ("gone", "there", "moved"))
    folders = {}
    for data in (gone, there, moved):
        data.mkdir()
        folders[data] = shared_memory.folder_of(data, os.getuid())
        (folders[data] / "123-456").mkdir(parents=True)
        shared_memory.sign(folders[data], data)
    anothers = shared_memory.SHARED_MEMORY / f"{shared_memory.PREFIX}{os.getuid()}_0_1"
    unsigned = shared_memory.SHARED_MEMORY / f"{shared_memory.PREFIX}{os.getuid()}_0_2"
    try:
        for folder in (anothers, unsigned):
            folder.mkdir()
        (anothers / shared_memory.OWNER).symlink_to(f"mnt:[1] {gone}")  # in another container
        gone.rmdir()
        moved.rename(server / "elsewhere")
        shared_memory.sign(folders[moved], server / "elsewhere")
        nursery_connection.report(no_cancel)
        eventually(lambda: not folders[gone].exists(), 30, "it is removed")
        assert all(one.exists() for one in (folders[there], folders[moved], anothers, unsigned))
    finally:
        for folder in (*folders.values(), anothers, unsigned):
            shutil.rmtree(folder, ignore_errors=True)


# -- trainers that are kept ----------------------------------------------------------------------------------------


KEEP = messages.Keep("the key", owner=1, most=1, seconds=60, about="as it was", recall="the other key")


def kept(server: Path) -> list[Path]:
    return list(server.glob("*/kept-*"))


def ready(child: nursery_connection.Child) -> int:
    """The trainer's process, when it has started its engine and its session has read what the nursery has said."""
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    return child.pid


def recalled(key: str) -> tuple[socket.socket, Any, list[int]]:
    connection = nursery_connection.greeted(nursery_connection.nursery_folder(), no_cancel)
    assert connection is not None
    send(connection, messages.Recall(key))
    return connection, *messages.receive(connection)


def test_a_trainer_is_kept_for_whoever_has_its_key(server: Path) -> None:
    child = started(server)
    pid = ready(child)
    child.keep(KEEP, "the recipe")
    child.mark(rests=True)
    child._connection.close()
    eventually(lambda: kept(server), 30, "it is kept, in a folder of the nursery's")
    assert not scratch(server).exists() or not list(scratch(server).iterdir())
    for key in ("", "another key", "the key"):  # the latter is not for those who ask like this
        connection, message, streams = recalled(key)
        connection.close()
        assert isinstance(message, messages.NotStarted) and streams == []
    assert nursery_connection.report(no_cancel).kept == 1
    connection, message, streams = recalled("the other key")
    orders, answers, mark = streams
    assert message.pid == pid and os.pread(mark, 100, 0) == b"\0the recipe" and not kept(server)
    for attribute, stream in (("orders", orders), ("answers", answers)):
        os.close(getattr(child, attribute))
        setattr(child, attribute, stream)
    answer(child, Rest(60, []))
    os.pwrite(mark, b"\1", 0)
    connection.close()
    eventually(lambda: kept(server), 30, "it is kept again")
    order = StartTrainer("jax", [str(scratch(server))], [], key="the key")
    another = nursery_connection.Child(order, scratch(server) / "trainer.log", no_cancel)
    assert another.pid == pid and another.kept == "as it was"
    assert Path(f"/proc/{pid}/cwd").readlink() == scratch(server)
    another.kill()
    eventually(lambda: not processes.lives(pid, born(pid) or "gone"), 30, "it has ended")
    assert not kept(server)


@pytest.mark.parametrize("why", ["it works", "another one is kept for the role", "a file is in the way"])
def test_a_trainer_is_not_kept(server: Path, why: str) -> None:
    first = started(server, "one")
    pid = ready(first)
    first.keep(KEEP, "")
    first.mark(rests=why != "it works")
    if why == "a file is in the way":
        (server / "one" / f"kept-{the_nursery(server)}-{born(the_nursery(server))}-1").touch()
    first._connection.close()
    if why == "another one is kept for the role":
        eventually(lambda: kept(server), 30, "the first one is kept")
        second = started(server, "two")
        assert ready(second) != pid
        second.keep(KEEP, "")
        second.mark(rests=True)
        second._connection.close()
        eventually(lambda: list((server / "two").glob("kept-*")), 30, "the second one is kept")
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
    eventually(lambda: not [one for one in (server / "one").glob("kept-*") if one.is_dir()], 30, "its folder is gone")


def test_kept_trainers_give_way_to_others(server: Path) -> None:
    assert not nursery_connection.dismiss(no_cancel)
    child = started(server)
    pid = ready(child)
    child.keep(KEEP, "")
    child.mark(rests=True)
    child._connection.close()
    eventually(lambda: kept(server), 30, "it is kept")
    assert nursery_connection.dismiss(no_cancel)
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
    eventually(lambda: not kept(server), 30, "its folder is gone")


def test_only_the_oldest_kept_trainer_ends_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(kept_trainers, "kill", ended.append)
    monkeypatch.setattr(kept_trainers, "available_memory", lambda: kept_trainers.LEAST_MEMORY - 1)
    here = kept_trainers.KeptTrainers(lambda folders: None)
    here._kept += [kept_trainers.KeptTrainer(pid, templates.Keeping(KEEP, []), []) for pid in (1, 2)]
    here.look_after()
    here.look_after()  # at once: the first one's memory is not free yet
    assert ended == [1]


def test_a_kept_trainer_takes_no_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "trainer-jax.log").touch()
    assert kept_trainers.are_unused([str(tmp_path)])
    (tmp_path / "state").touch()
    assert not kept_trainers.are_unused([str(tmp_path)]) and not kept_trainers.are_unused([str(tmp_path / "none")])


def test_kept_trainers_end_in_time_and_with_their_nursery(server: Path) -> None:
    for seconds, ends in ((1, lambda: None), (600, lambda: os.kill(the_nursery(server), signal.SIGTERM))):
        child = started(server)
        pid = ready(child)
        child.keep(replace(KEEP, seconds=seconds), "")
        child.mark(rests=True)
        child._connection.close()
        eventually(lambda: kept(server), 30, "it is kept")
        ends()
        eventually(lambda pid=pid: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
        eventually(lambda: not kept(server), 30, "its folder is gone")


def test_a_session_removes_what_a_killed_nursery_has_kept(server: Path) -> None:
    ended = subprocess.Popen(["sleep", "60"])
    theirs = scratch_names.kept_folder(ended.pid, born(ended.pid), 1)
    ours = scratch_names.kept_folder(os.getpid(), born(os.getpid()), 2)
    for name in (theirs, ours):
        (server / "pgsql_tmp_cerebro" / name).mkdir(parents=True)
    ended.kill()
    ended.wait()
    remove_leftovers()
    assert [one.name for one in kept(server)] == [ours]


# -- what is said to it ------------------------------------------------------------------------------------------


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def say(packet: bytes, streams: list[int]) -> bytes:
    """What the nursery answers to a packet; empty if it closes the connection."""
    connection = nursery_connection.greeted(nursery_connection.nursery_folder(), no_cancel)
    assert connection is not None, "it does not answer"
    with connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(connection, [packet], streams)
        assert select.select([connection], [], [], 30)[0], f"the connection is open after {packet[:200]!r}"
        try:
            return connection.recv(messages.LARGEST)
        except ConnectionResetError:
            return b""


def malformed(server: Path, randomly: random.Random) -> Iterator[bytes]:
    """Packets that are no messages to a nursery."""
    folder = str(scratch(server))
    order = messages.encoded(StartTrainer("jax", [folder], [str(server), folder]))
    right = [order, messages.encoded(messages.Prepare("jax")), messages.encoded(messages.Ask())]
    yield b"[" * 60_000
    yield b'["Ask", ' + b'{"a":' * 12_000
    yield b'["Prepare", {"engine": ' + b"9" * 50_000 + b"}]"
    yield b"[]" * 50_000  # longer than a packet may be
    yield order + b" " * messages.LARGEST
    for other in (messages.Welcome(1), Started(os.getpid()), messages.Ended(0), messages.NotStarted("no"),
                  messages.Ready(), messages.Report(["jax"], 1)):  # fmt: skip
        yield messages.encoded(other)
    for engine in ("keras", "", 7, None, ["jax"], {"jax": 1}, True):
        yield json.dumps(["Prepare", {"engine": engine}]).encode()
    wrong: dict[str, list[Any]] = {
        "engine": ["keras", None, ["jax"], 5],
        "folders": [[], None, folder, [5], [["x"]], [str(server)], ["/"], ["."], [f"{os.getpid()}-1"], [folder + "\0"],
                    [folder + "\ud800"], [folder, str(server / f"{os.getpid()}-not-there")], {"0": folder}],
        "confined": [None, "no", [None], {"a": 1}],
        "gpu": [1, "true", None, []],
        "more": [1],
    }  # fmt: skip
    name, fields = json.loads(order)
    for field, values in wrong.items():
        for value in values:
            yield json.dumps([name, {**fields, field: value}]).encode()
    keep = {"key": "a", "owner": 1, "most": 1, "seconds": 60, "about": ""}
    for field, values in {
        "key": [None, 1],
        "owner": ["1"],
        "most": [None, 0.5],
        "seconds": ["60"],
        "more": [1],
    }.items():
        for value in values:
            yield json.dumps(["Keep", {**keep, field: value}]).encode()
    yield json.dumps(["Keep", keep]).encode()  # there is no trainer
    for fields in ({}, {"key": 1}, {"key": "a", "more": 1}):
        yield json.dumps(["Recall", fields]).encode()
    for document in (None, 1, [], ["Ask"], ["Ask", {}, 1], [["Ask"], {}], {"Ask": {}}, ["Nothing", {}], ["Ask", [1]]):
        yield json.dumps(document).encode()
    for _ in range(tries(300)):
        yield randomly.randbytes(randomly.choice([1, 10, 300, 9000]))
    for _ in range(tries(300)):
        packet = bytearray(randomly.choice(right))
        for _ in range(randomly.choice([1, 2, 8])):
            place = randomly.randrange(len(packet))
            change = randomly.choice(["half", "other", "more", "less"])
            if change == "half":
                del packet[max(1, place) :]
            elif change == "other":
                packet[place] = randomly.randrange(256)
            elif change == "more":
                packet[place:place] = randomly.randbytes(3)
            elif len(packet) > 1:
                del packet[place]
        yield bytes(packet)


def test_the_nursery_outlives_whatever_is_said_to_it(server: Path) -> None:
    nursery_connection.report(no_cancel)
    pid, before = the_nursery(server), descriptors(the_nursery(server))
    randomly = random.Random(36)
    kept = scratch(server) / "kept"
    kept.touch()
    theirs = [os.open(os.devnull, os.O_RDWR) for _ in range(9)]
    try:
        said = 0
        for packet in malformed(server, randomly):
            with contextlib.suppress(ValueError, RecursionError):
                if json.loads(packet) in (["Ask", {}], ["Prepare", {"engine": "jax"}]):
                    continue  # the change has changed nothing
            assert say(packet, theirs[: randomly.choice([0, 1, 2, 4, 9])]) == b"", packet[:200]
            said += 1
            if said % 20 == 0:  # opened and closed, with nothing said, and before the welcome is read
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(os.path.relpath(nursery_connection.nursery_folder() / "socket"))
        assert said > 2 * tries(300)
        order = messages.encoded(StartTrainer("jax", [str(scratch(server))], []))
        for count in (0, 1, 2, 4, 9):
            assert say(order, theirs[:count]) == b"", "the descriptors are not those that it needs"
        assert say(messages.encoded(messages.Ask()), theirs[:1]) == b""
    finally:
        for one in theirs:
            os.close(one)
    assert the_nursery(server) == pid
    assert not set(nursery_connection.report(no_cancel).templates) - {"jax"}
    assert kept.exists()
    eventually(lambda: descriptors(pid) <= before + 1, 30, "no descriptor is left open")  # one of a template
    child = started(server)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert the_nursery(server) == pid
    # Nor is there a trainer for this session, which has one.
    assert say(messages.encoded(messages.Recall("a")), [])[:13] == b'["NotStarted"'
    # A second order of the same connection is one too many.
    again = StartTrainer("jax", [str(scratch(server))], [])
    socket.send_fds(child._connection, [messages.encoded(again)], [child.orders, child.answers, child.answers])
    eventually(lambda: not child.alive, 30, "the connection is closed")
    child.kill()


def test_a_nursery_without_free_descriptors_turns_connections_away(server: Path) -> None:
    nursery_connection.report(no_cancel)
    pid, folder = the_nursery(server), nursery_connection.nursery_folder()
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 12, usual[1]))
    connections = []
    try:
        while (connection := nursery_connection.greeted(folder, no_cancel)) is not None:
            connections.append(connection)
            assert len(connections) < 10
        assert len(connections) > 1  # one is closed below; without any, it would end because it has a successor
        before = cpu_seconds(pid)
        time.sleep(1)
        assert cpu_seconds(pid) - before < 0.5, "it does not try again and again"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 1, usual[1]))
        send(connections[0], StartTrainer("jax", [str(scratch(server))], []), [0, 1, 2])
        assert select.select([connections[0]], [], [], 30)[0]
        assert connections[0].recv(100) == b"", "the descriptors do not fit"
        child = started(server)  # by a successor
        assert answer(child, StartEngine(JAX, None)).pid == child.pid
        assert len(the_others(server, pid)) == 1
        assert born(pid)  # until the last connection closes, because it has a successor
        child.kill()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        for connection in connections:
            connection.close()


def test_without_its_template_a_trainer_imports_the_framework_itself(server: Path) -> None:
    first = started(server)
    answer(first, StartEngine(JAX, None))
    # Beside the first trainer there are its template and the fork that waits to be the next trainer.
    (template,) = [pid for pid in set(children(the_nursery(server))) - {first.pid} if os.getsid(pid) == pid]
    os.kill(template, signal.SIGKILL)
    eventually(lambda: "ended" in nursery_connection.report(no_cancel).templates["jax"], 30, "the loss is known")
    second = started(server, "second")
    assert answer(second, StartEngine(JAX, None)).pid == second.pid
    assert second._started is not None and not second._started.template
    # What they need besides the model is measured, and differs by what their processes have imported.
    unmeasured = {"memory_mb": 0, "uncut_memory_mb": 0}
    descriptions = [replace(answer(child, Describe(linear(), c.HOUSES)), **unmeasured) for child in (first, second)]
    assert descriptions[0] == descriptions[1]
    first.kill()
    second.kill()


@contextlib.contextmanager
def serving(server: Path, keep: float) -> Iterator[None]:
    """A nursery in a fork of this process."""
    folder = (
        server / "pgsql_tmp_cerebro" / f"{os.getpid()}-{born(os.getpid())}" / f"nursery-{nursery_connection.version()}"
    )
    folder.mkdir(parents=True)
    host = process.Nursery(folder, os.getpid(), keep=keep)
    host.listen()
    pid = os.fork()
    if pid == 0:
        process.inherit_orphans()
        try:
            host.serve()
        finally:
            os._exit(0)
    host.listening.close()
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            assert os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def patient(server: Path, monkeypatch: Any) -> Iterator[Path]:
    """A nursery in a fork of this process, whose patience is a second."""
    monkeypatch.setattr(templates, "FORKS_WITHIN", 1.0)
    for name in ("IDLE", "ENDS_WITHIN"):
        monkeypatch.setattr(process, name, 1.0)
    with serving(server, keep=2):
        yield server


def test_a_template_that_hangs_is_replaced(patient: Path) -> None:
    template, waiting = template_and_next(patient)
    os.kill(template, signal.SIGSTOP)
    first = started(patient, "first")
    assert answer(first, StartEngine(JAX, None)).pid == waiting == first.pid, "it was forked before"
    child = started(patient)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert child._started is not None and not child._started.template
    assert "hung" in nursery_connection.report(no_cancel).templates["jax"]
    assert not born(template)
    assert first.alive
    first.kill()
    child.kill()


def test_the_next_trainer_may_end_before_it_is_wanted(patient: Path) -> None:
    template, waiting = template_and_next(patient)
    os.kill(waiting, signal.SIGKILL)
    assert template_and_next(patient) != (template, waiting)
    child = started(patient)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert child._started is not None and child._started.template and born(template)
    child.kill()


def test_the_next_trainer_ends_with_its_template(patient: Path) -> None:
    template, waiting = template_and_next(patient)
    os.kill(template, signal.SIGKILL)
    eventually(lambda: not born(waiting), WITHIN, "the next trainer has ended, too")
    child = started(patient)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert child._started is not None and not child._started.template
    child.kill()


DIES_ONCE = """
import os, signal, sys
sys.path.insert(0, {clone!r})
from cerebro_db.nn import template

lead = os.setsid

def setsid():
    try:
        os.mkdir(os.environ["HOME"] + "/died")
    except FileExistsError:
        return lead()
    os.kill(os.getpid(), signal.SIGKILL)

os.setsid = setsid
template.main(sys.argv[1])
"""


def test_a_fork_that_dies_with_its_order_is_not_mistaken_for_the_next(server: Path, monkeypatch: Any) -> None:
    program = server / "template.py"
    program.write_text(DIES_ONCE.format(clone=str(CLONE)))
    monkeypatch.setattr(templates, "PROGRAM", program)
    monkeypatch.setattr(templates, "FORKS_WITHIN", 3.0)
    with serving(server, keep=60):
        template_and_next(server)
        children = {name: started(server, name) for name in ("first", "second")}
        for name, child in children.items():
            assert answer(child, StartEngine(JAX, None)).pid == child.pid
            assert os.readlink(f"/proc/{child.pid}/cwd") == str(scratch(server, name))
            child.kill()


def test_a_template_that_dies_does_not_take_along_a_trainer(monkeypatch: Any) -> None:
    """The trainer has said that it is there, but the nursery has heard first that the template has ended."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    monkeypatch.setattr(templates, "kill", lambda pid: None)
    there: dict[str, int] = {}
    otherwise: list[str] = []
    all_of_them = templates.Templates(
        selectors.DefaultSelector(),
        Path(),
        60,
        lambda wanted, told: there.update({wanted.order.engine: told.pid}),
        lambda wanted: otherwise.append(wanted.order.engine),
    )
    session = templates.ConnectedSession(ours, 1, "")
    orders = [StartTrainer(name, [name], []) for name in ("first", "second")]
    wanted = [templates.WantedTrainer(session, order, [], 0.0) for order in orders]
    one = all_of_them.living["jax"] = templates.Template("jax", 1, ours, 0, 0, ready=True, wanted=wanted)
    all_of_them._selector.register(ours, selectors.EVENT_READ)
    send(its, Started(77, home="second"))
    all_of_them.give_up(one, "its process ended")
    assert (there, otherwise) == ({"second": 77}, ["first"])
    its.close()


def template_and_next(server: Path) -> tuple[int, int]:
    """The process of a template, and the fork of it that will be the next trainer."""
    nursery_connection.prepare("jax", no_cancel)

    def found() -> list[int]:
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if born(pid) and is_template(pid, server)
        ]

    def told() -> dict[bool, int]:
        """Whether it leads a session of its own, which the template does -> its process id."""
        with contextlib.suppress(OSError):
            pids = found()
            if len({parent(pid) for pid in pids}) == 1:  # else there is a fork that forks the next trainer
                return {os.getsid(pid) == pid: pid for pid in pids}
        return {}

    both = eventually(lambda: len(both := told()) == 2 and both, WITHIN, "a template and its fork")
    return both[True], both[False]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_template(pid: int, server: Path) -> bool:
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(one.startswith(b"HOME=" + os.fsencode(server)) for one in environment) and (
            b"template.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    return False


def test_what_nobody_uses_ends(patient: Path) -> None:
    nursery_connection.prepare("jax", no_cancel)
    eventually(lambda: "ready" in nursery_connection.report(no_cancel).templates.get("jax", ""), WITHIN, "it is ready")
    place = next(patient.glob("pgsql_tmp_cerebro/*/nursery-*")) / "socket"
    eventually(lambda: not place.exists(), 60, "the template ends, and then the nursery")
    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_template(pid, patient)]


def test_an_administrator_can_do_without_templates(server: Path, monkeypatch: Any) -> None:
    told = {"trainer_python": sys.executable, "keep_ready": 0}
    for module in (nursery_connection, nursery_process, installation):
        monkeypatch.setattr(module, "installation", lambda: told)
    nursery_connection.prepare("jax", no_cancel)
    child = started(server)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert nursery_connection.report(no_cancel).templates == {}
    child.kill()


@pytest.mark.parametrize("value", [-1, "long", True, None, float("nan"), float("inf")])
def test_an_unusable_time_is_the_default(monkeypatch: Any, value: Any) -> None:
    monkeypatch.setattr(nursery_process, "installation", lambda: {"keep_ready": value})
    assert float(nursery_process.keep_ready()) == nursery_process.KEEP_READY


def test_an_upgraded_environment_has_a_nursery_of_its_own(server: Path, monkeypatch: Any) -> None:
    environment = server / "venv"
    packages = environment / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(
        nursery_connection, "installation", lambda: {"trainer_python": str(environment / "bin" / "python")}
    )
    before = nursery_connection.version()
    assert nursery_connection.version() == before
    os.utime(packages, (1, 1))
    assert nursery_connection.version() != before


def test_forks_collect_garbage_though_their_template_did_not() -> None:
    script = (
        f"import gc, os, sys; sys.path.insert(0, {str(CLONE)!r}); from cerebro_db.nn import template\n"
        "def fork(*_):\n print(gc.isenabled(), gc.get_freeze_count() > 10_000, flush=True)\n os._exit(0)\n"
        "template.next_trainer = fork; template.main('jax')"
    )
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        done = subprocess.run([sys.executable, "-I", "-c", script], stdin=its.fileno(), capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


def test_only_the_servers_account_may_connect(server: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try as another account")
    nursery_connection.report(no_cancel)
    place = next(server.glob("pgsql_tmp_cerebro/*/nursery-*")) / "socket"
    script = (
        "import os, socket, sys; os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('socket')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(place.parent)], capture_output=True, text=True)
    assert "PermissionError" in done.stderr


# -- on a server -----------------------------------------------------------------------------------------------


LONG = "batch_size=1, epochs=20"


def prepared(lab: Lab) -> None:
    lab("CREATE SCHEMA nursery")
    lab.iris(2)
    model = lab.architecture(flower_model())
    lab.selection("mst", [(model, f"optimizer='Adam(lr={rate})', {CROSS}", LONG) for rate in (0.1, 0.01, 0.001)])


def under_way(lab: Lab, run_id: int) -> tuple[set[int], set[int]]:
    """The worker sessions and the trainers of a run that trains."""
    hops = lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id)
    eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run_id) > hops, WITHIN, "it trains")
    pids = lab("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %%'")
    return {pid for (pid,) in pids}, {pid for pid, _ in trainer_processes(lab.home)}  # type: ignore[arg-type]


def scratch_of(sessions: set[int], data: Path) -> list[Path]:
    found = data.stat()
    places = [data / "pgsql_tmp_cerebro", *Path("/dev/shm").glob(f"cerebro_db_*_{found.st_dev:x}_{found.st_ino:x}")]
    return [one for place in places for one in place.iterdir() if one.name.partition("-")[0] in map(str, sessions)]


def works_in(data: Path) -> list[int]:
    """The processes that work in a data folder: the server's, and the nursery."""
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdigit() and os.readlink(one / "cwd") == str(data):
                found.append(int(one.name))
    return found


@pytest.fixture
def own() -> Iterator[tuple[Cluster, Lab]]:
    """A cluster that the test may destroy."""
    if GIVEN:
        pytest.skip(NOT_OURS)
    cluster = throw_away.create(TRAINER)
    lab = Lab(cluster.dsn(), "nursery", cluster.home)
    try:
        prepared(lab)
        yield cluster, lab
    finally:
        lab.close()
        throw_away.remove(cluster)


def test_an_engine_is_imported_while_the_call_that_needs_it_is_checked(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own

    def there() -> list[int]:
        return [pid for folder in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]

    def imports_jax() -> bool:
        with contextlib.suppress(OSError):  # processes come and go
            return any(b"jax" in Path(f"/proc/{one}/cmdline").read_bytes() for pid in there() for one in children(pid))
        return False

    for pid in there():
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not there(), 60, "the nursery ends")
    with pytest.raises(psycopg2.Error, match="val_loss"):
        lab.fit("train", "refused", "mst", 1, options={"engine": "jax", "objective": "val_loss"})
    eventually(imports_jax, 30, "JAX is imported")
    # A nursery that hangs is not waited for.
    (pid,) = there()
    with stopped(pid):
        began = time.monotonic()
        with pytest.raises(psycopg2.Error, match="val_loss"):
            lab.fit("train", "refused", "mst", 1, options={"objective": "val_loss"})
        assert time.monotonic() - began < 2 * nursery_connection.ANSWERS_WITHIN


@pytest.mark.thorough  # without a run: test_a_start_that_somebody_kills_is_repeated
def test_a_run_goes_on_though_nursery_and_trainers_are_killed_at_its_start(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own

    def nursery_of_trainers() -> int:
        """A nursery that was asked for trainers: a template of it imports the framework."""
        found = [pid for folder in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(folder)]
        return next((pid for pid in found if born(pid) and children(pid)), 0)

    run_id = lab.submit("train", "begun", "mst", 1)
    killed: set[int] = set()
    for _ in range(2):
        kill_next(nursery_of_trainers, killed)
    kill_next(lambda: next((pid for pid, _ in trainer_processes(cluster.home)), 0), killed)
    eventually(lambda: lab.status(run_id) not in ("created", "running", "finishing"), WITHIN, "the run ends")
    assert lab.status(run_id) == "finished"
    assert len(killed) == 3


def kill_next(found: Callable[[], int], killed: set[int]) -> None:
    def done() -> bool:
        with contextlib.suppress(OSError):  # processes come and go
            pid = found()
            if pid and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                return True
        return False

    eventually(done, WITHIN, "there is one to kill")


@pytest.mark.thorough  # without a run: test_a_stopped_nursery_gets_a_successor_and_does_no_harm_when_it_goes_on
def test_a_stopped_nursery_costs_a_run_seconds(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own
    folders = list(cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*"))
    lab.fit("train", "first", "mst", 1)
    began = time.monotonic()
    lab.fit("train", "second", "mst", 1)
    usual = time.monotonic() - began
    lab("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cerebro_db waiting'")
    (pid,) = {pid for folder in folders for pid in nurseries(folder)}
    with stopped(pid):
        began = time.monotonic()
        lab.fit("train", "third", "mst", 1)
        # It is met by the call and by its worker sessions, which are opened at the same time; then a template imports.
        assert time.monotonic() - began < usual + 40
        successors = {one for folder in folders for one in nurseries(folder)} - {pid}
        assert len(successors) == 1
    eventually(lambda: not born(pid), 60, "the nursery has no trainers left and ends")
    lab.fit("train", "fourth", "mst", 1)
    assert {one for folder in folders for one in nurseries(folder)} == successors


def test_a_crash_of_the_server_leaves_no_process_and_no_file(own: tuple[Cluster, Lab]) -> None:
    """A killed session makes PostgreSQL end all the others; then the postmaster itself is killed."""
    cluster, lab = own
    run_id = lab.submit("train", "crashed", "mst", 500)
    workers, trainers = under_way(lab, run_id)
    os.kill(min(workers), signal.SIGKILL)
    eventually(lambda: not any(map(born, trainers)), 60, "the trainers end")
    eventually(lambda: not scratch_of(workers, cluster.data), 60, "their files are removed")
    lab.close()
    eventually(lambda: answers(cluster), 60, "the server answers again")
    lab("SELECT resume(%s, wait => false)", run_id)
    workers, trainers = under_way(lab, run_id)
    os.kill(int((cluster.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    eventually(lambda: not any(map(born, trainers)), 60, "the trainers end")
    eventually(lambda: not scratch_of(workers, cluster.data), 60, "their files are removed")
    eventually(lambda: not works_in(cluster.data), 60, "all processes end")


def test_a_call_whose_server_is_killed_does_not_blame_its_settings(own: tuple[Cluster, Lab]) -> None:
    cluster, lab = own
    failed: list[str] = []

    def train() -> None:
        with contextlib.closing(lab.connect()) as connection:
            try:
                lab.fit("train", "lost", "mst", 500, on=connection)
            except psycopg2.Error as error:
                failed.append(str(error))

    call = threading.Thread(target=train)
    call.start()
    eventually(lambda: lab.value("SELECT count(*) FROM hop"), WITHIN, "it trains")
    os.kill(int((cluster.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    call.join(WITHIN)
    (text,) = failed
    assert "pg_hba" not in text
    assert re.search("it has ended|closed the connection|terminat", text), text


def test_a_destroyed_cluster_leaves_nothing_in_shared_memory_though_its_nursery_was_killed(
    own: tuple[Cluster, Lab],
) -> None:
    cluster, lab = own
    lab.fit("train", "small", "mst", 1)
    folder = shared_memory.folder_of(cluster.data, cluster.data.stat().st_uid)
    (pid,) = [pid for one in cluster.data.glob("pgsql_tmp_cerebro/*/nursery-*") for pid in nurseries(one)]
    kept = list(folder.iterdir())
    assert os.readlink(folder / shared_memory.OWNER).endswith(f" {cluster.data}")
    assert len(kept) > 1, "sessions wait for the next call"
    os.kill(pid, signal.SIGKILL)
    lab.close()
    cluster.destroy()
    assert not folder.exists()


def answers(cluster: Cluster) -> bool:
    with contextlib.suppress(psycopg2.OperationalError):
        connect(cluster.dsn()).close()
        return True
    return False


def test_where_the_postmaster_is_process_1_no_trainer_takes_the_server_down(own: tuple[Cluster, Lab]) -> None:
    """As in a container without an init.  PostgreSQL takes each process that it inherits for one of its own."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"]).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    cluster, lab = own
    lab.close()
    cluster.down()
    owner, log = Account.get().name, cluster.log / "as-process-1.log"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--reuid", owner, "--regid"]
    command += [owner, "--clear-groups", str(cluster.prefix.bin / "postgres"), "-D", str(cluster.data)]
    with open(log, "wb") as output:
        container = subprocess.Popen(command, stdout=output, stderr=output, cwd="/")
    try:
        eventually(lambda: answers(cluster), 60, "the server answers")
        assert lab.value("SELECT pg_backend_pid()") < 1000, "it counts processes anew"
        lab("CREATE EXTENSION IF NOT EXISTS plpython3u")
        lab("CREATE FUNCTION kill(pid integer) RETURNS void LANGUAGE plpython3u AS 'import os; os.kill(pid, 9)'")
        run_id = lab.submit("train", "contained", "mst", 500)
        for ended in (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^cerebro_db (run|segm)'",
            "SELECT kill(max(trainer_pid)) FROM hop",
            "SELECT pg_terminate_backend(pid), kill(trainer_pid) FROM pg_stat_activity a JOIN (SELECT worker_pid,"
            " max(trainer_pid) AS trainer_pid FROM hop GROUP BY 1) h ON a.pid = worker_pid",
        ):
            if lab.value("SELECT status FROM runs WHERE run = %s", run_id) != "running":
                lab("SELECT resume(%s, wait => false)", run_id)
            hops = lab.value("SELECT count(*) FROM hop")
            trains = lambda hops=hops: lab.value("SELECT count(*) FROM hop") > hops + 1  # noqa: E731
            eventually(trains, WITHIN, "it trains")
            lab(ended)
            time.sleep(2)  # the postmaster would have ended this session by now
        assert lab.value("SELECT count(*) FROM hop") > 3
        left = scratch_of(set(range(1000)), cluster.data)
        assert left
    finally:
        lab.close()
        for pid in children(container.pid):  # process 1; all others end with it
            os.kill(pid, signal.SIGKILL)
        container.wait(30)
    # Nothing of the container could clean up. What is left in shared memory is the server's, wherever it starts again.
    cluster.up()
    lab("SELECT * FROM cerebro.doctor()")
    eventually(lambda: not any(map(Path.exists, left)), 30, "the files are removed")
    told = log.read_text() + "".join(one.read_text() for one in cluster.log.glob("postgresql-*.log"))
    assert "terminating any other active server processes" not in told
