"""The trainers that the nursery keeps after their sessions have ended, for the next session that wants the same.

A trainer is kept if it has predicted with one model only, for one role, and rests (cerebro_plpy/segment/keeping.py).
The nursery knows neither models nor roles: it gives a trainer to a session that asks with the very key that the first
session gave.  A kept trainer has no session, so its folders get names of the nursery's own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro_db.core import scratch_names
from cerebro_db.core.available_memory import available_memory
from cerebro_db.core.nursery import Gone, Started, send
from cerebro_db.nn.processes import born, close, kill, memory
from cerebro_db.nn.templates import ConnectedSession, Keeping

RESTS = b"\1"  # what the mark of a trainer says while it waits for the first order of a next call
BUSY = b"\0"
ENDS_SOON = 2.0  # seconds before the end of its rest, in which no session gets it
LEAST_MEMORY = 1 << 30  # bytes available on the machine or in the container; below, kept trainers end


@dataclass
class KeptTrainer:
    pid: int
    keeping: Keeping
    folders: list[str]
    since: float = field(default_factory=time.monotonic)

    @property
    def ends(self) -> float:
        return self.since + self.keeping.order.seconds


class KeptTrainers:
    """Those that no session has at present, the last one at the end."""

    def __init__(self, remove: Callable[[list[str]], None]) -> None:
        self._remove = remove
        self._kept: list[KeptTrainer] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def pids(self) -> list[int]:
        return [kept.pid for kept in self._kept]

    def memory(self) -> int:
        return sum(memory(kept.pid) for kept in self._kept)

    def keep(self, session: ConnectedSession) -> bool:
        """Keep the trainer of a session that has ended.  False: it cannot be kept."""
        keeping, session.keeping = session.keeping, None
        if keeping is None:
            return False
        pid, most = session.trainer, keeping.order.most
        if pid is None or most < 1 or not rests(keeping) or not self._renamed(session):
            close(keeping.streams)
            return False
        session.trainer = None
        self._kept.append(KeptTrainer(pid, keeping, session.folders))
        session.folders = []
        for one in [one for one in self._kept if one.keeping.order.owner == keeping.order.owner][:-most]:
            self.end(one)
        return True

    def _renamed(self, session: ConnectedSession) -> bool:
        """Give the folders names of this process: any session removes the folders of a session that has ended."""
        self._number += 1
        for place, folder in enumerate(session.folders):
            kept = os.path.join(
                os.path.dirname(folder), scratch_names.kept_folder(os.getpid(), born(os.getpid()), self._number)
            )
            try:
                os.rename(folder, kept)
            except OSError:
                return False
            session.folders[place] = kept
        return True

    def give(self, session: ConnectedSession, key: str, names: list[str]) -> bool:
        """Give a session a trainer that was kept with this key, in folders of these names.  False: there is none."""
        for kept in self._waiting():
            order = kept.keeping.order
            if order.key == key and self._moves(kept, names):
                self._hand_over(session, kept, order.about)
                return True
        return False

    def recall(self, session: ConnectedSession, key: str) -> bool:
        """As ``give``, for a session that has a recipe followed."""
        for kept in self._waiting():
            order = kept.keeping.order
            if not key or order.recall != key:
                continue
            self._number += 1  # the session may make folders of its own
            name = f"{scratch_names.folder(session.pid, session.born)}-{self._number}"
            if self._moves(kept, [os.path.join(os.path.dirname(folder), name) for folder in kept.folders]):
                session.recalled = True
                self._hand_over(session, kept, order.about)
                return True
        return False

    def _waiting(self) -> list[KeptTrainer]:
        """Those that can be given away, the last one first."""
        now = time.monotonic()
        return [kept for kept in reversed(self._kept) if now < kept.ends - ENDS_SOON]

    def _moves(self, kept: KeptTrainer, names: list[str]) -> bool:
        """Give its folders these names.  One whose folders cannot be renamed ends."""
        if moved(kept.folders, names):
            kept.folders = names
            return True
        self.end(kept)
        return False

    def _hand_over(self, session: ConnectedSession, kept: KeptTrainer, told: str) -> None:
        self._kept.remove(kept)
        os.pwrite(kept.keeping.mark, BUSY, 0)  # until its new session says otherwise
        session.trainer, session.keeping, session.folders = kept.pid, kept.keeping, kept.folders
        with contextlib.suppress(Gone):  # the end of the connection will say so
            send(session.connection, Started(kept.pid, home=kept.folders[0], kept=told), kept.keeping.streams)

    def has_ended(self, pid: int) -> bool:
        """Whether a process that has ended was one of these."""
        for kept in self._kept:
            if kept.pid == pid:
                self._forget(kept)
                return True
        return False

    def end(self, kept: KeptTrainer) -> None:
        kill(kept.pid)
        self._forget(kept)

    def _forget(self, kept: KeptTrainer) -> None:
        self._kept.remove(kept)
        close(kept.keeping.streams)
        with contextlib.suppress(OSError):  # no process can be made now: the folders' names say whose they were
            self._remove(kept.folders)

    def look_after(self) -> None:
        """End those whose rest is over, and the oldest one if memory runs out."""
        now = time.monotonic()
        for kept in list(self._kept):
            if now > kept.ends + ENDS_SOON:
                self.end(kept)
        available = available_memory() if self._kept else None
        if available is not None and available < LEAST_MEMORY:
            self.end(self._kept[0])

    def end_all(self) -> None:
        for kept in list(self._kept):
            self.end(kept)


def rests(keeping: Keeping) -> bool:
    with contextlib.suppress(OSError):
        return os.pread(keeping.mark, 1, 0) == RESTS
    return False


def moved(folders: Sequence[str], names: Sequence[str]) -> bool:
    """Rename folders to those of a session, in which there is nothing but the log of the trainer that it wanted."""
    if list(map(os.path.dirname, folders)) != list(map(os.path.dirname, names)):
        return False
    try:
        for folder, name in zip(folders, names):
            for log in Path(name).glob("*.log"):
                log.unlink()
            os.rename(folder, name)  # fails if there is more
    except OSError:
        return False
    return True
