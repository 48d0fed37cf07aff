"""The memory that the trainers of a run were allowed: later uses of its models, and runs that continue them, get it."""

from __future__ import annotations

from typing import Annotated, Any, Optional

from cerebro_db.core import codec
from cerebro_db.core.codec import Within
from cerebro_db.core.models.model_columns import PLAIN
from cerebro_db.core.sql import sql

from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from . import document_columns

COLUMN = "memory_mb"
Memory = Annotated[int, Within(1, 2**31 - 1)]


def of_summary(db: Database, summary: Relation) -> int | None:
    """The megabytes, from the summary of its models; None: nobody has said, or the caller may not read it."""
    column = relations.columns(db, summary).get(COLUMN)
    if column is None or not column.readable:
        return None
    document_columns.require({COLUMN: column}, summary.text, PLAIN.types)
    return of_row(db.one(sql("SELECT memory_mb FROM {summary} LIMIT 1", summary=summary.sql)) or {}, summary)


def of_row(row: dict[str, Any], summary: Relation) -> int | None:
    """The same, from the row of the summary, as far as that was read."""
    megabytes: int | None = codec.read(Optional[Memory], row.get(COLUMN), f"{summary.text}: {COLUMN}")
    return megabytes
