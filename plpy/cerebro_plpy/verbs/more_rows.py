"""``cerebro.append``, ``pack_like`` and ``related_rows``: more rows for what was packed or trained before.

They may need the columns of related tables, and our log says which tables the caller named for them.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.sql import Sql, identifier, joined, shown, sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from ..judging.drift import layout_of
from ..packing import appending, pack_plain
from ..packing.pack_arguments import LikeArguments
from ..packing.related.reading import Opens
from ..predicting import related_rows as reading


@entry
def append(
    db: Database, packed_table: str | None, source_table: str | None, divide: bool | None, related: str | None = None
) -> None:
    appending.append(db, packed_table, source_table, divide, _opens(db, related))


@entry
def pack_like(db: Database, related: str | None = None, **arguments: Any) -> None:
    pack_plain.pack_validation(db, LikeArguments(**arguments), opens=_opens(db, related))


def _opens(db: Database, given: str | None) -> Opens:
    return lambda table, layout: reading.opened(db, table, layout, given)


@entry
def related_rows(
    db: Database, model_table: str | None, query: str | None, output_table: str | None, related: str | None
) -> int:
    """Make the table; return the number of its rows."""
    output = relations.new(db, output_table)
    made = _query(db, model_table, query, related)
    distributed = platform.of(db).distributed_by(None)
    db.patiently(sql("CREATE TABLE {output} AS {made} {by}", output=output.sql, made=made, by=distributed))
    return int(db.value(sql("SELECT count(*) FROM {output}", output=output.sql)))


@entry(called="cerebro.related_rows")
def with_related(db: Database, model_table: str | None, query: str | None, related: str | None) -> str:
    return shown(_query(db, model_table, query, related))


def _query(db: Database, model_table: str | None, query: str | None, related: str | None) -> Sql:
    """The rows of a query with the columns of related tables after their own."""
    query = relations.require_query(db, query)
    ref = references.model_ref(db, model_table)
    table, layout = layout_of(db, ref)
    source, present = relations.of_query(db, query)
    rows = reading.rows_of(db, table, layout, source, present, related)
    if rows is None:
        raise InvalidArgument(
            f"'{ref.given}' reads no related tables, or the query has their columns already.",
            hint="The rows need no other columns.",
        )
    listed = joined(", ", (sql("r.{name}", name=identifier(name)) for name in [*present, *rows.plan.names]))
    return sql("SELECT {listed} FROM ({query}) r", listed=listed, query=rows.query(source.rows))
