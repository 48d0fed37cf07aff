"""The rows of one segment: mapped files, one per variable, and the batches in which they are visited.

Opening a data set copies nothing.  Training gathers rows slab by slab (a slab is a run of whole batches), so memory
stays bounded while the shuffle is over the whole partition.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.buffer_format import ITEM_BYTES
from cerebro_db.core.protocol import RowPortion, Span
from cerebro_db.nn.rows import arrays

LARGEST_SLAB = 32 << 20  # bytes, all variables together
PREDICTED_ROWS, PREDICTED_BYTES = 1024, 8 << 20  # the most that are predicted at once
# Rows on disk may be read again for each slab, if there is no memory to keep them. A slab is read front to back, so
# fewer slabs mean fewer passes over the file. Reading row by row in random order takes a hundred times as long.
SLAB_FROM_DISK = 64 << 20
MEMORY = "/dev/shm/"

FIRST_BATCHES = 4  # in the first slab of a program whose speed is not known yet
SECONDS_PER_SLAB = 0.4  # cancel and progress wait until the end of a slab
GROWTH = 8  # largest ratio of a slab to the slab before
STRETCHES = 16  # of rows that lie together, in a portion
# So far apart, as a share of all rows, are two stretches that follow each other: any few are spread evenly.
GOLDEN = 0.618


def predicted_at_once(row_bytes: int) -> int:
    """Rows of a batch that a model predicts; ``row_bytes``: of all inputs."""
    return max(1, min(PREDICTED_ROWS, PREDICTED_BYTES // max(1, row_bytes)))


class Dataset:
    """The inputs and outputs of one partition, as read-only arrays over mapped files."""

    def __init__(
        self, layout: dict[str, Any], rows: int, files: Mapping[str, str | bytes], packed: bool = True
    ) -> None:
        """``files``: by variable, the path of a file; of rows that are not packed also what the file would have."""
        self.layout = layout
        self.rows = rows
        self.inputs = [
            _mapped(variable, rows, files) if packed else arrays.opened(files[variable["name"]], rows, variable)
            for variable in layout["inputs"]
        ]
        # rows to predict have no outputs
        with_outputs = all(variable["name"] in files for variable in layout["outputs"])
        self.outputs = [_mapped(variable, rows, files) for variable in layout["outputs"]] if with_outputs else []
        self.columns = self.inputs + self.outputs
        self.folds = next((_mapped(fold, rows, files).ravel() for fold in layout.get("fold", ())), None)
        self.from_disk = self.bytes > SLAB_FROM_DISK and not any(
            isinstance(path, str) and path.startswith(MEMORY) for path in files.values()
        )
        first = next(iter(files.values()), None)
        self.folder = os.path.dirname(first) if packed and isinstance(first, str) else None
        self.features = 0  # bytes of features among the inputs
        self.bytes_of_steps = 0  # of a row, which its slab takes besides
        self.on_device: Any = None  # the columns on the engine's device, shared by its programs
        self._ranges: dict[int, tuple[float, float]] = {}

    def rows_of(self, fold: int | None, trained: bool, span: Span | None = None) -> np.ndarray | None:
        """The places of the rows that a model of a fold, of a group, or of both is trained on, or evaluated on.

        None: all.
        """
        start, end = (0, self.rows) if span is None else (span.start, span.start + span.rows)
        if end > self.rows:
            raise InvalidArgument(f"rows {start} to {end} cannot be chosen: there are {self.rows} rows")
        if fold is None:
            return None if span is None else np.arange(start, end, dtype=np.int32)
        if self.folds is None:
            raise InvalidArgument("these rows have no folds")
        folds = self.folds[start:end]
        return (start + np.flatnonzero(folds != fold if trained else folds == fold)).astype(np.int32)

    def range(self, place: int) -> tuple[float, float]:
        """The least and the largest value of a column; 0 and 0 of no rows."""
        if place not in self._ranges:
            column = self.columns[place]
            self._ranges[place] = (float(column.min()), float(column.max())) if column.size else (0.0, 0.0)
        return self._ranges[place]

    def part(self, start: int, end: int) -> Dataset:
        """The data set of some rows, which are few enough to be in memory: of a trial, or of an exchange."""
        return self._of(slice(start, end), min(end, self.rows) - start)

    def taken(self, places: np.ndarray) -> Dataset:
        """As ``part``, of the rows at these places."""
        return self._of(places, len(places))

    def with_inputs(self, inputs: list[np.ndarray]) -> Dataset:
        """Other rows without outputs, which are in memory."""
        return self._with(inputs, [], len(inputs[0]))

    def _of(self, places: slice | np.ndarray, rows: int) -> Dataset:
        inputs, outputs = ([column[places] for column in each] for each in (self.inputs, self.outputs))
        return self._with(inputs, outputs, rows)

    def _with(self, inputs: list[np.ndarray], outputs: list[np.ndarray], rows: int) -> Dataset:
        part = copy.copy(self)
        part.inputs, part.outputs = inputs, outputs
        part.columns = part.inputs + part.outputs
        part.rows, part.folder = rows, None
        part.from_disk, part.folds, part.on_device, part._ranges = False, None, None, {}
        return part

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.columns)


def _mapped(variable: dict[str, Any], rows: int, files: Mapping[str, str | bytes]) -> np.ndarray:
    name, shape = variable["name"], (rows, *variable["shape"])
    if variable["dtype"] not in ITEM_BYTES:
        raise InvalidArgument(f"column {name} has type {variable['dtype']}; known are {', '.join(ITEM_BYTES)}")
    if name not in files:
        raise InvalidArgument(f"no file is given for column {name}")
    dtype = np.dtype(variable["dtype"]).newbyteorder("<")
    expected, found = math.prod(shape) * dtype.itemsize, os.path.getsize(files[name])
    if expected != found:
        raise BadData(f"column {name} has {found} bytes, but {rows} rows of shape {shape[1:]} are {expected}")
    if not expected:  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(files[name], dtype, mode="r", shape=shape).view(np.ndarray)


def sampled(rows: int, most: int) -> np.ndarray:
    """The places of so many of the rows, at equal distances.  Twice as many have these among them."""
    return (np.arange(most, dtype=np.int64) * rows // most).astype(np.int32)


def portion_rows(rows: int, of: int) -> int:
    """How many rows each portion has."""
    return math.ceil(rows / of)


def places_of(portion: RowPortion, rows: int) -> np.ndarray:
    """The places of a portion's rows.

    It has short stretches of rows from all over the segment: rows that were added later are in each portion, and a file
    on disk is read in few pieces.
    """
    size = portion_rows(rows, portion.of)
    stretch = max(1, size // STRETCHES)
    whole = rows // stretch
    places = (np.arange(size, dtype=np.int64) + portion.number * size % max(1, rows)) % max(1, rows)
    step = next((step for step in range(max(1, int(whole * GOLDEN)), whole + 1) if math.gcd(step, whole) == 1), 1)
    spread = places // stretch * step % max(1, whole) * stretch + places % stretch
    return np.where(places < whole * stretch, spread, places).astype(np.int32)


def row_order(rows: int, shuffle_seed: int, visit: int) -> np.ndarray:
    """The order of so many rows in one pass; the same arguments give the same order, in a replay too."""
    return np.random.Generator(np.random.PCG64([shuffle_seed % (1 << 64), visit])).permutation(rows)


class SlabSize:
    """The number of batches in a slab: as many as take SECONDS_PER_SLAB.  It has no influence on the bits."""

    def __init__(self, batches: int = FIRST_BATCHES) -> None:
        self.batches = batches

    def measured(self, batches: int, seconds: float) -> None:
        wanted = int(batches * SECONDS_PER_SLAB / max(seconds, 1e-6))
        self.batches = max(1, min(wanted, max(self.batches, batches) * GROWTH))


class SlabOfOneSize(SlabSize):
    """A number of batches that does not depend on their speed."""

    def measured(self, batches: int, seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Slab:
    """A run of whole batches of a pass: rows ``start`` to ``end`` in its order (the last batch may have fewer rows)."""

    dataset: Dataset
    order: np.ndarray | None  # of the rows of this pass; None: of all rows, as they lie in the files
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start

    def batches(self, batch_size: int) -> Iterator[Slab]:
        for start in range(self.start, self.end, batch_size):
            yield Slab(self.dataset, self.order, start, min(self.end, start + batch_size))

    def gathered(self, columns: list[np.ndarray]) -> list[np.ndarray]:
        """Copies of the slab's rows: a framework may take over an array's memory, and mapped memory is read-only."""
        if self.order is None:
            return [np.array(column[self.start : self.end]) for column in columns]
        rows = self.order[self.start : self.end]
        if not self.dataset.from_disk:
            return [column.take(rows, axis=0) for column in columns]
        front_to_back = np.argsort(rows)
        found = [np.empty((len(rows), *column.shape[1:]), column.dtype) for column in columns]
        for array, column in zip(found, columns):
            array[front_to_back] = column.take(rows[front_to_back], axis=0)
        return found


def most_batches(dataset: Dataset, batch_size: int) -> int:
    """The largest number of batches in a slab."""
    batch_bytes = batch_size * max(1, dataset.bytes // max(1, dataset.rows) + dataset.bytes_of_steps)
    return max(1, (SLAB_FROM_DISK if dataset.from_disk else LARGEST_SLAB) // batch_bytes)


def slabs(
    dataset: Dataset, rows: int, batch_size: int, size: SlabSize, order: np.ndarray | None = None
) -> Iterator[Slab]:
    """The first ``rows`` rows in the given order (or as they lie in the files), cut into slabs of whole batches."""
    start, most = 0, most_batches(dataset, batch_size)
    whole = dataset.from_disk and order is not None
    while start < rows:
        end = min(rows, start + batch_size * (most if whole else min(size.batches, most)))
        yield Slab(dataset, order, start, end)
        start = end
