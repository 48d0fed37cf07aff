"""Counts of rows: aggregates over all of them, in as few statements as a SELECT list allows."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.sql import Sql, joined, sql

from ...database.access import Database, Row
from ...database.relations import Relation

AT_ONCE = 1600  # aggregates: a SELECT list has 1,664 entries at most


def counted(db: Database, source: Relation, counts: Sequence[Sql]) -> Row:
    """The number of the rows, as ``rows``, and these aggregates over them."""
    found: Row = {}
    for start in range(0, max(1, len(counts)), AT_ONCE):
        some = joined(", ", [sql("count(*) AS rows"), *counts[start : start + AT_ONCE]])
        (row,) = db.scan(sql("SELECT {some} FROM {rows} AS s", some=some, rows=source.rows))
        found.update(row)
    return found
