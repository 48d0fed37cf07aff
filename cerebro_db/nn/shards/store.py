"""The state of a cut model in a file, and the thread that reads and writes it while the model computes.

The file is read and written and not mapped: mapped memory would count as memory of this process.  It has no name, so
that it is gone with the process, however that ends.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from cerebro_db.core.errors import OutOfResources

ALIGNMENT = 64  # bytes; TensorFlow takes over an array's memory only if the memory is aligned like this
PART = 16 << 20  # bytes that are read or written at a time


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
        self.read_bytes = self.written_bytes = 0
        self.clear()

    def clear(self) -> None:
        """All values are zero from now on; the room on the disk is taken now, not in the middle of a batch."""
        os.ftruncate(self._file.fileno(), 0)
        try:
            os.posix_fallocate(self._file.fileno(), 0, max(1, self.bytes))
        except OSError as error:
            raise OutOfResources(
                f"there is no room on the disk for the model's state, which has {self.bytes:,} bytes",
                detail=str(error),
                hint="Make room on the disk of the database's data folder, or make the model smaller.",
            ) from error

    def another(self) -> Store:
        """A store of the same variables, with values of its own."""
        return Store(self._folder, self._variables)

    def close(self) -> None:
        self._file.close()

    def room(self, place: int) -> np.ndarray:
        """Memory for the value of a variable."""
        dtype, shape = self._variables[place]
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + size].view(dtype).reshape(shape)

    def read(self, place: int, array: np.ndarray | None = None) -> np.ndarray:
        """The value of a variable, in memory of its own."""
        array = self.room(place) if array is None else array
        whole = array.reshape(-1).view(np.uint8).data
        for part in range(0, len(whole), PART):
            left, offset = whole[part : part + PART], self._starts[place] + part
            while left:
                count = os.preadv(self._file.fileno(), [left], offset)
                if not count:
                    raise OSError("the file of a model's state ends too early")
                left, offset = left[count:], offset + count
        self.read_bytes += len(whole)
        return array

    def write(self, place: int, value: np.ndarray) -> None:
        dtype, shape = self._variables[place]
        if value.dtype != dtype or value.shape != shape:
            raise ValueError(f"a value of {value.dtype} {value.shape} does not go to the place of {dtype} {shape}")
        whole = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        for part in range(0, len(whole), PART):
            left, offset = whole[part : part + PART], self._starts[place] + part
            while left:
                count = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[count:], offset + count
        self.written_bytes += len(whole)


class Courier:
    """Brings values from the store and back, ahead of and behind the computation.

    One thread does it all in the order in which it was asked, so what is read was written before.
    """

    def __init__(self, store: Store, ahead: bool = True) -> None:
        """``ahead``: whether to use a thread; else everything is read and written when it is asked for."""
        self._store = store
        self._pool = ThreadPoolExecutor(1, "shards") if ahead else None
        self._coming: tuple[tuple[int, ...], Future[list[np.ndarray]]] | None = None
        self._going: Future[None] | None = None

    @property
    def ahead(self) -> bool:
        return self._pool is not None

    def expect(self, places: Sequence[int]) -> None:
        """These will be taken next."""
        if self._pool is not None and places:
            self.forget()
            # Memory of another thread comes from another part of the heap, which this thread would not use again.
            arrays = [self._store.room(place) for place in places]
            self._coming = tuple(places), self._pool.submit(self._read, tuple(places), arrays)

    def take(self, places: Sequence[int]) -> list[np.ndarray]:
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == tuple(places):
            return coming[1].result()
        if coming is not None:
            coming[1].cancel()
        self.settle()  # what is read may be on its way to the file
        return [self._store.read(place) for place in places]

    def put(self, places: Sequence[int], values: Sequence[Callable[[], np.ndarray]]) -> None:
        """Write the values.  Each is a function that gives it, so that a copy is made when it is written."""
        if self._pool is None:
            self._write(places, values)
            return
        self.settle()  # what waits to be written holds its memory
        self._going = self._pool.submit(self._write, tuple(places), list(values))

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

    def _read(self, places: Sequence[int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [self._store.read(place, array) for place, array in zip(places, arrays)]

    def _write(self, places: Sequence[int], values: Sequence[Callable[[], np.ndarray]]) -> None:
        for place, value in zip(places, values):
            self._store.write(place, value())
