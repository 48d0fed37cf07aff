"""The frozen parts of states that a segment has as files, so that they come once and not with each state.

A file is named after the number of the user and the checksum of its bytes.  Trainers write it beside the first state
that has the part; sessions of one host share it by links.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cerebro_db.core.errors import CorruptState, StateLost
from cerebro_db.core.protocol import STATE_ROW, FrozenPart

from ..platform import machine

KEPT_BYTES = 512 << 20  # of a session, besides the parts that its last two visits need
KEPT_SHARE = 16  # or this part of the memory that is available
HASHED_AT_ONCE = 4 << 20  # bytes
BY_HAND = "Its table in the schema cerebro_state was changed, emptied or dropped by hand."


class FrozenParts:
    """The files with frozen parts in the folder of a session."""

    def __init__(self, folder: Path, user: Callable[[], int]) -> None:
        self._folder, self._user = folder, user
        self._kept: dict[Path, tuple[int, int]] = {}  # bytes, and the visit that used it last; oldest use first

    def path(self, part: FrozenPart, visit: int, received: Path | None = None, left: Path | None = None) -> Path:
        """The file with a part: the one that is here, what was received, or that of another session of this host.

        ``left``: the folder of the other session.
        """
        mine = self._folder / file_name(self._user(), part.sha256)
        if not _has_size(mine, part):
            if received is not None:
                _require_sound(received, part)
                os.rename(received, mine)
            elif left is not None:
                with contextlib.suppress(OSError):  # that session has ended, or dropped it
                    os.link(left / mine.name, mine)
            if not _has_size(mine, part):
                raise CorruptState("the frozen part of the model's state is not there", hint=BY_HAND)
        elif received is not None:
            received.unlink(missing_ok=True)
        elif left is not None:
            _have_in_common(mine, left / mine.name)
        self._use(mine, part, visit)
        return mine

    def keep(self, parts: Iterable[FrozenPart], visit: int) -> None:
        """A visit has left states with these parts, whose files its trainer has written.  Older ones may have to go."""
        for part in parts:
            self._use(self._folder / file_name(self._user(), part.sha256), part, visit)
        size = sum(size for size, _ in self._kept.values())
        most = max(KEPT_BYTES, (machine.memory_available() or 0) // KEPT_SHARE)
        for path, (its, used) in list(self._kept.items()):
            if size > most and used < visit - 1:
                path.unlink(missing_ok=True)
                del self._kept[path]
                size -= its

    def rows(self, part: FrozenPart) -> Iterator[tuple[int, bytes]]:
        """A part in pieces, each with its start in the part."""
        path, start = self._folder / file_name(self._user(), part.sha256), 0
        if not _has_size(path, part):
            raise StateLost(f"the file with the frozen part of a state was deleted before it was stored: {path}")
        with open(path, "rb") as file:
            while piece := file.read(STATE_ROW):
                yield start, piece
                start += len(piece)

    def drop(self) -> None:
        for path in self._kept:
            path.unlink(missing_ok=True)
        self._kept.clear()

    def _use(self, path: Path, part: FrozenPart, visit: int) -> None:
        self._kept.pop(path, None)
        self._kept[path] = part.bytes, visit


def file_name(user: int, secret: str) -> str:
    """The name of the file of a state, or of a frozen part.

    The number of the user in it keeps other users from taking the file.
    """
    return f"state.out.{user}.{secret}"


def _has_size(path: Path, part: FrozenPart) -> bool:
    try:
        return path.stat().st_size == part.bytes
    except OSError:
        return False


def _have_in_common(mine: Path, other: Path) -> None:
    """Two sessions that have written the same part keep one file of it: trainers have its memory, too."""
    with contextlib.suppress(OSError):  # the other session has ended
        here, there = mine.stat(), other.stat()
        # The file that stays follows from the files: both sessions may look at the same time.
        if here.st_dev == there.st_dev and here.st_size == there.st_size and there.st_ino < here.st_ino:
            beside = mine.with_name(f"{mine.name}.other")
            beside.unlink(missing_ok=True)
            os.link(other, beside)
            os.rename(beside, mine)


def _require_sound(path: Path, part: FrozenPart) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(HASHED_AT_ONCE):
            digest.update(piece)
    if digest.hexdigest() != part.sha256:
        raise CorruptState(
            "the frozen part of the model's state does not have the checksum that it was stored with", hint=BY_HAND
        )
