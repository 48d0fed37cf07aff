"""A fuzzer of the state codec: each damaged state is read or refused with CorruptState, in little memory and time.

    python -m tests.core.fuzz_state --count 1000000 [--seed 0]

Half of the damage is in the bytes, and half in the JSON of the header, where a reader is most likely to make mistakes.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.models import state

SPARE_MB = 256  # megabytes that the fuzzer may use in addition to those at its start

Layout = list[tuple[str, str, tuple[int, ...]]]

LAYOUTS: list[tuple[Layout, dict[str, str]]] = [
    ([("000|w", "F32", (3, 4)), ("001|b", "F32", (4,)), ("002|seed", "U32", (2,))], {"weights": "2"}),
    ([("000|half", "F16", (5,)), ("001|step", "I64", ()), (state.FLAT_WEIGHTS, "F32", (5,))], {"weights": "1"}),
    ([(f"{n:03d}|slot", "F32", (n % 5,)) for n in range(40)], {"weights": "20", "engine": "tensorflow"}),
    ([("a", "BOOL", (2, 0, 3)), ("b", "F64", (1,)), ("ü\u202e\0", "BF16", (1, 1))], {}),
    ([], {"weights": "0"}),
]
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 63, 64, 65, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63),
    10**400, 0.5, -0.0, 1e308, "", "F32", "f32", "F33", "weights", "\ud800", "٣", "x" * 1000, [], [[]], [0], [0, 4],
    [4, 0], [-4, 0], [0, 4, 8], [2**62, 2**62], [1] * 65, {}, {"dtype": "F32"},
    {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
]  # fmt: skip


def whole(layout: Layout, metadata: dict[str, str]) -> bytes:
    size = sum(state.tensor_bytes(dtype, shape) for _, dtype, shape in layout)
    return state.header_bytes(layout, metadata) + bytes(n % 251 for n in range(size))


def framed(header: bytes, data: bytes) -> bytes:
    return state.LENGTH.pack(len(header)) + header + data


WHOLE = [whole(*one) for one in LAYOUTS]


def damaged(chance: random.Random) -> bytes:
    blob = chance.choice(WHOLE)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        blob = (in_bytes if chance.random() < 0.5 else in_header)(chance, blob)
    return blob


def in_bytes(chance: random.Random, blob: bytes) -> bytes:
    piece = bytearray(blob)
    where = chance.randrange(len(piece) + 1)
    damage = chance.randrange(8)
    if damage == 0:
        return bytes(piece[:where])
    if damage == 1:
        return bytes(piece) + chance.randbytes(chance.randrange(1, 40))
    if damage == 2:
        other = chance.choice(WHOLE)
        return bytes(piece[:where]) + other[chance.randrange(len(other)) :]
    if damage == 3:
        piece[where:where] = piece[chance.randrange(len(piece) + 1) :][: chance.randrange(64)]
    elif damage == 4:
        del piece[where : where + chance.randrange(1, 16)]
    elif damage == 5 and len(piece) >= 8:
        length = chance.choice((0, 1, len(piece) - 8, len(piece), chance.getrandbits(64), state.LARGEST_HEADER + 1))
        piece[:8] = state.LENGTH.pack(length)
    elif damage == 6 and where < len(piece):
        piece[where] ^= 1 << chance.randrange(8)
    elif where < len(piece):
        piece[where] = chance.choice((0, 0x22, 0x5B, 0x5D, 0x7B, 0x7D, 0x30, 0x39, 0x2D, 0xFF, chance.randrange(256)))
    return bytes(piece)


def in_header(chance: random.Random, blob: bytes) -> bytes:
    """The state with one change in the header's JSON.  The length before the header is correct."""
    try:
        (length,) = state.LENGTH.unpack(blob[:8])
        entries, data = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    except (ValueError, RecursionError, struct.error):
        return in_bytes(chance, blob)
    places = list(places_in(entries, 3))
    if not places:
        return in_bytes(chance, blob)
    where, key = chance.choice(places)
    damage = chance.randrange(6)
    if damage == 0:
        del where[key]
    elif damage == 1 and isinstance(where, dict):
        where[chance.choice(("", "a", state.METADATA, state.FLAT_WEIGHTS, "dtype", "000|w"))] = where[key]
    elif damage == 2 and isinstance(where[key], int):
        where[key] += chance.choice((-(2**40), -8, -4, -1, 1, 4, 8, 2**40))
    else:
        where[key] = chance.choice(ODD)
    text = json.dumps(entries).encode("utf-8", "surrogatepass")
    if chance.random() < 0.02:  # JSON that json.dumps never writes
        text = text.replace(b'"shape"', chance.choice((b'"dtype"', b'"\\u0073hape"', b'"sh\xffape"')), 1)
        text = text.replace(b"[0", chance.choice((b"[NaN", b"[Infinity", b"[1e999", b"[" * 3000)), 1)
    return framed(text, data)


def places_in(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        if depth > 1:
            yield from places_in(value[key], depth - 1)


def look(blob: bytes, as_file: bool) -> str:
    """``read`` or ``corrupt``.  Any other exception is a defect of the reader."""
    try:
        header = state.read_header(io.BytesIO(blob) if as_file else blob, len(blob))
        end = header.data_start
        for tensor in header.tensors:
            assert tensor.start == end and tensor.end - tensor.start == state.tensor_bytes(tensor.dtype, tensor.shape)
            end = tensor.end
        assert end == header.size == len(blob)
        start, size = state.weights_slice(header)
        assert start >= header.data_start and size >= 0 and start + size <= len(blob) and size % 4 == 0
    except CorruptState as error:
        assert len(error.message) < 10_000
        return "corrupt"
    return "read"


def fuzz(count: int, seed: int) -> dict[str, Any]:
    chance, found, slowest = random.Random(seed), Counter[str](), 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        blob = damaged(chance)
        started = time.process_time()
        try:
            found[look(blob, number % 4 == 0)] += 1
        except BaseException:
            print(f"seed {seed}, blob {number}: {blob!r}")
            raise
        slowest = max(slowest, time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {**found, "slowest_ms": round(slowest * 1000, 1), "grown_mb": round(grown, 1)}


def limit_memory() -> None:
    """Make any allocation beyond SPARE_MB fail with a MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (SPARE_MB << 20), resource.RLIM_INFINITY))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--count", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    limit_memory()
    started = time.monotonic()
    print(given.count, "damaged states:", fuzz(given.count, given.seed), f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
