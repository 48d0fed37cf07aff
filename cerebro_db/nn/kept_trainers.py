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

from cerebro_db.core.trainers import scratch_names
from cerebro_db.core.trainers.available_memory import available_memory
from cerebro_db.core.trainers.nursery_messages import BUSY, RESTS, Gone, Started, send
from cerebro_db.nn.processes import born, close, kill
from cerebro_db.nn.templates import ConnectedSession, Keeping

GRACE = 2.0  # seconds after its rest, in which a trainer ends by itself
LOOKS_EVERY = 1.0  # seconds
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
        self._next_look = 0.0

    def __len__(self) -> int:
        return len(self._kept)

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
            if order.key == key and are_unused(names) and self._moves(kept, names):
                self._hand_over(session, kept)
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
                self._hand_over(session, kept)
                return True
        return False

    def _waiting(self) -> list[KeptTrainer]:
        """The last one first.  Its rest may be about to end: then its new session starts another trainer."""
        return list(reversed(self._kept))

    def _moves(self, kept: KeptTrainer, names: list[str]) -> bool:
        """Give its folders these names.  One whose folders cannot be renamed ends."""
        if moved(kept.folders, names):
            kept.folders = names
            return True
        self.end(kept)
        return False

    def _hand_over(self, session: ConnectedSession, kept: KeptTrainer) -> None:
        self._kept.remove(kept)
        os.pwrite(kept.keeping.mark, BUSY, 0)  # until its new session says otherwise
        session.trainer, session.keeping, session.folders = kept.pid, kept.keeping, kept.folders
        with contextlib.suppress(Gone):  # the end of the connection will say so
            told = Started(kept.pid, home=kept.folders[0], kept=kept.keeping.order.about)
            send(session.connection, told, kept.keeping.streams)

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
        """Once per second: end those whose rest is over, and the oldest one if memory runs out."""
        now = time.monotonic()
        if not self._kept or now < self._next_look:
            return
        self._next_look = now + LOOKS_EVERY  # what has just ended gives its memory back meanwhile
        for kept in list(self._kept):
            if now > kept.ends + GRACE:
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


def are_unused(names: Sequence[str]) -> bool:
    """Whether a session's folders have nothing but the log of the trainer that it wants."""
    try:
        return all(file.endswith(".log") for name in names for file in os.listdir(name))
    except OSError:
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
