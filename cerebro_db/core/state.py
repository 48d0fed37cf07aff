"""A model's whole state as one run of bytes: a safetensors file, read with suspicion.

The file is an 8-byte little-endian length, a JSON header of that length and the tensors' bytes
without holes.  It crosses a database, so a reader believes nothing: every offset is checked against
the real size before a byte of data is touched, and whatever is wrong is a ``CorruptState``.
The tensors come in the order in which they are given: the model's weights as ``get_weights()``
orders them, its other variables, the optimizer's.  The header's metadata counts the first group,
so that MADlib's ``model_weights`` is a slice of the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cerebro_db.core.errors import CorruptState

LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 64 << 20
LARGEST_RANK = 64  # NumPy's own limit; also keeps the product of hostile dimensions small
ALIGNMENT = 8  # the data starts at a multiple of this, as safetensors' own writer has it

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

METADATA = "__metadata__"
WEIGHTS = "weights"  # metadata: how many of the first tensors are the model's weights
MADLIB_WEIGHTS = "madlib_weights"  # an extra tensor, only if some weight is not float32

Source = Any  # bytes, a memoryview, an mmap or a binary file


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # counted from the beginning of the file, not of the data
    end: int


class Header(NamedTuple):
    tensors: list[Tensor]  # in the order of their bytes
    metadata: dict[str, str]
    data_start: int
    size: int


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file whose data is the given (name, dtype, shape) tensors, one after the other."""
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, dtype, shape in tensors:
        if name in entries:
            raise ValueError(f"two tensors are called {name!r}")
        start, end = end, end + tensor_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH.size + len(text)) % ALIGNMENT)
    if len(text) > LARGEST_HEADER:
        raise ValueError(f"a header of {len(text)} bytes is over the limit of {LARGEST_HEADER}")
    return LENGTH.pack(len(text)) + text


def read_header(source: Source, size: int | None = None) -> Header:
    """The checked header of a state: ``source`` is bytes, a mapped file or a file opened for reading.

    ``size`` is the size of the whole state (needed for a file; of bytes it is their length).
    """
    if size is None:
        size = len(source)
    start = _piece(source, 0, LENGTH.size)
    if len(start) < LENGTH.size:
        raise _corrupt(f"it has {len(start)} bytes, too few for a header")
    (length,) = LENGTH.unpack(start)
    data_start = LENGTH.size + length
    if length > LARGEST_HEADER or data_start > size:
        raise _corrupt(f"a header of {length} bytes does not fit into a state of {size} bytes")
    text = _piece(source, LENGTH.size, length)
    if len(text) < length:
        raise _corrupt(f"it ends inside its header, after {LENGTH.size + len(text)} bytes")
    entries = _parse(text)
    metadata = _metadata(entries.pop(METADATA, {}))
    tensors = sorted((_tensor(name, entry, data_start) for name, entry in entries.items()), key=lambda t: t[3:])
    _cover(tensors, data_start, size)
    return Header(tensors, metadata, data_start, size)


def weights_slice(header: Header) -> tuple[int, int]:
    """(offset, bytes) of the model's weights as MADlib stores them: float32, one after the other."""
    for tensor in header.tensors:
        if tensor.name == MADLIB_WEIGHTS:
            if tensor.dtype != "F32":
                raise _corrupt(f"{MADLIB_WEIGHTS} has type {tensor.dtype}")
            return tensor.start, tensor.end - tensor.start
    weights = header.tensors[: weights_count(header)]
    if any(tensor.dtype != "F32" for tensor in weights):
        raise _corrupt(f"its weights are not float32 and it has no {MADLIB_WEIGHTS}")
    end = weights[-1].end if weights else header.data_start
    return header.data_start, end - header.data_start


def weights_count(header: Header) -> int:
    count = header.metadata.get(WEIGHTS, "")
    # isascii: '٣'.isdigit() is true, too
    if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count) <= len(header.tensors)):
        raise _corrupt(f"its number of weights is given as {count[:40]!r}")
    return int(count)


# --- the reader's parts ---


def _corrupt(reason: str) -> CorruptState:
    return CorruptState(f"the model state is damaged: {reason}")


def _piece(source: Source, start: int, length: int) -> bytes:
    if hasattr(source, "seek") and not hasattr(source, "find"):  # a file; an mmap has both
        source.seek(start)
        return source.read(length)
    return bytes(source[start : start + length])


def _parse(text: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name comes twice")
        return found

    try:
        entries = json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _corrupt(f"its header cannot be read ({error})") from None
    if not isinstance(entries, dict):
        raise _corrupt("its header is not a JSON object")
    return entries


def _metadata(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _corrupt("its metadata is not an object of strings")
    return found


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # type(): True is an int for isinstance


def _tensor(name: str, entry: Any, data_start: int) -> Tensor:
    called = repr(name[:200])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _corrupt(f"tensor {called} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _corrupt(f"tensor {called} has an unknown type")
    if not isinstance(shape, list) or len(shape) > LARGEST_RANK or not all(map(_is_size, shape)):
        raise _corrupt(f"tensor {called} has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise _corrupt(f"tensor {called} has impossible offsets")
    start, end = offsets
    if end - start != tensor_bytes(dtype, shape):
        raise _corrupt(f"tensor {called} of type {dtype} and shape {shape} lies at {start}..{end}")
    return Tensor(name, dtype, tuple(shape), data_start + start, data_start + end)


def _cover(tensors: list[Tensor], data_start: int, size: int) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            wrong = "overlaps the one before it" if tensor.start < end else "leaves a hole before it"
            raise _corrupt(f"tensor {tensor.name[:200]!r} {wrong}")
        end = tensor.end
    if end != size:
        raise _corrupt(f"its tensors end at byte {end} of {size}")
