"""Predicts with an exported model on a machine without cerebro_db: it needs NumPy and nothing else.

Copy this file. ``Scorer("x.safetensors")`` reads a file that ``cerebro export`` has written, and predicts raw rows:

    from cerebro_scorer import Scorer
    scorer = Scorer("people.safetensors")
    scorer.predict([{"age": 41, "city": "Rome", "born": "1983-05-02"}])   # {"income": array([...])}

A raw row is a dictionary of Python values, or what PostgreSQL's row_to_json gives: numbers, texts, true and false,
None, dates and times as ISO texts or as Python's own, pixels as bytes or as the text of a bytea.
``RowPreparation("x.preparation.json").inputs(rows)`` makes the arrays that the model reads, for a model that another
library has loaded.

From the command line, ``python cerebro_scorer.py x.safetensors < rows.jsonl`` reads a JSON object in each line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

FARTHEST = 100.0  # deviations; a number that is farther away counts as this far
DAY = 86400
LEAST_PROBABILITY = 1e-7  # a smaller one counts as this one, because 0 has no logarithm
MOST_CHARACTERS = 1_000_000  # of a text that are read
MOST_ROWS = 1024  # in a batch
MOST_ROWS_OF_LARGE = 32  # in a batch of a model with large layers
MOST_EXACT = 10  # columns whose contributions are exact
ORDERED = 512  # of more columns, about so many are added to coalitions in each direction
MODELS = ("Functional", "Sequential")
# Layers that need much memory for a row.
LARGE_LAYERS = {"Conv1D", "Conv2D", "MultiHeadAttention", "MaxPooling2D", "AveragePooling2D"}
LARGEST_HEADER = 64 << 20  # bytes, of a safetensors file
DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "i1", "I16": "<i2", "BOOL": "?"}
EPOCH = datetime(1970, 1, 1)

RELATED = "In the database, cerebro.related_rows() writes rows with the columns of related tables."

Row = Mapping[str, Any]
Array = Any  # numpy.ndarray


class CannotScore(ValueError):
    """A row, or a file, cannot be used."""


class RowPreparation:
    """What the columns of a row become: the document that ``cerebro export`` writes."""

    def __init__(self, document: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        if not isinstance(document, Mapping):
            with open(document, encoding="utf-8") as file:
                document = json.load(file)
        assert isinstance(document, Mapping)
        if document.get("format") != "cerebro preparation 1":
            raise CannotScore(
                f"this is no preparation that this scorer knows: its format is {document.get('format')!r}"
            )
        self.document = document
        self.variables = document["inputs"]
        features = [one for variable in self.variables for one in variable["preparation"].get("features", ())]
        if any(one.get("vocabulary") for one in features):
            raise CannotScore("the model reads pieces of words, which this file does not make: predict in the database")
        if document["encoding"] != "UTF8" and any(
            one["prepared_as"] == "words" or one.get("buckets") for one in features
        ):
            raise CannotScore(f"the database hashed texts in the encoding {document['encoding']}, not in UTF8")
        self.words = WordFinder(document["words"]) if document.get("words") else None

    @property
    def columns(self) -> list[str]:
        """The columns that a row needs."""
        return list(dict.fromkeys(column for variable in self.variables for column in variable["columns"]))

    @property
    def targets(self) -> list[str]:
        return [output["name"] for output in self.document["outputs"]]

    def classes(self, target: str) -> list[str | None] | None:
        """The classes of a target, in the order of the model's output. None: it is a number."""
        return next(output["classes"] for output in self.document["outputs"] if output["name"] == target)

    def inputs(self, rows: Iterable[Any]) -> dict[str, Array]:
        """The arrays that the model reads, by the names of its inputs.

        If the model reads windows of rows, each of ``rows`` is a window: a list of as many rows, in their order.
        """
        given, windows = list(rows), self.document["window"]
        count = len(given)
        if not count:
            return {one["input"]: np.empty((0, *one["input_shape"]), one["input_dtype"]) for one in self.variables}
        if windows:
            if wrong := [len(one) for one in given if len(one) != windows]:
                raise CannotScore(f"a window must have {windows} rows, not {wrong[0]}")
            given = [row for window in given for row in window]
        columns = self.columns
        for place, row in enumerate(given):
            if not isinstance(row, Mapping):
                raise CannotScore(f"row {place + 1} is no dictionary of columns")
            if missing := [column for column in columns if column not in row]:
                of_related = set(missing).intersection(self.document.get("related", ()))
                raise CannotScore(
                    f"row {place + 1} lacks {', '.join(missing)}; the model needs {', '.join(columns)}"
                    + (f". {RELATED}" if of_related else "")
                )
        return {
            variable["input"]: self._variable(variable, given)
            .reshape(count, *variable["input_shape"])
            .astype(variable["input_dtype"])
            for variable in self.variables
        }

    def owners(self, row: Any) -> tuple[list[str], dict[str, Array]]:
        """The columns, and for each element of each array of ``inputs`` the place of its column among them."""
        row, columns, found = row[0] if self.document["window"] else row, self.columns, {}
        for variable in self.variables:
            own, shape = [columns.index(column) for column in variable["columns"]], variable["shape"]
            widths: list[int] = []
            if len(own) > 1:
                features = variable["preparation"].get("features", ())
                parts = [
                    PREPARED[feature["prepared_as"]](self, feature, [row[column]])
                    for column, feature in zip(variable["columns"], features)
                ]
                widths = [len(one) for one in parts] or [shape[-1] // len(own)] * len(own)
            places = np.repeat(own, widths) if widths else np.array(own[:1])
            found[variable["input"]] = np.broadcast_to(places, shape or (1,)).reshape(variable["input_shape"])
        return columns, found

    def _variable(self, variable: Mapping[str, Any], rows: list[Row]) -> Array:
        preparation = variable["preparation"]
        if preparation["kind"] not in ("numbers", "categories", "words"):
            made = _pixels if preparation["kind"] == "pixels" else _plain
            return made(variable, rows, variable["shape"][1:] if self.document["window"] else variable["shape"])
        parts = []
        for column, feature in zip(variable["columns"], preparation["features"]):
            try:
                parts += PREPARED[feature["prepared_as"]](self, feature, [row[column] for row in rows])
            except CannotScore as error:
                raise CannotScore(f"column {column!r}: {error}") from None
        return parts[0] if preparation["kind"] == "words" else np.stack(parts, axis=1)

    def _number(self, feature: Mapping[str, Any], values: list[Any]) -> list[Array]:
        known = np.array([number(feature, one) for one in values], np.float64)
        absent = np.array([one is None for one in values], bool)
        if feature["not_finite"] == "null":
            absent |= ~np.isfinite(known)
        elif (~np.isfinite(known) & ~absent).any():
            raise CannotScore("a value is NaN or infinite")
        filled = np.where(absent, feature["fill"], known)
        found = transformed(feature, filled).astype(np.float32)
        return [found, absent.astype(np.float32)] if feature["missing"] else [found]

    def _date(self, feature: Mapping[str, Any], values: list[Any]) -> list[Array]:
        moments = [_moment_or_time(feature["type"], one) for one in values]
        absent = np.array([one is None for one in moments], bool)
        parts = []
        for cycle in feature["cycles"]:
            position, length = CYCLES[cycle]
            angles = np.array([0.0 if one is None else position(one) for one in moments]) * (2 * math.pi / length)
            for function in (np.sin, np.cos):
                parts.append(np.where(absent, 0.0, function(angles)).astype(np.float32))
        if feature["deviation"]:
            mean, deviation = feature["mean"], feature["deviation"]
            days = np.array([mean if one is None else _days(one) for one in moments], np.float64)
            parts.append(_standard(days, mean, deviation).astype(np.float32))
        return [*parts, absent.astype(np.float32)] if feature["missing"] else parts

    def _category(self, feature: Mapping[str, Any], values: list[Any]) -> list[Array]:
        codes = {value: code for code, value in enumerate(feature["values"], 1)}
        codes.update(dict.fromkeys(feature["rare"], len(feature["values"]) + 1))
        first_bucket = 1 + len(feature["values"]) + bool(feature["rare"])
        found = []
        for one in values:
            spelled = None if one is None else text(feature, one)
            code = 0 if spelled is None else codes.get(spelled)
            if one is not None and spelled is None and feature["unknown"] == "error" and not feature["buckets"]:
                raise CannotScore(f"training has not seen the value {one!r}")
            if code is None and feature["buckets"]:
                code = first_bucket + self._hash(spelled or "") % feature["buckets"]
            elif code is None and feature["unknown"] == "error":
                raise CannotScore(f"training has not seen the value {spelled!r}")
            found.append(code or 0)
        return [np.array(found, np.int32)]

    def _means(self, feature: Mapping[str, Any], values: list[Any]) -> list[Array]:
        places = {value: place for place, value in enumerate(feature["values"])}
        found = [None if one is None else places.get(text(feature, one)) for one in values]
        return [
            np.array([0.0 if place is None else means[place] for place in found], np.float32)
            for means in feature["means"]
        ]

    def _words(self, feature: Mapping[str, Any], values: list[Any]) -> list[Array]:
        assert self.words is not None  # a document of another encoding is refused
        length, ids = feature["length"], feature["ids"]
        found = np.zeros((len(values), length), np.int32)
        for place, one in enumerate(values):
            words = [] if one is None else self.words.of(text(feature, one), length)
            found[place, : len(words)] = [1 + self._hash(word) % (ids - 1) for word in words]
        return [found]

    def _hash(self, spelled: str) -> int:
        try:
            return hashed(spelled.encode())
        except UnicodeEncodeError:
            raise CannotScore(f"{spelled!r} is no text of UTF8") from None


PREPARED: dict[str, Callable[..., list[Array]]] = {
    "number": RowPreparation._number,
    "date": RowPreparation._date,
    "category": RowPreparation._category,
    "words": RowPreparation._words,
    "means": RowPreparation._means,
}


# -- numbers ---------------------------------------------------------------------------------------------------


def _pixels(variable: Mapping[str, Any], rows: list[Row], shape: list[int]) -> Array:
    """Bytes, or their text in SQL and JSON: ``\\x`` and two digits for each byte."""
    (column,), size = variable["columns"], math.prod(shape)
    found = np.empty((len(rows), size), np.uint8)
    for place, row in enumerate(rows):
        value = row[column]
        if isinstance(value, str) and value.startswith("\\x"):
            try:
                value = bytes.fromhex(value[2:])
            except ValueError:
                raise CannotScore(f"column {column!r} has a text that is no bytea") from None
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise CannotScore(f"column {column!r} must have bytes, not {type(value).__name__}")
        if len(value) != size:
            raise CannotScore(f"column {column!r} must have {size} bytes in each row, not {len(value)}")
        found[place] = np.frombuffer(value, np.uint8)
    pixels = found.reshape(len(rows), *shape).astype(np.float32)
    return pixels / np.float32(variable["preparation"]["by"])


def _plain(variable: Mapping[str, Any], rows: list[Row], shape: list[int]) -> Array:
    """Numbers and arrays that are taken as they are, or divided."""
    preparation, columns = variable["preparation"], variable["columns"]
    real = variable["dtype"] == "float32"
    dtype = np.float32 if real else np.int32
    if len(columns) == 1 and rows and isinstance(rows[0][columns[0]], (list, tuple, np.ndarray)):
        values = [row[columns[0]] for row in rows]
    else:
        values = [[row[column] for column in columns] for row in rows]
    try:
        found = np.array(values, np.float64).reshape(len(rows), *shape)
    except (TypeError, ValueError) as error:
        raise CannotScore(f"input {variable['name']!r} must have the shape {shape} in each row: {error}") from None
    if not np.isfinite(found).all():
        raise CannotScore(f"input {variable['name']!r} has a value that is NULL, NaN or infinite")
    if not real and (np.abs(np.rint(found)) >= 2**31).any():
        raise CannotScore(f"input {variable['name']!r} has a value of more than 32 bits")
    found = (found if real else np.rint(found)).astype(dtype)
    if preparation["kind"] != "divided":
        return found
    if real:
        return found * np.float32(1.0 / preparation["by"])
    return found.astype(np.float32) / np.float32(preparation["by"])


def number(feature: Mapping[str, Any], value: Any) -> float:
    """A value of a column as a number; NaN for NULL."""
    if value is None:
        return math.nan
    family, type = feature["family"], feature["type"]
    if family == "interval":
        return seconds(value)
    if family == "money":
        return float(money(value))
    if family == "boolean":
        return float(boolean(value))
    if family == "date":
        moment = _moment(type, value)
        return math.nan if moment is None else _days(moment)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise CannotScore(f"{value!r} is no number") from None
    return float(np.float32(found)) if type == "real" else found


def transformed(feature: Mapping[str, Any], values: Array) -> Array:
    if feature["transform"] == "quantile":
        return _interpolated(feature["knots"], feature["scores"], values)
    if feature["transform"] == "log":
        largest = feature["unit"] * 1e100
        within = np.clip(values, -largest, largest)
        values = np.sign(within) * np.log(1 + np.abs(within) / feature["unit"])
    return _standard(values, feature["mean"], feature["deviation"])


def _standard(values: Array, mean: float, deviation: float) -> Array:
    within = np.clip(values, mean - FARTHEST * deviation, mean + FARTHEST * deviation)
    return (within - (mean - deviation)) / deviation - 1


def _interpolated(knots: Sequence[float], scores: Sequence[float], values: Array) -> Array:
    """Linear between the knots; beyond them, the score of the first or last knot."""
    x, y = np.array(knots, np.float64), np.array(scores, np.float64)
    slopes = (y[1:] - y[:-1]) / (x[1:] - x[:-1])
    starts = np.concatenate([y[:1], y[:-1] - slopes * x[:-1], y[-1:]])
    slopes = np.concatenate([[0.0], slopes, [0.0]])
    place = np.searchsorted(x, values, side="right")
    return starts[place] + slopes[place] * np.clip(values, x[0], x[-1]) + 1 - 1


AMOUNT = re.compile(r"[-(]?[^\d.,()-]*\d{1,3}(\d*|(,\d{3})+)(\.\d+)?[^\d.,()-]*\)?")


def money(value: Any) -> Decimal:
    """An amount: a number, or a text such as $1,234.50."""
    try:
        if not isinstance(value, str):
            return Decimal(str(value))
        if not AMOUNT.fullmatch(value.strip()):
            raise CannotScore(f"{value!r} is no amount of money such as $1,234.50")
        negative = value.strip().startswith(("-", "("))
        amount = Decimal(re.sub(r"[^0-9.]", "", value))
        return -amount if negative else amount
    except InvalidOperation:
        raise CannotScore(f"{value!r} is no amount of money") from None


def boolean(value: Any) -> bool:
    known = {"t": True, "true": True, "f": False, "false": False}
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise CannotScore(f"{value!r} is neither true nor false")


# -- dates and times -------------------------------------------------------------------------------------------

UNITS = {"year": 31557600, "mon": 2592000, "day": DAY, "hour": 3600, "min": 60, "sec": 1}  # as PostgreSQL counts them
CLOCK = re.compile(r"([+-]?)(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?")


def seconds(value: Any) -> float:
    """An interval: seconds, a timedelta, or the text that PostgreSQL writes."""
    if isinstance(value, timedelta):
        return (value.days * DAY + value.seconds) + value.microseconds / 1e6
    if not isinstance(value, str):
        return float(value)
    total = Decimal(0)
    rest = value.strip()
    if clock := CLOCK.search(rest):
        sign, hours, minutes, seconds_ = clock.groups()
        of_clock = int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds_ or 0)
        total += -of_clock if sign == "-" else of_clock
        rest = rest[: clock.start()]
    words = rest.split()
    for amount, unit in zip(words[::2], words[1::2]):
        name = next((known for known in UNITS if unit.startswith(known)), None)
        if name is None or not re.fullmatch(r"[+-]?\d+", amount):
            raise CannotScore(f"{value!r} is no interval")
        total += int(amount) * UNITS[name]
    if len(words) % 2 or not (words or clock):
        raise CannotScore(f"{value!r} is no interval")
    return float(total)


def _moment_or_time(type: str, value: Any) -> datetime | int | None:
    """A moment; or of a time of day the microseconds since midnight."""
    if type == "time without time zone":
        return None if value is None else microseconds(value)
    return _moment(type, value)


def _moment(type: str, value: Any) -> datetime | None:
    """A date or time, in UTC if it has a time zone. None: it is NULL or infinite."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()  # None for NaT
    bare = value.replace(tzinfo=None) if isinstance(value, datetime) else value
    infinite = ("infinity", "-infinity", date.max, date.min, datetime.max, datetime.min)  # as drivers give them
    if bare is None or bare != bare or bare in infinite:
        return None
    if isinstance(value, str):
        spelled = re.sub(r"([+-]\d\d)$", r"\1:00", value.strip()) if ":" in value else value.strip()
        spelled = re.sub(r"\.(\d{1,6})", lambda digits: "." + digits[1].ljust(6, "0"), spelled)
        try:
            value = datetime.fromisoformat(spelled.replace("Z", "+00:00"))
        except ValueError:
            raise CannotScore(f"{value!r} is no date or time in ISO form of the years 1 to 9999") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise CannotScore(f"{value!r} is no date or time")
    if (value.tzinfo is not None) != (type == "timestamp with time zone"):
        raise CannotScore(
            f"{value} must have {'no' if value.tzinfo else 'a'} time zone, because the column is a {type}"
        )
    try:
        value = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    except OverflowError:
        raise CannotScore(f"{value} is outside the years 1 to 9999 in UTC") from None
    return value.replace(hour=0, minute=0, second=0, microsecond=0) if type == "date" else value


def microseconds(value: Any) -> int:
    """A time of day, since midnight."""
    if isinstance(value, time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    clock = CLOCK.fullmatch(str(value).strip())
    if clock is None:
        raise CannotScore(f"{value!r} is no time of day")
    _, hours, minutes, seconds_ = clock.groups()
    return int((int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds_ or 0)) * 10**6)


def _days(moment: datetime | int) -> float:
    """Days since 1970, or the part of a day since midnight."""
    if isinstance(moment, int):
        return moment / 1e6 / DAY
    since = moment - EPOCH
    return ((since.days * DAY + since.seconds) * 10**6 + since.microseconds) / 1e6 / DAY


def _of_day(moment: datetime | int) -> float:
    if isinstance(moment, int):
        return moment / 1e6
    return microseconds(moment.time()) / 1e6


CYCLES: dict[str, tuple[Callable[[Any], float], int]] = {
    "year": (lambda when: when.timetuple().tm_yday - 1, 366),
    "month": (lambda when: when.day - 1, 31),
    "week": (lambda when: (when.weekday() + 1) % 7, 7),
    "day": (_of_day, DAY),
}


# -- texts -----------------------------------------------------------------------------------------------------


def text(feature: Mapping[str, Any], value: Any) -> str | None:
    """A value as the text that a category has; None counts as NULL."""
    family, type = feature["family"], feature["type"]
    if family == "number":
        return _written_number(type, value)
    if family == "money":
        return f"{money(value):.2f}"
    if family == "interval":
        return _decimal(seconds(value))
    if family == "boolean":
        return "true" if boolean(value) else "false"
    if family == "date":
        moment = _moment(type, value)
        return None if moment is None else f"{moment.year:04}-{moment:%m-%d %H:%M:%S.%f}"
    if family == "time":
        since = microseconds(value)
        whole, fraction = divmod(since, 10**6)
        ended = f".{fraction:06}".rstrip("0") if fraction else ""
        return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{ended}"
    spelled = str(value)
    if type in ("bpchar", "character"):
        return spelled.rstrip(" ")
    if family == "inet" and "/" not in spelled:
        return spelled + ("/128" if ":" in spelled else "/32")
    return spelled.lower() if family == "uuid" else spelled


def _written_number(type: str, value: Any) -> str | None:
    if type in ("smallint", "integer", "bigint"):
        try:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            return str(int(value))
        except (TypeError, ValueError):
            raise CannotScore(f"{value!r} is no whole number") from None
    found = number({"family": "number", "type": type}, value)
    return _decimal(found) if math.isfinite(found) else None


def _decimal(value: float) -> str:
    """As PostgreSQL writes a numeric that was a double."""
    return format(Decimal(f"{value:.15g}"), "f") if value else "0"


class WordFinder:
    """The words of a text, as the database finds them: it has told how it writes letters in lower case, and which
    characters separate words."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.lower = {ord(upper): lower for upper, lower in document["lower"]}
        ranges = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in document["separators"])
        self.separators = re.compile(f"[{ranges}]+")

    def of(self, spelled: str | None, most: int) -> list[str]:
        lowered = (spelled or "")[:MOST_CHARACTERS].translate(self.lower)
        return [word for word in self.separators.split(lowered) if word][:most]


def hashed(spelled: bytes) -> int:
    """PostgreSQL's hashtextextended(text, 0): Bob Jenkins' hash, as a signed 64-bit number."""
    mask = 0xFFFFFFFF
    a = b = c = (0x9E3779B9 + len(spelled) + 3923095) & mask

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (32 - by)) & mask

    start = 0
    while len(spelled) - start >= 12:
        x, y, z = struct.unpack_from("<III", spelled, start)
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        for i, j, k in ((4, 6, 8), (16, 19, 4)):
            a = (a - c) & mask ^ turned(c, i)
            c = (c + b) & mask
            b = (b - a) & mask ^ turned(a, j)
            a = (a + c) & mask
            c = (c - b) & mask ^ turned(b, k)
            b = (b + a) & mask
        start += 12
    rest = spelled[start:]
    # The lowest byte of c is for the length.
    x, y, z = struct.unpack("<III", rest[:8].ljust(8, b"\0") + b"\0" + rest[8:].ljust(3, b"\0"))
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    c = ((c ^ b) - turned(b, 14)) & mask
    a = ((a ^ c) - turned(c, 11)) & mask
    b = ((b ^ a) - turned(a, 25)) & mask
    c = ((c ^ b) - turned(b, 16)) & mask
    a = ((a ^ c) - turned(c, 4)) & mask
    b = ((b ^ a) - turned(a, 14)) & mask
    c = ((c ^ b) - turned(b, 24)) & mask
    found = b << 32 | c
    return found - (1 << 64) if found >> 63 else found


# -- the model -------------------------------------------------------------------------------------------------


class Scorer:
    """Predicts raw rows with a model in a safetensors file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        tensors, metadata = read_safetensors(path)
        if "preparation" not in metadata:
            raise CannotScore(f"{path} has no preparation of columns: cerebro export writes files that have one")
        self.preparation = RowPreparation(json.loads(metadata["preparation"]))
        self.model = NumpyModel(json.loads(metadata["architecture"]), json.loads(metadata["layers"]), tensors)

    def predict(self, rows: Iterable[Any], calibrated: bool | None = None) -> dict[str, Array]:
        """By target: a number for each row, or a probability for each row and class.

        ``calibrated``: as in ``cerebro.predict``; by default where that has lowered the log loss.
        """
        if calibrated:
            self._require_classes()
        return self._computed(self.preparation.inputs(rows), calibrated)

    def _computed(self, inputs: Mapping[str, Array], calibrated: bool | None = None) -> dict[str, Array]:
        found = self._of_model(inputs)
        for output in self.preparation.document["outputs"]:
            kept = output.get("calibration") or {}
            if output["classes"] is not None and (calibrated or calibrated is None and kept.get("gain", 0) > 0):
                found[output["name"]] = _tempered(found[output["name"]], self._calibration(output)["temperature"])
        return found

    def _of_model(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs, found = self.model(inputs), {}
        for output in self.preparation.document["outputs"]:
            values, classes = outputs[output["output"]], output["classes"]
            if classes is None and values.ndim == 2 and values.shape[1] == 1:
                values = values[:, 0]
            elif classes is not None and len(classes) == 2 and values.shape[-1] == 1:
                values = np.hstack([1 - values, values])  # one unit gives the probability of the second class
            found[output["name"]] = values
        return found

    def explain(
        self, rows: Iterable[Any], background: Iterable[Any], classes: Mapping[str, Any] | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """By target, for each row: the prediction, the mean prediction of the background rows (base), contributions.

        These are Shapley values, as of ``cerebro.explain``. They add up to the prediction minus the base.

        ``classes``: by target, the class whose probability is explained; by default the predicted one.
        """
        background, document = list(background), self.preparation.document
        if not background:
            raise CannotScore("the background needs at least one row")
        chosen = classes or {}
        places = {one["name"]: _place(one, chosen[one["name"]]) for one in document["outputs"] if one["name"] in chosen}
        columns, owners = self.preparation.owners(background[0])
        members, weights = _coalitions(len(columns))
        given, others = self.preparation.inputs(rows), self.preparation.inputs(background)
        found: dict[str, list[dict[str, Any]]] = {output["name"]: [] for output in document["outputs"]}
        for row in range(len(next(iter(given.values())))):
            won = self._won({name: its[row] for name, its in given.items()}, others, owners, members)
            for output in document["outputs"]:
                values, known = won[output["name"]], output["classes"]  # of no column first, of all columns last
                place = places.get(output["name"], int(values[-1].argmax()))
                found[output["name"]].append(
                    {
                        **({} if known is None else {"class": known[place]}),
                        "prediction": float(values[-1, place]),
                        "base": float(values[0, place]),
                        "contributions": dict(zip(columns, (values[:, place] @ weights).tolist())),
                    }
                )
        return found

    def _won(
        self, row: Mapping[str, Array], others: Mapping[str, Array], owners: Mapping[str, Array], members: Array
    ) -> dict[str, Array]:
        """By target, for each coalition: the mean prediction of the background rows with the row's values of it."""
        count, parts = len(next(iter(others.values()))), []
        step = max(1, MOST_ROWS // count)
        for start in range(0, len(members), step):
            some = members[start : start + step]
            mixed: dict[str, Array] = {}
            for name, its in others.items():
                mixed[name] = np.where(some[:, owners[name]][:, None], row[name], its)
                mixed[name] = mixed[name].reshape(-1, *its.shape[1:])
            computed = self._computed(mixed)
            parts.append({name: its.reshape(len(some), count, -1).mean(1, "f8") for name, its in computed.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def intervals(self, rows: Iterable[Any], coverage: float) -> dict[str, Array]:
        """By target that is a number: the lower and the upper end for each row, as ``cerebro.predict`` gives them."""
        return self.intervals_of(self.predict(rows), coverage)

    def intervals_of(self, predicted: Mapping[str, Array], coverage: float) -> dict[str, Array]:
        """The intervals around what ``predict`` returned."""
        if not 0 < coverage < 1:
            raise CannotScore(f"coverage must be between 0 and 1, such as 0.9; it is {coverage}")
        found = {}
        for output in self.preparation.document["outputs"]:
            if output["classes"] is None:
                kept, values = self._calibration(output), predicted[output["name"]].astype(np.float64)
                half = _half_widths(kept, coverage)[np.searchsorted(kept["edges"], values, side="right")]
                found[output["name"]] = np.stack([values - half, values + half], axis=1)
        if not found:
            raise CannotScore("the model predicts classes, which have no intervals")
        return found

    def labels(self, rows: Iterable[Any], thresholds: bool = False) -> dict[str, list[Any]]:
        """By target: a number or the most probable class for each row.

        ``thresholds``: the class that ``cerebro.predict(…, thresholds => true)`` decides for.
        """
        return self.labels_of(self.predict(rows, calibrated=thresholds or None), thresholds)

    def labels_of(self, predicted: Mapping[str, Array], thresholds: bool = False) -> dict[str, list[Any]]:
        """The labels for what ``predict`` returned; with thresholds, for calibrated probabilities."""
        if thresholds:
            self._require_classes()
        found = {}
        for output in self.preparation.document["outputs"]:
            values, classes = predicted[output["name"]], output["classes"]
            if classes is not None and thresholds:
                weights = self._calibration(output)["weights"]
                if weights is None:
                    raise CannotScore(f"no thresholds of {output['name']!r} are kept: it has too many classes")
                values = values * np.array(weights)
            found[output["name"]] = values.tolist() if classes is None else [classes[one] for one in values.argmax(-1)]
        return found

    def _require_classes(self) -> None:
        if all(output["classes"] is None for output in self.preparation.document["outputs"]):
            raise CannotScore("the model predicts numbers, which have no probabilities and thresholds")

    def _calibration(self, output: Mapping[str, Any]) -> Mapping[str, Any]:
        kept: Mapping[str, Any] | None = output.get("calibration")
        if kept is None and self.preparation.document.get("group"):
            raise CannotScore("models of groups are not calibrated")
        if kept is None:
            raise CannotScore(
                f"the file has no calibration of {output['name']!r}: call cerebro.calibrate in the database, and"
                " export the model again"
            )
        return kept


def _place(output: Mapping[str, Any], label: Any) -> int:
    known: list[Any] = output["classes"] or []
    if label not in known:
        raise CannotScore(f"{output['name']!r} has no class {label!r}")
    return known.index(label)


def _coalitions(columns: int) -> tuple[Array, Array]:
    """Coalitions (whether each column is a member), and what the mean output of each adds to the value of each column.

    All coalitions of few columns; of more columns those of some orders, forwards and backwards.
    """
    if columns <= MOST_EXACT:
        members = np.arange(2**columns)[:, None] >> np.arange(columns) & 1 == 1
        joining = np.array([1 / (columns * math.comb(columns - 1, size)) for size in range(columns)])
        sizes = members.sum(1)
        return members, np.where(members, joining[sizes - 1, None], -joining[sizes % columns, None])
    random, pairs, found = np.random.Generator(np.random.PCG64(0)), max(1, ORDERED // columns), []
    for _ in range(pairs):
        order = random.permutation(columns)
        for one in (order, order[::-1]):
            joins = np.eye(columns)[one] / (2 * pairs)
            weights = np.pad(joins, ((1, 0), (0, 0))) - np.pad(joins, ((0, 1), (0, 0)))
            found.append((np.argsort(one) < np.arange(columns + 1)[:, None], weights))
    members, weights = (np.concatenate(parts) for parts in zip(*found))
    return members, weights


def _tempered(values: Array, temperature: float) -> Array:
    if temperature == 1:
        return values
    return _softmax(np.log(np.maximum(values.astype(np.float64), LEAST_PROBABILITY)) / temperature)


def _half_widths(kept: Mapping[str, Any], coverage: float) -> Array:
    """For each bin of predictions, half the width of the intervals: a quantile of the errors that were kept."""
    rows, scores = kept["rows"], kept["scores"]
    place = math.ceil((rows + 1) * coverage - 1e-9)
    if place > rows:
        raise CannotScore(
            f"intervals with coverage {coverage} need the errors of more rows than {rows}, which are known"
        )
    return scores[math.ceil(place * len(scores) / rows) - 1] * np.array(kept["scales"], np.float64)


class NumpyModel:
    """A Sequential or Functional model of layers that compute with NumPy.  A layer may be such a model itself.

    ``weights``: by layer, the names of its tensors; of a layer that is a model, the same of its layers.
    """

    def __init__(self, architecture: Mapping[str, Any], weights: Mapping[str, Any], tensors: Mapping[str, Array]):
        config = architecture["config"]
        self.layers = {layer["config"]["name"]: layer for layer in config["layers"]}
        self.models: dict[str, NumpyModel] = {}
        for name, layer in self.layers.items():
            if layer["class_name"] in MODELS:
                if not isinstance(weights.get(name), Mapping):
                    raise CannotScore(f"the file does not say which weights are those of {name!r}: export it again")
                self.models[name] = NumpyModel(layer, weights[name], tensors)
        of_layers = {name: names for name, names in weights.items() if name not in self.models}
        self.weights = {name: [tensors[one] for one in names] for name, names in of_layers.items()}
        is_large = any(layer["class_name"] in LARGE_LAYERS for layer in self.layers.values())
        own = MOST_ROWS_OF_LARGE if is_large else MOST_ROWS
        self.batch: int = min([own, *(one.batch for one in self.models.values())])
        names = list(self.layers)
        if architecture["class_name"] == "Sequential":
            inner = [name for name in names if self.layers[name]["class_name"] != "InputLayer"]
            first = next((name for name in names if name not in inner), "input")
            before = [first, *inner]
            self.nodes: dict[str, list[Any]] = {
                name: [((_Tensor(earlier),), {})] for earlier, name in zip(before, inner)
            }
            self.inputs, self.outputs = [_Tensor(first)], [_Tensor(before[-1])]
        else:
            self.nodes = {
                name: [_call(node, layer["class_name"]) for node in layer["inbound_nodes"]]
                for name, layer in self.layers.items()
            }
            self.inputs, outputs = _ends(config["input_layers"]), _ends(config["output_layers"])
            # Here, and nowhere else, Keras counts the calls of functional models from 1.
            is_functional = {name: layer["class_name"] == "Functional" for name, layer in self.layers.items()}
            self.outputs = [_Tensor(name, node - is_functional[name], place) for name, node, place in outputs]
        for name, layer in self.layers.items():
            kind = layer["class_name"]
            if kind not in LAYERS and name not in self.models:
                raise CannotScore(f"the layer {name!r} is a {kind}, which this scorer does not compute: {OTHERWISE}")
            policy = layer["config"].get("dtype")
            policy = policy["config"]["name"] if isinstance(policy, Mapping) else policy
            if policy not in (None, "float32") and kind not in ("InputLayer", "GetItem"):
                raise CannotScore(f"the layer {name!r} computes in {policy}, which this scorer does not: {OTHERWISE}")

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, for arrays by the names of the inputs."""
        rows = len(inputs[self.inputs[0].layer])
        parts = []
        for start in range(0, max(rows, 1), self.batch):
            parts.append(self._of_batch([inputs[one.layer][start : start + self.batch] for one in self.inputs]))
        return [np.concatenate(one) for one in zip(*parts)]

    def _of_batch(self, inputs: Sequence[Array]) -> list[Array]:
        known = dict(zip(self.inputs, inputs))
        return [self._value(one, known) for one in self.outputs]

    def _value(self, wanted: _Tensor, known: dict[_Tensor, Array]) -> Array:
        pending, opened = [wanted], set()
        while pending:  # not by recursion: a model may have thousands of layers
            tensor = pending[-1]
            if tensor in known:
                pending.pop()
                continue
            arguments, keywords = self.nodes[tensor.layer][tensor.node]
            missing = [one for one in _tensors([*arguments, *keywords.values()]) if one not in known]
            if missing:
                if tensor in opened:
                    raise CannotScore("the layers form a circle")
                opened.add(tensor)
                pending += missing
                continue
            filled = [_filled(one, known) for one in arguments]
            named = {name: _filled(one, known) for name, one in keywords.items()}
            try:
                found = self._computed(tensor.layer, filled, named)
            except CannotScore:
                raise
            except Exception as error:  # an argument that the functions below do not know
                raise CannotScore(f"the layer {tensor.layer!r} is not computed ({error}): {OTHERWISE}") from error
            if tensor.output >= len(found):
                raise CannotScore(f"the layer {tensor.layer!r} has several outputs: {OTHERWISE}")
            known.update((_Tensor(tensor.layer, tensor.node, place), one) for place, one in enumerate(found))
        return known[wanted]

    def _computed(self, name: str, arguments: list[Any], named: dict[str, Any]) -> list[Array]:
        """The outputs of a layer. Only models have several."""
        layer, model = self.layers[name], self.models.get(name)
        if model is None:
            return [LAYERS[layer["class_name"]](layer["config"], self.weights.get(name, []), *arguments, **named)]
        (given,) = arguments
        given = given if isinstance(given, list) else [given]
        if len(given) != len(model.inputs) or named:
            raise CannotScore(f"the model {name!r} is called with other inputs than it has: {OTHERWISE}")
        return model._of_batch(given)


OTHERWISE = "RowPreparation gives the prepared arrays to a model that another library has loaded"


class _Tensor(tuple):  # (name of a layer, number of its call, which of its outputs)
    def __new__(cls, layer: str, node: int = 0, output: int = 0) -> _Tensor:
        return super().__new__(cls, (layer, node, output))

    @property
    def layer(self) -> str:
        return self[0]

    @property
    def node(self) -> int:
        return self[1]

    @property
    def output(self) -> int:
        return self[2]


def _ends(given: Any) -> list[_Tensor]:
    """References such as ["dense", 0, 0], alone or in a list."""
    if given and isinstance(given[0], str):
        return [_Tensor(*given)]
    return [_Tensor(*one) for one in given]


def _call(node: Mapping[str, Any], kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    keywords = {name: _argument(one) for name, one in node["kwargs"].items()}
    for name in ("training",) if kind in MASKED and keywords.get("mask") is not None else ("training", "mask"):
        given = keywords.pop(name, None)
        if any(one not in (None, False) for one in (given if isinstance(given, list) else [given])):
            raise CannotScore(f"this scorer does not compute layers that are called with {name}: {OTHERWISE}")
    return tuple(map(_argument, node["args"])), keywords


def _argument(value: Any) -> Any:
    if isinstance(value, list):
        return [_argument(one) for one in value]
    if isinstance(value, Mapping) and value.get("class_name") == "__keras_tensor__":
        return _Tensor(*value["config"]["keras_history"])
    if isinstance(value, Mapping) and value.get("class_name") == "__slice__":
        config = value["config"]
        return slice(config["start"], config["stop"], config["step"])
    return value


def _tensors(value: Any) -> list[_Tensor]:
    if isinstance(value, _Tensor):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, list) else []


def _filled(value: Any, known: Mapping[_Tensor, Array]) -> Any:
    if isinstance(value, _Tensor):
        return known[value]
    return [_filled(one, known) for one in value] if isinstance(value, list) else value


# -- the layers ------------------------------------------------------------------------------------------------

Config = Mapping[str, Any]
F = np.float32


def _exp_ratio(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _erf(x: Array) -> Array:
    return np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64)).astype(F)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": _exp_ratio,
    "tanh": np.tanh,
    "softmax": _softmax,
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "silu": lambda x: x * _exp_ratio(x),
    "swish": lambda x: x * _exp_ratio(x),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "leaky_relu": lambda x: np.where(x > 0, x, F(0.2) * x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / F(math.sqrt(2)))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: F(1.05070098) * np.where(x > 0, x, F(1.67326324) * np.expm1(np.minimum(x, 0))),
    "exponential": np.exp,
}


def _activated(config: Config, x: Array, name: str = "activation") -> Array:
    activation = config.get(name) or "linear"
    if isinstance(activation, Mapping):
        activation = activation.get("config")
    if activation not in ACTIVATIONS:
        raise CannotScore(f"the activation {activation!r} is not computed: {OTHERWISE}")
    return ACTIVATIONS[activation](x).astype(F)


def _dense(config: Config, weights: list[Array], x: Array) -> Array:
    found = x.astype(F) @ weights[0]
    return _activated(config, found + weights[1] if config.get("use_bias", True) else found)


def _einsum_dense(config: Config, weights: list[Array], x: Array) -> Array:
    found = np.einsum(config["equation"], x.astype(F), weights[0])
    return _activated(config, found + weights[1] if config.get("bias_axes") else found)


def _batch_normalization(config: Config, weights: list[Array], x: Array) -> Array:
    *scaled, mean, variance = weights
    axis = config.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) else axis
    shape = [1] * x.ndim
    shape[axis] = -1
    given = iter(scaled)
    gamma = next(given) if config.get("scale", True) else np.ones_like(mean)
    beta = next(given) if config.get("center", True) else np.zeros_like(mean)
    factor = gamma / np.sqrt(variance + F(config.get("epsilon", 1e-3)))
    return x.astype(F) * factor.reshape(shape) + (beta - mean * factor).reshape(shape)


def _layer_normalization(config: Config, weights: list[Array], x: Array) -> Array:
    axis = config.get("axis", -1)
    axes = tuple(axis) if isinstance(axis, list) else (axis,)
    if [one % x.ndim for one in axes] != [x.ndim - 1] or config.get("rms_scaling"):
        raise CannotScore(f"a LayerNormalization over the axes {axis} is not computed: {OTHERWISE}")
    x = x.astype(F)
    found = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + F(config.get("epsilon", 1e-3)))
    given = iter(weights)
    found = found * next(given) if config.get("scale", True) else found
    return found + next(given) if config.get("center", True) else found


def _dot(config: Config, weights: list[Array], tensors: list[Array]) -> Array:
    one, other = (tensor.astype(F) for tensor in tensors)
    if config.get("axes") not in (1, [1, 1]) or one.ndim > 3 or other.ndim != 3 or config.get("normalize"):
        raise CannotScore(f"a Dot of tensors other than weights and what they weigh is not computed: {OTHERWISE}")
    return (one[:, None] @ other)[:, 0] if one.ndim == 2 else one.transpose(0, 2, 1) @ other


def _masked_softmax(config: Config, weights: list[Array], x: Array, mask: Array | None = None) -> Array:
    axis = config.get("axis", -1)
    if mask is None:
        return _softmax(x, axis)
    known = mask > 0.5
    return np.where(known, _softmax(np.where(known, x, F(-1e9)), axis), F(0))


def _relu(config: Config, weights: list[Array], x: Array) -> Array:
    slope, threshold, most = (config.get(name) or 0 for name in ("negative_slope", "threshold", "max_value"))
    found = np.where(x > threshold, x, F(slope) * (x - F(threshold)))
    return np.minimum(found, F(most)) if config.get("max_value") is not None else found


def _rescaling(config: Config, weights: list[Array], x: Array) -> Array:
    return x.astype(F) * np.array(config["scale"], F) + np.array(config.get("offset", 0), F)


def _reshape(config: Config, weights: list[Array], x: Array) -> Array:
    shape = [-1 if one is None else one for one in config["target_shape"]]
    if -1 in shape:
        shape[shape.index(-1)] = math.prod(x.shape[1:]) // math.prod(one for one in shape if one != -1)
    return x.reshape(len(x), *shape)


def _embedding(config: Config, weights: list[Array], x: Array) -> Array:
    if config.get("mask_zero"):
        raise CannotScore(f"an Embedding with mask_zero is not computed: {OTHERWISE}")
    return weights[0][x.astype(np.int64)]


def _channels_last(config: Config, x: Array) -> Array:
    if config.get("data_format") == "channels_first":
        raise CannotScore(f"data_format channels_first is not computed: {OTHERWISE}")
    return x


def _slid(config: Config, x: Array, sizes: Sequence[int], steps: Sequence[int], fill: float) -> Array:
    """All places of a window of these sizes over the axes between rows and channels.

    The shape is (rows, places…, channels, sizes…).
    """
    x, count = _channels_last(config, x).astype(F), len(sizes)
    apart, padding = _each_axis(config.get("dilation_rate"), count, 1), config.get("padding", "valid")
    spans = [(size - 1) * gap + 1 for size, gap in zip(sizes, apart)]
    pads = [(0, 0)]
    for length, span, step in zip(x.shape[1:], spans, steps):
        missing = span - 1
        if padding == "same":
            missing = max((math.ceil(length / step) - 1) * step + span - length, 0)
        before = {"valid": 0, "same": missing // 2, "causal": span - 1}[padding]
        pads.append((before, missing - before if padding == "same" else 0))
    x = np.pad(x, [*pads, (0, 0)], constant_values=fill)
    slid = np.lib.stride_tricks.sliding_window_view(x, tuple(spans), tuple(range(1, 1 + count)))
    every = (slice(None), *(slice(None, None, step) for step in steps), slice(None))
    return slid[(*every, *(slice(None, None, gap) for gap in apart))]


def _each_axis(given: Any, count: int, default: Any) -> list[int]:
    """Keras takes a number for all axes, a number for each, or none."""
    given = default if given is None else given
    return list(given) if isinstance(given, (list, tuple)) else [given] * count


def _convolution(config: Config, weights: list[Array], x: Array) -> Array:
    if config.get("groups", 1) != 1:
        raise CannotScore(f"a convolution with groups is not computed: {OTHERWISE}")
    count, kernel = x.ndim - 2, weights[0]  # the kernel is (sizes…, channels, filters)
    slid = _slid(config, x, kernel.shape[:count], _each_axis(config.get("strides"), count, 1), 0)
    found = np.tensordot(slid, kernel, ([*range(2 + count, 2 + 2 * count), 1 + count], list(range(count + 1))))
    return _activated(config, found + weights[1] if config.get("use_bias", True) else found)


def _pooled_windows(config: Config, x: Array, fill: float) -> Array:
    """All windows of a pooling layer, flat in the last axis."""
    count = x.ndim - 2
    sizes = _each_axis(config.get("pool_size"), count, 2)
    slid = _slid(config, x, sizes, _each_axis(config.get("strides"), count, sizes), fill)
    return slid.reshape(*slid.shape[:-count], -1)


def _max_pooling(config: Config, weights: list[Array], x: Array) -> Array:
    return _pooled_windows(config, x, -math.inf).max(-1)


def _average_pooling(config: Config, weights: list[Array], x: Array) -> Array:
    places = _pooled_windows(config, np.ones((1, *x.shape[1:-1], 1), F), 0).sum(-1)  # without the padding
    return _pooled_windows(config, x, 0).sum(-1) / places


def _over_all(function: Callable[..., Array]) -> Callable[..., Array]:
    def pooled(config: Config, weights: list[Array], x: Array) -> Array:
        axes = tuple(range(1, x.ndim - 1))
        return function(_channels_last(config, x), axis=axes, keepdims=bool(config.get("keepdims")))

    return pooled


Step = Callable[[Config, list[Array], Array, Array], Array]  # (…, the state, the input times the kernel) -> the state


def _recurrent(step: Step, states: int) -> Callable[..., Array]:
    def over_steps(config: Config, weights: list[Array], x: Array, mask: Array | None = None) -> Array:
        if config.get("return_state") or config.get("stateful") or config.get("zero_output_for_mask"):
            raise CannotScore(f"return_state, stateful and zero_output_for_mask are not computed: {OTHERWISE}")
        given = x.astype(F) @ weights[0]
        if config.get("use_bias", True):
            given = given + (weights[2][0] if weights[2].ndim == 2 else weights[2])
        known = np.ones(given.shape[:2], bool) if mask is None else mask.astype(bool)
        if config.get("go_backwards"):
            given, known = given[:, ::-1], known[:, ::-1]
        state = np.zeros((len(x), states, config["units"]), F)
        said = []
        for place in range(given.shape[1]):
            passed = step(config, weights, state, given[:, place])
            state = np.where(known[:, place, None, None], passed, state)
            said.append(state[:, 0])
        return np.stack(said, axis=1) if config.get("return_sequences") else state[:, 0]

    return over_steps


def _lstm_step(config: Config, weights: list[Array], state: Array, given: Array) -> Array:
    config = {"activation": "tanh", "recurrent_activation": "sigmoid", **config}
    into, kept, new, out = np.split(given + state[:, 0] @ weights[1], 4, axis=1)
    into, kept, out = (_activated(config, one, "recurrent_activation") for one in (into, kept, out))
    memory = kept * state[:, 1] + into * _activated(config, new)
    return np.stack([out * _activated(config, memory), memory], axis=1)


def _gru_step(config: Config, weights: list[Array], state: Array, given: Array) -> Array:
    config = {"activation": "tanh", "recurrent_activation": "sigmoid", **config}
    before, kernel, units = state[:, 0], weights[1], config["units"]
    bias = weights[2][1] if config.get("use_bias", True) and weights[2].ndim == 2 else np.zeros(3 * units, F)
    gates = given[:, : 2 * units] + before @ kernel[:, : 2 * units] + bias[: 2 * units]
    kept, reset = np.split(_activated(config, gates, "recurrent_activation"), 2, axis=1)
    if config.get("reset_after", True):
        inner = reset * (before @ kernel[:, 2 * units :] + bias[2 * units :])
    else:
        inner = (reset * before) @ kernel[:, 2 * units :]
    new = _activated(config, given[:, 2 * units :] + inner)
    return (kept * before + (1 - kept) * new)[:, None]


def _simple_step(config: Config, weights: list[Array], state: Array, given: Array) -> Array:
    return _activated({"activation": "tanh", **config}, given + state[:, 0] @ weights[1])[:, None]


def _attention(
    config: Config,
    weights: list[Array],
    query: Array,
    value: Array,
    key: Array | None = None,
    attention_mask: Array | None = None,
    **more: Any,
) -> Array:
    """MultiHeadAttention over the one axis between rows and channels."""
    used = [name for name, one in more.items() if one not in (None, False)]
    if used or query.ndim != 3 or config.get("attention_axes") not in (None, [1]):
        raise CannotScore(f"an attention over several axes, or with other masks, is not computed: {OTHERWISE}")
    key = value if key is None else key
    parts = iter(weights)

    def of_heads(x: Array, equation: str) -> Array:
        found = np.einsum(equation, x.astype(F), next(parts), optimize=True)
        return found + next(parts) if config.get("use_bias", True) else found

    queries, keys, values = (of_heads(one, "btd,dnh->btnh") for one in (query, key, value))
    queries = queries * F(1 / math.sqrt(config["key_dim"]))
    scores = np.einsum("btnh,bsnh->bnts", queries, keys, optimize=True)
    if attention_mask is not None:  # of (rows, who reads, who is read)
        scores = np.where(attention_mask[:, None].astype(bool), scores, F(-1e9))
    shares = _softmax(scores)
    return of_heads(np.einsum("bnts,bsnh->btnh", shares, values, optimize=True), "btnh,nhd->btd")


def _each(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def merged(config: Config, weights: list[Array], *given: Any) -> Array:
        tensors = given[0] if isinstance(given[0], list) else given  # a layer gets a list, an operation its arguments
        found = tensors[0]
        for one in tensors[1:]:
            found = function(found, one)
        return found

    return merged


def _average(config: Config, weights: list[Array], tensors: list[Array]) -> Array:
    return _each(np.add)(config, weights, [one.astype(F) for one in tensors]) / F(len(tensors))


def _axes(config: Config) -> tuple[int, ...] | None:
    axis = config.get("axis")
    return tuple(axis) if isinstance(axis, list) else None if axis is None else (axis,)


def _unchanged(config: Config, weights: list[Array], x: Array) -> Array:
    return x


LAYERS: dict[str, Callable[..., Array]] = {
    "InputLayer": _unchanged,
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "Embedding": _embedding,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Activation": lambda config, weights, x: _activated(config, x),
    "ReLU": _relu,
    "Softmax": _masked_softmax,
    "Rescaling": _rescaling,
    "Reshape": _reshape,
    "Flatten": lambda config, weights, x: _channels_last(config, x).reshape(len(x), math.prod(x.shape[1:])),
    "Concatenate": lambda config, weights, tensors: np.concatenate(
        [one.astype(F) for one in tensors], config.get("axis", -1)
    ),
    "Add": _each(np.add),
    "Average": _average,
    "Multiply": _each(np.multiply),
    "Dot": _dot,
    "Maximum": _each(np.maximum),
    "Minimum": _each(np.minimum),
    **dict.fromkeys(("Conv1D", "Conv2D"), _convolution),
    **dict.fromkeys(("MaxPooling1D", "MaxPooling2D"), _max_pooling),
    **dict.fromkeys(("AveragePooling1D", "AveragePooling2D"), _average_pooling),
    **dict.fromkeys(("GlobalMaxPooling1D", "GlobalMaxPooling2D"), _over_all(np.max)),
    **dict.fromkeys(("GlobalAveragePooling1D", "GlobalAveragePooling2D"), _over_all(np.mean)),
    "LSTM": _recurrent(_lstm_step, 2),
    "GRU": _recurrent(_gru_step, 1),
    "SimpleRNN": _recurrent(_simple_step, 1),
    "MultiHeadAttention": _attention,
    "Permute": lambda config, weights, x: x.transpose(0, *config["dims"]),
    "RepeatVector": lambda config, weights, x: np.repeat(x[:, None], config["n"], axis=1),
    "Log1p": lambda config, weights, x: np.log1p(x),
    "Absolute": lambda config, weights, x: np.abs(x),
    "Reciprocal": lambda config, weights, x: np.reciprocal(x),
    "Mean": lambda config, weights, x: x.mean(_axes(config), keepdims=bool(config.get("keepdims")), dtype=x.dtype),
    "Sin": lambda config, weights, x: np.sin(x),
    "Sum": lambda config, weights, x: x.sum(_axes(config), keepdims=bool(config.get("keepdims"))),
    "Cumsum": lambda config, weights, x: x.cumsum(config["axis"], dtype=x.dtype),
    "Flip": lambda config, weights, x: np.flip(x, _axes(config)),
    "GetItem": lambda config, weights, x, key: x[tuple(key) if isinstance(key, list) else key],
    **dict.fromkeys(("Dropout", "GaussianDropout", "GaussianNoise", "AlphaDropout", "Identity"), _unchanged),
}
MASKED = ("Softmax", "LSTM", "GRU", "SimpleRNN")  # that can be called with a mask


# -- the file --------------------------------------------------------------------------------------------------


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors, mapped from the file, and the metadata."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(LARGEST_HEADER, size - 8):
            raise CannotScore(f"{path} is no safetensors file")
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__", {})
            tensors = {}
            for name, one in header.items():
                first, last = (8 + length + offset for offset in one["data_offsets"])
                dtype, shape = np.dtype(DTYPES[one["dtype"]]), tuple(one["shape"])
                if not 8 + length <= first <= last <= size or last - first != dtype.itemsize * math.prod(shape):
                    raise CannotScore(f"{path}: the tensor {name!r} lies outside the file, or has another size")
                tensors[name] = np.memmap(path, dtype, "r", first, shape) if last > first else np.empty(shape, dtype)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise (
                error if isinstance(error, CannotScore) else CannotScore(f"{path} is no safetensors file: {error!r}")
            ) from None
    return tensors, metadata


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Predicts the rows of the standard input, which has a JSON object in each line."
    )
    parser.add_argument("file", help="a file of safetensors that cerebro export has written")
    parser.add_argument("--calibrated", action=argparse.BooleanOptionalAction, help="calibrated probabilities")
    parser.add_argument("--thresholds", action="store_true", help="the class by the thresholds that were kept")
    parser.add_argument("--coverage", type=float, help="of intervals around numbers, such as 0.9")
    given = parser.parse_args()
    try:
        scorer = Scorer(given.file)
        rows = [json.loads(line) for line in sys.stdin if line.strip()]
        values = scorer.predict(rows, calibrated=given.thresholds or given.calibrated)
        labels = scorer.labels_of(values, given.thresholds)
        intervals = {} if given.coverage is None else scorer.intervals_of(values, given.coverage)
    except (CannotScore, OSError, json.JSONDecodeError) as error:
        sys.exit(str(error))
    for place in range(len(rows)):
        found = {
            target: {"prediction": labels[target][place], "output": values[target][place].tolist()} for target in labels
        }
        for target, ends in intervals.items():
            found[target]["lower"], found[target]["upper"] = ends[place].tolist()
        print(json.dumps(found))


if __name__ == "__main__":
    main()
