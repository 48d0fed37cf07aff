"""Features: what the frozen beginning of a model gives for each row, computed once and kept in files.

Features are named by what they were made from: the rows, the frozen layers and the values of their weights.  So all
models with the same frozen beginning share them, and a model with other weights has others.  Rows that begin with
rows whose features were kept, which is so after rows were added to a table, need the features of the others alone.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from cerebro_db.core.available_memory import available_memory
from cerebro_db.core.engines import AUTO_REUSE, NO_REUSE
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.rows.data import MEMORY, SLAB_FROM_DISK, Dataset, Slab

BATCH = 256  # rows whose features are computed at once
BYTES_PER_SECOND = 1e9  # at which features are read again; slower than that, computing them anew is no loss
ROOM = 64 << 20  # bytes that are left in a folder


@dataclass
class KeptFeatures:
    """The features of some rows.  They outlive the rows: more rows may begin with these."""

    name: str
    inputs: tuple[str, ...]  # digests of the rows' inputs
    arrays: list[np.ndarray]
    used: int = 0  # when they were used last

    @property
    def rows(self) -> int:
        return len(self.arrays[0])

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class Features:
    """The features that a trainer keeps, up to a limit.  Those that were not used for longest are dropped."""

    @classmethod
    def of_settings(cls, settings: TrainerSettings) -> Features | None:
        return cls(settings.reuse, settings.features_mb << 20) if settings.reuse != NO_REUSE else None

    def __init__(self, reuse: str, most: int) -> None:
        """``reuse``: auto or all; ``most``: bytes."""
        self._measures, self._most = reuse == AUTO_REUSE, most
        self._faster: dict[str, bool] = {}  # than to compute them, by the programs' key
        self._kept: list[KeptFeatures] = []
        self._of_rows: WeakKeyDictionary[Dataset, dict[str, tuple[KeptFeatures, Dataset]]] = WeakKeyDictionary()
        self._times = itertools.count()

    def pay(self, program: Program, rows: Dataset) -> bool:
        """Whether there is room for features, and reading them again takes less time than computing them anew."""
        if not self._has_room(program, rows):
            return False
        if not self._measures or not rows.rows:
            return True
        if program.features_key not in self._faster:
            slab = Slab(rows, None, 0, min(rows.rows, BATCH))
            program.features_of(slab)  # the first call compiles
            started = time.monotonic()
            program.features_of(slab)
            seconds = time.monotonic() - started
            self._faster[program.features_key] = seconds * BYTES_PER_SECOND > slab.rows * row_bytes(program)
        return self._faster[program.features_key]

    def kept(self, program: Program, rows: Dataset, listen: Callable[[], None]) -> Dataset | None:
        """The rows with features in the place of the model's inputs; None if there is no room for them."""
        name = program.features_name()
        of_rows = self._of_rows.setdefault(rows, {})
        if name not in of_rows:
            if not self._has_room(program, rows):
                return None
            some = [one for one in self._kept if one.name == name and one.rows <= rows.rows]
            digests = self._digests(rows, {rows.rows, *(one.rows for one in some)}, listen)
            alike = [one for one in some if one.inputs == digests[one.rows]]
            found = max(alike, key=lambda one: one.rows, default=None)
            if found is None or found.rows < rows.rows:
                known = []
                if found is not None:
                    known = found.arrays
                    self._drop(found)
                self._make_room(rows.rows * row_bytes(program))
                try:
                    arrays = features_of(program, rows, listen, known)
                except OSError:  # others have taken the room meanwhile
                    return None
                found = KeptFeatures(name, digests[rows.rows], arrays)
                self._kept.append(found)
            of_rows[name] = found, with_features(program, rows, found.arrays)
        kept, dataset = of_rows[name]
        kept.used = next(self._times)
        return dataset

    def _has_room(self, program: Program, rows: Dataset) -> bool:
        needed = rows.rows * row_bytes(program)
        return needed <= self._most and (rows.folder is None or _has_room(rows.folder, needed))

    @staticmethod
    def _digests(rows: Dataset, ends: Collection[int], listen: Callable[[], None]) -> dict[int, tuple[str, ...]]:
        """So many of the first rows -> the digests of their inputs."""
        # With what is said of the values, such as their unit.
        digests, start = [hashlib.blake2b(repr(one).encode()) for one in rows.layout["inputs"]], 0
        found = {}
        for end in sorted(set(ends)):
            for first in range(start, end, BATCH):
                for digest, column in zip(digests, rows.inputs):
                    digest.update(np.ascontiguousarray(column[first : min(end, first + BATCH)]).view(np.uint8).data)
                listen()
            found[end], start = tuple(digest.hexdigest() for digest in digests), end
        return found

    def _make_room(self, needed: int) -> None:
        """Drop features until so many bytes more may be kept."""
        while self._kept and sum(one.bytes for one in self._kept) + needed > self._most:
            self._drop(min(self._kept, key=lambda one: one.used))

    def _drop(self, dropped: KeptFeatures) -> None:
        self._kept.remove(dropped)
        for of_rows in self._of_rows.values():
            if of_rows.get(dropped.name, (None,))[0] is dropped:
                del of_rows[dropped.name]


def row_bytes(program: Program) -> int:
    assert program.cut is not None
    return sum(4 * math.prod(shape) for shape in program.cut.features)


def features_of(
    program: Program, rows: Dataset, listen: Callable[[], None], known: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """``known``: the features of the first rows."""
    assert program.cut is not None
    made = [_array(rows.folder, (rows.rows, *shape)) for shape in program.cut.features]
    first = len(known[0]) if known else 0
    for array, values in zip(made, known):
        array[:first] = values
    for start in range(first, rows.rows, BATCH):
        end = min(rows.rows, start + BATCH)
        for array, values in zip(made, program.features_of(Slab(rows, None, start, end))):
            array[start:end] = values
        listen()
    return made


def with_features(program: Program, rows: Dataset, arrays: Sequence[np.ndarray]) -> Dataset:
    """The rows with features in the place of the model's inputs."""
    assert program.columns is not None
    features, found = iter(arrays), copy.copy(rows)
    found.inputs = [next(features) if place is None else rows.inputs[place] for place in program.sources]
    found.layout, found.columns = program.columns, found.inputs + found.outputs
    found.on_device, found._ranges, found.features = None, {}, sum(array.nbytes for array in arrays)
    found.from_disk = found.bytes > SLAB_FROM_DISK and rows.folder is not None and not rows.folder.startswith(MEMORY)
    return found


def _array(folder: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """In a file that nobody else sees, which is gone when nothing uses it any more; without a folder in memory."""
    size = 4 * math.prod(shape)
    if folder is None or not size:
        return np.empty(shape, "<f4")
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a write to a mapping for which there is no room is a bus error
        return np.memmap(file, "<f4", mode="r+", shape=shape).view(np.ndarray)


def _has_room(folder: str, needed: int) -> bool:
    """Half of what is free stays free: the server's log may be on the same disk, and memory files are memory."""
    found = os.statvfs(folder)
    free = [found.f_bavail * found.f_frsize - ROOM, *filter(None, [available_memory()] * folder.startswith(MEMORY))]
    return 2 * needed <= min(free)
