"""SQL text as a type of its own, so that no other text can become SQL.

``sql`` puts fragments into a template that stands in the source.  ``identifier`` and ``literal`` quote, and ``joined``
puts fragments in a row.  A fragment is no text: it cannot be formatted, compared with a text or added to one.
``tests/core/test_sql.py`` checks that templates are literals and that few modules read a fragment as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Union

from .errors import InvalidName

LONGEST = 63  # bytes; PostgreSQL truncates longer identifiers silently, so two names could mean the same table
MARK = "\0"  # a parameter's place in a fragment's text; no SQL and no quoted text has this character


class Sql:
    """A piece of SQL, made by the functions of this module only."""

    __slots__ = ("_sql",)
    _sql: str

    def __init__(self) -> None:
        raise TypeError("SQL is made by the functions of cerebro_db.core.sql")

    def __bool__(self) -> bool:
        return bool(self._sql)

    if not TYPE_CHECKING:  # else mypy would let it be compared with a text

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Sql) and self._sql == other._sql

        def __hash__(self) -> int:
            return hash(self._sql)

    def __repr__(self) -> str:
        return f"<SQL {self._sql!r}>"

    def __str__(self) -> str:
        raise TypeError("SQL is no text; sql() puts it into other SQL, and shown() into a message")

    def __format__(self, specification: str) -> str:
        return str(self)


Part = Union[Sql, int, float]

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*|)\}|[{}]")


class _Template:
    """The texts of a template, each with the name of the placeholder after it; the last has none."""

    __slots__ = ("names", "pieces")

    def __init__(self, template: str) -> None:
        pieces: list[tuple[str, str | None]] = []
        text, end = "", 0
        for found in _PLACEHOLDER.finditer(template):
            text += template[end : found.start()]
            end = found.end()
            if found[1] is not None:
                pieces.append((text, found[1]))
                text = ""
            elif found[0] in ("{{", "}}"):
                text += found[0][0]
            else:
                raise ValueError(f"a single brace in {template!r}")
        self.pieces = (*pieces, (text + template[end:], None))
        self.names = frozenset(name for _, name in pieces if name)


_templates: dict[str, _Template] = {}


def sql(template: str, /, **parts: Part) -> Sql:
    """A template with its placeholders replaced: ``sql("SELECT * FROM {table}", table=name.sql)``.

    The template is a literal in the source.  Parts are fragments and numbers.  ``{}`` marks the place of a parameter of
    a session's statement; ``{{`` and ``}}`` are braces.
    """
    known = _templates.get(template)
    if known is None:
        known = _templates[template] = _Template(template)
    if parts.keys() != known.names:
        raise TypeError(f"the template has {sorted(known.names)}, and the parts are {sorted(parts)}: {template}")
    if len(known.pieces) == 1:
        return _made(known.pieces[0][0])
    made = []
    for before, name in known.pieces:
        made.append(before)
        if name is not None:
            made.append(_written(parts[name]) if name else MARK)
    return _made("".join(made))


def joined(separator: str, parts: Iterable[Part]) -> Sql:
    """Fragments in a row.  The separator is a literal in the source."""
    return _made(separator.join(map(_written, parts)))


def identifier(name: str) -> Sql:
    """A name in quotes that are safe for any content."""
    return _made(quoted(name))


def literal(text: str) -> Sql:
    """A text as a constant, whatever ``standard_conforming_strings`` says.

    Values are parameters of statements.  This is for expressions that are part of several statements.
    """
    return _made(_constant(text))


def number_array(values: Iterable[float]) -> Sql:
    """An array of numbers as a constant without a type: ``'{1,2}'``."""
    return _made("'{" + ",".join([_number(value) for value in values]) + "}'")


def quoting(fragment: Sql) -> Sql:
    """SQL as a text constant, for functions and statements that run it: the body of a function, for instance."""
    return _made(_constant(fragment._sql))


def in_format(fragment: Sql) -> Sql:
    """The fragment within a text for ``pg_catalog.format``."""
    return _made(fragment._sql.replace("%", "%%"))


def constant(value: Any) -> Sql:
    """The value of a parameter as a constant."""
    if value is None:
        return sql("NULL")
    if isinstance(value, bool):
        return sql("true") if value else sql("false")
    if isinstance(value, int):
        return sql("{value}", value=value)
    if isinstance(value, float):  # NaN and infinity, too
        return sql("{value}::float8", value=literal(repr(value)))
    if isinstance(value, datetime):
        return sql("{value}::timestamptz", value=literal(value.isoformat()))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return sql("pg_catalog.decode({value}, 'hex')", value=literal(bytes(value).hex()))
    if isinstance(value, (list, tuple)):
        items = joined(", ", map(constant, value))
        if isinstance(value, tuple):
            return sql("({items})", items=items)
        return sql("ARRAY[{items}]", items=items) if value else sql("'{{}}'")
    return literal(str(value))


def with_constants(statement: Sql, parameters: Sequence[Any] | None) -> Sql:
    """A session's statement with its parameters as constants."""
    first, *others = statement._sql.split(MARK)
    values = list(map(constant, parameters or ()))
    if len(others) != len(values):
        raise TypeError(f"{len(values)} values for {len(others)} parameters: {statement!r}")
    return _made(first + "".join([value._sql + piece for value, piece in zip(values, others)]))


def marks(count: int) -> Sql:
    """The places of so many parameters: ``{}, {}, {}``."""
    return _made(", ".join([MARK] * count))


def sql_of_user(query: str) -> Sql:
    """A query as the user wrote it.  Few modules may call this (tests/core/test_sql.py), each where it says why."""
    if MARK in query:
        raise InvalidName("a query must not contain a zero byte")
    return _made(query)


def sql_of_type(name: str) -> Sql:
    """The name of a type, which ``cerebro_db.core.sql_types`` alone may call with names that it has checked."""
    return _made(name)


def shown(fragment: Sql) -> str:
    """SQL for people, in a message.  It cannot become SQL again."""
    return fragment._sql


# -- what only the modules that talk to the database use (tests/core/test_sql.py) -----------------------------


def text_of(fragment: Sql) -> str:
    """The text of a statement.  The server refuses a statement whose parameters are still marked."""
    return fragment._sql


def in_psycopg2(fragment: Sql, parameters: Sequence[Any] | None) -> str:
    """The text of a statement as psycopg2 wants it: without parameters, it does not look for %."""
    return fragment._sql if parameters is None else fragment._sql.replace("%", "%%").replace(MARK, "%s")


def numbered(fragment: Sql) -> Sql:
    """The statement with its parameters as ``$1``, ``$2`` and so on."""
    first, *others = fragment._sql.split(MARK)
    return _made(first + "".join([f"${place}{piece}" for place, piece in enumerate(others, 1)]))


def is_query(fragment: Sql) -> bool:
    """Whether a statement is a query."""
    return fragment._sql.lstrip()[:7].upper().startswith(("SELECT ", "WITH "))


# -- quoting --------------------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """An identifier in quotes, for messages; ``identifier`` makes SQL."""
    return '"' + check(name).replace('"', '""') + '"'


def storable(text: str) -> bool:
    """Whether PostgreSQL can store a text.  JSON can write a zero byte and half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check(name: str) -> str:
    """The identifier, if PostgreSQL can store it."""
    if not name:
        raise InvalidName("an identifier must not be empty")
    if not storable(name):
        raise InvalidName("an identifier must not contain a zero byte or half of a surrogate pair")
    size = len(name.encode("utf-8"))
    if size > LONGEST:
        raise InvalidName(
            f'"{name[:LONGEST]}…" has {size} bytes; the limit for an identifier is {LONGEST}',
            hint="Choose a shorter name. The names of companion tables add endings such as _summary to it.",
        )
    return name


def _constant(text: str) -> str:
    if not storable(text):
        raise InvalidName("a text must not contain a zero byte or half of a surrogate pair")
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "\\" not in text else "E'" + doubled.replace("\\", "\\\\") + "'"


def _made(text: str) -> Sql:
    made = object.__new__(Sql)
    made._sql = text
    return made


def _written(part: Part) -> str:
    if isinstance(part, Sql):
        return part._sql
    text = _number(part)
    return f"({text})" if text.startswith("-") else text  # a minus before it would begin a comment


def _number(value: float) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no SQL")
    return str(int(value)) if isinstance(value, int) else repr(float(value))
