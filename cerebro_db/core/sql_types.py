"""The names of SQL types as values of their own: nothing else can be written into SQL as a type.

A ``SqlType`` has the name of a type as PostgreSQL's ``format_type`` writes it, with the schema unless the type is one
of ``pg_catalog``.  Whether the type exists, and whether its casts may run, cerebro_plpy/database/types.py asks the
server.
"""

from __future__ import annotations

import re

from .documents import shown
from .errors import InvalidName
from .names import split_identifier
from .records import dataclass
from .sql import Sql, sql_of_type

INTEGERS = ("smallint", "integer", "bigint")
REALS = ("real", "double precision", "numeric")
DATES = ("date", "timestamp without time zone", "timestamp with time zone")
WITH_ZONE = "timestamp with time zone"  # a moment; the others become one only in some time zone
TIME = "time without time zone"
BYTES = "bytea"
OTHER_NUMBERS = {"money": "money", "interval": "interval"}
LABELS = ("uuid", "inet", "cidr", "macaddr", "macaddr8", "oid", "pg_lsn")
TEXTS = ("text", "character varying", "bpchar", "name")

# The types of a family can stand for each other in predictions; of "text" those of users, too.
FAMILIES: dict[str, tuple[str, ...]] = {
    "number": (*INTEGERS, *REALS),
    "date": DATES,
    "time": (TIME,),
    "money": ("money",),
    "interval": ("interval",),
    "text": TEXTS,
    **{one: (one,) for one in ("boolean", *LABELS)},
}
BUILT_IN = frozenset(name for types in FAMILIES.values() for name in types)
_SEVERAL_WORDS = frozenset(
    (
        "double precision",
        "character varying",
        "bit varying",
        "timestamp without time zone",
        "timestamp with time zone",
        "time without time zone",
        "time with time zone",
    )
)
_PART = r'(?:[a-z_][a-z0-9_]*|"(?:[^"\0]|"")+")'
_NAME = re.compile(rf"{_PART}(?:\.{_PART})?")
_ARRAY = "[]"
_WITHOUT_LENGTH = {"bit": 'pg_catalog."bit"', "bit[]": 'pg_catalog."bit"[]'}  # bit alone means bit(1)


@dataclass(frozen=True)
class SqlType:
    """The name of a type; InvalidName if the text is none.  ``sql`` is its name in a statement."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_type(self.name):
            raise InvalidName(f"{shown(self.name)} is not the name of an SQL type as PostgreSQL writes it")

    @classmethod
    def from_document(cls, name: str) -> SqlType:
        return cls(name)

    def to_document(self) -> str:
        return self.name

    @property
    def sql(self) -> Sql:
        return sql_of_type(_WITHOUT_LENGTH.get(self.name, self.name))

    def __str__(self) -> str:
        return self.name

    @property
    def array(self) -> SqlType:
        """The type of arrays of this type."""
        return SqlType(self.name + _ARRAY)

    @property
    def parts(self) -> tuple[str | None, str]:
        """Schema and name, without quotes; no schema for the types of pg_catalog."""
        if self.name in _SEVERAL_WORDS or "." not in self.name and not self.name.startswith('"'):
            return None, self.name
        *schema, name = split_identifier(self.name)
        return (schema[0] if schema else None), name

    @property
    def is_built_in(self) -> bool:
        """Whether it is one of the types that every server has and that we know."""
        return self.name in BUILT_IN


def _is_type(text: str) -> bool:
    element = text[: -len(_ARRAY)] if text.endswith(_ARRAY) else text
    if element in _SEVERAL_WORDS:
        return True
    if not _NAME.fullmatch(element):
        return False
    try:
        split_identifier(element)  # each part is short enough
    except InvalidName:
        return False
    return True


TEXT = SqlType("text")
