"""Makes the database of an embedded cluster, and creates or updates the extension in a database."""

from __future__ import annotations

from typing import Any

from psycopg2 import errors, sql

from .extension import EXTENSIONS, MAIN
from .files import DATABASE


def create_database(connection: Any) -> None:
    """Makes the cluster's database if it is missing. The connection is a superuser's, to another database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
        if cursor.fetchone() is None:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def equip(connection: Any, version: str, recreate: bool = False) -> str:
    """Brings the extension in the database of a superuser's connection, which commits each statement, to ``version``.

    A new one comes with the extension that has MADlib's names, unless the schema ``madlib`` has objects of others.
    Returns what was done: created, updated, recreated or unchanged.
    """
    with connection.cursor() as cursor:
        names = [one.name for one in EXTENSIONS]
        cursor.execute("SELECT extname, extversion FROM pg_extension WHERE extname = ANY (%s)", (names,))
        found = dict(cursor.fetchall())
        cursor.execute("SELECT name FROM pg_available_extensions")
        installed = {name for (name,) in cursor.fetchall()}
        if MAIN.name in found and recreate:
            cursor.execute(sql.SQL("DROP EXTENSION {} CASCADE").format(sql.Identifier(MAIN.name)))
        done = "created" if MAIN.name not in found else "recreated" if recreate else "unchanged"
        kept = {} if recreate else found
        for name in names:
            if done in ("created", "recreated") and (name == MAIN.name or name in installed):
                _create(cursor, name)
            elif kept.get(name, version) != version:
                cursor.execute(
                    sql.SQL("ALTER EXTENSION {} UPDATE TO {}").format(sql.Identifier(name), sql.Literal(version))
                )
                done = "updated"
        return done


def _create(cursor: Any, name: str) -> None:
    try:
        cursor.execute(sql.SQL("CREATE EXTENSION {} CASCADE").format(sql.Identifier(name)))
    except errors.DuplicateSchema:
        if name == MAIN.name:
            raise  # else the database has MADlib itself, or a schema with its name
