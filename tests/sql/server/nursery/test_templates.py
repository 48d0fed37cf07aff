"""The templates of a nursery: what is forked from them, and what becomes of one that hangs or dies."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.protocol import Describe, StartEngine
from cerebro_db.core.trainers.nursery_messages import Started, StartTrainer, send
from cerebro_db.nn import nursery as process
from cerebro_db.nn import templates
from cerebro_db.nn.processes import born
from cerebro_plpy.segment import installation, nursery_connection, nursery_process
from tests.conftest import CLONE
from tests.nn import configurations as c
from tests.sql.lab import eventually
from tests.sql.server.nursery.trials import (
    JAX,
    WITHIN,
    answer,
    children,
    linear,
    no_cancel,
    scratch,
    started,
    the_nursery,
)


def test_without_its_template_a_trainer_imports_the_framework_itself(server: Path) -> None:
    first = started(server)
    answer(first, StartEngine(JAX, None))
    # Beside the first trainer there are its template and the fork that waits to be the next trainer.
    (template,) = [pid for pid in set(children(the_nursery())) - {first.pid} if os.getsid(pid) == pid]
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
    monkeypatch.setattr(templates, "FORKS_WITHIN", 2.0)
    monkeypatch.setattr(process, "ENDS_WITHIN", 1.0)
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
