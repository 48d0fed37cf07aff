"""The weights of models in tables: as one value, or in chunks where a value would be too large."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.models.model_columns import ModelColumns
from cerebro_db.core.models.state import PIECE
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, shown, sql

from ..database.access import Database

LARGEST_VALUE = 500 << 20  # bytes; pg_dump cannot write a much larger value
ROWS_AT_ONCE = 256  # of a state


def pieces(db: Database, models: Sql, chunks: Sql | None, key: int, named: ModelColumns) -> Iterator[bytes]:
    """The weights of one model of a model table; Python never holds more than one piece."""
    if chunks is not None:
        number = identifier(named.configuration)
        query = sql(
            "SELECT start, payload FROM {chunks} WHERE {number} = $1 ORDER BY start", chunks=chunks, number=number
        )
        for batch in _batches(db, query, ("integer",), key):
            for is_there, rows in itertools.groupby(batch, lambda row: row["payload"] is not None):
                if is_there:
                    yield b"".join(one["payload"] for one in rows)
                else:
                    for one in rows:
                        yield from _body_pieces(db, chunks, number, key, one["start"])
        return
    row = sql("FROM {models} WHERE {key_column} = $1", models=models, key_column=named.key)
    yield from value_pieces(db, identifier(named.weights), row, ("integer",), key)


def _batches(db: Database, query: Sql, types: tuple[str, ...], *values: Any) -> Iterator[Sequence[dict[str, Any]]]:
    cursor = db.cursor(query, types, *values)
    while batch := cursor.fetch(16):
        yield batch
    cursor.close()


@dataclass(frozen=True)
class Body:
    """A frozen body that a model table has once, and to which a model refers."""

    start: int  # within the model's weights
    sha256: str
    pieces: Callable[[], Iterator[bytes]]


def referred(db: Database, chunks: Sql, key: int, named: ModelColumns) -> Body | None:
    """The body that a model refers to; None: the table has all of its weights for itself."""
    found = body_of(db, chunks, key, named)
    if found is None:
        return None
    start, sha256 = found
    return Body(start, sha256, lambda: _body_pieces(db, chunks, identifier(named.configuration), key, start))


def own_rows(db: Database, chunks: Sql, key: int, named: ModelColumns) -> Iterator[tuple[int, bytes]]:
    """What a model has beside the body that it refers to: starts and bytes."""
    query = sql(
        "SELECT start, payload FROM {chunks} WHERE {number} = $1 AND payload IS NOT NULL ORDER BY start",
        chunks=chunks,
        number=identifier(named.configuration),
    )
    for batch in _batches(db, query, ("integer",), key):
        yield from ((row["start"], row["payload"]) for row in batch)


def body_of(db: Database, chunks: Sql, key: int, named: ModelColumns) -> tuple[int, str] | None:
    """Where in its weights a model refers to a frozen body, and the checksum of the body."""
    row = db.one(
        sql(
            "SELECT start, body FROM {chunks} WHERE {number} = $1 AND payload IS NULL",
            chunks=chunks,
            number=identifier(named.configuration),
        ),
        ("integer",),
        key,
    )
    return None if row is None else (row["start"], row["body"])


def _body_pieces(db: Database, chunks: Sql, number: Sql, key: int, start: int) -> Iterator[bytes]:
    """The frozen body that a model refers to at a start: rows that belong to no model have it, once for all."""
    query = sql(
        "SELECT b.payload FROM {chunks} b JOIN {chunks} m ON m.body = b.body"
        " WHERE b.{number} IS NULL AND m.{number} = $1 AND m.start = $2 ORDER BY b.start",
        chunks=chunks,
        number=number,
    )
    there = False
    for batch in _batches(db, query, ("integer", "bigint"), key, start):
        there = True
        yield b"".join(row["payload"] for row in batch)
    if not there:
        raise CorruptState(
            f"the frozen body of model {key} is not in {shown(chunks)}",
            hint="Its rows were deleted by hand. cerebro.materialize() makes the tables of a run anew.",
        )


def value_pieces(db: Database, column: Sql, row: Sql, types: tuple[str, ...], *values: Any) -> Iterator[bytes]:
    """The value of a column.  ``row``: FROM … WHERE … of its row, with parameters of these types and values."""
    start = size = 0
    while start <= size:
        part = sql(
            "SELECT octet_length({column}) AS size, substr({column}, {start}, {piece}) AS piece {row}",
            column=column,
            start=start + 1,
            piece=PIECE,
            row=row,
        )
        found = db.one(part, types, *values)
        if found is None or not found["piece"]:
            return
        yield found["piece"]
        start, size = start + PIECE, found["size"]


def of_group(db: Database, groups: Sql, number: int, key: int) -> Iterator[bytes]:
    """The weights of a model in a table of the models of groups."""
    row = sql("FROM {groups} WHERE group_number = $1 AND configuration = $2", groups=groups)
    return value_pieces(db, sql("weights"), row, ("integer", "integer"), number, key)


def version(db: Database, models: Sql, chunks: Sql | None, key: int, named: ModelColumns) -> str | None:
    """Tells the rows of a model's weights from all other rows in this database; None if that cannot be said.

    A row that is changed gets another place or another transaction.  Only the heap of PostgreSQL promises that.
    """
    rows, column = (chunks, identifier(named.configuration)) if chunks is not None else (models, named.key)
    of_body = sql(" OR {column} IS NULL", column=column) if chunks is not None else sql("")
    found: str | None = db.value(
        sql(
            "SELECT md5(string_agg(concat_ws(' ', m.tableoid, m.ctid, m.xmin, m.cmin), ','"
            " ORDER BY m.tableoid, m.ctid))"
            " FROM {rows} m JOIN pg_catalog.pg_class c ON c.oid = m.tableoid JOIN pg_catalog.pg_am a ON a.oid = c.relam"
            " WHERE ({column} = $1{of_body}) AND a.amname = 'heap'",
            rows=rows,
            of_body=of_body,
            column=column,
        ),
        ("integer",),
        key,
    )
    return found


def has_checksum(db: Database, rows: Sql, sha256: str) -> bool:
    """Whether a state is the one with this checksum; ``rows`` is FROM … WHERE … of its rows."""
    # Rows are stored in the order of their starts, and stay so unless somebody changes the table.  Sorting 100 MB is
    # done on disk and takes twice as long as hashing, so rows are sorted only if their checksum is another one.
    return any(
        _checksum(db, sql("SELECT start, payload {rows}{order}", rows=rows, order=order)) == sha256
        for order in (sql(""), sql(" ORDER BY start"))
    )


def _checksum(db: Database, query: Sql) -> str | None:
    """None if a row does not start where the row before it ends: weights are cut out by the starts."""
    digest, cursor, end = hashlib.sha256(), db.cursor(query), 0
    while batch := cursor.fetch(ROWS_AT_ONCE):
        for row in batch:
            if row["start"] != end:
                cursor.close()
                return None
            digest.update(row["payload"])
            end += len(row["payload"])
    cursor.close()
    return digest.hexdigest()


def value_queries(rows: Sql, first: int, size: int) -> tuple[Sql, Sql]:
    """The weights within a state as one row with the columns value and __dist_key__; ``rows`` as in ``has_checksum``.

    The first query joins the rows in the order in which the table gives them.  It returns no row if that is not the
    order of their starts.  The second query sorts them.
    """
    parts = chunks_sql(0, rows, first, size)

    def whole(order: Sql) -> Sql:
        # Grouped by the key, Greenplum joins the rows on the segment that stores them.
        value = sql("string_agg(payload, ''::bytea{order}) AS value", order=order)
        return sql(
            "SELECT __dist_key__, {value}, array_agg(start) AS starts FROM ({parts}) p GROUP BY __dist_key__",
            value=value,
            parts=parts,
        )

    # Without an order of its own, string_agg gets the rows in the same order as array_agg.
    in_order = sql("WHERE starts = ARRAY(SELECT unnest(starts) ORDER BY 1)")
    return (
        sql("SELECT value, __dist_key__ FROM ({whole}) j {in_order}", whole=whole(sql("")), in_order=in_order),
        sql("SELECT value, __dist_key__ FROM ({whole}) j", whole=whole(sql(" ORDER BY start"))),
    )


@dataclass(frozen=True)
class Cut:
    """Expressions over the rows of a state for the part of it that is wanted."""

    start: Sql
    payload: Sql
    overlaps: Sql  # whether a row has some of it


WHOLE = Cut(sql("start"), sql("payload"), sql("true"))


def within(first: int, size: int) -> Cut:
    """The weights within a state."""
    begin, end = sql("GREATEST({first} - start, 0)", first=first), first + size
    payload = sql(
        "substr(payload, {begin}::integer + 1, (LEAST(octet_length(payload), {end} - start) - {begin})::integer)",
        begin=begin,
        end=end,
    )
    overlaps = sql("start < {end} AND start + octet_length(payload) > {first}", first=first, end=end)
    return Cut(sql("GREATEST(start - {first}, 0)", first=first), payload, overlaps)


def chunks_sql(key: int, rows: Sql, first: int, size: int) -> Sql:
    """The weights within a state, as rows of a ``_weights`` table."""
    cut = within(first, size)
    return sql(
        "SELECT {key} AS configuration, {start} AS start, {payload} AS payload, __dist_key__ {rows} AND {overlaps}",
        key=key,
        start=cut.start,
        payload=cut.payload,
        overlaps=cut.overlaps,
        rows=rows,
    )
