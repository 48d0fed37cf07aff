"""How large the arguments of a function of ours may be.

One call of C code (reading JSON, a regular expression, sorting) cannot be interrupted.  These limits bound what such a
call gets.  They are checked before anything else is done with the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.texts import counted

LONGEST = 1_000_000  # characters of a text or JSON, or of all texts of an array together
MOST_ELEMENTS = 100_000  # of an array
DEEPEST = 6  # PostgreSQL's arrays have no more dimensions


def require(arguments: Mapping[str, Any], longest: int) -> None:
    """Refuse an argument that is too large.  Bytes may have any size, because nothing walks through them."""
    for name, value in arguments.items():
        if isinstance(value, str):
            if len(value) > longest:
                raise _too_large(name, counted(len(value), "character"), f"{longest:,}")
        elif isinstance(value, list):
            elements, characters = _measured(value, DEEPEST)
            if elements > MOST_ELEMENTS:
                raise _too_large(name, counted(elements, "element"), f"{MOST_ELEMENTS:,}")
            if characters > longest:
                raise _too_large(name, f"texts of {counted(characters, 'character')}", f"{longest:,}")


def _measured(values: list[Any], depth: int) -> tuple[int, int]:
    """The number of elements of an array, and of the characters of its texts."""
    if depth and values and isinstance(values[0], list):
        parts = [_measured(inner, depth - 1) for inner in values]
        return sum(elements for elements, _ in parts), sum(characters for _, characters in parts)
    return len(values), sum(len(value) for value in values if isinstance(value, str))


def _too_large(name: str, has: str, limit: str) -> InvalidArgument:
    return InvalidArgument(f"{name} has {has}; at most {limit} are allowed")
