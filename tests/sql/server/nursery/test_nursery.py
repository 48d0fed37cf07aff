"""The nursery: what is said to it, and what becomes of sessions when it is stopped, killed or replaced."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.errors import TrainerFailed
from cerebro_db.core.protocol import Describe, StartEngine
from cerebro_db.core.trainers import nursery_messages as messages
from cerebro_db.core.trainers import shared_memory
from cerebro_db.core.trainers.nursery_messages import Started, StartTrainer, send
from cerebro_db.nn import nursery as process
from cerebro_db.nn import processes, templates
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import installation, nursery_connection, nursery_process, trainer
from cerebro_plpy.segment.trainer import TrainerProcess, cpu_seconds
from tests.nn import configurations as c
from tests.sql.lab import eventually
from tests.sql.server.nursery.trials import (
    JAX,
    answer,
    linear,
    no_cancel,
    scratch,
    started,
    stopped,
    the_nursery,
    the_others,
)
from tests.thorough import landing, tries


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
    first = the_nursery()
    os.kill(first, signal.SIGKILL)
    assert child.end(within=30) == (None, None)
    eventually(lambda: not born(child.pid), 30, "the trainer ends")
    child.kill()
    again = started(server)
    assert answer(again, StartEngine(JAX, None)).pid == again.pid
    assert the_nursery() != first
    again.kill()


def test_a_stopped_nursery_gets_a_successor_and_does_no_harm_when_it_goes_on(server: Path) -> None:
    mine, others = started(server, "mine"), started(server, "others")
    for child in (mine, others):
        assert answer(child, StartEngine(JAX, None)).pid == child.pid
    first, killed = the_nursery(), others.pid
    with stopped(first):
        began = time.monotonic()
        assert nursery_connection.report(no_cancel).trainers == 0, "another nursery answers"
        assert time.monotonic() - began < 3 * nursery_connection.ANSWERS_WITHIN + 5
        (second,) = the_others(first)
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
    assert the_others() == [second]
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
        found = the_others(*killed) if victim == "nursery" else trainers_in(scratch(server))
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
    first = the_nursery()
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
        assert stops and len(the_others(first)) == 1
    finally:
        os.kill(first, signal.SIGCONT)
    eventually(lambda: not born(first), 30, "the first nursery has nothing to do")
    assert trainers_in(scratch(server)) == [one.pid]
    assert one.order(Describe(linear(), c.HOUSES)).parameters == 5


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
    pid, before = the_nursery(), descriptors(the_nursery())
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
    assert the_nursery() == pid
    assert not set(nursery_connection.report(no_cancel).templates) - {"jax"}
    assert kept.exists()
    eventually(lambda: descriptors(pid) <= before + 1, 30, "no descriptor is left open")  # one of a template
    child = started(server)
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    assert the_nursery() == pid
    # Nor is there a trainer for this session, which has one.
    assert say(messages.encoded(messages.Recall("a")), [])[:13] == b'["NotStarted"'
    # A second order of the same connection is one too many.
    again = StartTrainer("jax", [str(scratch(server))], [])
    socket.send_fds(child._connection, [messages.encoded(again)], [child.orders, child.answers, child.answers])
    eventually(lambda: not child.alive, 30, "the connection is closed")
    child.kill()


def test_a_nursery_without_free_descriptors_turns_connections_away(server: Path) -> None:
    nursery_connection.report(no_cancel)
    pid, folder = the_nursery(), nursery_connection.nursery_folder()
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
        assert len(the_others(pid)) == 1
        assert born(pid)  # until the last connection closes, because it has a successor
        child.kill()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        for connection in connections:
            connection.close()


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
