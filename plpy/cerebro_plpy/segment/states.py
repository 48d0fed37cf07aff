"""The states that a segment has received for its next orders, and those that its visits have left."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.protocol import STATE_ROW, Origin, StateRef

from .scratch import require_disk, require_shared_memory

LARGEST_STATE = 1 << 40  # bytes
MOST_STATES = 4096  # of a session at once; an order needs one for each of its models


class ReceivedStates:
    """States by the names under which ``cerebro._state_in`` received them."""

    def __init__(self, folder: Path, on_disk: bool) -> None:
        self._folder = folder
        self._require_room = require_disk if on_disk else require_shared_memory
        self._paths: dict[str, Path] = {}
        self._bytes: dict[str, int] = {}  # received so far
        self._open: FileIO | None = None  # the file of the state that was received last

    def receive(self, name: str, start: int, payload: bytes) -> None:
        """Take the bytes of a state from ``start`` on."""
        if not 0 <= start <= LARGEST_STATE:
            raise InvalidArgument(f"a state cannot have bytes at {start}")
        if name not in self._paths and len(self._paths) >= MOST_STATES:
            raise InvalidArgument(f"this session has received {MOST_STATES:,} states, and no order has used them")
        path = self._paths.setdefault(name, self._folder / f"state.in.{secrets.token_hex(4)}")
        if self._open is None or self._open.name != str(path):
            self._close()
            # It stays open, because opening it for each row would take longer than all the rest.
            self._open = open(path, "wb", buffering=0, opener=without_truncating)  # noqa: SIM115
        self._require_room(self._folder, len(payload), sum(self._bytes.values()))
        self._bytes[name] = self._bytes.get(name, 0) + len(payload)
        left = memoryview(payload)
        while left:
            written = os.pwrite(self._open.fileno(), left, start)
            left, start = left[written:], start + written

    def filled(self, state: StateRef) -> StateRef:
        """The reference with the path of its file; without, if no state of that name was received."""
        if state.origin not in (Origin.WEIGHTS, Origin.FULL):
            return state
        path = self._paths.get(state.name or "")
        return state if path is None else replace(state, path=str(path))

    def drop(self, names: Iterable[str]) -> None:
        """Delete states: a state may take as much memory as the model."""
        for name in names:
            path = self._paths.pop(name, None)
            self._bytes.pop(name, None)
            if path is not None:
                if self._open is not None and self._open.name == str(path):
                    self._close()
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        self.drop(list(self._paths))
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class OutgoingStates:
    """The files in which visits leave states until ``cerebro._state_out`` has read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[int, list[Path]] = {}  # by visit
        self.visit = 0  # the number of the last visit

    def begin(self, members: int) -> list[Path]:
        """The files of a new visit.  States of the visit before may not be stored yet; older states are dropped."""
        self.visit += 1
        self.drop(before=self.visit - 1)
        self._paths[self.visit] = [self._folder / f"state.out.{self.visit}.{index}" for index in range(members)]
        return self._paths[self.visit]

    def rows(self, visit: int, index: int) -> Iterator[tuple[int, bytes]]:
        """A state in pieces, each with its start; the state is deleted at the end."""
        paths = self._paths.get(visit, [])
        if not 0 <= index < len(paths) or not paths[index].exists():
            raise WrongState(f"visit {visit} of this session has left no state {index}")
        return rows_of(paths[index])

    def discard(self, indexes: Iterable[int]) -> None:
        """Delete what the last visit has left of members that failed."""
        for index in indexes:
            self._paths[self.visit][index].unlink(missing_ok=True)

    def drop(self, before: float = math.inf) -> None:
        for visit in [visit for visit in self._paths if visit < before]:
            for path in self._paths.pop(visit):
                path.unlink(missing_ok=True)


def rows_of(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as file:
        start = 0
        while piece := file.read(STATE_ROW):
            yield start, piece
            start += len(piece)
    path.unlink(missing_ok=True)  # it may be in memory, and as large as the model


def without_truncating(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o600)
