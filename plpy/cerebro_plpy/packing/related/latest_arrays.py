"""The arrays of the latest rows of an example, with zeros where it has fewer."""

from __future__ import annotations

from cerebro_db.core.packing.related import ManyRows
from cerebro_db.core.sql import Sql, identifier, sql


def gathered(one: ManyRows) -> list[Sql]:
    """The arrays of the latest rows, with their names, of rows with v0, v1 and n."""
    latest = one.latest
    if latest is None:
        return []
    arrays = [(0, latest.numbers, latest.channels, sql("real"))]
    if latest.codes is not None:
        arrays.append((1, latest.codes, len(latest.sizes), sql("integer")))
    return [
        sql("{array} AS {name}", array=_filled(place, latest.rows, width, element), name=identifier(name))
        for place, name, width, element in arrays
    ]


def _filled(place: int, rows: int, width: int, element: Sql) -> Sql:
    """The arrays of the latest rows as one, with zeros where there are fewer."""
    return sql(
        "(pg_catalog.array_cat(pg_catalog.array_agg(v{place} ORDER BY n), {empty}))[1:{rows}][1:{width}]",
        place=place,
        empty=empty(rows, width, element),
        rows=rows,
        width=width,
    )


def empty(rows: int, width: int, element: Sql) -> Sql:
    return sql("pg_catalog.array_fill(0::{element}, ARRAY[{rows}, {width}])", element=element, rows=rows, width=width)
