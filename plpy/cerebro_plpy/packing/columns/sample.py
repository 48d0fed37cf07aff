"""Chooses a sample of a table's rows by the hash that also divides them, so that each call chooses the same rows.

Rows for validation have the lowest hashes, so those with the highest are taken.
"""

from __future__ import annotations

from cerebro_db.core.sql import sql

from ...database import relations
from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import hash_of_rows
from ..rows import splits


def of(db: Database, source: Relation, rows: int, wanted: int) -> Relation:
    """About so many of the rows; all of them if there are not twice as many.  ``rows``: how many there are."""
    if rows <= 2 * wanted:
        return source
    hashed = splits.within_steps(hash_of_rows(db, source))
    above = sql("{hashed} >= {low}", hashed=hashed, low=int(splits.STEPS * (1 - wanted / rows)))
    return source.also(above)


def varied(db: Database, source: Relation, rows: int, wanted: int) -> Relation:
    """About so many of the rows, if they stand for all; else all of them.  ``rows``: how many there are."""
    some = of(db, source, rows, wanted)
    return some if some is source or relations.is_keyed(db, source) or _is_varied(db, source, some) else source


def _is_varied(db: Database, source: Relation, some: Relation) -> bool:
    """Whether some of the rows stand for all.  Rows with the same values have the same hash: all are there, or none.

    So few rows of the sample may share a hash, and no 1,024th of the hashes may have a hundredth of all rows.
    """
    hashed = hash_of_rows(db, source)
    shared = sql(
        "SELECT sum(n) AS rows, sum(n * n) AS pairs FROM (SELECT count(*) AS n FROM {rows} AS s GROUP BY {hashed}) g",
        hashed=hashed,
        rows=some.rows,
    )
    crowded = sql(
        "SELECT sum(n) AS rows, max(n) AS most"
        " FROM (SELECT count(*) AS n FROM {rows} AS s GROUP BY ({hashed}) >> 54) g",
        hashed=hashed,
        rows=source.rows,
    )
    (inside,), (everywhere,) = db.scan(shared), db.scan(crowded)
    few_share = inside["rows"] and inside["pairs"] <= 2 * inside["rows"]
    return bool(few_share and 100 * everywhere["most"] <= everywhere["rows"])
