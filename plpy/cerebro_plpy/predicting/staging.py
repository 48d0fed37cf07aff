"""Staging tables: the answers of a prediction, chunk by chunk, before the caller's table is made from them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.sql import Sql, literal, sql

from ..platform import Platform

if TYPE_CHECKING:
    from ..sessions.session import Session

FORGOTTEN_AFTER = 86400  # seconds; no prediction takes so long
COLUMNS = sql("(__dist_key__ integer, rows bigint, ids text[], answers cerebro_internal._prediction[])")


def new_name() -> Sql:
    return Name(STATE_SCHEMA, f"predict_{int(time.time()):08x}_{token()}").sql


def create(table: Sql, here: Platform) -> list[Sql]:
    """Statements that create a staging table.  It is read once and soon, so compressing it would not pay."""
    return [
        sql(
            "CREATE TABLE {table} {columns} {distributed_by}",
            table=table,
            columns=COLUMNS,
            distributed_by=here.distributed_by("__dist_key__"),
        ),
        sql(
            "ALTER TABLE {table} ALTER COLUMN ids SET STORAGE EXTERNAL, ALTER COLUMN answers SET STORAGE EXTERNAL",
            table=table,
        ),
    ]


def fill(table: Sql, chunks: Sql) -> Sql:
    """A statement that predicts the chunks of a query, in the session or on the segment where it runs."""
    return sql(
        "INSERT INTO {table} SELECT c.__dist_key__, c.rows, c.ids, cerebro_internal._predict(c.rows, c.variables)"
        " FROM ({chunks}) c",
        table=table,
        chunks=chunks,
    )


ADDED = ("integer", "bigint", "text[]", "cerebro_internal._prediction[]")  # the types of what ``add`` adds


def add(table: Sql) -> Sql:
    """A statement that adds the answers of one chunk."""
    return sql("INSERT INTO {table} VALUES ($1, $2, $3, $4)", table=table)


def drop_forgotten(session: Session) -> None:
    """Drop this user's staging tables that were never read, because the caller's transaction failed."""
    for (name,) in session.run(
        sql(
            "SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = {state_schema} AND c.relkind = 'r' AND c.relowner = current_user::regrole"
            " AND c.relname ~ '^predict_[0-9a-f]{{8}}_'",
            state_schema=literal(STATE_SCHEMA),
        )
    ):
        if time.time() - int(name[8:16], 16) > FORGOTTEN_AFTER:
            session.run(sql("DROP TABLE IF EXISTS {table}", table=Name(STATE_SCHEMA, name).sql))
