"""MADlib's helpers for the bytes of packed tables: little-endian values one after the other, without a header."""

from __future__ import annotations

import struct
from typing import Any

from cerebro_db.core.errors import BadData

from ..database.access import Database
from ..database.entry import entry


@entry
def array_to_bytes(db: Database, values: list[Any] | None, code: str) -> bytes | None:
    if values is None:
        return None
    flat = _flat(values)
    if None in flat:
        raise BadData("convert_array_to_bytea: an element is NULL.", hint="coalesce() or array_remove() can help.")
    return struct.pack(f"<{len(flat)}{code}", *flat)


@entry
def bytes_to_array(db: Database, payload: bytes | None, code: str) -> list[Any] | None:
    if payload is None:
        return None
    size = struct.calcsize(code)
    if len(payload) % size:
        raise BadData(f"convert_bytea: {len(payload)} bytes are not a whole number of values of {size} bytes.")
    return list(struct.unpack(f"<{len(payload) // size}{code}", payload))


def _flat(values: list[Any]) -> list[Any]:
    while values and isinstance(values[0], list):
        values = [inner for outer in values for inner in outer]
    return values
