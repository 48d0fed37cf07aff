"""Staging tables: the answers of a prediction, chunk by chunk, before the caller's table is made from them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cerebro_db.core.names import STATE_SCHEMA, quote, token

from ..platform import Platform

if TYPE_CHECKING:
    from ..sessions.session import Session

FORGOTTEN_AFTER = 86400  # seconds; no prediction takes so long
COLUMNS = "(__dist_key__ integer, rows bigint, ids text[], answers cerebro._prediction[])"


def new_name() -> str:
    return f"{STATE_SCHEMA}.{quote(f'predict_{int(time.time()):08x}_{token()}')}"


def create(table: str, here: Platform) -> list[str]:
    """Statements that create a staging table.  It is read once and soon, so compressing it would not pay."""
    external = ", ".join(f"ALTER COLUMN {column} SET STORAGE EXTERNAL" for column in ("ids", "answers"))
    return [
        f"CREATE TABLE {table} {COLUMNS} {here.distributed_by('__dist_key__')}",
        f"ALTER TABLE {table} {external}",
    ]


def fill(table: str, chunks: str) -> str:
    """A statement that predicts the chunks of a query, in the session or on the segment where it runs."""
    return (
        f"INSERT INTO {table} SELECT c.__dist_key__, c.rows, c.ids, cerebro._predict(c.rows, c.variables)"
        f" FROM ({chunks}) c"
    )


def drop_forgotten(session: Session) -> None:
    """Drop this user's staging tables that were never read, because the caller's transaction failed."""
    for (name,) in session.run(
        "SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = '{STATE_SCHEMA}' AND c.relkind = 'r' AND c.relowner = current_user::regrole"
        " AND c.relname ~ '^predict_[0-9a-f]{8}_'"
    ):
        if time.time() - int(name[8:16], 16) > FORGOTTEN_AFTER:
            session.run(f"DROP TABLE IF EXISTS {STATE_SCHEMA}.{quote(name)}")
