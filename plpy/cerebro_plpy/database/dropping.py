"""Drops several tables: all of them, or none."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.errors import DependentObjects
from cerebro_db.core.sql import joined, sql

from .access import Database
from .relations import Relation


def drop(db: Database, tables: Sequence[Relation], hint: str | None = None) -> None:
    """Drop these tables.  If other objects depend on one of them, all stay, and the error names the objects."""
    try:
        with db.savepoint():
            db.patiently(sql("DROP TABLE {tables}", tables=joined(", ", (table.sql for table in tables))))
    except db.plpy.SPIError as error:
        if error.sqlstate != DependentObjects.sqlstate:
            raise
        _, detail, *_ = getattr(error, "spidata", None) or (None, None, None)
        raise DependentObjects(
            f"'{tables[0].text}' stays, because other objects depend on it or on a table beside it.",
            detail=detail,
            hint=hint,
        ) from None
