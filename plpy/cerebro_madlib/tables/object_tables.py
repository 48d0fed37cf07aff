"""MADlib's tables of custom functions: ``(id, name, description, object)``, one row per function.

A function is source text here.  It is registered in cerebro.custom_function, from where trainers get it, and listed in
the table.  A top-k accuracy is built in and only listed.
"""

from __future__ import annotations

from cerebro_db.core.errors import (
    CerebroError,
    InvalidArgument,
    UndefinedColumn,
    UndefinedObject,
    Unsupported,
    WrongState,
)
from cerebro_db.core.names import Name
from cerebro_db.core.parameters import custom
from cerebro_db.core.sql import identifier, sql
from cerebro_plpy import platform
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.entry import INTERNAL
from cerebro_plpy.database.entry import entry as plain_entry
from cerebro_plpy.definitions import custom_functions

from ..entry import entry

COLUMNS = ("id", "name", "description", "object")
OWN = custom_functions.TABLE  # where the functions themselves are


@plain_entry(called=INTERNAL)
def madlib_object_table(db: Database, name: str | None, schema: str) -> str | None:
    """The name with the schema of MADlib's functions, where the user wrote none."""
    if name is None or not name.strip():
        return None
    try:
        parsed = Name.parse(name, "object_table")
    except CerebroError as error:
        error.message = f"DL: {error.message}"  # else it would begin with "cerebro", and the caller called madlib
        raise
    own_schema, own_table = OWN.split(".")
    if parsed.schema not in (None, schema, own_schema):
        raise InvalidArgument(
            f"DL: Custom function table has to be in the {schema} schema",
            hint=f"object_table takes a name without a schema, and '{parsed}' is in another one.",
        )
    own = Name(schema, parsed.table)
    if parsed.schema is None and parsed.table == own_table and relations.find(db, own) is None:
        return OWN
    return str(own if parsed.schema is None else parsed)


@entry(called="load_custom_function error")
def madlib_load_custom_function(
    db: Database, object_table: str | None, object: bytes | None, name: str | None, description: str | None
) -> None:
    custom_functions.require_admin(db)
    if object is None:
        raise InvalidArgument("object is NULL.", hint="It takes the source text: convert_to('…', 'UTF8').")
    source = _source(object)
    table = _table(db, object_table)
    _require_new(db, table, name)
    if name is None or custom.top_k(name) is None or source != _built_in(name):
        custom_functions.register(db, name, source, custom.BOTH, description)
    _insert(db, table, str(name), description, object)


@entry(called="load_top_k_accuracy_function error")
def madlib_load_top_k_accuracy_function(db: Database, object_table: str | None, k: int | None) -> None:
    if k is None or k < 1:
        raise InvalidArgument(f"k is {'NULL' if k is None else k}; it must be at least 1.")
    name = f"top_{k}_accuracy"
    if not _may_list(db, object_table):
        db.notice(
            f"{name} is built in, and everybody can name it. It is not listed, which takes the right to make tables."
        )
        return
    table = _table(db, object_table)
    _require_new(db, table, name)
    _insert(db, table, name, f"returns {name}", _built_in(name).encode())


@entry(called="delete_custom_function error")
def madlib_delete_custom_function(db: Database, object_table: str | None, id: int | None, name: str | None) -> None:
    """Delete the function of this id, or else of this name.  The table goes with its last function."""
    custom_functions.require_admin(db)
    table = relations.existing(db, object_table, argument="object_table")
    _require_columns(db, table)
    column, kind = ("id", "integer") if id is not None else ("name", "text")
    wanted = id if id is not None else name
    row = db.one(
        sql("SELECT id, name FROM {table} WHERE {column} = $1", table=table.sql, column=identifier(column)),
        (kind,),
        wanted,
    )
    if row is None:
        raise UndefinedObject(
            f"Object {column} {'NULL' if wanted is None else repr(wanted)} not found in {table.text}",
            hint=f"SELECT id, name FROM {table.name.quoted} lists them.",
        )
    db.execute(sql("DELETE FROM {table} WHERE id = $1", table=table.sql), ("integer",), row["id"])
    if any(row["name"] in of_kind for of_kind in custom_functions.known(db).values()):
        custom_functions.retire(db, row["name"])
    if relations.is_empty(db, table):
        db.patiently(sql("DROP TABLE {table}", table=table.sql))


def _built_in(name: str) -> str:
    """What the column object has for a top-k accuracy; top_k_categorical_acc_pickled() returns the same."""
    return f"# {name} is built in."


def _source(given: bytes) -> str:
    try:
        text = given.decode("utf-8")
    except UnicodeDecodeError:
        custom_functions.refuse_pickle()  # its first byte is no UTF-8
    return text


def _may_list(db: Database, text: str | None) -> bool:
    """Whether the user may write into the table of this name, or make it."""
    name = Name.parse(text, "object_table")
    found = relations.find(db, name)
    if found is None:
        return _may_make(db, name)
    _require_columns(db, found)
    may: bool = db.value(
        sql(
            "SELECT pg_catalog.has_table_privilege($1::oid, 'INSERT') AND pg_catalog.has_table_privilege($1, 'UPDATE')"
        ),
        ("oid",),
        found.oid,
    )
    return may


def _table(db: Database, text: str | None) -> Name:
    """The table of this name.  It is created if it does not exist."""
    name = Name.parse(text, "object_table")
    found = relations.find(db, name)
    if found is not None:
        _require_columns(db, found)
        return name
    relations.qualified(db, name)
    db.execute(
        sql(
            "CREATE TABLE {name} (id serial, name text PRIMARY KEY, description text, object bytea) {distributed_by}",
            name=name.sql,
            distributed_by=platform.of(db).distributed_by("name"),
        )
    )
    # The segments of Greenplum would take numbers in stocks, and leave gaps.
    numbers = db.value(sql("SELECT pg_catalog.pg_get_serial_sequence($1, 'id')"), ("text",), name.quoted)
    db.execute(sql("ALTER SEQUENCE {numbers} CACHE 1", numbers=Name.parse(numbers).sql))
    db.execute(sql("GRANT SELECT ON {name} TO PUBLIC", name=name.sql))
    db.info(f"Created new custom function table {name}.")
    return name


def _require_columns(db: Database, table: relations.Relation) -> None:
    missing = [column for column in COLUMNS if column not in relations.columns(db, table)]
    if missing:
        raise UndefinedColumn(
            f"Invalid custom function table {table.text}, missing columns: {missing}",
            hint="A table is created when none has the given name.",
        )


def _require_new(db: Database, table: Name, name: str | None) -> None:
    db.patiently(sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE", table=table.sql))
    if db.value(sql("SELECT 1 FROM {table} WHERE name = $1", table=table.sql), ("text",), name):
        raise WrongState(
            f"Function '{name}' already exists in {table}",
            hint="delete_custom_function() deletes it.",
        )


def _insert(db: Database, table: Name, name: str, description: str | None, object: bytes) -> None:
    db.execute(
        sql("INSERT INTO {table} (name, description, object) VALUES ($1, $2, $3)", table=table.sql),
        ("text", "text", "bytea"),
        name,
        description,
        object,
    )
    db.info(f"Added function {name} to {table} table")


# -- as an argument of other functions --------------------------------------------------------------------


def require_table(db: Database, object_table: str | None) -> str | None:
    """The argument object_table: the table that is used anyway, or one that lists functions as MADlib's do.

    The functions themselves are those that are registered.
    """
    if object_table is None:
        return None
    if object_table.strip().lower() not in (OWN, "custom_function"):
        name = Name.parse(object_table, "object_table")
        found = relations.find(db, name)
        if found is None and name.schema is not None and not _may_make(db, name):
            return OWN  # a script of MADlib's whose user could not list a built-in metric
        if found is not None and set(COLUMNS) <= set(relations.columns(db, found)):
            return str(found.name)
        there = "" if found is not None else f" Input table '{object_table.strip()[:80]}' does not exist."
        raise Unsupported(
            f"object_table '{object_table[:80]}': custom functions are in {OWN}.{there}",
            hint="Leave object_table out. An administrator moves a function over with"
            " cerebro.add_custom_function(name, source, kind).",
        )
    return OWN


def _may_make(db: Database, name: Name) -> bool:
    """Whether the user may make a table in the schema of this name; where there is none, the error comes later."""
    may = db.value(
        sql(
            "SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE')"
            " FROM pg_catalog.pg_namespace n WHERE n.nspname = $1"
        ),
        ("text",),
        name.schema,
    )
    return may is not False


def known(db: Database, objects: str | None, *, fitting: bool = False) -> custom.Known:
    """The functions that compile parameters may name; the errors for others have MADlib's texts.

    ``objects``: the table that the call names.
    ``fitting``: those of a fit, else those of the functions that make model selection tables.
    """
    if fitting:
        missing = "Object table not specified for function ['{}'] in compile_params"
        unlisted = f"Custom function ['{{}}'] not defined in object table '{objects}'"
    else:
        missing = "custom function '{}' used in compile params but input object table missing!"
        unlisted = f"custom function '{{}}' used in compile params is not defined in object table '{objects}'!"
    return custom.WithoutSparse(custom_functions.known(db), missing if objects is None else unlisted)
