"""A copy of the rows to pack, for the time of one call, with the hash of each row.

Packing reads the rows about ten times: for statistics, labels, leaks and counts, and to pack both sides.  Where the
rows have no short key, each of these passes would compute the hash of all columns to tell the sides apart, and this
takes longer than everything else that the pass does.  A view would be evaluated each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import BYTES

from .. import platform
from ..database.access import Database
from ..database.relations import PLACE, Column, Relation

HASH = "cerebro_hash"
LEAST_BYTES = 4 << 20  # of a table; a smaller one is packed as soon as a copy is made
MOST_COLUMNS = 250  # so many fit into a block, whatever their types are


def with_hashes(
    db: Database, source: Relation, columns: Iterable[Column], hashed: Sql, *, ordered: bool = True
) -> Relation:
    """The source with a copy of these columns and the hash of each row; ``ordered``: in the order of the source.

    The transaction that makes the copy also drops it, so nobody else sees it, and it needs no write-ahead log.
    """
    names = list(dict.fromkeys(column.name for column in columns))
    name = HASH
    while name in names:
        name += "_"
    copy, placed = Name(STATE_SCHEMA, f"rows_{token()}"), source.placed_rows
    listed = joined(", ", (sql("s.{name}", name=identifier(one)) for one in names))
    query = sql(
        "SELECT {listed}, {hashed} AS {name} FROM {rows} AS s",
        listed=listed,
        hashed=hashed,
        name=identifier(name),
        rows=placed or source.rows,
    )
    if placed is not None and ordered:
        query = sql("{query} ORDER BY s.{place}", query=query, place=identifier(PLACE))
    make = sql("CREATE UNLOGGED TABLE {copy} AS {query}", copy=copy.sql, query=query)
    if placed is None and ordered:  # PostgreSQL gives an INSERT no parallel workers, which would mix the rows
        db.execute(sql("{make} WITH NO DATA", make=make))
        make = sql("INSERT INTO {copy} {query}", copy=copy.sql, query=query)
    db.patiently(make)
    return replace(source, copy=copy, row_hash=identifier(name))


def of_sample(db: Database, some: Relation, columns: Iterable[Column], hashed: Sql) -> Relation:
    """A copy of the single values of a sample, where a copy is possible: it is read about six times."""
    single = [one for one in columns if not one.element and one.type != BYTES]
    if not platform.of(db).copies_rows_to_pack or not 0 < len(single) <= MOST_COLUMNS:
        return some
    return replace(with_hashes(db, some, single, hashed, ordered=False), condition=None, readable=None)


def is_worth_it(db: Database, source: Relation, columns: Sequence[Column], costly: bool) -> bool:
    """Whether a copy saves more time than it takes.  ``costly``: the hash of a row is.

    Arrays and pixels would be large to copy, and take little to prepare.
    """
    large = any(one.element or one.type == BYTES for one in columns)
    if not platform.of(db).copies_rows_to_pack or len(columns) > MOST_COLUMNS or large:
        return False
    if source.kind in ("v", "f"):
        return True
    size = db.value(sql("SELECT pg_catalog.pg_table_size($1::oid)"), ("bigint",), source.oid)
    return costly and (source.kind == "p" or int(size or 0) >= LEAST_BYTES)


def drop(db: Database, rows: Relation) -> None:
    """Drop the copy if there is one.  If packing fails, the end of the transaction drops it."""
    if rows.copy is not None:
        db.execute(sql("DROP TABLE {copy}", copy=rows.copy.sql))
