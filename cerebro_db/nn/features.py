"""Features: what the frozen beginning of a model gives for each row, computed once and kept in files.

Features are named by what they were made from: the rows, the frozen layers and the values of their weights.  So all
models with the same frozen beginning share them, and a model with other weights has others.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np

from cerebro_db.core.available_memory import available_memory
from cerebro_db.core.engines import AUTO_REUSE, NO_REUSE
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.rows.data import MEMORY, SLAB_FROM_DISK, Dataset, Slab

Compute = Callable[[Slab], list[np.ndarray]]  # the features of some rows
Computing = Callable[[], Compute]  # with the frozen weights as they are now

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
        self._kept: WeakKeyDictionary[Dataset, OrderedDict[str, Dataset]] = WeakKeyDictionary()

    def pay(self, program: Program, rows: Dataset, computing: Computing) -> bool:
        """Whether there is room for features, and reading them again takes less time than computing them anew."""
        if not self._has_room(program, rows):
            return False
        if not self._measures:
            return True
        compute, slab = computing(), Slab(rows, None, 0, min(rows.rows, BATCH))
        compute(slab)  # the first call compiles
        started = time.monotonic()
        compute(slab)
        return (time.monotonic() - started) * BYTES_PER_SECOND > slab.rows * row_bytes(program)

    def kept(self, program: Program, rows: Dataset, computing: Computing, listen: Callable[[], None]) -> Dataset | None:
        """The rows with features in the place of the model's inputs; None if there is no room for them."""
        mine, name = self._kept.setdefault(rows, OrderedDict()), _name(program)
        if name not in mine:
            if not self._has_room(program, rows):
                return None
            self._drop(rows.rows * row_bytes(program))
            mine[name] = with_features(program, rows, computing(), listen)
        mine.move_to_end(name)
        return mine[name]

    def _has_room(self, program: Program, rows: Dataset) -> bool:
        needed = rows.rows * row_bytes(program)
        return needed <= self._most and _has_room(rows.folder, needed)

    def _drop(self, needed: int) -> None:
        """Drop features until so many bytes more may be kept."""
        while True:
            kept = [(each, name, its) for each, names in self._kept.items() for name, its in names.items()]
            if not kept or sum(its.features for *_, its in kept) + needed <= self._most:
                return
            dataset, name, _ = kept[0]
            del self._kept[dataset][name]


def row_bytes(program: Program) -> int:
    assert program.cut is not None
    return max(1, sum(4 * math.prod(shape) for shape in program.cut.features()))


def with_features(program: Program, rows: Dataset, compute: Compute, listen: Callable[[], None]) -> Dataset:
    """The rows with features in the place of the model's inputs."""
    cut, layout = program.cut, program.columns
    assert cut is not None and layout is not None
    made = [_array(rows.folder, (rows.rows, *shape)) for shape in cut.features()]
    for start in range(0, rows.rows, BATCH):
        end = min(rows.rows, start + BATCH)
        for array, values in zip(made, compute(Slab(rows, None, start, end))):
            array[start:end] = values
        listen()
    features = iter(made)
    names = [variable["name"] for variable in rows.layout["inputs"]]
    found = copy.copy(rows)
    found.inputs = [
        next(features) if not cut.is_input(tensor) else rows.inputs[names.index(column["name"])]
        for tensor, column in zip(cut.tensors, layout["inputs"])
    ]
    found.layout, found.columns = layout, found.inputs + found.outputs
    found.on_device, found._ranges, found.features = None, {}, sum(array.nbytes for array in made)
    found.from_disk = found.bytes > SLAB_FROM_DISK and rows.folder is not None and not rows.folder.startswith(MEMORY)
    return found


def _array(folder: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """In a file that nobody else sees, which is gone when nothing uses it any more; without a folder in memory."""
    if folder is None or not math.prod(shape):
        return np.empty(shape, "<f4")
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(4 * math.prod(shape))
        return np.memmap(file, "<f4", mode="r+", shape=shape).view(np.ndarray)


def _name(program: Program) -> str:
    """Of the frozen layers and the weights that are in their variables now."""
    assert program.cut is not None
    digest = hashlib.blake2b(program.cut.key.encode())
    for value in program.frozen_weights():
        digest.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def _has_room(folder: str | None, needed: int) -> bool:
    """Memory files are the machine's memory: half of what is available stays free."""
    if folder is None:
        return True
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < needed + ROOM:
        return False
    available = available_memory() if folder.startswith(MEMORY) else None
    return available is None or 2 * needed <= available
