"""COPY between a table and lines that the client makes or reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import interrupts
from .database import Transaction
from .errors import ClientError, translated

ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
AT_ONCE = 1 << 16  # bytes that are read of the lines at once


def escaped(value: str) -> str:
    """A text as a field of a line."""
    return value.translate(ESCAPES)


def into(transaction: Transaction, what: str, lines: Iterable[bytes]) -> int:
    """Send lines, one or several at a time; return the number of rows."""
    file = _Lines(lines)
    try:
        run(transaction, f"COPY {what}", file)
    except ClientError:
        if file.error is not None:  # psycopg2 says only that reading has failed
            raise file.error from None
        raise
    return int(transaction.cursor.rowcount)


def run(transaction: Transaction, statement: str, file: Any) -> None:
    cursor = transaction.cursor
    with translated():
        interrupts.cancelling(cursor.connection, lambda: cursor.copy_expert(statement, file, AT_ONCE))


class _Lines:
    """Lines as the file that COPY reads."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines, self._rest = iter(lines), b""
        self.error: Exception | None = None

    def read(self, size: int) -> bytes:
        if not self._rest:
            try:
                self._rest = next(self._lines, b"")
            except Exception as error:
                self.error = error
                raise
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
