"""Makes the database of an embedded cluster, and creates or updates the extension in a database."""

from __future__ import annotations

from typing import Any

from psycopg2 import sql

from .extension import EXTENSIONS, MAIN
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

    The extension with MADlib's names, which users create themselves, is brought along if the database has it.
    Returns what was done: created, updated, recreated or unchanged.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extname, extversion FROM pg_extension WHERE extname = ANY (%s)", ([e.name for e in EXTENSIONS],)
        )
        found = dict(cursor.fetchall())
        if MAIN.name in found and not recreate:
            for name in [one.name for one in EXTENSIONS if found.get(one.name, version) != version]:
                cursor.execute(
                    sql.SQL("ALTER EXTENSION {} UPDATE TO {}").format(sql.Identifier(name), sql.Literal(version))
                )
            return "unchanged" if set(found.values()) == {version} else "updated"
        if found:
            cursor.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(sql.Identifier(MAIN.name)))
        for name in [one.name for one in EXTENSIONS if one is MAIN or one.name in found]:
            cursor.execute(sql.SQL("CREATE EXTENSION {} CASCADE").format(sql.Identifier(name)))
        return "recreated" if found else "created"
