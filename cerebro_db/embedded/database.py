"""Makes the database of an embedded cluster, and creates or updates the extension in a database."""

from __future__ import annotations

from typing import Any

from psycopg2 import sql

from .extension import NAME
from .files import DATABASE


def create_database(connection: Any) -> None:
    """Makes the cluster's database if it is missing. The connection is a superuser's, to another database."""
    name = sql.Identifier(DATABASE)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
        if cursor.fetchone() is None:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(name))
            # So that the MADlib names are found without a schema.
            cursor.execute(sql.SQL('ALTER DATABASE {} SET search_path = "$user", public, cerebro').format(name))


def equip(connection: Any, version: str, recreate: bool = False) -> str:
    """Brings the extension in the database of a superuser's connection to ``version``.

    Returns what was done: created, updated, recreated or unchanged.
    """
    name = sql.Identifier(NAME)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = %s", (NAME,))
        found = cursor.fetchone()
        if found is not None and not recreate:
            if found[0] == version:
                return "unchanged"
            cursor.execute(sql.SQL("ALTER EXTENSION {} UPDATE TO {}").format(name, sql.Literal(version)))
            return "updated"
        if found is not None:
            cursor.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(name))
        cursor.execute(sql.SQL("CREATE EXTENSION {} CASCADE").format(name))
        return "created" if found is None else "recreated"
