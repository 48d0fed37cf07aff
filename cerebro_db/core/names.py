"""SQL identifiers: parsing, checking and quoting; and texts as constants.  No other module does these by itself.

Users write table names as in SQL: ``iris``, ``my_schema.iris``, ``"My Table"``, ``s."My Table"``.  A name without
quotes is folded to lower case.  A name in quotes is taken literally.
"""

from __future__ import annotations

import os
import re

from .errors import InvalidName
from .records import dataclass

STATE_SCHEMA = "cerebro_state"  # for tables that are not the user's: states, and rows on their way
LONGEST = 63  # bytes; PostgreSQL truncates longer identifiers silently, so two names could mean the same table

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*', re.UNICODE)


def quote(identifier: str) -> str:
    """The identifier as SQL text, with quotes that are safe for any content."""
    check(identifier)
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as an SQL constant, whatever ``standard_conforming_strings`` says.

    Values are parameters of statements.  This is for expressions that are part of several statements.
    """
    if "\0" in text:
        raise InvalidName("a text must not contain a zero byte")
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "\\" not in text else "E'" + doubled.replace("\\", "\\\\") + "'"


def token(size: int = 6) -> str:
    """So many random bytes as hexadecimal digits, for a name that nobody can guess.

    As ``secrets.token_hex``, whose module takes a new session a millisecond.
    """
    return os.urandom(size).hex()


def check(identifier: str) -> str:
    """The identifier, if PostgreSQL can store it."""
    if not identifier:
        raise InvalidName("an identifier must not be empty")
    if "\0" in identifier:
        raise InvalidName("an identifier must not contain a zero byte")
    size = len(identifier.encode("utf-8", "surrogatepass"))
    if size > LONGEST:
        raise InvalidName(
            f'"{identifier}" has {size} bytes; the limit for an identifier is {LONGEST}',
            hint="Choose a shorter name. The names of companion tables add endings such as _summary to it.",
        )
    return identifier


@dataclass(frozen=True)
class Name:
    """A table name, with the schema if the user wrote one."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str | None, argument: str = "table name") -> Name:
        """The name in a text; ``argument`` names the text in error messages."""
        if text is None or not text.strip():
            raise InvalidName(f"{argument} must not be NULL or empty")
        parts = split_identifier(text, argument)
        if len(parts) > 2:
            raise InvalidName(
                f"{argument}: {text!r} has {len(parts)} parts",
                hint="Write table or schema.table. Tables of other databases cannot be used.",
            )
        schema = parts[0] if len(parts) == 2 else None
        return cls(schema, parts[-1])

    def suffixed(self, ending: str) -> Name:
        """The name of a companion table, such as ``iris_packed`` + ``_summary``."""
        return Name(self.schema, check(self.table + ending))

    @property
    def sql(self) -> str:
        return quote(self.table) if self.schema is None else f"{quote(self.schema)}.{quote(self.table)}"

    def __str__(self) -> str:
        """The name as a person would write it: in quotes only where SQL needs them."""

        def written(part: str) -> str:
            return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else quote(part)

        return written(self.table) if self.schema is None else f"{written(self.schema)}.{written(self.table)}"


def with_ending(text: str | None, ending: str) -> str | None:
    """The name of a companion table, written as the user wrote the table's name: ``S.Iris`` + ``_info``."""
    if text is None or not text.strip():
        return None
    name = text.strip()
    return f'{name[:-1]}{ending}"' if name.endswith('"') else name + ending


def is_name(text: str) -> bool:
    """Whether a text is a table name.  A query is none: it has several words, or parentheses."""
    try:
        Name.parse(text)
    except InvalidName:
        return False
    return True


def split_identifier(text: str, argument: str = "name") -> list[str]:
    """The parts of a qualified identifier: ``a."B.c"`` -> ``['a', 'B.c']``."""
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise _not_an_identifier(text, argument)
        quoted, plain = match.groups()
        parts.append(check(quoted.replace('""', '"') if quoted is not None else plain.lower()))
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            raise _not_an_identifier(text, argument)
        position += 1


def _not_an_identifier(text: str, argument: str) -> InvalidName:
    return InvalidName(
        f"{argument}: {text!r} is not an identifier",
        hint='A name with blanks, capitals or special characters needs double quotes: "My Table".',
    )


def split_list(text: str | None, argument: str) -> list[str]:
    """The column names in a comma-separated list: ``a, "B c"`` -> ``['a', 'B c']``."""
    if text is None or not text.strip():
        raise InvalidName(f"{argument} must not be NULL or empty")
    names = []
    for piece in _split_outside_quotes(text, ","):
        parts = split_identifier(piece, argument)
        if len(parts) != 1:
            raise InvalidName(f"{argument}: {piece.strip()!r} must be a plain column name, without a table")
        names.append(parts[0])
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InvalidName(f"{argument}: column {sorted(repeated)[0]!r} is listed twice")
    return names


def _split_outside_quotes(text: str, separator: str) -> list[str]:
    pieces, start, quoted = [], 0, False
    for position, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            pieces.append(text[start:position])
            start = position + 1
    pieces.append(text[start:])
    return pieces
