"""The codec of a model's whole state, which is a safetensors file.

The file consists of an 8-byte little-endian length, a JSON header of this length, and the bytes of the tensors without
holes.  The file passes through database tables, so the reader trusts nothing in it: it checks every offset against the
real size before it touches any data, and raises ``CorruptState`` for anything wrong.

The order of the tensors is: the model's weights in the order of ``get_weights()``, its other variables, the optimizer's
variables.  The metadata in the header has the number of weights, so a model's flat weights are a slice of the file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cerebro_db.core.errors import CorruptState

PIECE = 4 << 20  # bytes of weights in one statement
LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 64 << 20  # bytes
LARGEST_RANK = 64  # NumPy's limit; it also bounds the product of malicious dimensions
ALIGNMENT = 8  # The data starts at a multiple of 8 bytes, as in the files that the safetensors library writes.

# The dtypes of safetensors; core/packing/buffer_format.py has a table of its own for the dtypes of packed rows.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

METADATA = "__metadata__"
WEIGHTS = "weights"  # the metadata's key for the number of weights
FLAT_WEIGHTS = "madlib_weights"  # all weights as float32: only if some are not float32, or averages replace them

Source = Any  # bytes, a memoryview, an mmap or a binary file


def cut(weights: bytes) -> Iterator[bytes]:
    """The pieces in which weights are sent and stored."""
    return (weights[start : start + PIECE] for start in range(0, len(weights), PIECE))


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte offset in the file, not in its data
    end: int


class Header(NamedTuple):
    tensors: list[Tensor]  # in the order of their bytes
    metadata: dict[str, str]
    data_start: int  # byte offset in the file
    size: int  # bytes of the whole file


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


def header_bytes(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The length and the header of a file with these tensors, each given as (name, dtype, shape)."""
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
        raise ValueError(f"the header has {len(text)} bytes; the limit is {LARGEST_HEADER}")
    return LENGTH.pack(len(text)) + text


def read_header(source: Source, size: int | None = None) -> Header:
    """The header of a state, after all checks.

    ``source`` is bytes, a mapped file, or a file that is open for reading.  ``size`` is the size of the whole state; it
    is required for a file.
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
    """The offset and the number of bytes of the flat weights: float32, one weight after the other."""
    for tensor in header.tensors:
        if tensor.name == FLAT_WEIGHTS:
            if tensor.dtype != "F32":
                raise _corrupt(f"the dtype of {FLAT_WEIGHTS} is {tensor.dtype}, not F32")
            return tensor.start, tensor.end - tensor.start
    weights = header.tensors[: _weights_count(header)]
    if any(tensor.dtype != "F32" for tensor in weights):
        raise _corrupt(f"some of its weights are not float32, and it has no tensor {FLAT_WEIGHTS}")
    end = weights[-1].end if weights else header.data_start
    return header.data_start, end - header.data_start


def _weights_count(header: Header) -> int:
    """The number of tensors that are the model's weights."""
    count = header.metadata.get(WEIGHTS, "")
    # isascii(), because isdigit() is also true for digits of other scripts.
    if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count) <= len(header.tensors)):
        raise _corrupt(f"its metadata has the number of weights {count[:40]!r}")
    return int(count)


# ---- parts of the reader --------------------------------------------------------------------------


def _corrupt(reason: str) -> CorruptState:
    return CorruptState(f"the model state is damaged: {reason}")


def _piece(source: Source, start: int, length: int) -> bytes:
    if hasattr(source, "seek") and not hasattr(source, "find"):  # A file; a mapped file has both methods.
        source.seek(start)
        return source.read(length)
    return bytes(source[start : start + length])


def _parse(text: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name occurs twice")
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
    return type(value) is int and 0 <= value < 1 << 63  # type(), because isinstance(True, int) is true


def _tensor(name: str, entry: Any, data_start: int) -> Tensor:
    shown = repr(name[:200])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _corrupt(f"tensor {shown} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _corrupt(f"tensor {shown} has an unknown dtype")
    if not isinstance(shape, list) or len(shape) > LARGEST_RANK or not all(map(_is_size, shape)):
        raise _corrupt(f"tensor {shown} has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise _corrupt(f"tensor {shown} has impossible offsets")
    start, end = offsets
    if end - start != tensor_bytes(dtype, shape):
        raise _corrupt(f"tensor {shown} of dtype {dtype} and shape {shape} has the offsets {start} to {end}")
    return Tensor(name, dtype, tuple(shape), data_start + start, data_start + end)


def _cover(tensors: list[Tensor], data_start: int, size: int) -> None:
    """Check that every byte of the data belongs to exactly one tensor."""
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            wrong = "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            raise _corrupt(f"tensor {tensor.name[:200]!r} {wrong}")
        end = tensor.end
    if end != size:
        raise _corrupt(f"its tensors end at byte {end} of {size}")
