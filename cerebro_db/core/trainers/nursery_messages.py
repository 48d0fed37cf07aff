"""What database sessions, the nursery and its templates say to each other.

The nursery starts trainers and is their parent (cerebro_db/nn/nursery.py).  A template has imported one engine, and
forks when the nursery asks it to (cerebro_db/nn/template.py).  A message is one packet of a Unix socket: a JSON list of
the message's name and its fields.  The three standard streams of a trainer travel with ``StartTrainer``.
The session's ends of the pipes and the trainer's mark travel with ``Keep``, and with ``Started`` for a kept trainer.
Whatever else arrives (other bytes, other fields, more or fewer descriptors than fit) ends the connection.
"""

from __future__ import annotations

import array
import json
import os
import socket
from dataclasses import asdict, field
from typing import Union, cast

from .. import codec
from ..errors import InvalidArgument
from ..records import dataclass

LARGEST = 1 << 16  # bytes of a packet
STREAMS = 3  # standard input, output and error
INT = array.array("i").itemsize
# The first byte of a kept trainer's mark: whether it waits for the first order of a next call.
RESTS, BUSY = b"\1", b"\0"
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)


@dataclass(frozen=True)
class Welcome:
    """Nursery to session: the connection is accepted."""

    pid: int  # process id of the nursery


@dataclass(frozen=True)
class StartTrainer:
    """Session to nursery to template: start a trainer with these streams."""

    engine: str  # tensorflow, jax or torch
    folders: list[str]  # the scratch folders of the session; the first one is the trainer's home
    confined: list[str]  # a folder that has to be closed to it, then those in which it may write; none: it is free
    gpu: bool = False  # whether it may use what a GPU's driver needs
    key: str = ""  # a kept trainer with this key may be used instead; empty: start a new one


@dataclass(frozen=True)
class Started:
    """Template to nursery to session: the trainer runs."""

    pid: int  # process id of the trainer
    template: bool = True  # whether it is a fork of a template
    home: str = ""  # the first folder of the order that it has got
    kept: str = ""  # ``about`` of a kept trainer, whose pipes and mark come with this message; empty: a new trainer


@dataclass(frozen=True)
class NotStarted:
    """Nursery to session, template to nursery: there is no trainer."""

    why: str  # in words


@dataclass(frozen=True)
class Ready:
    """Template to nursery: the engine is imported."""


@dataclass(frozen=True)
class Ended:
    """Nursery to session: the trainer has ended."""

    status: int  # its exit status; -n: it died of signal n


@dataclass(frozen=True)
class Prepare:
    """Session to nursery: a trainer of this engine will be wanted soon."""

    engine: str  # tensorflow, jax or torch


@dataclass(frozen=True)
class Keep:
    """Session to nursery: after the session, keep its trainer for another one that asks with the same key.

    The session's ends of the trainer's pipes come with this message, and the trainer's mark: a file whose first byte
    is 1 while the trainer rests.  The rest of the file is a recipe for sessions that ask by ``Recall``.
    """

    key: str
    owner: int  # number of the role for which the trainer works
    most: int  # maximum number of kept trainers of this role
    seconds: int  # for which the trainer rests
    about: str  # the trainer's answer to StartEngine, as JSON, for the next session
    recall: str = ""  # key of the recipe, for sessions that have not read the model; empty: no recipe


@dataclass(frozen=True)
class Recall:
    """Session to nursery: have a kept trainer; the answer is ``Started`` or ``NotStarted``."""

    key: str


@dataclass(frozen=True)
class Dismiss:
    """Session to nursery: end all trainers that are kept; others need their memory."""


@dataclass(frozen=True)
class Kill:
    """Session to nursery: end the trainer.  (The end of the connection says the same.)"""


@dataclass(frozen=True)
class Ask:
    """Session to nursery: how are you?"""


@dataclass(frozen=True)
class Report:
    """Nursery to session: the answer to ``Ask``."""

    engines: list[str]  # those whose package is installed
    trainers: int  # number of trainers that have a session
    templates: dict[str, str] = field(default_factory=dict)  # engine -> what its template does, in words
    kept: int = 0  # number of trainers that are kept without a session


Message = Union[
    Welcome, StartTrainer, Started, NotStarted, Ready, Ended, Prepare, Keep, Recall, Dismiss, Kill, Ask, Report
]
MESSAGES = {
    each.__name__: each
    for each in (
        Welcome,
        StartTrainer,
        Started,
        NotStarted,
        Ready,
        Ended,
        Prepare,
        Keep,
        Recall,
        Dismiss,
        Kill,
        Ask,
        Report,
    )
}


class Gone(Exception):
    """The other end has closed the connection, or sent what is no message."""


def encoded(message: Message) -> bytes:
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def send(connection: socket.socket, message: Message, streams: list[int] | None = None) -> None:
    packet = encoded(message)
    try:
        if streams:
            socket.send_fds(connection, [packet], streams)
        else:
            connection.send(packet)
    except OSError as error:
        raise Gone(str(error)) from error


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """A message, and the descriptors that came with it.  With Gone, no descriptor stays open."""
    try:
        # socket.recv_fds() ignores its flags: programs that this process starts would inherit the streams.
        packet, ancillary, flags, _ = connection.recvmsg(LARGEST, socket.CMSG_SPACE(STREAMS * INT), CLOSE_ON_EXEC)
    except OSError as error:
        raise Gone(str(error)) from error
    streams = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            streams.frombytes(payload[: len(payload) - len(payload) % INT])
    try:
        if flags & socket.MSG_CTRUNC:
            raise Gone("descriptors were lost: there were too many, or none is free here")
        return _decoded(packet), list(streams)
    except Gone:
        for stream in streams:
            os.close(stream)
        raise


def _decoded(packet: bytes) -> Message:
    if not packet:
        raise Gone("the connection was closed")
    try:
        name, fields = json.loads(packet)
        message = cast(Message, codec.decode(MESSAGES[name], fields, name))
        if len(encoded(message)) > LARGEST:  # the nursery passes orders on to templates
            raise ValueError("too long")
    except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
        raise Gone(f"not a message: {packet[:80]!r}") from error
    return message
