"""The packed rows of a segment, cached in files that its trainers map: one file per variable."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from cerebro_db.core.errors import CorruptState, WrongState
from cerebro_db.core.protocol import LoadRows

from ..database.cancellation import Listen
from ..platform import machine
from .scratch import RESERVE, require_disk

COPIED_AT_ONCE = 4 << 20  # bytes


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
        self.digest.update(payload)
        self.bytes += size

    def files(self) -> dict[str, str]:
        return {variable: str(self.folder / name) for variable, name in self.names.items()}

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

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
            shutil.rmtree(self.on_disk, ignore_errors=True)
            raise
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
            name = f"data-{secrets.token_hex(4)}"
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
                hint="The packed table was changed by hand. Pack it again with training_preprocessor_dl().",
            )
        rows.order = replace(order, files=rows.files())
        return rows.order

    @property
    def orders(self) -> list[LoadRows]:
        """What a new trainer has to be told."""
        return [rows.order for rows in self._rows.values() if rows.order is not None]

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
