"""The states that a segment has received for its next orders, and those that its visits have left."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

from cerebro_db.core.errors import CorruptState, InvalidArgument, StateLost, WrongState
from cerebro_db.core.names import token
from cerebro_db.core.protocol import STATE_ROW, FrozenPart, Origin, OutgoingState, StateRef, frozen_name

from ..platform import machine
from .frozen_parts import FrozenParts, file_name
from .scratch import require_disk, require_shared_memory

LARGEST_STATE = 1 << 40  # bytes
MOST_STATES = 4096  # of a session at once; an order needs one for each of its models
KEPT_BYTES, MOST_KEPT = 512 << 20, 256  # of a session, in files that stay for the models' next visits
LOOK_EVERY = 1 << 20  # bytes of received states between two looks at the room that is left
SMALL = 1 << 20  # bytes; before a larger file stays, the machine's memory is looked at
KEPT_SHARE = 16  # of the memory that is available, such a file takes no more than one part
LEFT = re.compile(r"([0-9]{1,10}-[0-9]{1,20})/([0-9a-f]{32})")


class ReceivedStates:
    """States by the names under which ``cerebro_internal._state_in`` received them."""

    def __init__(
        self,
        folder: Path,
        on_disk: bool,
        user: Callable[[], int],
        require_folder: Callable[[], None],
        outgoing: OutgoingStates,
    ) -> None:
        self._folder, self._user, self._require_folder, self._outgoing = folder, user, require_folder, outgoing
        self._require_room = require_disk if on_disk else require_shared_memory
        self._paths: dict[str, Path] = {}
        self._bytes: dict[str, int] = {}  # received so far
        # The file of the state that was received last stays open, and the room is looked at now and then: doing both
        # for each row of 8 kB would take longer than all the rest.
        self._open: FileIO | None = None
        self._open_for = ""
        self._seen_room = 0  # bytes that may come before the room is looked at again

    def receive(self, name: str, start: int, payload: bytes) -> None:
        """Take the bytes of a state from ``start`` on."""
        if not 0 <= start <= LARGEST_STATE:
            raise InvalidArgument(f"a state cannot have bytes at {start}")
        if self._open is None or self._open_for != name:
            self._open_file(name)
        assert self._open is not None
        if self._seen_room < len(payload):
            self._require_room(self._folder, len(payload), sum(self._bytes.values()))
            self._seen_room = len(payload) + LOOK_EVERY
        self._seen_room -= len(payload)
        self._bytes[name] = self._bytes.get(name, 0) + len(payload)
        left = memoryview(payload)
        while left:
            written = os.pwrite(self._open.fileno(), left, start)
            left, start = left[written:], start + written

    def filled(self, state: StateRef, out: Path | None = None, *, last: bool = False) -> StateRef:
        """The reference with the path of its file; without, if no state of that name was received.

        A file that a visit has left on this host becomes the file ``out``: nobody needs it again, and the trainer
        writes the next state over it, into the same memory.  Without ``out`` it also stays where it is, unless this
        is the ``last`` order that needs it.
        """
        if state.origin not in (Origin.WEIGHTS, Origin.FULL):
            return state
        if state.frozen is not None:
            state = replace(state, frozen_path=str(self._frozen(state.frozen, state)))
        known = self._paths.get(state.name or "")
        # An order may evaluate one state on the rows of many groups.
        is_known = state.left is None or (out is None and known is not None)
        path = known if is_known else self._taken(state, out, last)
        return state if path is None else replace(state, path=str(path))

    def require(self, state: StateRef) -> None:
        """Refuse an order whose state was not received."""
        if state.origin in (Origin.WEIGHTS, Origin.FULL) and state.left is None and state.name not in self._paths:
            raise CorruptState(
                "the model's state is not there",
                hint="Its table in the schema cerebro_state was emptied or dropped by hand.",
            )

    def _frozen(self, part: FrozenPart, state: StateRef) -> Path:
        name = frozen_name(part.sha256)
        received, left = self._paths.get(name), None
        if state.left is not None:
            left = (self._folder.parent / left_path(state.left, self._user())).parent
        try:
            return self._outgoing.frozen.path(part, self._outgoing.visit, received, left)
        finally:
            self.drop([name])

    def _taken(self, state: StateRef, out: Path | None, last: bool) -> Path:
        assert state.left is not None and state.name is not None
        left = self._folder.parent / left_path(state.left, self._user())
        try:
            if out is not None:
                os.rename(left, out)
                return out
            self._require_few(state.name)
            self._paths[state.name] = mine = self._new_path()
            (os.rename if last else os.link)(left, mine)
            return mine
        except OSError as error:  # the file was dropped, or its segment has ended
            raise WrongState("the file with that state is gone", hint="Send the whole state.") from error

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

    def _require_few(self, name: str) -> None:
        if name not in self._paths and len(self._paths) >= MOST_STATES:
            raise InvalidArgument(f"this session has received {MOST_STATES:,} states, and no order has used them")

    def _new_path(self) -> Path:
        return self._folder / f"state.in.{token(4)}"

    def _open_file(self, name: str) -> None:
        self._close()
        self._require_folder()
        self._require_few(name)
        path = self._paths.setdefault(name, self._new_path())
        self._open = open(path, "wb", buffering=0, opener=without_truncating)  # noqa: SIM115
        self._open_for, self._seen_room = name, 0

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class OutgoingStates:
    """The files in which visits leave states.

    ``_state_out`` reads them for the state table.  Then the newest of them stay for a while: the model's next
    visit, if it is on this host, takes the file and needs no rows.
    """

    def __init__(self, folder: Path, user: Callable[[], int]) -> None:
        self._folder, self._user = folder, user
        self._paths: dict[int, list[Path | None]] = {}  # by visit; None: it is stored
        self._parts: dict[tuple[int, int], FrozenPart] = {}  # by visit and index
        self.frozen = FrozenParts(folder, user)
        self._kept: dict[Path, int] = {}  # the bytes of those that stay, oldest first; some may have been taken
        self.visit = 0  # the number of the last visit

    def begin(self, members: int) -> list[Path]:
        """The files of a new visit.  States of the visit before may not be stored yet; older states are dropped."""
        self.visit += 1
        self._drop_visits([visit for visit in self._paths if visit < self.visit - 1])
        user = self._user()
        paths = [self._folder / file_name(user, token(16)) for _ in range(members)]
        self._paths[self.visit] = list(paths)
        return paths

    def undo(self) -> None:
        """The visit was not begun after all.  The state of the visit before may still have to be stored."""
        self._drop_visits([self.visit])
        self.visit -= 1

    def keep(self, states: Iterable[OutgoingState]) -> list[str | None]:
        """Let files of the last visit stay after they are stored, where there is room: how other segments name them."""
        left: list[str | None] = [None] * len(self._paths[self.visit])
        states = list(states)
        self._parts.update({(self.visit, state.index): state.frozen for state in states if state.frozen is not None})
        self.frozen.keep((state.frozen for state in states if state.frozen is not None), self.visit)
        for state in states:
            path, size = self._paths[self.visit][state.index], state.bytes
            if state.frozen is not None:
                size -= state.frozen.bytes
            if path is not None and size <= (KEPT_BYTES if size <= SMALL else min(KEPT_BYTES, _spare_memory())):
                self._kept[path] = size
                left[state.index] = f"{self._folder.name}/{path.suffix[1:]}"
        self._drop_oldest()
        return left

    def _drop_oldest(self) -> None:
        """Let only the newest files stay."""
        size, unstored = sum(self._kept.values()), {path for paths in self._paths.values() for path in paths}
        while size > KEPT_BYTES or len(self._kept) > MOST_KEPT:
            oldest = next(iter(self._kept))
            size -= self._kept.pop(oldest)
            if oldest not in unstored:  # else it goes when it is stored
                oldest.unlink(missing_ok=True)

    def rows(self, visit: int, index: int) -> Iterator[tuple[int, bytes]]:
        """A state in pieces, each with its start; without its frozen part, which is that of index ``-1 - index``."""
        if index < 0:
            part = self._parts.get((visit, -1 - index))
            if part is None:
                raise WrongState(f"visit {visit} of this session has left no state {index}")
            return self.frozen.rows(part)
        paths = self._paths.get(visit, [])
        path = paths[index] if 0 <= index < len(paths) else None
        if path is None:
            raise WrongState(f"visit {visit} of this session has left no state {index}")
        if not path.exists():
            raise StateLost(f"the file of state {index} of visit {visit} was deleted before it was stored: {path}")
        return self._rows_of(path, paths, index, self._parts.get((visit, index)))

    def _rows_of(
        self, path: Path, paths: list[Path | None], index: int, part: FrozenPart | None
    ) -> Iterator[tuple[int, bytes]]:
        with open(path, "rb") as file:
            start = 0
            while piece := file.read(
                STATE_ROW if part is None or start >= part.end else min(STATE_ROW, part.start - start)
            ):
                yield start, piece
                start += len(piece)
                if part is not None and start == part.start:
                    start = file.seek(part.end)
        paths[index] = None
        if path not in self._kept:
            path.unlink(missing_ok=True)  # it may be in memory, and as large as the model

    def discard(self, indexes: Iterable[int]) -> None:
        """Delete what the last visit has left of members that failed."""
        for index in indexes:
            path, self._paths[self.visit][index] = self._paths[self.visit][index], None
            if path is not None:
                path.unlink(missing_ok=True)

    def drop(self) -> None:
        self._drop_visits(list(self._paths))
        self.frozen.drop()
        for path in self._kept:
            path.unlink(missing_ok=True)
        self._kept.clear()

    def _drop_visits(self, visits: Iterable[int]) -> None:
        """Delete states that were not stored."""
        for visit in visits:
            self._parts = {place: part for place, part in self._parts.items() if place[0] != visit}
            for path in filter(None, self._paths.pop(visit)):
                path.unlink(missing_ok=True)
                self._kept.pop(path, None)


def _spare_memory() -> int:
    return (machine.memory_available() or 0) // KEPT_SHARE


def left_path(left: str, user: int) -> Path:
    """Where a segment of this user has left a state, below the folder of all segments."""
    found = LEFT.fullmatch(left)
    if found is None:
        raise InvalidArgument(f"no segment leaves a state at {left[:80]!r}")
    return Path(found[1]) / file_name(user, found[2])


def without_truncating(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o600)
