"""DataFrames of pandas as rows of the database: in a temporary table for one call, or in a table of their own."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import io
import json
import math
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import psycopg2
from psycopg2 import sql

from . import interrupts
from .errors import ClientError

ROWS_AT_ONCE = 10_000  # which are text at a time
SEEN = 1_000  # values of a column of objects, whose types are looked at
ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
# The types of values by their class; a bool is an int, and a datetime a date, so they come first.
TYPES: dict[type, str] = {
    bool: "boolean", int: "bigint", float: "double precision", str: "text", decimal.Decimal: "numeric",
    datetime.datetime: "timestamp", datetime.date: "date", datetime.time: "time", datetime.timedelta: "interval",
    bytes: "bytea", uuid.UUID: "uuid", dict: "jsonb",
}  # fmt: skip
OF_KINDS = {"b": "boolean", "i": "bigint", "u": "bigint", "f": "double precision", "m": "interval"}  # of NumPy


class Frame(Protocol):
    """A DataFrame of pandas."""

    @property
    def columns(self) -> Any: ...
    @property
    def iloc(self) -> Any: ...
    def __len__(self) -> int: ...


Query: TypeAlias = "str | Frame"


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame or a Series; pandas is not imported for that."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "dtypes") and hasattr(value, "iloc")


@contextlib.contextmanager
def loaded(cursor: Any, values: Any) -> Iterator[Any]:
    """The values of a statement; instead of a DataFrame a query for its rows, which a temporary table has meanwhile."""
    if not isinstance(values, (list, tuple)) or not any(map(is_frame, values)):
        yield values
        return
    sent, tables = list(values), []
    try:
        for place, value in enumerate(values):
            if is_frame(value):
                table = sql.Identifier("pg_temp", f"cerebro_frame_{place}")
                tables.append(table)
                load(cursor, value, table, temporary=True)
                sent[place] = sql.SQL("SELECT * FROM {}").format(table).as_string(cursor)
        yield sent
    finally:
        for table in tables:
            with contextlib.suppress(psycopg2.Error):  # the connection may be lost, and the table with it
                cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))


def load(cursor: Any, frame: Frame, table: sql.Composable, *, temporary: bool) -> None:
    """Make a table of the rows. The index is left out."""
    if not is_frame(frame) or not hasattr(frame, "columns"):
        raise ClientError(
            f"A {type(frame).__name__} is no DataFrame.",
            "frame[['column']] is one of a column, and frame.iloc[[0]] is one of a row.",
        )
    names = list(map(str, frame.columns))
    if not names:
        raise ClientError("The DataFrame has no columns.")
    made = [
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_column_type(name, frame.iloc[:, place])))
        for place, name in enumerate(names)
    ]
    kind = sql.SQL("TEMPORARY TABLE" if temporary else "TABLE")
    cursor.execute(sql.SQL("CREATE {} {} ({})").format(kind, table, sql.SQL(", ").join(made)))
    statement = sql.SQL("COPY {} FROM STDIN WITH (ENCODING 'UTF8')").format(table).as_string(cursor)
    for start in range(0, len(frame), ROWS_AT_ONCE):
        part = frame.iloc[start : start + ROWS_AT_ONCE]
        columns = [map(_text, part.iloc[:, place].tolist()) for place in range(len(names))]
        lines = io.BytesIO("".join("\t".join(row) + "\n" for row in zip(*columns)).encode("utf-8", "replace"))
        interrupts.cancelling(cursor.connection, functools.partial(cursor.copy_expert, statement, lines))


def _column_type(name: str, values: Any) -> str:
    """The SQL type of a column."""
    if values.dtype.kind == "M" or str(values.dtype).startswith("datetime64"):
        return "timestamp" if getattr(values.dtype, "tz", None) is None else "timestamptz"
    if values.dtype.kind in OF_KINDS:
        return OF_KINDS[values.dtype.kind]
    return _type_of(name, values[values.notna()].head(SEEN).tolist())


def _type_of(name: str, values: Sequence[Any]) -> str:
    """The SQL type of values of any class; text if there are none."""
    lists = [_items(value) for value in values]
    if lists and all(one is not None for one in lists):
        return f"{_type_of(name, [each for one in lists for each in one or () if not _is_missing(each)])}[]"
    found = {_plain_type(name, value) for value in values} or {"text"}
    if found == {"bigint", "double precision"}:
        return "double precision"
    if len(found) > 1:
        raise ClientError(
            f"The column {name!r} of the DataFrame has values of several types: {', '.join(sorted(found))}.",
            "Give all of them one type, for instance with astype(str).",
        )
    return found.pop()


def _plain_type(name: str, value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value  # of NumPy
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return "timestamptz"
    for kind, told in TYPES.items():
        if isinstance(value, kind):
            return told
    raise ClientError(
        f"The column {name!r} of the DataFrame has values of the type {type(value).__name__}, which has no place in a"
        " table.",
        "Columns can be numbers, texts, dates, times, bytes, lists of numbers, and documents of JSON.",
    )


def _items(value: Any) -> list[Any] | None:
    """All items of a list, a tuple or an array, also of those within; None: it is none of these."""
    if hasattr(value, "ndim"):
        return list(value.ravel().tolist()) if value.ndim else None
    if not isinstance(value, (list, tuple)):
        return None
    items: list[Any] = []
    for one in value:
        within = _items(one)
        items += [one] if within is None else within
    return items


def _text(value: Any) -> str:
    """A value as COPY reads it."""
    return "\\N" if _is_missing(value) else _written(value).translate(ESCAPED)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def _written(value: Any) -> str:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, dict):
        return json.dumps(value, default=_plain)
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds():.6f} seconds"
    if hasattr(value, "ndim") and value.ndim:
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return "{" + ",".join(map(_item, value)) + "}"
    return str(value)


def _plain(value: Any) -> Any:
    """What JSON writes of a value that it does not know: a number of NumPy is a number, all else a text."""
    return value.item() if hasattr(value, "item") else str(value)


def _item(value: Any) -> str:
    """An item of an array."""
    if isinstance(value, (list, tuple)):
        return _written(value)
    if _is_missing(value):
        return "NULL"
    return '"' + _written(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
