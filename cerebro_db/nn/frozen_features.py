"""Features: what the frozen beginning of a model gives for each row, computed once and kept in files.

Features are named by what they were made from: the rows, the frozen layers and the values of their weights.  So all
models with the same frozen beginning share them, and a model with other weights has others.  Rows that begin with
rows whose features were kept, which is so after rows were added to a table, need the features of the others alone.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cerebro_db.core.engines import AUTO_REUSE, FLOAT32, NO_REUSE
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.core.trainers import knapsack
from cerebro_db.core.trainers.available_memory import available_memory
from cerebro_db.core.trainers.frozen_feature_plan import BYTES_PER_SECOND
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.rows.data import MEMORY, SLAB_FROM_DISK, Dataset, Slab

BATCH = 256  # rows whose features are computed at once

ROOM = 64 << 20  # bytes that are left in a folder
VISITS_THAT_COUNT = 8  # of each of the features that are wanted: about so many have an influence on their worth
MUCH_MORE = 1.5  # times the worth of what would be dropped
LEAST_SECONDS = 1e-9  # that keeping the features of a row counts as


@dataclass(eq=False)
class RowFeatures:
    """The features of some rows, kept or not.  They outlive the rows: more rows may begin with these."""

    name: str
    rows: int
    bytes: int
    worth: float = 0.0  # seconds that keeping them has saved, or would have; those of earlier visits count less
    digests: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of the inputs of so many of the first rows
    arrays: list[np.ndarray] = field(default_factory=list)  # if they are kept


class Features:
    """The features that a trainer keeps, up to a limit: those that save the most time, by what visits have shown.

    Others are computed for each slab.  Kept ones make room for others only if these are worth a good deal more:
    models that take turns would else drop each other's features, and none would ever be used.
    """

    @classmethod
    def of_settings(cls, settings: TrainerSettings) -> Features | None:
        if settings.reuses == NO_REUSE:
            return None
        return cls(settings.reuses, settings.features_mb << 20, settings.features_type)

    def __init__(self, reuse: str, most: int, type: str = FLOAT32) -> None:
        """``reuse``: auto or all; ``most``: bytes; ``type``: of the numbers."""
        self.type = type
        self.computing, self.saved = 0.0, 0.0  # seconds, so far
        self._measures, self._most = reuse == AUTO_REUSE, most
        self._row_seconds: dict[str, float] = {}  # that computing those of a row takes, by the programs' key
        self._kept: list[RowFeatures] = []
        self._wanted: dict[int, RowFeatures] = {}  # by identity: those that count in the choice
        self._of_rows: WeakKeyDictionary[Dataset, dict[str, tuple[RowFeatures, Dataset | None]]] = WeakKeyDictionary()
        self._visits = 0  # since worths were halved

    @property
    def bytes(self) -> int:
        """That are kept."""
        return sum(one.bytes for one in self._kept)

    def pay(self, program: Program, rows: Dataset) -> bool:
        """Whether there is room for features, and reading them again takes less time than computing them anew."""
        if not self._has_room(program, rows):
            return False
        return not self._measures or not rows.rows or self._seconds_saved(program, rows) > 0

    def kept(self, program: Program, rows: Dataset, listen: Callable[[], None], passes: int = 1) -> Dataset | None:
        """The rows with features in the place of the model's inputs; None if there is no room for them.

        ``passes``: for which they are wanted now.
        """
        name = program.features_name()
        of_rows = self._of_rows.setdefault(rows, {})
        wanted, dataset = of_rows.get(name) or (RowFeatures(name, rows.rows, rows.rows * row_bytes(program)), None)
        known = None if wanted.arrays else self._longest(wanted, rows, listen)
        if known is not None and known.rows == rows.rows:  # rows that are equal
            wanted, dataset, known = known, None, None
        # With no worth at all, anything would make room for anything.
        seconds = max(self._seconds_saved(program, rows), rows.rows * LEAST_SECONDS) if rows.rows else 0.0
        self._is_used(wanted, passes * seconds)
        was_kept = bool(wanted.arrays)
        if not was_kept:
            of_rows[name] = wanted, None
            if not self._has_room(program, rows) or not self._make_room(wanted, known):
                return None
            if not wanted.digests.keys() >= {rows.rows}:
                wanted.digests = self._digests(rows, {rows.rows}, listen)
            begun = time.monotonic()
            try:
                wanted.arrays = features_of(program, rows, listen, known.arrays if known is not None else ())
            except OSError:  # others have taken the room meanwhile
                return None
            finally:
                self.computing += time.monotonic() - begun
            if known is not None:
                wanted.worth += known.worth
                self._drop(known)
            self._kept.append(wanted)
        self.saved += seconds * (passes if was_kept else passes - 1)
        if dataset is None:
            dataset = with_features(program, rows, wanted.arrays)
            of_rows[name] = wanted, dataset
        return dataset

    def of_slab(self, program: Program, slab: Slab, listen: Callable[[], None]) -> Slab:
        """A slab of rows whose features are not kept, with features in the place of the model's inputs."""
        places = np.arange(slab.start, slab.end) if slab.order is None else slab.order[slab.start : slab.end]
        front_to_back = np.argsort(places)
        order = np.empty(len(places), np.int32)
        order[front_to_back] = np.arange(len(places))
        begun = time.monotonic()
        rows = slab.dataset.taken(places[front_to_back])
        found = with_features(program, rows, features_of(program, rows, listen))
        self.computing += time.monotonic() - begun
        return Slab(found, order, 0, slab.rows)

    def row_seconds(self, program: Program, rows: Dataset) -> float:
        """Seconds that the frozen layers take for a row.  There must be rows."""
        if program.features_key not in self._row_seconds:
            slab = Slab(rows, None, 0, min(rows.rows, BATCH))
            program.features_of(slab)  # the first call compiles
            started = time.monotonic()
            program.features_of(slab)
            self._row_seconds[program.features_key] = (time.monotonic() - started) / slab.rows
        return self._row_seconds[program.features_key]

    def _seconds_saved(self, program: Program, rows: Dataset) -> float:
        """By a visit that reads them."""
        return rows.rows * (self.row_seconds(program, rows) - row_bytes(program) / BYTES_PER_SECOND)

    def _has_room(self, program: Program, rows: Dataset) -> bool:
        needed = rows.rows * row_bytes(program)
        return needed <= self._most and (rows.folder is None or _has_room(rows.folder, needed))

    def _longest(self, wanted: RowFeatures, rows: Dataset, listen: Callable[[], None]) -> RowFeatures | None:
        """Those that are kept of the most rows that these begin with."""
        some = [one for one in self._kept if one.name == wanted.name and one.rows <= rows.rows]
        if some and not wanted.digests.keys() >= {one.rows for one in some}:
            wanted.digests = self._digests(rows, {rows.rows, *(one.rows for one in some)}, listen)
        alike = [one for one in some if one.digests[one.rows] == wanted.digests[one.rows]]
        return max(alike, key=lambda one: one.rows, default=None)

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

    def _is_used(self, wanted: RowFeatures, seconds: float) -> None:
        """Count a visit.  What nobody uses any more is worth less and less, compared with the others."""
        wanted.worth += seconds
        self._wanted[id(wanted)] = wanted
        self._visits += 1
        if self._visits >= VISITS_THAT_COUNT * len(self._wanted):
            self._visits = 0
            for one in [*self._wanted.values()]:
                one.worth /= 2
                if not one.arrays and one is not wanted and one.worth < seconds / 100:
                    del self._wanted[id(one)]

    def _make_room(self, wanted: RowFeatures, known: RowFeatures | None) -> bool:
        """Drop features if those that are wanted are worth it; whether there is room now.

        ``known``: become part of them.
        """
        others = [one for one in self._kept if one is not known]
        staying = knapsack.best([one.bytes for one in others], [one.worth for one in others], self._most - wanted.bytes)
        dropped = [one for place, one in enumerate(others) if place not in staying]
        if dropped and wanted.worth <= MUCH_MORE * sum(one.worth for one in dropped):
            return False
        for one in dropped:
            self._drop(one)
        return True

    def _drop(self, dropped: RowFeatures) -> None:
        self._kept.remove(dropped)
        dropped.arrays = []
        for of_rows in self._of_rows.values():
            if of_rows.get(dropped.name, (None,))[0] is dropped:
                of_rows[dropped.name] = dropped, None


def row_bytes(program: Program) -> int:
    assert program.cut is not None
    return sum(np.dtype(program.cut.type).itemsize * math.prod(shape) for shape in program.cut.features)


def features_of(
    program: Program, rows: Dataset, listen: Callable[[], None], known: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """``known``: the features of the first rows."""
    assert program.cut is not None
    type = np.dtype(program.cut.type)
    made = [_array(rows.folder, (rows.rows, *shape), type) for shape in program.cut.features]
    first = len(known[0]) if known else 0
    for array, values in zip(made, known):
        array[:first] = values
    for start in range(first, rows.rows, BATCH):
        end = min(rows.rows, start + BATCH)
        for array, values in zip(made, program.features_of(Slab(rows, None, start, end))):
            with np.errstate(over="ignore"):
                array[start:end] = values
            if type != np.float32:
                _require_held(array[start:end], values)
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


def _require_held(held: np.ndarray, values: np.ndarray) -> None:
    """Refuse numbers that became infinite."""
    lost = np.isinf(held) & np.isfinite(values)
    if lost.any():
        largest = np.abs(values[lost]).max()
        raise ConfigurationFailed(
            f"the frozen layers give numbers up to {largest:,.0f}; {held.dtype.name} holds numbers up to"
            f" {np.finfo(held.dtype).max:,.0f}",
            hint="Use the option features_type: float32.",
        )


def _array(folder: str | None, shape: tuple[int, ...], type: np.dtype[Any]) -> np.ndarray:
    """In a file that nobody else sees, which is gone when nothing uses it any more; without a folder in memory."""
    size = type.itemsize * math.prod(shape)
    if folder is None or not size:
        return np.empty(shape, type)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a write to a mapping for which there is no room is a bus error
        return np.memmap(file, type, mode="r+", shape=shape).view(np.ndarray)


def _has_room(folder: str, needed: int) -> bool:
    """Half of what is free stays free: the server's log may be on the same disk, and memory files are memory."""
    found = os.statvfs(folder)
    free = [found.f_bavail * found.f_frsize - ROOM, *filter(None, [available_memory()] * folder.startswith(MEMORY))]
    return 2 * needed <= min(free)
