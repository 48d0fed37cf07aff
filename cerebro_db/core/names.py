"""Names of tables and columns as users write them.  No other module parses them.

Users write table names as in SQL: ``iris``, ``my_schema.iris``, ``"My Table"``, ``s."My Table"``.  A name without
quotes is folded to lower case as PostgreSQL folds it: its ASCII letters.  A name in quotes is taken literally.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Iterable

from .errors import InvalidName
from .records import dataclass
from .sql import LONGEST as LONGEST
from .sql import Sql, check, identifier, quoted, sql
from .sql import storable as storable

MOST_COLUMNS = 1600  # PostgreSQL's limit for a table
STATE_SCHEMA = "cerebro_state"  # for tables that are not the user's: states, and rows on their way

_FOLDED = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
_QUERY = re.compile(r"\s*(select|with|values)[\s(]", re.IGNORECASE)
_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*', re.UNICODE)


def token(size: int = 6) -> str:
    """So many random bytes as hexadecimal digits, for a name that nobody can guess.

    As ``secrets.token_hex``, whose module takes a new session a millisecond.
    """
    return os.urandom(size).hex()


@dataclass(frozen=True)
class Name:
    """A table name, with the schema if the user wrote one."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str | None, argument: str = "table name") -> Name:
        """The name in a text; ``argument`` names the text in error messages."""
        if isinstance(text, StoredName):
            raise TypeError("the name of a table in a document opens no table")
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
    def sql(self) -> Sql:
        table = identifier(self.table)
        return table if self.schema is None else sql("{schema}.{table}", schema=identifier(self.schema), table=table)

    @property
    def quoted(self) -> str:
        """The name with quotes, as a text that ``Name.parse`` and ``to_regclass`` read."""
        return quoted(self.table) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.table)}"

    def __str__(self) -> str:
        """The name as a person would write it: in quotes only where SQL needs them."""
        return _written(self.table) if self.schema is None else f"{_written(self.schema)}.{_written(self.table)}"


class StoredName:
    """The name of a table as a document has it: in a summary, an archive, or a row of the log.

    Whoever wrote the document has chosen the table, and reading it would run code of its owner.  So this is no ``Name``
    and no text.  ``for_people`` is the text.  ``cerebro_plpy.runs.record.own_runs`` alone opens tables by stored names:
    those that the current role has named in a call.  ``tests/core/test_stored_name_type.py`` checks both.
    """

    __slots__ = ("_stored",)

    def __init__(self, text: str) -> None:
        self._stored = str(Name.parse(text, "the name of a table"))

    @classmethod
    def from_document(cls, value: object) -> StoredName:
        if not isinstance(value, str):
            raise ValueError("it is no text")
        return cls(value)

    def to_document(self) -> str:
        return self.for_people

    @property
    def for_people(self) -> str:
        """The name in a message, a table for people, or a document."""
        return self._stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredName) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash(self._stored)

    def __repr__(self) -> str:
        return f"<stored name {self._stored!r}>"

    def __str__(self) -> str:
        raise TypeError("a stored name is no text; for_people is one")

    def __format__(self, specification: str) -> str:
        return str(self)


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
        inner, plain = match.groups()
        parts.append(check(inner.replace('""', '"') if inner is not None else plain.translate(_FOLDED)))
        position = match.end()
        if position == len(text):
            return parts
        if text[position] != ".":
            raise _not_an_identifier(text, argument)
        position += 1


def _not_an_identifier(text: str, argument: str) -> InvalidName:
    if _QUERY.match(text):
        hint = "This is a query. CREATE VIEW gives a query a name."
    elif "@" in text:
        hint = f"A name with an @ means a version of a registered model, and {argument} takes the name of a table."
    else:
        hint = 'A name with blanks, capitals or special characters needs double quotes: "My Table".'
    return InvalidName(f"{argument}: {text!r} is not an identifier", hint=hint)


def _written(part: str) -> str:
    """A column, or one part of a table's name, as a person would write it: in quotes only where SQL needs them."""
    return part if re.fullmatch(r"[a-z_][a-z0-9_$]*", part) else quoted(part)


def written_list(columns: Iterable[str]) -> str:
    """The text that ``split_list`` takes apart."""
    return ", ".join(map(_written, columns))


def split_list(text: str | None, argument: str) -> list[str]:
    """The column names in a comma-separated list: ``a, "B c"`` -> ``['a', 'B c']``."""
    if text is None or not text.strip():
        raise InvalidName(f"{argument} must not be NULL or empty")
    names: list[str] = []
    for piece in _split_outside_quotes(text, ","):
        if len(names) == MOST_COLUMNS:
            raise InvalidName(f"{argument} lists more than {MOST_COLUMNS} columns, and a table cannot have more")
        parts = split_identifier(piece, argument)
        if len(parts) != 1:
            raise InvalidName(f"{argument}: {piece.strip()!r} must be a plain column name, without a table")
        names.append(parts[0])
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InvalidName(f"{argument}: column {repeated[0]!r} is listed twice")
    return names


def _split_outside_quotes(text: str, separator: str) -> list[str]:
    pieces, start, within = [], 0, False
    for position, character in enumerate(text):
        if character == '"':
            within = not within
        elif character == separator and not within:
            pieces.append(text[start:position])
            start = position + 1
    pieces.append(text[start:])
    return pieces
