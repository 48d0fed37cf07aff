"""Trainers as forks of a template: what they inherit, who ends when, and which are kept for later sessions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.errors import TrainerFailed
from cerebro_db.core.protocol import Describe, Rest, StartEngine
from cerebro_db.core.trainers import nursery_messages as messages
from cerebro_db.core.trainers import scratch_names
from cerebro_db.core.trainers.nursery_messages import StartTrainer, send
from cerebro_db.nn import kept_trainers, processes, templates
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import installation, nursery_connection, nursery_process
from cerebro_plpy.segment.scratch import remove_leftovers
from cerebro_plpy.segment.trainer import TrainerProcess
from tests.nn import configurations as c
from tests.sql.lab import eventually
from tests.sql.server.nursery.trials import (
    JAX,
    answer,
    children,
    linear,
    no_cancel,
    scratch,
    started,
    the_nursery,
)


def test_a_trainer_is_a_fork_that_knows_nothing_of_others(place: Path) -> None:
    first, second = started(place, "first"), started(place, "second", confined=True)
    try:
        for child, folder in ((first, "first"), (second, "second")):
            assert answer(child, StartEngine(JAX, None)).pid == child.pid
            assert child._started is not None and child._started.template
            process = Path(f"/proc/{child.pid}")
            assert (process / "cwd").resolve() == scratch(place, folder)
            open_files = [os.readlink(one) for one in (process / "fd").iterdir()]
            assert not [one for one in open_files if "socket:" in one], "no way to the nursery, none to a session"
            log = str(scratch(place, folder) / "log")
            assert [one for one in open_files if one.startswith(str(place))] == [log] * open_files.count(log)
        ours = {os.readlink(f"/proc/self/fd/{one}") for one in (first.orders, first.answers)}
        others = {os.readlink(one) for one in Path(f"/proc/{second.pid}/fd").iterdir()}
        assert not ours & others, "the pipes of one trainer are not open in another"
        assert answer(first, Describe(linear(), c.HOUSES)).parameters == 5
        assert set(children(the_nursery())) > {first.pid, second.pid}
    finally:
        first.kill()
        second.kill()
    assert not first.alive and not born(first.pid)


@pytest.mark.parametrize("keep_ready", [600, 0])
def test_a_trainer_with_a_gpu_is_confined_in_another_way(
    request: pytest.FixtureRequest, monkeypatch: Any, keep_ready: int
) -> None:
    """A fork of a template, and an interpreter of its own."""
    place = request.getfixturevalue("place" if keep_ready else "server")
    told = {"trainer_python": sys.executable, "keep_ready": keep_ready}
    for module in (nursery_connection, nursery_process, installation):
        monkeypatch.setattr(module, "installation", lambda: told)
    found = []
    for gpu in (False, True):
        child = started(place, confined=True, gpu=gpu)
        try:
            found.append(answer(child, StartEngine(JAX, None)).confinement)
            assert child.pid and child._started is not None and child._started.template == (keep_ready > 0)
        finally:
            child.kill()
    if "no network or other sockets" not in found[0]:
        pytest.skip("this kernel has no filter for system calls")
    assert "no network, and no connection by other sockets" in found[1]
    assert len(found[0]) == len(found[1])


def test_a_trainer_ends_with_its_connection(place: Path) -> None:
    """Also in the middle of a computation, which a stopped process stands for."""
    child = started(place)
    answer(child, StartEngine(JAX, None))
    os.kill(child.pid, signal.SIGSTOP)
    child.close()
    eventually(lambda: not born(child.pid), 30, "the trainer ends")


def test_how_a_trainer_ended_is_known(place: Path) -> None:
    child = started(place)
    answer(child, StartEngine(JAX, None))
    os.kill(child.pid, signal.SIGSEGV)
    assert child.end(within=30) == (-signal.SIGSEGV, None)
    child.kill()
    child = started(place)
    answer(child, StartEngine(JAX, None))
    os.close(child.orders)
    child.orders = -1
    assert child.end(within=30) == (0, None)
    child.kill()


def test_a_trainer_that_is_ended_while_it_rests(place: Path) -> None:
    one = TrainerProcess([scratch(place)], JAX, no_cancel)
    try:
        one.rest(Rest(60))
    finally:
        one.kill()
    for ask in (one.settle, one.call):
        with pytest.raises(TrainerFailed, match="the trainer was ended"):
            ask()


# -- trainers that are kept ----------------------------------------------------------------------------------------

KEEP = messages.Keep("the key", owner=1, most=1, seconds=60, about="as it was", recall="the other key")


def kept(place: Path) -> list[Path]:
    return list(place.glob("*/kept-*"))


def ready(child: nursery_connection.Child) -> int:
    """The trainer's process, when it has started its engine and its session has read what the nursery has said."""
    assert answer(child, StartEngine(JAX, None)).pid == child.pid
    return child.pid


def recalled(key: str) -> tuple[socket.socket, Any, list[int]]:
    connection = nursery_connection.greeted(nursery_connection.nursery_folder(), no_cancel)
    assert connection is not None
    send(connection, messages.Recall(key))
    return connection, *messages.receive(connection)


def test_a_trainer_is_kept_for_whoever_has_its_key(place: Path) -> None:
    child = started(place)
    pid = ready(child)
    child.keep(KEEP, "the recipe")
    child.mark(rests=True)
    child._connection.close()
    eventually(lambda: kept(place), 30, "it is kept, in a folder of the nursery's")
    assert not scratch(place).exists() or not list(scratch(place).iterdir())
    for key in ("", "another key", "the key"):  # the latter is not for those who ask like this
        connection, message, streams = recalled(key)
        connection.close()
        assert isinstance(message, messages.NotStarted) and streams == []
    assert nursery_connection.report(no_cancel).kept == 1
    connection, message, streams = recalled("the other key")
    orders, answers, mark = streams
    assert message.pid == pid and os.pread(mark, 100, 0) == b"\0the recipe" and not kept(place)
    for attribute, stream in (("orders", orders), ("answers", answers)):
        os.close(getattr(child, attribute))
        setattr(child, attribute, stream)
    answer(child, Rest(60, []))
    os.pwrite(mark, b"\1", 0)
    connection.close()
    eventually(lambda: kept(place), 30, "it is kept again")
    order = StartTrainer("jax", [str(scratch(place))], [], key="the key")
    another = nursery_connection.Child(order, scratch(place) / "trainer.log", no_cancel)
    assert another.pid == pid and another.kept == "as it was"
    assert Path(f"/proc/{pid}/cwd").readlink() == scratch(place)
    another.kill()
    eventually(lambda: not processes.lives(pid, born(pid) or "gone"), 30, "it has ended")
    assert not kept(place)


@pytest.mark.parametrize("why", ["it works", "another one is kept for the role", "a file is in the way"])
def test_a_trainer_is_not_kept(place: Path, why: str) -> None:
    first = started(place, "one")
    pid = ready(first)
    first.keep(KEEP, "")
    first.mark(rests=why != "it works")
    if why == "a file is in the way":
        for number in range(1, 30):  # others were kept by this nursery before
            (place / "one" / f"kept-{the_nursery()}-{born(the_nursery())}-{number}").touch()
    first._connection.close()
    if why == "another one is kept for the role":
        eventually(lambda: kept(place), 30, "the first one is kept")
        second = started(place, "two")
        assert ready(second) != pid
        second.keep(KEEP, "")
        second.mark(rests=True)
        second._connection.close()
        eventually(lambda: list((place / "two").glob("kept-*")), 30, "the second one is kept")
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
    eventually(lambda: not [one for one in (place / "one").glob("kept-*") if one.is_dir()], 30, "its folder is gone")


def test_kept_trainers_give_way_to_others(place: Path) -> None:
    assert not nursery_connection.dismiss(no_cancel)
    child = started(place)
    pid = ready(child)
    child.keep(KEEP, "")
    child.mark(rests=True)
    child._connection.close()
    eventually(lambda: kept(place), 30, "it is kept")
    assert nursery_connection.dismiss(no_cancel)
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
    eventually(lambda: not kept(place), 30, "its folder is gone")


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


def test_kept_trainers_end_in_time_and_with_their_nursery(place: Path) -> None:
    for seconds, ends in ((1, lambda: None), (600, lambda: os.kill(the_nursery(), signal.SIGTERM))):
        child = started(place)
        pid = ready(child)
        child.keep(replace(KEEP, seconds=seconds), "")
        child.mark(rests=True)
        child._connection.close()
        eventually(lambda: kept(place), 30, "it is kept")
        ends()
        eventually(lambda pid=pid: not Path(f"/proc/{pid}/exe").exists(), 30, "it has ended")
        eventually(lambda: not kept(place), 30, "its folder is gone")


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
