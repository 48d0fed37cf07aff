"""The pipe between a database session and its trainer: length-prefixed JSON frames.

The session sends one order; the trainer sends any number of progress frames and exactly one reply (core/protocol).
Rows and states never go through the pipe: they lie in files whose paths the orders name.
"""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct(">I")
LARGEST_FRAME = 64 << 20  # an architecture has at most a few MB; a larger frame comes from a broken process


class BrokenFrame(ValueError):
    """The other process sent bytes that are not a frame."""


def encode(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":"), allow_nan=True).encode()
    if len(body) > LARGEST_FRAME:
        raise BrokenFrame(f"a frame of {len(body)} bytes is over the limit of {LARGEST_FRAME}")
    return HEADER.pack(len(body)) + body


class Decoder:
    """Turns a stream of pieces of bytes into messages, wherever the pieces are cut."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        self._pending += piece
        messages = []
        while len(self._pending) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._pending)
            if length > LARGEST_FRAME:
                raise BrokenFrame(f"a frame of {length} bytes is over the limit of {LARGEST_FRAME}")
            end = HEADER.size + length
            if len(self._pending) < end:
                break
            try:
                message = json.loads(self._pending[HEADER.size : end])
            except ValueError as error:
                raise BrokenFrame(f"not JSON: {error}") from error
            if not isinstance(message, dict):
                raise BrokenFrame("not a JSON object")
            messages.append(message)
            del self._pending[:end]
        return messages
