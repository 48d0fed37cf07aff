"""The session's end of the nursery, the process of this server that starts trainers (cerebro_db/nn/nursery.py)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from cerebro_db.core.engines import default_among
from cerebro_db.core.errors import CerebroError, TrainerFailed, Unsupported
from cerebro_db.core.records import dataclass
from cerebro_db.core.trainers.nursery_messages import (
    BUSY,
    RESTS,
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
    Report,
    Started,
    StartTrainer,
    Welcome,
    receive,
    send,
)

from ..database import listening
from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY, wait_for
from . import nursery_place
from .installation import INSTALLATION, cannot_start, installation, installer, last_lines
from .scratch import has_ended, process_start

ANSWERS_WITHIN = 2.0  # seconds; a nursery that takes longer hangs, and gets a successor
BEGINS_WITHIN = 30.0  # seconds; as ``ANSWERS_WITHIN``, for a nursery that was just started
PREPARES_WITHIN = 2.0  # seconds that are spent on preparing
DIES_WITHIN = 2.0  # seconds that a session waits for the end of a trainer that it has killed
ATTEMPTS = 3  # to connect: a nursery may be ending just now


class Lost(Exception):
    """A trainer's start was ended from outside, perhaps with the nursery: it can be repeated."""


class Child:
    """A trainer's process, seen from its session: a child of the nursery."""

    def __init__(self, order: StartTrainer, log: Path, listen: Listen) -> None:
        self._listen = listen
        self._connection = connected(listen)
        self._started: Started | None = None
        self._born = ""  # when the process started
        self._why_not: str | None = None
        self._status: int | None = None
        self._over = False  # nothing more will come from the nursery
        self._answered = time.monotonic()  # when the nursery was last seen to answer
        self.kept = ""  # what an earlier session has said of the trainer that it has left for this one
        self._mark = -1  # the file that says whether the trainer rests
        theirs, self.orders = os.pipe()
        self.answers, theirs_too = os.pipe()
        try:
            with open(log, "wb") as errors:
                send(self._connection, order, [theirs, theirs_too, errors.fileno()])
        except Gone as error:
            self.close()
            raise Lost(str(error)) from error
        except OSError as error:
            self.close()
            raise cannot_start(installation()["trainer_python"], error) from error
        finally:
            os.close(theirs)
            os.close(theirs_too)
        os.set_blocking(self.orders, False)

    @property
    def pid(self) -> int:
        """Waits until the process is there, which takes as long as its template imports the framework."""
        while self._started is None and not self._over:
            self._hear(LISTEN_EVERY)
            self._listen()
            self.require_nursery()
        if self._why_not is not None:
            raise TrainerFailed(f"the trainer was not started: {self._why_not}")
        if self._started is None:
            raise Lost("the nursery ended")
        return self._started.pid

    def require_nursery(self) -> None:
        """While a trainer is being started: Lost if the nursery no longer answers, as when somebody has stopped it."""
        if self._started is None and time.monotonic() - self._answered > ANSWERS_WITHIN:
            connection = greeted(nursery_folder(), self._listen)
            if connection is None and self.known_pid is None:
                raise Lost("the nursery does not answer")
            if connection is not None:
                connection.close()
            self._answered = time.monotonic()

    def keep(self, order: Keep, recipe: str) -> None:
        """Have the nursery keep the trainer after this session, if its mark says then that it rests.

        ``recipe``: for sessions that ask by ``Recall``.
        """
        mark = os.memfd_create("cerebro-trainer", os.MFD_CLOEXEC)
        try:
            left = memoryview(BUSY + recipe.encode())
            while left:
                left = left[os.write(mark, left) :]
            with contextlib.suppress(Gone):  # later orders will find out
                send(self._connection, order, [self.orders, self.answers, mark])
        except BaseException:
            os.close(mark)
            raise
        self._mark = mark

    @property
    def may_be_kept(self) -> bool:
        return self._mark >= 0

    def mark(self, *, rests: bool) -> None:
        if self._mark >= 0:
            os.pwrite(self._mark, RESTS if rests else BUSY, 0)

    @property
    def known_pid(self) -> int | None:
        self._hear(0)
        return None if self._started is None else self._started.pid

    @property
    def alive(self) -> bool:
        self._hear(0)
        return not self._over

    def end(self, within: float) -> tuple[int | None, str | None]:
        """The exit status, if it is known within so many seconds, and why there never was a process."""
        deadline = time.monotonic() + within
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._hear(left)
        return self._status, self._why_not

    @listening.paused()
    def kill(self) -> None:
        if not self._over:
            with contextlib.suppress(Gone):
                send(self._connection, Kill())
                if self.known_pid is not None:
                    self.end(DIES_WITHIN)
        if self._started is not None and not self._over:  # the nursery is stopped, and so the number is not reused
            self._kill_it(self._started.pid)
        self.close()

    def _kill_it(self, pid: int) -> None:
        if self._born and not has_ended(pid, self._born):
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(pid, signal.SIGKILL)

    @listening.paused()
    def close(self) -> None:
        self._over = True
        self._connection.close()
        for name in ("orders", "answers", "_mark"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _hear(self, seconds: float) -> None:
        """What the nursery has said, for which this waits."""
        while not self._over and wait_for([self._connection.fileno()], select.POLLIN, seconds):
            seconds = 0
            try:
                message, streams = receive(self._connection)
            except Gone:
                self._over = True
                return
            if isinstance(message, Started):
                self._started, self._born = message, process_start(message.pid)
                if len(streams) == STREAMS:
                    self._take_over(message.kept, streams)
            elif isinstance(message, NotStarted):
                self._why_not, self._over = message.why, True
            elif isinstance(message, Ended):
                self._status, self._over = message.status, True

    @listening.paused()
    def _take_over(self, kept: str, streams: list[int]) -> None:
        """The trainer has pipes already.  What was written to the new ones is lost with them."""
        for own in (self.orders, self.answers):
            os.close(own)
        self.orders, self.answers, self._mark = streams
        self.kept = kept


def prepare(engine: str | None, listen: Listen) -> None:
    """Have the nursery import an engine (None: the default engine), for a trainer that will be wanted soon.

    Returns without waiting for the import, and reports no error: the call that starts the trainer reports it.
    """
    until = time.monotonic() + PREPARES_WITHIN

    def hurry() -> None:
        listen()
        if time.monotonic() > until:
            raise TrainerFailed("the process that starts trainers does not answer")

    with (
        contextlib.suppress(CerebroError, Gone, OSError, KeyError, TypeError, AttributeError),
        contextlib.closing(connected(hurry)) as connection,
    ):
        send(connection, Prepare(engine or default_engine(hurry)))


def dismiss(listen: Listen) -> bool:
    """End the trainers that are kept for later sessions; whether there were any."""
    with contextlib.suppress(CerebroError, Gone, OSError):
        connection = greeted(nursery_folder(), listen)
        if connection is not None:
            with connection:
                send(connection, Ask())
                found = answer(connection, listen, time.monotonic() + ANSWERS_WITHIN)
                if isinstance(found, Report) and found.kept:
                    send(connection, Dismiss())
                    return True
    return False


def report(listen: Listen) -> Report:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with contextlib.closing(connected(listen)) as connection:
                send(connection, Ask())
                message = answer(connection, listen, time.monotonic() + ANSWERS_WITHIN)
            break
        except Gone as error:
            if attempt == ATTEMPTS:
                raise TrainerFailed("the process that starts trainers does not answer", detail=str(error)) from error
    assert isinstance(message, Report)
    return message


_defaults: dict[str, str] = {}  # version of the environment -> its default engine


def default_engine(listen: Listen) -> str:
    """The engine of a call that names none.  Asks the nursery once per session, and again after an upgrade."""
    environment = version()
    if environment not in _defaults:
        engine = default_among(report(listen).engines)
        if engine is None:
            raise Unsupported(
                "no engine is installed where the trainers are.",
                hint=f"{installer()} makes the trainer's environment; make install TRAINER_PYTHON=… names another.",
            )
        _defaults[environment] = engine
    return _defaults[environment]


# -- the connection ------------------------------------------------------------------------------------------


def nursery_folder() -> Path:
    return Path(os.getcwd()) / nursery_place.folder(version())


def connected(listen: Listen) -> socket.socket:
    """A connection to the nursery, which is started if it does not run.

    A nursery that does not answer gets a successor.  It keeps the trainers that it has, and ends when they have ended.
    """
    folder = nursery_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(ATTEMPTS):
        connection = greeted(folder, listen)
        if connection is None:
            with locked(folder / "lock", listen):
                connection = greeted(folder, listen)
                if connection is None:
                    from . import nursery_process  # only now: what it imports takes a new session 2 ms

                    nursery_process.start(folder, listen)
                    connection = greeted(folder, listen, BEGINS_WITHIN)
        if connection is not None:
            return connection
    raise TrainerFailed(
        "the process that starts trainers does not answer",
        detail=last_lines(folder / "log"),
        hint=f"Its log is {folder / 'log'}.",
    )


def greeted(folder: Path, listen: Listen, within: float | None = None) -> socket.socket | None:
    """A connection that the nursery has accepted; None if there is no nursery, or none that answers."""
    deadline = time.monotonic() + (ANSWERS_WITHIN if within is None else within)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connect(connection, folder / "socket", listen, deadline)
        if isinstance(answer(connection, listen, deadline), Welcome):
            return connection
    except (OSError, Gone):
        pass
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def connect(connection: socket.socket, path: Path, listen: Listen, deadline: float) -> None:
    """Without blocking, because a nursery that is stopped may have as many connections as can wait."""
    connection.setblocking(False)
    while True:
        try:
            # The path of a socket may have 107 bytes only. The process works in the data folder.
            connection.connect(os.path.relpath(path))
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        listen()
        time.sleep(LISTEN_EVERY / 10)
    connection.setblocking(True)


def answer(connection: socket.socket, listen: Listen, deadline: float) -> Message:
    while not wait_for([connection.fileno()], select.POLLIN, LISTEN_EVERY):
        listen()
        if time.monotonic() > deadline:
            raise Gone("no answer")
    return receive(connection)[0]


@contextlib.contextmanager
def locked(path: Path, listen: Listen) -> Iterator[None]:
    """Holds the lock that one session at a time may have; the end of a session's process sets it free."""
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                listen()
                time.sleep(LISTEN_EVERY / 10)
        yield


# -- the process (nursery_process.py starts it) --------------------------------------------------------------


def version() -> str:
    """The version of the nursery; looks at its sources only."""
    global _version
    if _version is None or _version.seen != nursery_place.looks(_version.paths):
        paths = nursery_place.sources_of(str(INSTALLATION), installation()["trainer_python"])
        seen = nursery_place.looks(paths)
        _version = _Version(paths, seen, nursery_place.version(seen))
    return _version.name


@dataclass(frozen=True)
class _Version:
    paths: list[str]
    seen: list[str]  # how the files of these paths looked
    name: str


_version: _Version | None = None  # each call of a session asks for it
