"""The rows of a packed table as the trainer of the caller's own session reads them, with their actual targets."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Union

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.buffer_format import ITEM_BYTES, bytes_header
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Pixels
from cerebro_db.core.protocol import PredictionInput
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, sql

from ..database.access import Database
from ..packing.packed import Packed

ITEMS = {"uint8": "B", "int16": "h", "int32": "i"}
OIDS = {"float32": 700, "int32": 23}  # PostgreSQL's number of the type of an array's elements

Known = Union[float, int, None]  # the number, or the place of the class; None: the row has none that counts


@dataclass(frozen=True)
class Batch:
    rows: int
    inputs: list[bytes | None]
    actual: list[list[Known]]  # of each output that was asked for


def inputs(layout: Layout) -> list[PredictionInput]:
    return [
        PredictionInput(
            one.name, one.preparation.wire_dtype(one.dtype), list(one.shape), scale=one.preparation.scale(one.dtype)
        )
        for one in layout.inputs
    ]


def batches(
    db: Database,
    test: Packed,
    layout: Layout,
    places: Sequence[int],
    enough: Callable[[], bool] = lambda: False,
    first: int | None = None,
) -> Iterator[Batch]:
    """The rows of each packed row, until they are ``enough``.  ``places``: of the outputs whose values are wanted.

    ``first``: only so many rows of each packed row.
    """
    outputs = [layout.outputs[place] for place in places]
    for rows, values in _packed(db, test, [*layout.inputs, *outputs], enough):
        if first is not None and first < rows:
            values = [value[: first * (len(value) // rows)] for value in values]
            rows = first
        read: list[bytes | None] = [_arrays(one, rows, value) for one, value in zip(layout.inputs, values)]
        actual = [_actual(one, rows, value) for one, value in zip(outputs, values[len(layout.inputs) :])]
        yield Batch(rows, read, actual)


def inputs_of_rows(db: Database, test: Packed, wanted: Collection[int]) -> Iterator[tuple[int, list[array[Any]]]]:
    """The packed values of the inputs of these rows, which are numbered in the order of ``batches``."""
    variables = list(test.layout.inputs)
    left, first = set(wanted), 0
    for rows, values in _packed(db, test, variables, lambda: not left):
        for number in sorted(left.intersection(range(first, first + rows))):
            left.discard(number)
            sizes = [one.elements * ITEM_BYTES[one.dtype] for one in variables]
            starts = [size * (number - first) for size in sizes]
            yield (
                number,
                [
                    array("f" if one.dtype == "float32" else ITEMS[one.dtype], value[start : start + size])
                    for one, value, start, size in zip(variables, values, starts, sizes)
                ],
            )
        first += rows


def arrays_of_rows(db: Database, test: Packed, wanted: Collection[int]) -> tuple[list[int], list[bytes | None]]:
    """The numbers of these rows, without those that there are not, and of each input their values as in a ``Batch``."""
    found = list(inputs_of_rows(db, test, wanted))
    values: list[bytes | None] = [
        b"".join(_arrays(one, 1, its[place].tobytes()) for _, its in found)
        for place, one in enumerate(test.layout.inputs)
    ]
    return [number for number, _ in found], values


def _packed(
    db: Database, test: Packed, variables: Sequence[Variable], enough: Callable[[], bool]
) -> Iterator[tuple[int, list[bytes]]]:
    """Of each packed row that is not empty, the number of rows and the values of the variables, until ``enough``."""
    columns = [identifier(one.name) for one in variables]
    listed = joined(", ", (sql("{column} AS v{i}", column=column, i=i) for i, column in enumerate(columns)))
    cursor = db.cursor(sql("SELECT {listed} FROM {table} ORDER BY buffer_id", listed=listed, table=test.relation.sql))
    while batch := cursor.fetch(1):
        values = [batch[0][f"v{i}"] for i in range(len(columns))]
        rows = _count(test, variables, values)
        if rows:
            yield rows, values
            if enough():
                break
    cursor.close()


def _count(test: Packed, variables: Sequence[Variable], values: Sequence[bytes | None]) -> int:
    """How many rows a packed row has; an error if its columns have not as many."""
    found = {
        divmod(-1 if value is None else len(value), one.elements * ITEM_BYTES[one.dtype])
        for one, value in zip(variables, values)
    }
    rows, rest = found.pop()
    if found or rest or rows < 0:
        raise BadData(
            f"the columns of '{test.relation.text}' do not have the same number of rows.", hint="Pack the rows again."
        )
    return rows


def _arrays(variable: Variable, rows: int, packed_values: bytes) -> bytes:
    """Packed values as the arrays that a query gathers (cerebro_db/nn/rows/arrays.py reads them)."""
    if isinstance(variable.preparation, Pixels):
        size, header = variable.elements, bytes_header(variable.shape)
        starts = range(0, len(packed_values), size)
        return b"".join(part for start in starts for part in (header, packed_values[start : start + size]))
    kind = variable.preparation.wire_dtype(variable.dtype)
    values = packed_values
    if variable.dtype != kind:
        values = array("i", array(ITEMS[variable.dtype], packed_values)).tobytes()
    shape = variable.shape
    header = struct.pack(f"={3 + 2 * len(shape)}i", len(shape), 0, OIDS[kind], *shape, *[1] * len(shape))
    size = 4 * variable.elements
    return b"".join(header + values[start : start + size] for start in range(0, len(values), size))


def _actual(output: Variable, rows: int, packed_values: bytes) -> list[Known]:
    """The numbers, or the places of the classes, which are packed one-hot; of targets of steps, those of each step."""
    if output.target == "real":
        numbers = array("f" if output.dtype == "float32" else ITEMS[output.dtype], packed_values)
        return [float(number) if math.isfinite(number) else None for number in numbers]
    ones, size = array(ITEMS[output.dtype], packed_values), output.of_step[-1]
    return [_place(ones[start : start + size]) for start in range(0, rows * output.elements, size)]


def _place(one_hot: array[int]) -> Known:
    return one_hot.index(1) if one_hot.count(1) == 1 else None
