"""How rows become buffers: how many buffers, how large, on which segment, and the bytes themselves.

A query gathers the values of many rows in one array.  ``_array_bytes`` of SQL gives it as it lies in PostgreSQL's
memory: a header of four-byte words, a map of NULLs if the array has one, and the elements.  The words are the number of
dimensions, the offset of the elements (0 without a map), the type of the elements, the sizes and the lower bounds.
After our casts an element has four bytes, and the number of a class two.  The machine is little-endian, and so are
buffers, so elements are copied as they are.  All functions work on whole chunks and buffers with slices and
``translate``: the server's Python has no numpy, and a loop over rows would take most of the time of packing.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Protocol

from ..records import dataclass

TARGET_BYTES = 8 << 20  # of the widest variable of a buffer; a bytea of this size is read at 2-3 GB/s
LARGEST_BYTES = 1_000_000_000  # a little below PostgreSQL's limit of a value
MOST_CLASSES = 10_000
NO_CLASS = -1  # of a step without a label

ITEM_BYTES = {"uint8": 1, "int16": 2, "int32": 4, "float32": 4}
INTEGERS = ("uint8", "int16", "int32")  # from narrow to wide

_SIGN = bytes(128) + b"\xff" * 128  # byte -> the byte that extends its sign
_LENGTH = 4  # bytes of the array's own length: not in the value, but counted in the offset of the elements


class Unusable(Exception):
    """A value that cannot be packed.

    ``what``: ``shape`` (the array has another shape), ``null`` (an element is NULL), ``finite`` (NaN or infinite) or
    ``bytes`` (there are more or fewer bytes than the shape has).
    """

    def __init__(self, what: str, shape: tuple[int, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.shape = shape


class TooWide(Exception):
    """Values do not fit the dtype; this one they need."""

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.dtype = dtype


# -- geometry ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """Rows spread over buffers, and buffers over segments, as evenly as whole rows allow.

    The sizes of buffers differ by at most one row.  Every segment has the same number of buffers, and the larger
    buffers come first, so the rows of segments differ by at most one, too.

    ``filled``: instead, each buffer but the last is full; of a table on one segment only.
    """

    rows: int
    segments: int
    buffers: int
    filled: bool = False

    @property
    def buffer_size(self) -> int:
        """Rows of the largest buffer, which the summary records."""
        return math.ceil(self.rows / self.buffers)

    def size(self, buffer: int) -> int:
        if self.filled:
            return min(self.buffer_size, self.rows - buffer * self.buffer_size)
        least, larger = divmod(self.rows, self.buffers)
        return least + (buffer < larger)

    def segment(self, buffer: int) -> int:
        return buffer % self.segments


@dataclass(frozen=True)
class PlacedGeometry:
    """Buffers whose segments are given: those of the first segment come first, then those of the second, and so on.

    ``rows_of``: the rows of each segment; a segment may have none.
    """

    rows_of: tuple[int, ...]
    rows_per_buffer: int

    @property
    def rows(self) -> int:
        return sum(self.rows_of)

    @property
    def segments(self) -> int:
        return len(self.rows_of)

    @property
    def buffers(self) -> int:
        return sum(map(self._buffers_of, self.rows_of))

    @property
    def buffer_size(self) -> int:
        """Rows of the largest buffer."""
        return max((math.ceil(rows / self._buffers_of(rows)) for rows in self.rows_of if rows), default=0)

    def size(self, buffer: int) -> int:
        segment, place = self._place(buffer)
        rows = self.rows_of[segment]
        least, larger = divmod(rows, self._buffers_of(rows))
        return least + (place < larger)

    def segment(self, buffer: int) -> int:
        return self._place(buffer)[0]

    def _buffers_of(self, rows: int) -> int:
        return math.ceil(rows / self.rows_per_buffer)

    def _place(self, buffer: int) -> tuple[int, int]:
        """The segment of a buffer, and its place there."""
        for segment, rows in enumerate(self.rows_of):
            buffers = self._buffers_of(rows)
            if buffer < buffers:
                return segment, buffer
            buffer -= buffers
        raise IndexError(buffer)


def geometry(rows: int, segments: int, rows_per_buffer: int, filled: bool = False) -> Geometry:
    rounds = math.ceil(rows / (segments * rows_per_buffer))
    return Geometry(rows, segments, segments * rounds, filled and segments == 1)


def default_rows_per_buffer(bytes_per_row: int, rows: int, segments: int) -> int:
    """Buffers of about TARGET_BYTES, and at least one for each segment."""
    return max(1, min(TARGET_BYTES // max(1, bytes_per_row), math.ceil(rows / segments)))


class Encoder(Protocol):
    """Collects the values of rows, in chunks as a query gathers them, and gives them back as the bytes of buffers."""

    def add(self, values: bytes, rows: int) -> None: ...

    def take(self, rows: int) -> bytes: ...


# -- arrays --------------------------------------------------------------------------------------------


def shape_of(value: bytes) -> tuple[int, ...]:
    """The shape of an array; ``()`` of an empty one."""
    (dimensions,) = struct.unpack_from("<i", value)
    return struct.unpack_from(f"<{dimensions}i", value, 12)


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


class ArrayEncoder:
    """Collects arrays of one shape and gives them back as the bytes of a buffer.

    Float32 values are multiplied by ``factor``, with float32's rounding.  With an integer dtype, a value that does not
    fit raises TooWide.  ``may_lack``: NaN stands for a value that is not known.
    """

    def __init__(self, shape: Sequence[int], dtype: str, factor: float = 1.0, *, may_lack: bool = False) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.factor = factor
        self.may_lack = may_lack
        self._elements = bytearray()

    def add(self, values: bytes, rows: int) -> None:
        """``values``: the array of the arrays of all rows."""
        shape = shape_of(values)
        if shape != (rows, *self.shape):
            raise Unusable("shape", shape[1:])
        (distance,) = struct.unpack_from("<i", values, 4)
        if distance and has_null(values):
            raise Unusable("null")
        self._elements += memoryview(values)[distance - _LENGTH if distance else 12 + 8 * len(shape) :]

    def take(self, rows: int) -> bytes:
        taken = _first(self._elements, 4 * elements(self.shape) * rows)
        return _floats(taken, self.factor, self.may_lack) if self.dtype == "float32" else _integers(taken, self.dtype)


def _first(collected: bytearray, size: int) -> bytes:
    """The first bytes, which are taken away."""
    with memoryview(collected) as view:
        taken = bytes(view[:size])
    del collected[:size]
    return taken


def has_null(value: bytes) -> bool:
    """Whether an array with a map of NULLs has one.  The map has a bit per element, 0 for NULL."""
    shape = shape_of(value)
    count, start = elements(shape), 12 + 8 * len(shape)
    present = int.from_bytes(value[start : start + (count + 7) // 8], "little")
    return ~present & ((1 << count) - 1) != 0


def _floats(values: bytes, factor: float, may_lack: bool = False) -> bytes:
    if not _all_finite(values, may_lack):
        raise Unusable("finite")
    if factor == 1.0:
        return values
    # The product of two float32 is exact in double precision, so it is rounded once, as in float32.
    return array("f", map(float32(factor).__mul__, array("f", values))).tobytes()


def _all_finite(values: bytes, may_lack: bool = False) -> bool:
    """``may_lack``: all that are not NaN, as PostgreSQL writes it."""
    top = values[3::4]
    if not top.count(0x7F) + top.count(0xFF):
        return True  # all below 1.7e38
    least = 0xC0 if may_lack else 0x100  # of the next byte of NaN; that of an infinite number is 0x80
    return not any(high & 0x7F == 0x7F and 0x80 <= low < least for high, low in zip(top, values[2::4]))


def float32(value: float) -> float:
    """The nearest float32, as a Python float."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def _integers(values: bytes, dtype: str) -> bytes:
    needed = narrowest(values)
    if INTEGERS.index(needed) > INTEGERS.index(dtype):
        raise TooWide(needed)
    if dtype == "uint8":
        return values[0::4]
    return array("H", values)[0::2].tobytes() if dtype == "int16" else values


def narrowest(values: bytes) -> str:
    """The narrowest dtype that holds these int32."""
    middle, upper, top = values[1::4], values[2::4], values[3::4]
    if not (top.strip(b"\0") or upper.strip(b"\0") or middle.strip(b"\0")):
        return "uint8"
    return "int16" if top == upper == middle.translate(_SIGN) else "int32"


# -- bytes ---------------------------------------------------------------------------------------------


BYTES_HEADER = 4  # the number of the bytes, as int4send() writes it


def bytes_header(shape: Sequence[int]) -> bytes:
    """What comes before the bytes of a row, so that the rows of a chunk can be told apart."""
    return struct.pack(">i", elements(shape))


class BytesEncoder:
    """Collects the bytes of rows, which have the same number, and gives them back."""

    dtype = "uint8"

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self._elements = bytearray()

    def add(self, values: bytes, rows: int) -> None:
        if len(values) != rows * elements(self.shape):
            raise Unusable("bytes")
        self._elements += values

    def take(self, rows: int) -> bytes:
        return _first(self._elements, elements(self.shape) * rows)


# -- classes -------------------------------------------------------------------------------------------


class UnknownLabel(Exception):
    """A label that the table did not have when its classes were looked up."""


class ClassEncoder:
    """Collects the numbers of classes and gives them back one-hot, as int16.

    ``steps``: a row has so many classes.  NO_CLASS becomes zeros.
    """

    dtype = "int16"

    def __init__(self, classes: int, steps: int = 0) -> None:
        self.shape = (steps, classes) if steps else (classes,)
        self._steps = steps
        self._codes = bytearray()

    def add(self, values: bytes, rows: int) -> None:
        """``values``: the array of the numbers of the classes of all rows, each a smallint, or an array of such."""
        if self._steps and shape_of(values) != (rows, self._steps):
            raise Unusable("shape", shape_of(values)[1:])
        (distance,) = struct.unpack_from("<i", values, 4)
        if distance and has_null(values):
            raise UnknownLabel
        self._codes += memoryview(values)[distance - _LENGTH if distance else 28 if self._steps else 20 :]

    def take(self, rows: int) -> bytes:
        classes, rows = self.shape[-1], rows * (self._steps or 1)
        codes = _first(self._codes, 2 * rows)
        ones, low, high = bytearray(2 * classes * rows), codes[0::2], codes[1::2]
        if classes > rows:
            for row, code in enumerate(array("h", codes)):
                if code != NO_CLASS:
                    ones[2 * (row * classes + code)] = 1
            return bytes(ones)
        for code in range(classes):
            picked = low.translate(_PICKS[code & 0xFF])
            if classes > 255:  # the bytes of NO_CLASS are 255
                picked = _both(picked, high.translate(_PICKS[code >> 8]))
            ones[2 * code :: 2 * classes] = picked
        return bytes(ones)


_PICKS = [bytes(code) + b"\1" + bytes(255 - code) for code in range(256)]  # byte -> 1 if it is this one


def _both(one: bytes, other: bytes) -> bytes:
    """1 where both have a 1, else 0."""
    return (int.from_bytes(one, "little") & int.from_bytes(other, "little")).to_bytes(len(one), "little")
