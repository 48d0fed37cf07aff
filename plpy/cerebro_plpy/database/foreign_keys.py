"""The foreign keys that tables declare."""

from __future__ import annotations

from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from .access import Database
from .relations import Relation


@dataclass(frozen=True)
class ForeignKey:
    oid: int
    of: int  # OID of the table that refers
    to: int
    columns: tuple[str, ...]
    referred: tuple[str, ...]  # columns of the other table

    def pairs(self, *, many: bool) -> tuple[tuple[str, str], ...]:
        """The columns of one table, each with that of the other; ``many``: from the table that is referred to."""
        return tuple(zip(self.referred, self.columns) if many else zip(self.columns, self.referred))


def touching(db: Database, relation: Relation) -> list[ForeignKey]:
    """Those of a table, and those that refer to it; of partitions, those of the whole table."""
    found = db.rows(
        sql(
            "SELECT c.oid::bigint AS oid, c.conrelid::bigint AS of, c.confrelid::bigint AS to,"
            " {columns} AS columns, {referred} AS referred"
            " FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_class f ON f.oid = c.conrelid"
            " JOIN pg_catalog.pg_class t ON t.oid = c.confrelid"
            " WHERE c.contype = 'f' AND $1::oid IN (c.conrelid, c.confrelid)"
            " AND NOT f.relispartition AND NOT t.relispartition"
            " ORDER BY c.conname, c.oid",
            columns=_names(sql("c.conkey"), sql("c.conrelid")),
            referred=_names(sql("c.confkey"), sql("c.confrelid")),
        ),
        ("bigint",),
        relation.oid,
    )
    return [
        ForeignKey(row["oid"], row["of"], row["to"], tuple(row["columns"]), tuple(row["referred"])) for row in found
    ]


def between(db: Database, one: Relation, other: Relation) -> list[ForeignKey]:
    """Those of ``one`` that refer to ``other``."""
    return [key for key in touching(db, one) if key.of == one.oid and key.to == other.oid]


def _names(numbers: Sql, table: Sql) -> Sql:
    """The names of the columns with these numbers, in their order."""
    return sql(
        "ARRAY(SELECT a.attname::text FROM pg_catalog.unnest({numbers}) WITH ORDINALITY AS u (n, place)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = {table} AND a.attnum = u.n ORDER BY u.place)",
        numbers=numbers,
        table=table,
    )
