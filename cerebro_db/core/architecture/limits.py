"""The limits of an architecture's JSON: its size, its depth, and the values in it."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InvalidArgument
from .messages import shown

MOST_BYTES = 16 << 20
DEEPEST = 64  # levels
MOST_LAYERS = 10_000
LARGEST = 2**40  # the largest whole number in an argument, and the largest product of the sizes of one layer
LONGEST_TEXT = 1000  # characters
LONGEST_NAME = 255  # characters


def too_deep() -> InvalidArgument:
    return InvalidArgument(f"the architecture is nested more than {DEEPEST} levels deep")


def too_many_layers() -> InvalidArgument:
    return InvalidArgument(f"the architecture has more than {MOST_LAYERS} layers")


def check_limits(architecture: Any) -> None:
    """Raise InvalidArgument unless this is JSON within the limits.

    The walk does not use recursion, so a deep architecture cannot exhaust the stack before its depth is known.
    """
    pending = [(architecture, 1)]
    while pending:
        value, depth = pending.pop()
        if depth > DEEPEST:
            raise too_deep()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str) or len(key) > LONGEST_NAME:
                    raise InvalidArgument(
                        f"the architecture has the key {shown(key)}, which is not a text of at most {LONGEST_NAME}"
                        " characters"
                    )
            pending.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            if len(value) > MOST_LAYERS and isinstance(value[0], dict):  # Refuse it now, not after a long walk.
                raise too_many_layers()
            pending.extend((inner, depth + 1) for inner in value)
        elif isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise InvalidArgument(
                    f"the architecture contains a text of {len(value)} characters; the limit is {LONGEST_TEXT}:"
                    f" {shown(value)}"
                )
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidArgument(f"the architecture contains {value}, which is not a finite number")
        elif isinstance(value, int):
            if abs(value) >= 2**63:
                raise InvalidArgument("the architecture contains a whole number of more than 64 bits")
        elif value is not None:
            raise InvalidArgument(f"the architecture contains a {type(value).__name__}, which is not a JSON value")
