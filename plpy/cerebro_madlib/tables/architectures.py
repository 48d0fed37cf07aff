"""MADlib's tables of architectures: a row for each, to which configurations refer by model_id."""

from __future__ import annotations

from cerebro_db.core.architecture.limits import MOST_BYTES
from cerebro_db.core.errors import UndefinedColumn, UndefinedObject
from cerebro_db.core.names import Name
from cerebro_db.core.sql import sql
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.relations import Relation

from ..entry import entry

COLUMNS = ("model_id", "model_arch", "model_weights", "name", "description", "__internal_madlib_id__")


@entry(called="Keras Model Arch error", longest=MOST_BYTES)
def madlib_load_keras_model(
    db: Database,
    keras_model_arch_table: str | None,
    model_arch: str | None,
    model_weights: bytes | None,
    name: str | None,
    description: str | None,
) -> None:
    """Any JSON and any weights are stored.  They are checked when they are used."""
    parsed = Name.parse(keras_model_arch_table, "keras_model_arch_table")
    table = _arch_table(db, parsed, (keras_model_arch_table or "").strip())
    model_id = added(db, table, model_arch, model_weights, name, description)
    db.info(f"Keras Model Arch: Added model id {model_id} to {table.text} table")


@entry(called="Keras Model Arch error")
def madlib_delete_keras_model(db: Database, keras_model_arch_table: str | None, model_id: int | None) -> None:
    """The table goes with its last architecture."""
    table = relations.filled(db, keras_model_arch_table, argument="keras_model_arch_table")
    require_columns(db, table)
    if not db.execute(sql("DELETE FROM {table} WHERE model_id = $1", table=table.sql), ("integer",), model_id):
        raise UndefinedObject(
            f"Model id {'NULL' if model_id is None else model_id} not found",
            hint=f"SELECT model_id, name FROM {table.name.quoted} lists them.",
        )
    db.info(f"Keras Model Arch: Model id {model_id} has been deleted from {table.text}.")
    if relations.is_empty(db, table):
        db.patiently(sql("DROP TABLE {table}", table=table.sql))
        db.info(f"Keras Model Arch: Dropped the table {table.text}, which had no more models.")


def added(
    db: Database,
    table: Relation,
    model_arch: str | None,
    weights: bytes | None,
    name: str | None,
    description: str | None,
) -> int:
    """Add a row; returns its model_id: the largest one plus 1.  The lock keeps two sessions from taking the same."""
    db.patiently(sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE", table=table.sql))
    model_id: int = db.value(sql("SELECT coalesce(max(model_id), 0) + 1 FROM {table}", table=table.sql))
    db.execute(
        sql("""
        INSERT INTO {table} (model_id, model_arch, model_weights, name, description, __internal_madlib_id__)
        VALUES ($1, $2::json, $3, $4, $5,
                pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text))
        """, table=table.sql),
        ("integer", "text", "bytea", "text", "text"),
        model_id, model_arch, weights, name, description,
    )  # fmt: skip
    return model_id


def _arch_table(db: Database, parsed: Name, shown: str) -> Relation:
    """The table of this name.  It is created if it does not exist."""
    found = relations.find(db, parsed, shown)
    if found is None:
        name = relations.qualified(db, parsed)
        if _create(db, name):
            db.info(f"Keras Model Arch: Created new keras model architecture table {shown}.")
        found = relations.find(db, name, shown)
        assert found is not None
    require_columns(db, found)
    return found


def _create(db: Database, name: Name) -> bool:
    """Create the table; False if another session has just created it."""
    try:
        with db.savepoint():
            db.execute(
                sql(
                    """
                CREATE TABLE {name} (
                    model_id integer PRIMARY KEY,
                    model_arch json,
                    model_weights bytea,
                    name text,
                    description text,
                    __internal_madlib_id__ text
                )
                """,
                    name=name.sql,
                )
            )
    except db.plpy.SPIError as error:
        # The name of the row type, or the catalog's unique index, may be found to be taken first.
        if error.sqlstate not in ("42P07", "42710", "23505"):
            raise
        return False
    return True


def require_columns(db: Database, table: Relation) -> None:
    present = relations.columns(db, table)
    missing = [column for column in COLUMNS if column not in present]
    if missing:
        raise UndefinedColumn(
            f"Invalid keras model architecture table {table.text}, missing columns: {missing}",
            hint="load_keras_model creates a table when no table has the given name.",
        )
