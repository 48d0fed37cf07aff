"""The packed rows of a segment, cached in files that its trainers map: one file per variable."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cerebro_db.core.errors import CerebroError, CorruptState, RowsLost, WrongState
from cerebro_db.core.names import token
from cerebro_db.core.protocol import LoadRows

from ..database.cancellation import Listen
from ..platform import machine
from .scratch import RESERVE, remove, require_disk

COPIED_AT_ONCE = 4 << 20  # bytes
READ_AGAIN = "They are read again at the next order that needs them. Leave the files of a running server alone."


class CachedRows:
    """The rows of one handle.

    They are in memory.  Where they would take too much of it, all of them are on disk, and the system reads again what
    it has dropped from its cache.
    """

    def __init__(self, name: str, memory: Path, disk: Path, most: int | None, listen: Listen) -> None:
        """``most``: bytes that may be in memory; None: as long as half of the machine's memory is available."""
        self.folder, self.on_disk, self.most, self.listen = memory / name, disk / name, most, listen
        self.folder.mkdir(mode=0o700)
        self.names: dict[str, str] = {}  # variable -> file
        self.sizes: dict[str, int] = {}  # variable -> bytes
        self.digest = hashlib.sha256()
        self.bytes = 0
        self.order: LoadRows | None = None  # for trainers, once the rows are complete

    def add(self, variable: str, payload: bytes) -> None:
        size = len(payload)
        if self.folder != self.on_disk and not self._fits(size):
            require_disk(self.on_disk.parent, self.bytes + size)
            self._move()
        elif self.folder == self.on_disk:
            require_disk(self.on_disk.parent, size)
        with open(self.folder / self.names.setdefault(variable, str(len(self.names))), "ab") as file:
            file.write(payload)
        self.sizes[variable] = self.sizes.get(variable, 0) + size
        self.digest.update(payload)
        self.bytes += size

    def files(self) -> dict[str, str]:
        return {variable: str(self.folder / name) for variable, name in self.names.items()}

    @property
    def damaged(self) -> bool:
        """Whether somebody has deleted or cut a file: a trainer that reads it fails, whatever it trains."""
        try:
            return any(os.path.getsize(path) != self.sizes[variable] for variable, path in self.files().items())
        except FileNotFoundError:
            return True

    def drop(self) -> None:
        remove(self.folder)

    def _fits(self, size: int) -> bool:
        """Whether so many bytes more may be in memory.  The other segments of the host check at the same time."""
        if (machine.room(self.folder) or 0) < size + RESERVE:
            return False
        if self.most is not None:
            return self.bytes + size <= self.most
        available, total = machine.memory_available(), machine.memory_total()
        return available is None or total is None or available - size > total // 2

    def _move(self) -> None:
        """From memory to disk."""
        self.on_disk.mkdir(mode=0o700)
        try:
            for name in self.names.values():
                with open(self.folder / name, "rb") as source, open(self.on_disk / name, "wb") as copy:
                    while piece := source.read(COPIED_AT_ONCE):
                        copy.write(piece)
                        self.listen()
        except BaseException:
            remove(self.on_disk)
            raise
        import shutil  # only now: a new session takes 2 ms for it, and most move nothing

        shutil.rmtree(self.folder)
        self.folder = self.on_disk


class RowCache:
    """The cached rows of all handles."""

    def __init__(self, memory: Path, disk: Path, listen: Listen) -> None:
        self._memory, self._disk, self._listen = memory, disk, listen
        self._rows: dict[str, CachedRows] = {}  # by handle

    def receive(self, handle: str, variable: str, payload: bytes, most: int | None) -> None:
        """Take one variable of one buffer; ``most`` as for CachedRows."""
        rows = self._rows.get(handle)
        if rows is None:
            name = f"data-{token(4)}"
            rows = self._rows[handle] = CachedRows(name, self._memory, self._disk, most, self._listen)
        rows.add(variable, payload)

    def complete(self, order: LoadRows) -> LoadRows:
        """The order with the files of its rows, after all of them were received."""
        rows = self._rows.get(order.handle)
        if rows is None:
            raise WrongState(f"no rows of {order.handle} were received")
        if order.sha256 is not None and rows.digest.hexdigest() != order.sha256:
            self.drop(order.handle)
            raise CorruptState(
                f"the packed rows of {order.handle} are not those that were packed",
                hint="The packed table was changed by hand. Pack it again with cerebro.pack_plain().",
            )
        rows.order = replace(order, files=rows.files())
        return rows.order

    @property
    def orders(self) -> list[LoadRows]:
        """What a new trainer has to be told."""
        return [rows.order for rows in self._rows.values() if rows.order is not None]

    def __contains__(self, handle: str) -> bool:
        rows = self._rows.get(handle)
        return rows is not None and rows.order is not None

    def require(self, handle: str) -> None:
        """Refuse an order for rows that are gone."""
        if handle not in self:
            raise RowsLost(f"this segment has no rows of {handle}", hint=READ_AGAIN)

    @contextlib.contextmanager
    def lost_if_damaged(self) -> Iterator[None]:
        """A trainer fails if its rows are not what they were, and dies of rows that are cut short while it reads."""
        try:
            yield
        except CerebroError as error:
            if self.drop_damaged():
                raise RowsLost("files of cached rows were deleted or cut short", hint=READ_AGAIN) from error
            raise

    def drop_damaged(self) -> bool:
        """Forget rows whose files are not what they were; whether there were any."""
        damaged = [handle for handle, rows in self._rows.items() if rows.damaged]
        for handle in damaged:
            self.drop(handle)
        return bool(damaged)

    def drop(self, handle: str) -> bool:
        """Whether trainers were told of the rows."""
        rows = self._rows.pop(handle, None)
        if rows is None:
            return False
        rows.drop()
        return rows.order is not None

    def clear(self) -> None:
        for handle in list(self._rows):
            self.drop(handle)
