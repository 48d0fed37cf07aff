"""How rows become buffers: how many, how large, on which segment, and the bytes themselves.

PostgreSQL hands an array over as it lies in memory (``cerebro._array_bytes``): a header of words of four
bytes - the number of dimensions, how far its elements are if there is a map of NULLs (else 0), their type,
the sizes and the lower bounds - that map, and the elements, four bytes each after our casts.  Machines that
this runs on are little-endian, as buffers are, so elements are copied as they come.  Everything here works on
whole buffers by slices and translations: there is no numpy in the server's Python, and a loop over elements
would be fifty times slower.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TARGET_BYTES = 8 << 20  # of the widest variable of one buffer; a bytea of this size is read at 2-3 GB/s
LARGEST_BYTES = 1_000_000_000  # PostgreSQL's limit of a value, less some room
MOST_CLASSES = 10_000

ITEM_BYTES = {"uint8": 1, "int16": 2, "int32": 4, "float32": 4}
INTEGERS = ("uint8", "int16", "int32")  # from narrow to wide

_SIGN = bytes(128) + b"\xff" * 128  # byte -> the byte that extends its sign
_LENGTH = 4  # an array's own, which is left out, counts where it says how far its elements are


class Unusable(Exception):
    """A value that cannot go into a buffer: of another ``shape``, with a ``null`` inside, or not ``finite``."""

    def __init__(self, what: str, shape: tuple[int, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.shape = shape


class TooWide(Exception):
    """The values need this dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.dtype = dtype


# -- geometry ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """Rows dealt over buffers, and buffers over segments, as evenly as whole rows allow.

    Sizes of buffers differ by at most one row and each segment has the same number of buffers, the
    larger ones first in turn, so that rows per segment differ by at most one.
    """

    rows: int
    segments: int
    buffers: int

    @property
    def buffer_size(self) -> int:
        """Rows of the largest buffer; MADlib records this."""
        return math.ceil(self.rows / self.buffers)

    def size(self, buffer: int) -> int:
        least, larger = divmod(self.rows, self.buffers)
        return least + (buffer < larger)

    def segment(self, buffer: int) -> int:
        return buffer % self.segments


def geometry(rows: int, segments: int, rows_per_buffer: int) -> Geometry:
    rounds = math.ceil(rows / (segments * rows_per_buffer))
    return Geometry(rows, segments, segments * rounds)


def default_rows_per_buffer(bytes_per_row: int, rows: int, segments: int) -> int:
    """Buffers of about TARGET_BYTES, and at least one for each segment."""
    return max(1, min(TARGET_BYTES // max(1, bytes_per_row), math.ceil(rows / segments)))


# -- arrays --------------------------------------------------------------------------------------------


def shape_of(value: bytes) -> tuple[int, ...]:
    """The shape of an array; ``()`` of an empty one."""
    (dimensions,) = struct.unpack_from("<i", value)
    return struct.unpack_from(f"<{dimensions}i", value, 12)


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


class ArrayEncoder:
    """Collects arrays of one shape and gives them back as the bytes of a buffer.

    ``factor`` multiplies float32 values, with float32's rounding.  An integer dtype raises TooWide
    when a value does not fit, and says what it needs.
    """

    def __init__(self, shape: Sequence[int], dtype: str, factor: float = 1.0) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.factor = factor
        self._header_size = 12 + 8 * len(self.shape)
        self._header: bytes | None = None
        self._elements = bytearray()

    def add(self, values: Sequence[bytes]) -> None:
        if self._header is None:
            self._header = self._checked(values[0])[: self._header_size]
        header, start = self._header, self._header_size
        # The same header means the same number of elements, none of them NULL: hence the same length.
        if not all(value.startswith(header) for value in values):
            values = [value if value.startswith(header) else self._checked(value) for value in values]
        self._elements += b"".join([value[start:] for value in values])

    def take(self) -> bytes:
        taken, self._elements = bytes(self._elements), bytearray()
        return _floats(taken, self.factor) if self.dtype == "float32" else _integers(taken, self.dtype)

    def _checked(self, value: bytes) -> bytes:
        """A value whose header differs harmlessly (lower bounds, NULLs no more there), or Unusable."""
        shape = shape_of(value)
        if shape != self.shape:
            raise Unusable("shape", shape)
        (distance,) = struct.unpack_from("<i", value, 4)
        if distance and has_null(value):
            raise Unusable("null")
        header = self._header or value[:4] + bytes(4) + value[8 : self._header_size]
        return header + value[distance - _LENGTH if distance else self._header_size :]


def has_null(value: bytes) -> bool:
    """Whether an element is NULL in an array that has a map of them: a bit per element, 0 for a NULL."""
    shape = shape_of(value)
    count, start = elements(shape), 12 + 8 * len(shape)
    present = int.from_bytes(value[start : start + (count + 7) // 8], "little")
    return ~present & ((1 << count) - 1) != 0


def _floats(values: bytes, factor: float) -> bytes:
    if not _all_finite(values):
        raise Unusable("finite")
    if factor == 1.0:
        return values
    # The product of two float32 is exact in double precision, so it is rounded once, as float32 does.
    return array("f", map(float32(factor).__mul__, array("f", values))).tobytes()


def _all_finite(values: bytes) -> bool:
    top = values[3::4]
    if not top.count(0x7F) + top.count(0xFF):
        return True  # all below 1.7e38
    return not any(high & 0x7F == 0x7F and low & 0x80 for high, low in zip(top, values[2::4]))


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


# -- classes -------------------------------------------------------------------------------------------


class UnknownLabel(Exception):
    """A label that was not there when the classes were looked up."""


class ClassEncoder:
    """Collects labels and gives them back one-hot, as int16."""

    dtype = "int16"

    def __init__(self, indices: dict[str, int], classes: int) -> None:
        self.indices = indices
        self.shape = (classes,)
        self._picked: list[int] = []

    def add(self, labels: Iterable[str]) -> None:
        try:
            self._picked.extend([self.indices[label] for label in labels])
        except KeyError as missing:
            raise UnknownLabel(missing.args[0]) from None

    def take(self) -> bytes:
        (classes,) = self.shape
        ones = bytearray(2 * classes * len(self._picked))
        for row, index in enumerate(self._picked):
            ones[2 * (row * classes + index)] = 1
        self._picked = []
        return bytes(ones)
