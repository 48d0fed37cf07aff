"""Reads documents that users can write: JSON texts and rows of tables become values with known types and bounds.

Every reader of such a document takes its values from a ``Fields`` and nothing else.  What is wrong becomes an error of
ours that names the document and the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from . import names
from .errors import BadData, CerebroError, InvalidArgument, InvalidName

MOST_BYTES = 64 << 20  # of a text
MOST_DIGITS = 400  # of a number: PostgreSQL writes a float as up to 309 digits
MOST_ITEMS = 1_000_000  # of a list
DEEPEST = 200  # levels of lists and objects
LARGEST_WHOLE = 2**62
LARGEST_NUMBER = 1e300  # sums and products of a few such parameters are finite
SHOWN = 60  # characters of a wrong value in an error
REQUIRED: Any = object()


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


class Fields:
    """The fields of an object.  Each is read by its name, and ``done`` refuses the fields that nobody has read.

    ``where`` begins every error and says which object of which table it is.
    """

    def __init__(self, document: Any, where: str, hint: str | None = None, error: type[CerebroError] = BadData) -> None:
        self.where, self.hint, self._error = where, hint, error
        if not isinstance(document, dict):
            raise self.wrong(f"must be an object, not {shown(document)}")
        self.document = document
        self._read: set[str] = set()

    def wrong(self, why: str, name: str | None = None) -> CerebroError:
        """The error that something about the object, or about one of its fields, is wrong."""
        return self._error(f"{self.where}{'' if name is None else f': {name!r}'} {why}.", hint=self.hint)

    def has(self, name: str) -> bool:
        return name in self.document

    def value(self, name: str, default: Any = REQUIRED) -> Any:
        """The value of a field as it is."""
        self._read.add(name)
        found = self.document.get(name, default)
        if found is REQUIRED:
            raise self.wrong("is missing", name)
        return found

    def whole(self, name: str, low: int = 0, high: int = LARGEST_WHOLE, default: Any = REQUIRED) -> Any:
        """A whole number within bounds."""
        found = self.value(name, default)
        if found is default and name not in self.document:
            return found
        if not is_whole_number(found, low, high):
            raise self.wrong(f"must be a whole number from {low} to {high}, not {shown(found)}", name)
        return found

    def number(
        self, name: str, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER, default: Any = REQUIRED
    ) -> Any:
        """A finite number within bounds, as a float."""
        found = self.value(name, default)
        if found is default and name not in self.document:
            return found
        return self._number(found, name, low, high)

    def _number(self, value: Any, name: str, low: float, high: float) -> float:
        # Python compares whole numbers of any size with floats.
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.wrong(f"must be a number from {low:g} to {high:g}, not {shown(value)}", name)
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> Any:
        found = self.value(name, default)
        if type(found) is not bool and (found is not default or name in self.document):
            raise self.wrong(f"must be true or false, not {shown(found)}", name)
        return found

    def text(self, name: str, most: int = MOST_BYTES, default: Any = REQUIRED) -> Any:
        """A text that PostgreSQL can store."""
        found = self.value(name, default)
        if found is default and name not in self.document:
            return found
        return self._text(found, name, most)

    def _text(self, value: Any, name: str, most: int) -> str:
        if not isinstance(value, str) or len(value) > most or not names.storable(value):
            limit = "" if most >= MOST_BYTES else f" of at most {most} characters"
            raise self.wrong(f"must be a text{limit}, not {shown(value)}", name)
        return value

    def stored_name(self, name: str) -> names.StoredName:
        """The name of a table."""
        try:
            return names.StoredName(self.text(name))
        except InvalidName as error:
            raise self.wrong(f"must be the name of a table: {error.message}", name) from None

    def choice(self, name: str, choices: Collection[str]) -> str:
        found = self.value(name)
        if not isinstance(found, str) or found not in choices:
            raise self.wrong(f"must be one of {', '.join(choices)}, not {shown(found)}", name)
        return found

    def identifier(self, name: str) -> str:
        """A name that PostgreSQL can store."""
        return self._identifier(self.value(name), name)

    def _identifier(self, value: Any, name: str) -> str:
        text = self._text(value, name, names.LONGEST)
        try:
            return names.check(text)
        except InvalidName as error:
            raise self.wrong(f"must be a name: {error.message}", name) from None

    def list(self, name: str, least: int = 0, most: int = MOST_ITEMS, default: Any = REQUIRED) -> Any:
        """The items of a list, as they are."""
        found = self.value(name, default)
        if found is default and name not in self.document:
            return found
        if not isinstance(found, (list, tuple)) or not least <= len(found) <= most:
            size = f"of {least} to {most} items" if least else f"of at most {most} items"
            raise self.wrong(f"must be a list {size}, not {shown(found)}", name)
        return found

    def identifiers(self, name: str, least: int = 1, most: int = 1600) -> tuple[str, ...]:
        """Different names."""
        found = tuple(self._identifier(one, name) for one in self.list(name, least, most))
        return self._different(found, name)

    def texts(self, name: str, most: int = MOST_ITEMS, *, skipped: int = 0, different: bool = True) -> tuple[str, ...]:
        """Texts, without so many items at the beginning."""
        found = tuple(self._text(one, name, MOST_BYTES) for one in self.list(name, 0, most)[skipped:])
        return self._different(found, name) if different else found

    def _different(self, found: tuple[str, ...], name: str) -> tuple[str, ...]:
        if len(set(found)) < len(found):
            raise self.wrong("must not have the same item twice", name)
        return found

    def numbers(
        self, name: str, most: int = MOST_ITEMS, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
    ) -> tuple[float, ...]:
        return tuple(self._number(one, name, low, high) for one in self.list(name, 0, most))

    def wholes(
        self, name: str, least: int = 0, most: int = MOST_ITEMS, low: int = 0, high: int = LARGEST_WHOLE
    ) -> tuple[int, ...]:
        found = self.list(name, least, most)
        for one in found:
            if not is_whole_number(one, low, high):
                raise self.wrong(f"must have whole numbers from {low} to {high}, not {shown(one)}", name)
        return tuple(found)

    def object(self, name: str, where: str | None = None) -> Fields:
        """The fields of an object within this one."""
        return self._within(self.value(name), where or f"{self.where}: {name}")

    def objects(self, name: str, least: int = 0, most: int = MOST_ITEMS) -> Iterable[Fields]:
        """The fields of each object of a list."""
        return [
            self._within(one, f"{self.where}: {name}[{place}]")
            for place, one in enumerate(self.list(name, least, most))
        ]

    def _within(self, document: Any, where: str) -> Fields:
        return Fields(document, where, self.hint, self._error)

    def done(self) -> None:
        """An error for a field that nobody has read."""
        for name in self.document:
            if name not in self._read:
                raise self.wrong(f"has the unknown field {shown(name)}; it has: {', '.join(sorted(self._read))}")


def is_whole_number(value: Any, low: int = 0, high: int = LARGEST_WHOLE) -> bool:
    return type(value) is int and low <= value <= high
