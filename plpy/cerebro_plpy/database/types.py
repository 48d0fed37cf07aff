"""The SQL types that documents name: which of them statements of the caller may use.

A cast to a type, or from it, can call functions of the type's owner with the rights of whoever casts.  So a document
can only choose a type of a superuser or of the caller, and those of extensions belong to a superuser: the owner of a
trusted extension can add types of its own to it.  The schema must be a superuser's or the caller's, too, because its
owner can put another type in the place of this one at any moment.  Any other type counts as text, and so does one that
the caller has no right to use.
"""

from __future__ import annotations

from cerebro_db.core.sql import Sql, identifier, sql
from cerebro_db.core.sql_types import TEXT, SqlType

from .access import Database


def written(row: Sql) -> Sql:
    """The name of a type as the server itself writes it.  ``row`` is a row of pg_type.

    The setting quote_all_identifiers does not change the names of pg_catalog; "char" is another type than char.
    """
    return sql(
        "CASE WHEN {t}.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace"
        " THEN pg_catalog.format('%s.%I', {t}.typnamespace::pg_catalog.regnamespace, {t}.typname)"
        " WHEN {t}.typname IN ('char', '_char') THEN pg_catalog.format_type({t}.oid, -1)"
        " ELSE pg_catalog.replace(pg_catalog.format_type({t}.oid, -1), '\"', '') END",
        t=row,
    )


def owner_of_schema(row: Sql) -> Sql:
    """The role that can rename a schema.  ``row`` is a row of pg_namespace.

    Of the schema public that is the database's owner, from PostgreSQL 15 on.
    """
    return sql(
        "CASE WHEN pg_catalog.pg_get_userbyid({n}.nspowner) = 'pg_database_owner' THEN (SELECT d.datdba"
        " FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) ELSE {n}.nspowner END",
        n=row,
    )


_FOUND = sql(
    """
    SELECT {written} AS written
      FROM pg_catalog.pg_type t
      JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
      JOIN pg_catalog.pg_roles r ON r.oid = t.typowner
      JOIN pg_catalog.pg_roles s ON s.oid = {owner}
     WHERE n.nspname = COALESCE($1, 'pg_catalog') AND t.typtype IN ('b', 'c', 'e', 'r', 'm')
       AND CASE WHEN $1 IS NULL THEN {written} ELSE t.typname::pg_catalog.text END = $2
       AND (r.rolsuper OR r.rolname = current_user) AND (s.rolsuper OR s.rolname = current_user)
       AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_type_privilege(t.oid, 'USAGE')
""",
    written=written(identifier("t")),
    owner=owner_of_schema(sql("n")),
)


def settled(db: Database, named: SqlType) -> SqlType:
    """The type of this name if the caller's statements may use it, as the server writes it; else text."""
    if named.is_built_in:
        return named
    schema, name = named.parts
    found = db.value(_FOUND, ("text", "text"), schema, name)
    return TEXT if found is None else SqlType(found)


def may_use(db: Database, named: SqlType) -> bool:
    return settled(db, named).parts == named.parts
