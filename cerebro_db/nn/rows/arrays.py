"""Rows as a query gives them, mapped from a file: arrays as PostgreSQL holds them in memory (``_array_bytes``
returns them), and the bytes of images, with their number before them.

An array begins with words of four bytes: the number of dimensions, the place where its elements begin if there is a
bitmap of NULLs (else 0), the elements' type, the sizes and the lower bounds.  Then come the elements, four bytes each.
Words are in the machine's own byte order, so equal arrays are the rows of a matrix, whose first columns are left out.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing import buffer_format, images
from cerebro_db.core.texts import counted

TYPES = {"float32": 700, "int32": 23}  # PostgreSQL's number of the elements' type
START = 4  # an array's length is left out of the file, but counted in the place of its elements

KNOWN = "Leave these rows out, or give numbers."

Shape = tuple[int, ...]


def opened(source: str | bytes, rows: int, variable: dict[str, Any]) -> np.ndarray:
    """The values of so many arrays, in the variable's shape; BadData if the arrays do not fit the variable.

    ``source``: the path of the file, or what it would have.
    """
    if not (len(source) if isinstance(source, bytes) else os.path.getsize(source)):  # an empty file cannot be mapped
        raise _unusable(variable, "a NULL", KNOWN)
    if isinstance(source, bytes):
        payload = np.frombuffer(source, np.uint8)
    else:
        payload = np.memmap(source, np.uint8, mode="r").view(np.ndarray)
    values = (_pixels if variable["dtype"] == "uint8" else _elements)(payload, rows, variable)
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise _unusable(variable, "values that are NaN or infinite", KNOWN)
        if variable.get("factor", 1.0) != 1.0:
            return values * np.float32(variable["factor"])
    return values


def _elements(payload: np.ndarray, rows: int, variable: dict[str, Any]) -> np.ndarray:
    shape, dtype = tuple(variable["shape"]), np.dtype(variable["dtype"])
    beginning = np.array([len(shape), 0, TYPES[variable["dtype"]], *shape], "i4").view(np.uint8)
    header = len(beginning) + 4 * len(shape)  # any lower bounds will do
    length = header + 4 * math.prod(shape)
    if payload.size == rows * length:
        arrays = payload.reshape(rows, length)
        if (arrays[:, : len(beginning)] == beginning).all():
            within = np.empty((1, *shape), dtype).strides[1:]
            return np.ndarray((rows, *shape), dtype, payload, header, (length, *within))
    return _one_by_one(payload, rows, variable, shape, dtype)


def _one_by_one(payload: np.ndarray, rows: int, variable: dict[str, Any], shape: Shape, dtype: np.dtype) -> np.ndarray:
    """The values, where an array differs from the others: it is unusable, or has a bitmap of NULLs without any NULL."""
    values, size, start = np.empty((rows, math.prod(shape)), dtype), math.prod(shape), 0
    for row in range(rows):
        if start >= payload.size:  # NULLs were left out of the file
            raise _unusable(variable, "a NULL", KNOWN)
        dimensions, distance, _ = payload[start : start + 12].view("i4")
        found = tuple(payload[start + 12 : start + 12 + 4 * dimensions].view("i4").tolist())
        if found != shape:
            raise _unusable(
                variable,
                f"an array of shape {list(found)} where the model was trained on {list(shape)}",
                f"Give arrays of {_sized(shape)}, as in training.",
            )
        header = 12 + 8 * len(shape)
        if distance:
            present = np.unpackbits(payload[start + header : start + header + (size + 7) // 8], bitorder="little")
            if not present[:size].all():
                raise _unusable(variable, "an array with NULL elements", KNOWN)
            header = distance - START
        start += header
        values[row] = payload[start : start + 4 * size].view(dtype)
        start += 4 * size
    return values.reshape(rows, *shape)


def _pixels(payload: np.ndarray, rows: int, variable: dict[str, Any]) -> np.ndarray:
    shape, beginning = tuple(variable["shape"]), np.frombuffer(buffer_format.bytes_header(variable["shape"]), np.uint8)
    length = len(beginning) + math.prod(shape)
    if payload.size == rows * length:
        values = payload.reshape(rows, length)
        if (values[:, : len(beginning)] == beginning).all():
            return values[:, len(beginning) :].reshape(rows, *shape)
    start = 0
    while start < payload.size:
        size = int(payload[start : start + len(beginning)].view(">u4")[0])
        start += len(beginning)
        if size != math.prod(shape):
            format = images.format_of(payload[start : start + images.MOST_BEGINNING].tobytes())
            found = f"a value of {size} bytes" if format is None else f"a {format} file"
            raise _unusable(
                variable,
                f"{found} where the model was trained on {math.prod(shape)} bytes, of shape {list(shape)}",
                images.DECODE if format else f"Give the pixels of {_sized(shape)}, one byte each, as in training.",
            )
        start += size
    raise _unusable(variable, "a NULL", KNOWN)  # NULLs were left out of the file


def _sized(shape: Shape) -> str:
    """How many elements an array of this shape has."""
    return counted(shape[0], "element") if len(shape) == 1 else f"{' x '.join(map(str, shape))} elements"


def _unusable(variable: dict[str, Any], what: str, hint: str) -> BadData:
    return BadData(f"column '{variable['name']}' has {what}.", hint=hint)
