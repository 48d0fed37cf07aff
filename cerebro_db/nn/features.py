"""Features: what the frozen beginning of a model gives for each row, computed once and kept in files.

Features are named by what they were made from: the rows, the frozen layers and the values of their weights.  So all
models with the same frozen beginning share them, and a model with other weights has others.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable
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


class Features:
    """The features that a trainer keeps, up to a limit.  Those that were not used for longest are dropped."""

    @classmethod
    def of_settings(cls, settings: TrainerSettings) -> Features | None:
        return cls(settings.reuse, settings.features_mb << 20) if settings.reuse != NO_REUSE else None

    def __init__(self, reuse: str, most: int) -> None:
        """``reuse``: auto or all; ``most``: bytes."""
        self._measures, self._most = reuse == AUTO_REUSE, most
        self._faster: dict[str, bool] = {}  # than to compute them, by the programs' key
        self._kept: WeakKeyDictionary[Dataset, dict[str, Dataset]] = WeakKeyDictionary()
        self._used: dict[str, int] = {}  # the names of kept features -> when they were used last
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
        found = self._kept.setdefault(rows, {}).get(name)
        if found is None:
            if not self._has_room(program, rows):
                return None
            self._drop(rows.rows * row_bytes(program))
            try:
                found = with_features(program, rows, listen)
            except OSError:  # others have taken the room meanwhile
                return None
            self._kept[rows][name] = found
        self._used[name] = next(self._times)
        return found

    def _has_room(self, program: Program, rows: Dataset) -> bool:
        needed = rows.rows * row_bytes(program)
        return needed <= self._most and (rows.folder is None or _has_room(rows.folder, needed))

    def _drop(self, needed: int) -> None:
        """Drop features until so many bytes more may be kept."""
        while True:
            kept = [(self._used[name], name, names) for names in self._kept.values() for name in names]
            if not kept or sum(names[name].features for _, name, names in kept) + needed <= self._most:
                return
            _, name, names = min(kept, key=lambda one: one[:2])
            del names[name]


def row_bytes(program: Program) -> int:
    assert program.cut is not None
    return sum(4 * math.prod(shape) for shape in program.cut.features)


def with_features(program: Program, rows: Dataset, listen: Callable[[], None]) -> Dataset:
    """The rows with features in the place of the model's inputs."""
    assert program.cut is not None and program.columns is not None
    made = [_array(rows.folder, (rows.rows, *shape)) for shape in program.cut.features]
    for start in range(0, rows.rows, BATCH):
        end = min(rows.rows, start + BATCH)
        for array, values in zip(made, program.features_of(Slab(rows, None, start, end))):
            array[start:end] = values
        listen()
    features, found = iter(made), copy.copy(rows)
    found.inputs = [next(features) if place is None else rows.inputs[place] for place in program.sources]
    found.layout, found.columns = program.columns, found.inputs + found.outputs
    found.on_device, found._ranges, found.features = None, {}, sum(array.nbytes for array in made)
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
