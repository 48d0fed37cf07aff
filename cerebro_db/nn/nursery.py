"""The nursery: the process of a server that starts trainers, and that is their parent.

    python -I -B …/cerebro_db/nn/nursery.py FOLDER POSTMASTER KEEP

If sessions started trainers themselves, the postmaster would inherit the trainer of a session that ends, where the
postmaster is process 1, as in a container.  PostgreSQL takes a child that dies of a signal for a crashed process of
the server, and ends all sessions.  So trainers are children of this process.  It is small, inherits whatever they
leave, and always exits with 0.

It also keeps a template of each engine: a process that has imported the framework and opened no device (template.py).
A trainer is a fork of the template, which takes a fiftieth of the time that importing takes.  A template that nobody
used for KEEP seconds ends; with 0 there are none, and each trainer is a new interpreter.

A trainer ends when the connection of its session ends, unless it is kept for another one (kept_trainers.py).  If the
session's process is gone, its scratch folders are removed then.  Everything ends with the postmaster.  Only the
server's own account may connect.  A connection that says anything but a sound message is closed, and nothing else
happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cerebro_db.core.engines import ENGINES  # noqa: E402
from cerebro_db.core.trainers import shared_memory  # noqa: E402
from cerebro_db.core.trainers.nursery_messages import (
    STREAMS,
    Ask,
    Dismiss,
    Ended,
    Gone,
    Keep,
    Kill,
    Message,
    NotStarted,
    Prepare,
    Recall,
    Report,
    Started,
    StartTrainer,
    Welcome,
    receive,
    send,
)
from cerebro_db.nn.kept_trainers import KeptTrainers  # noqa: E402
from cerebro_db.nn.processes import born, close, kill, lives, spawned  # noqa: E402
from cerebro_db.nn.templates import ConnectedSession, Keeping, Templates, WantedTrainer  # noqa: E402

HERE = Path(__file__).resolve().parent
PR_SET_CHILD_SUBREAPER = 36
MOST_DESCRIPTORS = 65_536
TICK = 1.0  # seconds between two looks for whether the postmaster lives
IDLE = 5.0  # seconds without a session, a trainer and a template, after which this process ends
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
ENDS_WITHIN = 10.0  # seconds from the end of a connection to the end of the process, where the process ends at all


@dataclass
class Leftover:
    """The scratch folders of a session that closed its connection, perhaps because its process is ending."""

    session: ConnectedSession
    since: float


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # another package may name anything as its framework
        return False


class Nursery:
    def __init__(self, folder: Path, postmaster: int, keep: float) -> None:
        self.folder, self.postmaster = folder, postmaster
        self.postmaster_born = born(postmaster)
        self.sessions: list[ConnectedSession] = []
        self.ended: dict[int, int] = {}  # children that ended before it was known whose they are
        self.left: list[Leftover] = []
        self.kept = KeptTrainers(remove_aside)
        self.places: set[str] = set()  # folders in which the sessions' scratch folders are
        self.busy = time.monotonic()
        self.stopped = False
        self.selector = selectors.DefaultSelector()
        self.spare = os.open(
            os.devnull, os.O_RDONLY
        )  # given up to accept, and close, a connection when no other is free
        self.templates = Templates(self.selector, folder, keep, self._started, self._start_interpreter)

    # -- the loop ------------------------------------------------------------------------------------

    def listen(self) -> None:
        path = self.folder / "socket"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data_folder = os.getcwd()
        os.chdir(self.folder)  # the path of a socket may have 107 bytes only
        self.listening.bind("socket")
        os.chmod("socket", 0o600)
        self.socket = os.stat("socket").st_ino
        os.chdir(data_folder)
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
            if self._reap() or self.left or self.kept:
                self.busy = time.monotonic()
            self.templates.look_after(any(session.trainer is not None for session in self.sessions))
            self.kept.look_after()
            self._sweep()
        self.end_everything()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _over(self) -> bool:
        now = time.monotonic()
        if self.sessions:
            self.busy = now
        elif not self.left and not self._is_reachable():  # a successor has the socket: nobody comes any more
            return True
        return self.stopped or now - self.busy > IDLE or not lives(self.postmaster, self.postmaster_born)

    def _is_reachable(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self.folder / "socket").st_ino == self.socket
        return False

    def end_everything(self) -> None:
        """Nobody can connect any more; all children end; what dead sessions left is removed."""
        with contextlib.suppress(OSError):
            if self._is_reachable():
                (self.folder / "socket").unlink()
        self.listening.close()
        templates = list(self.templates.living.values())
        self.templates.living.clear()  # their ends start no other trainers now
        for pid in (*(template.pid for template in templates), *(session.trainer for session in self.sessions)):
            if pid is not None:
                kill(pid)
        self.kept.end_all()
        self.left += [Leftover(session, time.monotonic()) for session in self.sessions if session.folders]
        deadline = time.monotonic() + 10
        while self._sweep() | self._reap() and time.monotonic() < deadline:
            time.sleep(0.02)
        if not lives(self.postmaster, self.postmaster_born):
            shutil.rmtree(self.folder.parent, ignore_errors=True)
            if not os.path.exists("postmaster.pid"):  # else a server has started again, or will
                for place in self.places - {str(self.folder.parent.parent)}:  # not in the data folder
                    shared_memory.remove_empty(Path(place), os.geteuid())

    # -- sessions ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # else the connection would wait, and wake this process, for ever
                self._turn_away()
            return
        try:
            size = struct.calcsize("3i")
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if uid != os.geteuid() or not has_room():
                connection.close()
                return
            connection.setblocking(False)  # a session that does not read cannot stop the others
            session = ConnectedSession(connection, pid, born(pid))
            self.selector.register(connection, selectors.EVENT_READ, self._from(session))
        except OSError:
            connection.close()
            return
        self.sessions.append(session)
        self._tell(session, Welcome(os.getpid()))

    def _turn_away(self) -> None:
        """Close a connection for which no descriptor is free.  Its session starts another nursery."""
        if self.spare >= 0:
            os.close(self.spare)
            self.spare = -1
        with contextlib.suppress(OSError):
            self.listening.accept()[0].close()
        with contextlib.suppress(OSError):
            self.spare = os.open(os.devnull, os.O_RDONLY)

    def _from(self, session: ConnectedSession) -> Callable[[], None]:
        def receive_one() -> None:
            try:
                message, streams = receive(session.connection)
                if not self._obey(session, message, streams):
                    close(streams)
                    self._release(session)  # its process lives, and has the trainer's pipes
                    self._close(session)
            except (Gone, OSError):  # no descriptor may be free to answer with
                self._close(session)

        return receive_one

    def _obey(self, session: ConnectedSession, message: Message, streams: list[int]) -> bool:
        """Do what a session asks for.  False: no session of ours says this."""
        if isinstance(message, StartTrainer):
            if len(streams) != STREAMS or session.folders or not is_sound(session, message):
                return False
            session.folders = message.folders
            self.places.update(map(os.path.dirname, message.folders))
            if message.key and self.kept.give(session, message.key, message.folders):
                close(streams)
                return True
            self.templates.start(WantedTrainer(session, message, streams, time.monotonic()))
            return True
        if isinstance(message, Keep):
            if len(streams) != STREAMS or session.trainer is None or session.keeping is not None:
                return False
            session.keeping = Keeping(message, streams)
            return True
        if streams:
            return False
        if isinstance(message, Kill):
            self._release(session)
            self._kill_trainer(session)
        elif isinstance(message, Prepare) and message.engine in ENGINES:
            self.templates.of(message.engine)
        elif isinstance(message, Recall):
            if session.folders or session.trainer is not None:
                return False
            if not self.kept.recall(session, message.key):
                self._tell(session, NotStarted("none is kept"))
        elif isinstance(message, Dismiss):
            self.kept.end_all()
        elif isinstance(message, Ask):
            self._tell(session, self._report())
        else:
            return False
        return True

    def _tell(self, session: ConnectedSession, message: Welcome | Started | NotStarted | Ended | Report) -> None:
        if session.open:
            with contextlib.suppress(Gone):  # its end of the connection will say so
                send(session.connection, message)

    def _close(self, session: ConnectedSession) -> None:
        if not session.open:
            return
        session.open = False
        self.selector.unregister(session.connection)
        session.connection.close()
        self.sessions.remove(session)
        if self.kept.keep(session):
            return
        self._kill_trainer(session)
        if session.recalled:  # the session does not know these folders
            with contextlib.suppress(OSError):
                remove_aside(session.folders)
        elif session.folders:
            self.left.append(Leftover(session, time.monotonic()))

    def _kill_trainer(self, session: ConnectedSession) -> None:
        if session.trainer is not None:  # not waited for yet, so no other process can have the number
            kill(session.trainer)

    def _release(self, session: ConnectedSession) -> None:
        """The trainer of a session will not be kept."""
        if session.keeping is not None:
            close(session.keeping.streams)
            session.keeping = None

    def _report(self) -> Report:
        trainers = sum(session.trainer is not None for session in self.sessions)
        installed = [engine for engine in ENGINES.names() if is_installed(ENGINES[engine])]
        return Report(installed, trainers, self.templates.report(), len(self.kept))

    # -- trainers ------------------------------------------------------------------------------------

    def _start_interpreter(self, wanted: WantedTrainer) -> None:
        """A new Python that imports the framework itself."""
        home = wanted.order.folders[0]
        gpu = ["--gpu"] if wanted.order.gpu else []
        command = [sys.executable, "-I", "-B", str(HERE / "trainer_main.py"), *gpu, *wanted.order.confined]
        try:
            pid = spawned(command, wanted.streams, {"HOME": home, "TMPDIR": home}, home)
        except OSError as error:
            close(wanted.streams)
            self._tell(wanted.session, NotStarted(str(error)))
            return
        self.ended.pop(pid, None)  # that was another process
        self._started(wanted, Started(pid, template=False))

    def _started(self, wanted: WantedTrainer, started: Started) -> None:
        close(wanted.streams)
        session = wanted.session
        session.trainer = started.pid
        self._tell(session, started)
        if started.pid in self.ended:
            self._trainer_ended(session, self.ended.pop(started.pid))
        elif not session.open:
            kill(started.pid)

    def _trainer_ended(self, session: ConnectedSession, status: int) -> None:
        session.trainer = None
        self._release(session)
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
                if self.kept.has_ended(pid):
                    continue
                # Perhaps a fork of which its template has not told yet. What is kept longer could be taken for the end
                # of a later process with the same number.
                if any(template.wanted for template in self.templates.living.values()):
                    self.ended[pid] = code
                else:
                    self.ended.clear()
            for template in list(self.templates.living.values()):
                if template.pid == pid:
                    self.templates.give_up(template, f"its process ended with status {code}")

    def _sweep(self) -> bool:
        """Remove the folders of sessions whose process has ended. Whether one may still be ending."""
        for left in list(self.left):
            ended = not lives(left.session.pid, left.session.born)
            if ended:
                try:
                    remove_aside(left.session.folders)
                except OSError:  # no process can be made now
                    continue
            if ended or time.monotonic() - left.since > ENDS_WITHIN:
                self.left.remove(left)
        return bool(self.left)


def has_room() -> bool:
    """Whether this process can open what starting a trainer takes: its streams, and the channel of a template."""
    opened: list[int] = []
    with contextlib.suppress(OSError):
        while len(opened) < 2 * STREAMS:
            opened.append(os.dup(0))
    close(opened)
    return len(opened) == 2 * STREAMS


def is_sound(session: ConnectedSession, order: StartTrainer) -> bool:
    """Whether the folders are scratch folders of the session: they are removed with it."""
    return (
        order.engine in ENGINES
        and bool(order.folders)
        and all(
            os.path.isabs(folder) and os.path.isdir(folder) and os.path.basename(folder).startswith(f"{session.pid}-")
            for folder in order.folders
        )
    )


def remove_aside(folders: list[str]) -> None:
    """Remove folders in another process: it can take long, and nobody must wait for it."""
    if os.fork() == 0:
        try:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)


def inherit_orphans() -> None:
    """Make this process the parent of its children's children when their parents end; forks do not inherit this."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))


def allow_more_descriptors() -> None:
    """A session that predicts takes four descriptors of this process; servers often start with a limit of 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MOST_DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a session of Greenplum's starts this process with signals blocked
    folder, postmaster, keep = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    nursery = Nursery(folder, postmaster, keep)
    nursery.listen()
    if os.fork():
        os._exit(0)  # sessions can connect now
    inherit_orphans()
    allow_more_descriptors()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for target, stream in enumerate((nothing, nothing, log)):
        os.dup2(stream, target)
    close([nothing, log])
    with contextlib.suppress(OSError):  # a nursery that was killed left them, and their server is gone for good
        remove_aside([str(one) for one in shared_memory.ownerless(os.getuid())])
    try:
        nursery.serve()
    except Exception:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        with contextlib.suppress(Exception):
            nursery.end_everything()
    finally:
        os._exit(0)  # whoever inherits this process must not take it for a crash


if __name__ == "__main__":
    main()
