"""The state of a cut model in a file, and the thread that reads and writes it while the model computes.

The file is read and written and not mapped: mapped memory would count as memory of this process.  It has no name, so
that it is gone with the process, however that ends.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from cerebro_db.core.errors import OutOfResources

ALIGNMENT = 64  # bytes; TensorFlow takes over an array's memory only if the memory is aligned like this
PART = 16 << 20  # bytes that are read or written at a time
LEAST_LENT = 1 << 16  # bytes of an array whose memory is used again


class Extent(NamedTuple):
    """Some of the numbers of a variable, in the order in which they are in memory."""

    place: int  # of the variable
    start: int
    stop: int


class Memory:
    """Memory for arrays that is used again.

    To get new memory from the kernel takes several times as long as to read a file into memory that was used before.
    There is never more of it than was in use at one time.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []  # any thread may append to it
        self._all = self._most = 0  # bytes: of what there is, and what was in use at one time

    def array(self, size: int) -> np.ndarray:
        """Bytes that belong to the array, and to views of it, until all these are gone."""
        rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._most = max(self._most, self._all - sum(map(len, self._free)) + rounded)
        memory = self._used_before(rounded) or self._new(rounded)
        # The array is the first over this memory, so all views of it have it as their base.
        array = np.frombuffer(memory, np.uint8, size)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array

    def give_back(self) -> None:
        """To the kernel, all that is not in use."""
        self._shrink(0)

    def _used_before(self, size: int) -> mmap.mmap | None:
        found = next((place for place, memory in enumerate(self._free) if len(memory) == size), None)
        return None if found is None else self._free.pop(found)

    def _new(self, size: int) -> mmap.mmap:
        self._shrink(self._most - size)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._all += size
        return memory

    def _shrink(self, most: int) -> None:
        while self._free and self._all > most:
            self._all -= len(self._free.pop(0))


class Store:
    """The values of variables, each at its place in the file."""

    def __init__(self, folder: str | None, variables: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> None:
        self._variables = list(variables)
        self._starts, end = [], 0
        for dtype, shape in variables:
            self._starts.append(end)
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.bytes = end
        self._folder = folder if folder is not None and os.path.isdir(folder) else None  # it may be removed
        self._file: Any = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        self.memory = Memory()
        self.read_bytes = self.written_bytes = 0
        self.is_there = False  # the file has its room on the disk

    def clear(self) -> None:
        """All values are zero from now on; the room on the disk is taken now, not in the middle of a batch."""
        self.drop()
        if not self.fits():
            raise self._no_room("half of what is free stays free for the server")
        try:
            os.posix_fallocate(self._file.fileno(), 0, max(1, self.bytes))
        except OSError as error:
            self.drop()
            raise self._no_room(str(error)) from error
        self.is_there = True

    def drop(self) -> None:
        """Give back the room on the disk.  The values are lost."""
        self.is_there = False
        os.ftruncate(self._file.fileno(), 0)

    def fits(self) -> bool:
        """Whether there is room on the disk.  The server's log may be on the same one, so half stays free."""
        found = os.fstatvfs(self._file.fileno())
        return self.is_there or 2 * self.bytes <= found.f_bavail * found.f_frsize

    def another(self) -> Store:
        """A store of the same variables, with values of its own."""
        return Store(self._folder, self._variables)

    def close(self) -> None:
        self._file.close()

    def whole(self, place: int) -> Extent:
        """All numbers of a variable."""
        return Extent(place, 0, math.prod(self._variables[place][1]))

    def room(self, span: Extent) -> np.ndarray:
        """Memory for these numbers."""
        dtype = self._variables[span.place][0]
        size = (span.stop - span.start) * dtype.itemsize
        if size >= LEAST_LENT:
            return self.memory.array(size).view(dtype)
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + size].view(dtype)

    def read(self, span: Extent, array: np.ndarray | None = None) -> np.ndarray:
        """These numbers, one after the other."""
        array = self.room(span) if array is None else array
        whole, start = array.view(np.uint8).data, self._start(span)
        for part in range(0, len(whole), PART):
            left, offset = whole[part : part + PART], start + part
            while left:
                count = os.preadv(self._file.fileno(), [left], offset)
                if not count:
                    raise OSError("the file of a model's state ends too early")
                left, offset = left[count:], offset + count
        self.read_bytes += len(whole)
        return array

    def write(self, span: Extent, value: np.ndarray) -> None:
        dtype = self._variables[span.place][0]
        if value.dtype != dtype or value.size != span.stop - span.start:
            raise ValueError(f"{value.size} numbers of {value.dtype} are no value of {span} of {dtype}")
        if not self.is_there:
            self.clear()
        whole, start = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, self._start(span)
        for part in range(0, len(whole), PART):
            left, offset = whole[part : part + PART], start + part
            while left:
                try:
                    count = os.pwrite(self._file.fileno(), left, offset)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    raise self._no_room(str(error)) from error
                left, offset = left[count:], offset + count
        self.written_bytes += len(whole)

    def value(self, place: int) -> np.ndarray:
        """Of a variable, in its shape."""
        return self.read(self.whole(place)).reshape(self._variables[place][1])

    def set(self, place: int, value: np.ndarray) -> None:
        if value.shape != self._variables[place][1]:
            raise ValueError(f"a value of shape {value.shape} is none of {self._variables[place]}")
        self.write(self.whole(place), value)

    def _start(self, span: Extent) -> int:
        """In the file."""
        return self._starts[span.place] + span.start * int(self._variables[span.place][0].itemsize)

    def _no_room(self, why: str) -> OutOfResources:
        return OutOfResources(
            f"there is no room on the disk for the model's state, which has {self.bytes:,} bytes",
            detail=why,
            hint="Make room on the disk of the database's data folder, or make the model smaller.",
        )


class Courier:
    """Brings values from the store and back, ahead of and behind the computation.

    One thread does it all in the order in which it was asked, so what is read was written before.
    """

    def __init__(self, store: Store, ahead: bool = True) -> None:
        """``ahead``: whether to use a thread; else everything is read and written when it is asked for."""
        self._store = store
        self._pool = ThreadPoolExecutor(1, "shards") if ahead else None
        self._coming: tuple[tuple[Extent, ...], Future[list[np.ndarray]]] | None = None
        self._going: Future[None] | None = None

    @property
    def ahead(self) -> bool:
        return self._pool is not None

    def expect(self, spans: Sequence[Extent]) -> None:
        """These will be taken next."""
        if self._pool is not None and spans and (self._coming is None or self._coming[0] != tuple(spans)):
            self.forget()
            arrays = [self._store.room(span) for span in spans]
            self._coming = tuple(spans), self._pool.submit(self._read, tuple(spans), arrays)

    def take(self, spans: Sequence[Extent]) -> list[np.ndarray]:
        if not spans:
            return []
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == tuple(spans):
            return coming[1].result()
        if coming is not None:
            coming[1].cancel()
        self.settle()  # what is read may be on its way to the file
        return [self._store.read(span) for span in spans]

    def put(self, spans: Sequence[Extent], values: Sequence[Callable[[], np.ndarray]]) -> None:
        """Write the values.  Each is a function that gives it, so that a copy is made when it is written."""
        if self._pool is None:
            self._write(spans, values)
            return
        self.settle()  # what waits to be written holds its memory
        self._going = self._pool.submit(self._write, tuple(spans), list(values))

    def forget(self) -> None:
        """Nothing of what is expected will be taken."""
        coming, self._coming = self._coming, None
        if coming is not None and not coming[1].cancel():
            coming[1].exception()

    def settle(self) -> None:
        """Wait until all is written."""
        going, self._going = self._going, None
        if going is not None:
            going.result()

    def abandon(self) -> None:
        """Wait until nothing is read or written.  What is in the file counts no more, nor does an error of writing."""
        self.forget()
        going, self._going = self._going, None
        if going is not None:
            going.exception()

    def _read(self, spans: Sequence[Extent], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [self._store.read(span, array) for span, array in zip(spans, arrays)]

    def _write(self, spans: Sequence[Extent], values: Sequence[Callable[[], np.ndarray]]) -> None:
        for span, value in zip(spans, values):
            self._store.write(span, value())
