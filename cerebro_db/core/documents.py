"""JSON texts that users can write become values, within bounds of their size and depth.

The codec gives the values known types and bounds.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from .errors import BadData, CerebroError, InvalidArgument

MOST_BYTES = 64 << 20  # of a text
MOST_DIGITS = 400  # of a number: PostgreSQL writes a float as up to 309 digits
DEEPEST = 200  # levels of lists and objects
LARGEST_WHOLE = 2**62
LARGEST_NUMBER = 1e300  # sums and products of a few such parameters are finite
SHOWN = 60  # characters of a wrong value in an error


def decoded(
    text: Any, where: str, hint: str | None = None, *, error: type[CerebroError] = BadData, most: int = MOST_BYTES
) -> Any:
    """The JSON value of a text; an error, beginning with ``where``, if it is none."""
    if not isinstance(text, str):
        raise error(f"{where} is not a JSON text, but {shown(text)}.", hint=hint)
    if len(text) > most:
        raise error(f"{where} has {len(text)} characters; at most {most} are allowed.", hint=hint)
    try:
        return json_value(text, parse_constant=_refused, parse_float=_real)
    except RecursionError:
        raise error(f"{where} is nested too deeply.", hint=hint) from None
    except ValueError as wrong:
        raise error(f"{where} is not valid JSON: {wrong}.", hint=hint) from None


def json_value(text: str, **hooks: Any) -> Any:
    """As ``json.loads``, but what is nested too deeply is a RecursionError, whatever the version of Python.

    Python's own limit is higher for its JSON reader than for functions that call themselves, which read the value.
    """
    value = json.loads(text, parse_int=whole_number, **hooks)
    if text.count("[") + text.count("{") <= DEEPEST:  # nearly always; a log has thousands of small documents
        return value
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (dict, list))
        ]
    if level:
        raise RecursionError("lists and objects are nested too deeply")
    return value


def argument(text: str | None, name: str, hint: str | None = None, *, default: Any = None) -> Any:
    """The JSON value of an argument of a function; InvalidArgument, beginning with its name, if it is none."""
    return default if text is None else decoded(text, name, hint, error=InvalidArgument)


def _refused(name: str) -> NoReturn:
    """Python's JSON reader accepts NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is not a number")


def whole_number(digits: str) -> int:
    """Python reads a number of n digits in time n², and some versions not at all."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:SHOWN]} is too large for a number")
    return found


def shown(value: Any) -> str:
    """The beginning of a value, for an error."""
    if isinstance(value, (dict, list, tuple)):  # may be megabytes, or deep
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, (bytes, bytearray)):
        return "bytes"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return f"a number of {len(str(abs(value)))} digits"
    text = "null" if value is None else json.dumps(value[: SHOWN + 1] if isinstance(value, str) else value, default=str)
    return text if len(text) <= SHOWN + 2 else text[: SHOWN + 1] + "…"
