"""Features: what the frozen beginning of a model gives for each row, computed once and kept in files.

Features are named by what they were made from: the rows, the frozen layers and the values of their weights.  So all
models with the same frozen beginning share them, and a model with other weights has others.
"""

from __future__ import annotations

import copy
import hashlib
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
        self._kept: WeakKeyDictionary[Dataset, dict[str, Dataset]] = WeakKeyDictionary()
        self._used: dict[str, int] = {}  # the names of kept features -> when they were used last
        self._times = itertools.count()

    def pay(self, program: Program, rows: Dataset, computing: Computing) -> bool:
        """Whether there is room for features, and reading them again takes less time than computing them anew."""
        if not self._has_room(program, rows):
            return False
        if not self._measures or not rows.rows:
            return True
        compute, slab = computing(), Slab(rows, None, 0, min(rows.rows, BATCH))
        compute(slab)  # the first call compiles
        started = time.monotonic()
        compute(slab)
        return (time.monotonic() - started) * BYTES_PER_SECOND > slab.rows * row_bytes(program)

    def kept(self, program: Program, rows: Dataset, computing: Computing, listen: Callable[[], None]) -> Dataset | None:
        """The rows with features in the place of the model's inputs; None if there is no room for them."""
        name = _name(program)
        found = self._kept.setdefault(rows, {}).get(name)
        if found is None:
            if not self._has_room(program, rows):
                return None
            self._drop(rows.rows * row_bytes(program))
            try:
                found = with_features(program, rows, computing(), listen)
            except OSError:  # others have taken the room meanwhile
                return None
            self._kept[rows][name] = found
        self._used[name] = next(self._times)
        return found

    def _has_room(self, program: Program, rows: Dataset) -> bool:
        needed = rows.rows * row_bytes(program)
        return needed <= self._most and _has_room(rows.folder, needed)

    def _drop(self, needed: int) -> None:
        """Drop features until so many bytes more may be kept."""
        while True:
            kept = [
                (self._used[name], name, each, its) for each, names in self._kept.items() for name, its in names.items()
            ]
            if not kept or sum(its.features for *_, its in kept) + needed <= self._most:
                return
            _, name, dataset, _ = min(kept, key=lambda one: one[:2])
            del self._kept[dataset][name]


def row_bytes(program: Program) -> int:
    assert program.cut is not None
    return max(1, sum(4 * math.prod(shape) for shape in program.cut.features()))


def with_features(program: Program, rows: Dataset, compute: Compute, listen: Callable[[], None]) -> Dataset:
    """The rows with features in the place of the model's inputs."""
    assert program.cut is not None and program.columns is not None
    made = [_array(rows.folder, (rows.rows, *shape)) for shape in program.cut.features()]
    for start in range(0, rows.rows, BATCH):
        end = min(rows.rows, start + BATCH)
        for array, values in zip(made, compute(Slab(rows, None, start, end))):
            array[start:end] = values
        listen()
    found = copy.copy(rows)
    found.inputs = [made[place] if is_feature else rows.inputs[place] for is_feature, place in _sources(program)]
    found.layout, found.columns = program.columns, found.inputs + found.outputs
    found.on_device, found._ranges, found.features = None, {}, sum(array.nbytes for array in made)
    found.from_disk = found.bytes > SLAB_FROM_DISK and rows.folder is not None and not rows.folder.startswith(MEMORY)
    return found


def _sources(program: Program) -> list[tuple[bool, int]]:
    """For each tensor that enters the head, whether it is a feature, and which feature or input of the rows."""
    cut = program.cut
    assert cut is not None
    features, found = itertools.count(), []
    for tensor in cut.tensors:
        places = [place for place, one in enumerate(cut.body.inputs) if one is tensor]
        found.append((False, program.body_columns[places[0]]) if places else (True, next(features)))
    return found


def _array(folder: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """In a file that nobody else sees, which is gone when nothing uses it any more; without a folder in memory."""
    size = 4 * math.prod(shape)
    if folder is None or not size:
        return np.empty(shape, "<f4")
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a write to a mapping for which there is no room is a bus error
        return np.memmap(file, "<f4", mode="r+", shape=shape).view(np.ndarray)


def _name(program: Program) -> str:
    """Of the frozen layers, what they read and where it goes, and the weights that are in their variables now."""
    assert program.cut is not None
    digest = hashlib.blake2b(repr([program.cut.key, program.body_columns, _sources(program)]).encode())
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
