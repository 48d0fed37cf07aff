"""The nursery's templates: which there are, what they were asked for, and when they end."""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cerebro_db.core.trainers.nursery_messages import (
    Gone,
    Keep,
    NotStarted,
    Ready,
    Started,
    StartTrainer,
    receive,
    send,
)
from cerebro_db.nn.processes import kill, memory, spawned

LOADS_WITHIN = 300.0  # seconds; a template that takes longer to import its engine hangs
FORKS_WITHIN = 20.0  # seconds; a template that takes longer to fork hangs
NOT_AGAIN = 60.0  # seconds until a template that failed is tried again
PROGRAM = Path(__file__).resolve().parent / "template.py"


@dataclass
class Keeping:
    """What the session of a trainer has said so that another one can have the trainer."""

    order: Keep
    streams: list[int]  # the session's ends of the trainer's pipes, and the mark

    @property
    def mark(self) -> int:
        return self.streams[2]


@dataclass
class ConnectedSession:
    """The connection of a database session, which may have one trainer."""

    connection: socket.socket
    pid: int  # of the session's process
    born: str
    folders: list[str] = field(default_factory=list)
    trainer: int | None = None
    keeping: Keeping | None = None
    open: bool = True
    recalled: bool = False  # its trainer was kept, and the nursery has named the folders


@dataclass
class WantedTrainer:
    """A trainer that a template was asked for."""

    session: ConnectedSession
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
    wanted: list[WantedTrainer] = field(default_factory=list)

    def hangs(self, now: float) -> bool:
        if not self.ready:
            return now - self.since > LOADS_WITHIN
        return bool(self.wanted) and now - self.wanted[0].since > FORKS_WITHIN


class Templates:
    """At most one for each engine."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        folder: Path,
        keep: float,
        started: Callable[[WantedTrainer, Started], None],
        start_otherwise: Callable[[WantedTrainer], None],
    ) -> None:
        self._selector, self._folder, self._keep = selector, folder, keep
        self._started, self._start_otherwise = started, start_otherwise
        self.living: dict[str, Template] = {}
        self.failed: dict[str, tuple[float, str]] = {}  # engine -> when its template failed, and why

    def start(self, wanted: WantedTrainer) -> None:
        """Have a trainer started, by a template if there is one."""
        template = self.of(wanted.order.engine)
        if template is not None:
            try:
                send(template.channel, wanted.order, wanted.streams)
                template.wanted.append(wanted)
                return
            except Gone:
                self.give_up(template, "its process ended")
        self._start_otherwise(wanted)

    def report(self) -> dict[str, str]:
        """What the template of each engine does, in words."""
        told = {engine: why for engine, (_, why) in self.failed.items()}
        for engine, template in self.living.items():
            told[engine] = f"ready, {memory(template.pid) >> 20} MB" if template.ready else "imports its engine"
        return told

    def of(self, engine: str) -> Template | None:
        """The template of an engine; None if there is none to be had."""
        now = time.monotonic()
        template = self.living.get(engine)
        if template is None:
            since, _ = self.failed.get(engine, (-NOT_AGAIN, ""))
            if not self._keep or now - since < NOT_AGAIN:
                return None
            template = self._new(engine, now)
        if template is not None:
            template.used = now
        return template

    def _new(self, engine: str, now: float) -> Template | None:
        try:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # no descriptor is free
            self.failed[engine] = (now, str(error))
            return None
        command = [sys.executable, "-I", "-B", str(PROGRAM), engine]
        try:
            pid = spawned(command, [its.fileno(), 1, 2], {"HOME": str(self._folder), "TMPDIR": str(self._folder)}, "/")
        except OSError as error:
            self.failed[engine] = (now, str(error))
            ours.close()
            return None
        finally:
            its.close()
        ours.setblocking(False)
        template = self.living[engine] = Template(engine, pid, ours, now, now)
        self._selector.register(ours, selectors.EVENT_READ, self._from(template))
        return template

    def _from(self, template: Template) -> Callable[[], None]:
        def receive_one() -> None:
            try:
                message, _ = receive(template.channel)
            except Gone:
                self.give_up(template, "its process ended")
                return
            if isinstance(message, Ready):
                template.ready = True
                self.failed.pop(template.engine, None)
                now = time.monotonic()
                for wanted in template.wanted:
                    wanted.since = now
            elif isinstance(message, Started):
                template.used = time.monotonic()
                self._is_there(template, message)
            elif isinstance(message, NotStarted):
                self.give_up(template, message.why)

        return receive_one

    def _is_there(self, template: Template, started: Started) -> None:
        """A fork is a trainer.  Forks before it may have ended after they had got an order."""
        for place, wanted in enumerate(template.wanted):
            if wanted.order.folders[0] == started.home:
                del template.wanted[place]
                self._started(wanted, started)
                return

    def give_up(self, template: Template, why: str) -> None:
        """The trainers that it was asked for start in another way."""
        if self.living.get(template.engine) is not template:
            return
        del self.living[template.engine]
        self.failed[template.engine] = (time.monotonic(), why)
        self._selector.unregister(template.channel)
        with contextlib.suppress(OSError, Gone):  # until there is no message
            template.channel.shutdown(socket.SHUT_RD)  # a fork that has not told by now will not be a trainer
            while True:
                message, _ = receive(template.channel)
                if isinstance(message, Started):
                    self._is_there(template, message)
        template.channel.close()
        kill(template.pid)
        for wanted in template.wanted:
            self._start_otherwise(wanted)
        with contextlib.suppress(OSError):  # the disk may be full
            print(f"nursery: no template of {template.engine}: {why}", file=sys.stderr, flush=True)

    def look_after(self, trainers: bool) -> None:
        now = time.monotonic()
        for template in list(self.living.values()):
            if template.hangs(now):
                self.give_up(template, "it hung and was ended")
            elif trainers or template.wanted or not template.ready:
                template.used = now
            elif now - template.used > self._keep:
                del self.living[template.engine]
                self._selector.unregister(template.channel)
                template.channel.close()
                kill(template.pid)
