"""Some of a table's rows, always the same, by the hash that divides the rows.

Rows for validation have the lowest hashes, so those with the highest are taken.
"""

from __future__ import annotations

from dataclasses import replace

from cerebro_db.core.sql import sql

from ..database.access import Database
from ..database.relations import Relation
from . import splits
from .asked import hash_of_rows


def of(db: Database, source: Relation, rows: int, wanted: int) -> Relation:
    """About so many of the rows; all of them if there are not twice as many.  ``rows``: how many there are."""
    if rows <= 2 * wanted:
        return source
    hashed = splits.within_steps(hash_of_rows(db, source))
    above = sql("{hashed} >= {low}", hashed=hashed, low=int(splits.STEPS * (1 - wanted / rows)))
    if source.condition is not None:
        above = sql("({condition}) AND {above}", condition=source.condition, above=above)
    return replace(source, condition=above)


def is_varied(db: Database, some: Relation) -> bool:
    """Whether the rows stand for all.  Rows with the same values have the same hash, and come all or not at all."""
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS rows, count(DISTINCT {hashed}) AS different FROM {rows} AS s",
            hashed=hash_of_rows(db, some),
            rows=some.rows,
        )
    )
    return bool(found["rows"] and 2 * found["different"] > found["rows"])
