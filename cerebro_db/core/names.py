"""Identifiers: the one place that parses, checks and quotes them.

Users write table names as they would in SQL: ``iris``, ``my_schema.iris``, ``"My Table"``,
``s."My Table"``.  Unquoted names fold to lower case, quoted ones are taken as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import InvalidName

LONGEST = 63  # bytes; PostgreSQL silently cuts longer identifiers, which would alias two tables

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*', re.UNICODE)


def quote(identifier: str) -> str:
    """An identifier, safely quoted for SQL whatever it holds."""
    check(identifier)
    return '"' + identifier.replace('"', '""') + '"'


def check(identifier: str) -> str:
    if not identifier:
        raise InvalidName("an identifier must not be empty")
    if "\0" in identifier:
        raise InvalidName("an identifier must not hold a zero byte")
    size = len(identifier.encode("utf-8", "surrogatepass"))
    if size > LONGEST:
        raise InvalidName(
            f'"{identifier}" has {size} bytes; an identifier has at most {LONGEST}',
            hint="Choose a shorter name: derived tables add endings such as _summary to it.",
        )
    return identifier


@dataclass(frozen=True)
class Name:
    """A table name, with its schema where the user gave one."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str | None, argument: str = "table name") -> Name:
        if text is None or not text.strip():
            raise InvalidName(f"{argument} must not be NULL or empty")
        parts = split_identifier(text, argument)
        if len(parts) > 2:
            raise InvalidName(
                f"{argument}: {text!r} has {len(parts)} parts",
                hint="Write table or schema.table; other databases cannot be reached.",
            )
        schema = parts[0] if len(parts) == 2 else None
        return cls(schema, parts[-1])

    def suffixed(self, ending: str) -> Name:
        """The name of a companion table: ``iris_packed`` + ``_summary``."""
        return Name(self.schema, check(self.table + ending))

    @property
    def sql(self) -> str:
        return quote(self.table) if self.schema is None else f"{quote(self.schema)}.{quote(self.table)}"

    def __str__(self) -> str:
        def plain(part: str) -> str:
            return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else quote(part)

        return plain(self.table) if self.schema is None else f"{plain(self.schema)}.{plain(self.table)}"


def split_identifier(text: str, argument: str = "name") -> list[str]:
    """``a."B.c"`` -> ``['a', 'B.c']``"""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise InvalidName(
                f"{argument}: {text!r} is not an identifier",
                hint='Names with blanks, capitals or signs need double quotes: "My Table".',
            )
        quoted, plain = match.groups()
        parts.append(check(quoted.replace('""', '"') if quoted is not None else plain.lower()))
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            raise InvalidName(
                f"{argument}: {text!r} is not an identifier",
                hint='Names with blanks, capitals or signs need double quotes: "My Table".',
            )
        position += 1


def split_list(text: str | None, argument: str) -> list[str]:
    """A comma separated list of identifiers: ``a, "B c"`` -> ``['a', 'B c']``."""
    if text is None or not text.strip():
        raise InvalidName(f"{argument} must not be NULL or empty")
    names = []
    for piece in split_outside_quotes(text, ","):
        parts = split_identifier(piece, argument)
        if len(parts) != 1:
            raise InvalidName(f"{argument}: {piece.strip()!r} must be a plain column name, without a table")
        names.append(parts[0])
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InvalidName(f"{argument}: column {sorted(repeated)[0]!r} is listed twice")
    return names


def split_outside_quotes(text: str, separator: str) -> list[str]:
    pieces, start, quoted = [], 0, False
    for position, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            pieces.append(text[start:position])
            start = position + 1
    pieces.append(text[start:])
    return pieces
