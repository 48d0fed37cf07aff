"""The nursery: the process of a server that starts trainers, and that is their parent.

    python -I -B …/cerebro_db/nn/nursery.py FOLDER POSTMASTER KEEP

A trainer that a session starts by itself becomes a child of the postmaster when the session ends and the postmaster is
process 1, as in a container.  PostgreSQL takes a child that dies of a signal for a crashed server process, and ends
all sessions.  So trainers are children of this process, which is small, inherits whatever they leave, and always exits
with 0.

It also keeps a template of each engine: a process that has imported the framework and opened no device (template.py).
A trainer is a fork of the template, which takes a fiftieth of the time that importing takes.  A template that nobody
used for KEEP seconds ends; with 0 there are none, and each trainer is a new interpreter.

A trainer ends when the connection of its session ends.  If the session's process is gone, its scratch folders are
removed then.  Everything ends with the postmaster.  Only the server's own account may connect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core.engines import ENGINES  # noqa: E402
from cerebro_db.core.nursery import (  # noqa: E402
    Ask,
    Ended,
    Gone,
    Kill,
    NotStarted,
    Prepare,
    Ready,
    Report,
    Started,
    StartTrainer,
    Welcome,
    receive,
    send,
)

HERE = Path(__file__).resolve().parent
PR_SET_CHILD_SUBREAPER = 36
TICK = 1.0  # seconds between two looks for whether the postmaster lives
IDLE = 5.0  # seconds without a session, a trainer and a template, after which this process ends
LOADS_WITHIN = 300.0  # seconds; a template that takes longer to import its engine hangs
FORKS_WITHIN = 20.0  # seconds; a template that takes longer to fork hangs
ENDS_WITHIN = 10.0  # seconds from the end of a connection to the end of the process, where the process ends at all
NOT_AGAIN = 60.0  # seconds until a template that failed is tried again


@dataclass
class Session:
    """The connection of a database session, which may have one trainer."""

    connection: socket.socket
    pid: int  # of the session's process
    born: str
    folders: list[str] = field(default_factory=list)
    trainer: int | None = None
    open: bool = True


@dataclass
class Leftover:
    """The scratch folders of a session that closed its connection, perhaps because its process is ending."""

    session: Session
    since: float


@dataclass
class Wanted:
    """A trainer that a template was asked for."""

    session: Session
    order: StartTrainer
    streams: list[int]
    since: float


@dataclass
class Template:
    engine: str
    pid: int
    channel: socket.socket
    since: float
    used: float
    ready: bool = False
    wanted: list[Wanted] = field(default_factory=list)

    def hangs(self, now: float) -> bool:
        if not self.ready:
            return now - self.since > LOADS_WITHIN
        return bool(self.wanted) and now - self.wanted[0].since > FORKS_WITHIN


class Nursery:
    def __init__(self, folder: Path, postmaster: int, keep: float) -> None:
        self.folder, self.postmaster, self.keep = folder, postmaster, keep
        self.postmaster_born = born(postmaster)
        self.sessions: list[Session] = []
        self.templates: dict[str, Template] = {}
        self.failed: dict[str, tuple[float, str]] = {}  # engine -> when its template failed, and why
        self.ended: dict[int, int] = {}  # children that ended before it was known whose they are
        self.left: list[Leftover] = []
        self.busy = time.monotonic()
        self.stopped = False
        self.selector = selectors.DefaultSelector()

    # -- the loop ------------------------------------------------------------------------------------

    def listen(self) -> None:
        path = self.folder / "socket"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.chdir(self.folder)  # the path of a socket may have 107 bytes only
        self.listening.bind("socket")
        os.chmod("socket", 0o600)
        os.chdir(self.folder.parent.parent)
        self.listening.listen(64)
        self.selector.register(self.listening, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._stop)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        while not self._over():
            for key, _ in self.selector.select(TICK):
                key.data()
            self._reap()
            self._look_after_templates()
            self._sweep()
        self._end_everything()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _over(self) -> bool:
        now = time.monotonic()
        if self.sessions or self.templates or self.left:
            self.busy = now
        return self.stopped or now - self.busy > IDLE or born(self.postmaster) != self.postmaster_born

    def _end_everything(self) -> None:
        """Nobody can connect any more; all children end; what dead sessions left is removed."""
        with contextlib.suppress(OSError):
            (self.folder / "socket").unlink()
        self.selector.unregister(self.listening)
        self.listening.close()
        for template in list(self.templates.values()):
            kill(template.pid)
        for session in list(self.sessions):
            self._close(session)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and (self._reap() or self._sweep()):
            time.sleep(0.02)

    # -- sessions ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError, Gone):
            connection, _ = self.listening.accept()
            size = struct.calcsize("3i")
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if uid != os.geteuid():
                connection.close()
                return
            connection.setblocking(False)  # a session that does not read cannot stop the others
            session = Session(connection, pid, born(pid))
            self.sessions.append(session)
            self.selector.register(connection, selectors.EVENT_READ, self._from(session))
            self._tell(session, Welcome(os.getpid()))

    def _from(self, session: Session) -> Callable[[], None]:
        def receive_one() -> None:
            try:
                message, streams = receive(session.connection)
            except Gone:
                self._close(session)
                return
            if isinstance(message, StartTrainer) and len(streams) == 3 and session.trainer is None:
                session.folders = message.folders
                self._start(Wanted(session, message, streams, time.monotonic()))
                return
            close(streams)
            if isinstance(message, Kill):
                self._kill_trainer(session)
            elif isinstance(message, Prepare):
                self._template(message.engine)
            elif isinstance(message, Ask):
                self._tell(session, self._report())

        return receive_one

    def _tell(self, session: Session, message: Welcome | Started | NotStarted | Ended | Report) -> None:
        if session.open:
            with contextlib.suppress(Gone):  # its end of the connection will say so
                send(session.connection, message)

    def _close(self, session: Session) -> None:
        session.open = False
        self.selector.unregister(session.connection)
        session.connection.close()
        self.sessions.remove(session)
        self._kill_trainer(session)
        if session.folders:
            self.left.append(Leftover(session, time.monotonic()))

    def _kill_trainer(self, session: Session) -> None:
        if session.trainer is not None:  # not waited for yet, so no other process can have the number
            kill(session.trainer)

    def _report(self) -> Report:
        templates = {engine: why for engine, (_, why) in self.failed.items()}
        for engine, template in self.templates.items():
            templates[engine] = f"ready, {shared(template.pid) >> 20} MB" if template.ready else "imports its engine"
        trainers = sum(session.trainer is not None for session in self.sessions)
        return Report([engine for engine, package in ENGINES.items() if find_spec(package)], trainers, templates)

    # -- trainers ------------------------------------------------------------------------------------

    def _start(self, wanted: Wanted) -> None:
        template = self._template(wanted.order.engine)
        if template is not None:
            try:
                send(template.channel, wanted.order, wanted.streams)
                template.wanted.append(wanted)
                return
            except Gone:
                self._give_up(template, "its process ended")
        self._start_interpreter(wanted)

    def _start_interpreter(self, wanted: Wanted) -> None:
        """A new Python that imports the framework itself."""
        home = wanted.order.folders[0]
        command = [sys.executable, "-I", "-B", str(HERE / "trainer_main.py"), *wanted.order.own]
        try:
            pid = spawned(command, wanted.streams, {"HOME": home, "TMPDIR": home}, home)
        except OSError as error:
            close(wanted.streams)
            self._tell(wanted.session, NotStarted(str(error)))
            return
        self._started(wanted, Started(pid, template=False))

    def _started(self, wanted: Wanted, started: Started) -> None:
        close(wanted.streams)
        session = wanted.session
        session.trainer = started.pid
        self._tell(session, started)
        if started.pid in self.ended:
            self._trainer_ended(session, self.ended.pop(started.pid))
        elif not session.open:
            kill(started.pid)

    def _trainer_ended(self, session: Session, status: int) -> None:
        session.trainer = None
        self._tell(session, Ended(status))

    def _reap(self) -> bool:
        """Take note of the children that have ended. Whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            for session in self.sessions:
                if session.trainer == pid:
                    self._trainer_ended(session, code)
                    break
            else:
                self.ended[pid] = code
                while len(self.ended) > 100:
                    del self.ended[next(iter(self.ended))]
            for template in list(self.templates.values()):
                if template.pid == pid:
                    self._give_up(template, f"its process ended with status {code}")

    def _sweep(self) -> bool:
        """Remove the folders of sessions whose process has ended. Whether one may still be ending."""
        for left in list(self.left):
            ended = born(left.session.pid) != left.session.born
            if ended:
                for folder in left.session.folders:
                    shutil.rmtree(folder, ignore_errors=True)
            if ended or time.monotonic() - left.since > ENDS_WITHIN:
                self.left.remove(left)
        return bool(self.left)

    # -- templates -----------------------------------------------------------------------------------

    def _template(self, engine: str) -> Template | None:
        """The template of an engine; None if there is none to be had."""
        now = time.monotonic()
        template = self.templates.get(engine)
        if template is None:
            since, _ = self.failed.get(engine, (-NOT_AGAIN, ""))
            if not self.keep or now - since < NOT_AGAIN:
                return None
            template = self._new_template(engine, now)
        if template is not None:
            template.used = now
        return template

    def _new_template(self, engine: str, now: float) -> Template | None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-B", str(HERE / "template.py"), engine]
        try:
            pid = spawned(command, [its.fileno(), 1, 2], {"HOME": str(self.folder), "TMPDIR": str(self.folder)}, "/")
        except OSError as error:
            self.failed[engine] = (now, str(error))
            ours.close()
            return None
        finally:
            its.close()
        ours.setblocking(False)
        template = self.templates[engine] = Template(engine, pid, ours, now, now)
        self.selector.register(ours, selectors.EVENT_READ, self._from_template(template))
        return template

    def _from_template(self, template: Template) -> Callable[[], None]:
        def receive_one() -> None:
            try:
                message, _ = receive(template.channel)
            except Gone:
                self._give_up(template, "its process ended")
                return
            if isinstance(message, Ready):
                template.ready = True
                self.failed.pop(template.engine, None)
                now = time.monotonic()
                for wanted in template.wanted:
                    wanted.since = now
            elif isinstance(message, Started):
                template.used = time.monotonic()
                self._started(template.wanted.pop(0), message)
            elif isinstance(message, NotStarted):
                self._give_up(template, message.why)

        return receive_one

    def _give_up(self, template: Template, why: str) -> None:
        """The trainers that it was asked for start as new interpreters."""
        if self.templates.pop(template.engine, None) is None:
            return
        self.failed[template.engine] = (time.monotonic(), why)
        print(f"nursery: no template of {template.engine}: {why}", file=sys.stderr, flush=True)
        self.selector.unregister(template.channel)
        template.channel.close()
        kill(template.pid)
        for wanted in template.wanted:
            self._start_interpreter(wanted)

    def _look_after_templates(self) -> None:
        now = time.monotonic()
        trainers = any(session.trainer is not None for session in self.sessions)
        for template in list(self.templates.values()):
            if template.hangs(now):
                self._give_up(template, "it hung and was ended")
            elif trainers or template.wanted:
                template.used = now
            elif now - template.used > self.keep:
                del self.templates[template.engine]
                self.selector.unregister(template.channel)
                template.channel.close()
                kill(template.pid)


# -- processes ---------------------------------------------------------------------------------------------


def spawned(command: list[str], streams: list[int], environment: dict[str, str], folder: str) -> int:
    """The process id of a new process that leads a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(folder)
        for target, stream in enumerate([os.dup(stream) for stream in streams]):
            os.dup2(stream, target)
        os.execve(command[0], command, {**os.environ, **environment})
    finally:
        os._exit(127)


def kill(pid: int) -> None:
    """End a child and the processes of its session."""
    for end in (os.killpg, os.kill):  # the child may not lead its session yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def born(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if it is gone."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def shared(pid: int) -> int:
    """The bytes of memory of a process, its part of what it shares with others."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a session of Greenplum's starts this process with signals blocked
    folder, postmaster, keep = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    nursery = Nursery(folder, postmaster, keep)
    nursery.listen()
    if os.fork():
        os._exit(0)  # sessions can connect now
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))  # forks do not inherit this
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for target, stream in enumerate((nothing, nothing, log)):
        os.dup2(stream, target)
    close([nothing, log])
    with contextlib.suppress(Exception):
        nursery.serve()
        os._exit(0)
    import traceback

    traceback.print_exc()
    os._exit(0)  # see above: whoever inherits this process must not take it for a crash


if __name__ == "__main__":
    main()
