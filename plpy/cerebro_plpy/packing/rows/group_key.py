"""The text that tells the groups of rows apart."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.sql import Sql, joined, sql
from cerebro_db.core.sql_types import SqlType

from ...database.relations import Column
from .preparation import Alias, label_text


def of(columns: Sequence[Column], alias: Alias) -> Sql:
    """A JSON array of the values of the columns of ``group_by``."""
    return sql("pg_catalog.jsonb_build_array({texts})::text", texts=joined(", ", labels(columns, alias)))


def labels(columns: Sequence[Column], alias: Alias) -> list[Sql]:
    """The values of the columns as texts.  An integer that training has not had may need more bits than the others."""
    types = [SqlType("bigint" if column.type in deciding.INTEGERS else column.type) for column in columns]
    return [label_text(alias(column), type) for column, type in zip(columns, types)]
