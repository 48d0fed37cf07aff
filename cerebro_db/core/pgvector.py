"""The types of the extension pgvector, as arrays of ``real``: how the server finds them, and the cast.

The extension may be in any schema, or not be there at all: a type is one of its types if the catalog says that the type
belongs to the extension, whose name is ``vector``.  All three types have a cast to the type ``vector``, which has one
to ``real[]``.
"""

from __future__ import annotations

from .sql import Sql, sql
from .sql_types import SqlType


def vector_type(row: Sql, written: Sql) -> Sql:
    """The extension's type ``vector`` if the type is one of the extension's, else NULL.

    ``row``: a row of pg_type.  ``written``: an expression over ``v``, the row of the type ``vector``.  Only superusers
    create base types, so a type that an owner of the extension has added to it is none.
    """
    return sql(
        "CASE WHEN {row}.typtype = 'b' AND {row}.typname IN ('vector', 'halfvec', 'sparsevec') THEN ("
        "SELECT {written} FROM pg_catalog.pg_depend mine"
        " JOIN pg_catalog.pg_extension x ON x.oid = mine.refobjid AND x.extname = 'vector'"
        " JOIN pg_catalog.pg_depend its ON its.refclassid = mine.refclassid AND its.refobjid = x.oid"
        " AND its.classid = mine.classid AND its.deptype = 'e'"
        " JOIN pg_catalog.pg_type v ON v.oid = its.objid AND v.typtype = 'b' AND v.typname = 'vector'"
        " WHERE mine.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND mine.objid = {row}.oid"
        " AND mine.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND mine.deptype = 'e') END",
        row=row,
        written=written,
    )


def as_array(value: Sql, vector: SqlType) -> Sql:
    """A value of one of the types as a ``real[]``.  ``vector``: the extension's type of this name."""
    return sql("({value}::{vector}::real[])", value=value, vector=vector.sql)
