"""The architecture table: one row per architecture that configurations can be made of."""

from __future__ import annotations

import json

from cerebro_db.core import legacy, models
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, UndefinedObject
from cerebro_db.core.names import Name

from . import tables
from .db import Database, entry
from .tables import Relation

MODULE = "Keras Model Arch"
COLUMNS = ("model_id", "model_arch", "model_weights", "name", "description", "__internal_madlib_id__")


@entry
def load_keras_model(
    db: Database,
    keras_model_arch_table: str | None,
    model_arch: str | None,
    model_weights: bytes | None = None,
    name: str | None = None,
    description: str | None = None,
) -> None:
    parsed = Name.parse(keras_model_arch_table, f"{MODULE} error: keras_model_arch_table")
    if model_arch is None:
        raise InvalidArgument(f"{MODULE} error: model_arch must not be NULL.", hint="Keras gives it: model.to_json().")
    models.architecture(model_arch)  # refused here rather than in the run: no architecture, or one that runs code
    for warning in legacy.warnings(json.loads(model_arch)):
        db.warning(f"{MODULE}: {warning}")
    if model_weights is not None and len(model_weights) % 4:
        raise BadData(
            f"{MODULE} error: model_weights has {len(model_weights)} bytes, which is no multiple of 4.",
            hint="Weights are float32: np.concatenate([w.flatten() for w in model.get_weights()]).tobytes().",
        )
    table = _arch_table(db, parsed, (keras_model_arch_table or "").strip())
    # Ids are "the largest and one": two sessions at once must not take the same.
    db.patiently(f"LOCK TABLE {table.sql} IN SHARE ROW EXCLUSIVE MODE")
    model_id = db.value(f"SELECT coalesce(max(model_id), 0) + 1 FROM {table.sql}")
    db.execute(
        f"""
        INSERT INTO {table.sql} (model_id, model_arch, model_weights, name, description, __internal_madlib_id__)
        VALUES ($1, $2::json, $3, $4, $5,
                pg_catalog.md5(pg_catalog.random()::text || pg_catalog.clock_timestamp()::text))
        """,
        ("integer", "text", "bytea", "text", "text"),
        model_id, model_arch, model_weights, name, description,
    )  # fmt: skip
    db.info(f"{MODULE}: Added model id {model_id} to {table.text} table")


@entry
def delete_keras_model(db: Database, keras_model_arch_table: str | None, model_id: int | None) -> None:
    table = tables.filled(db, keras_model_arch_table, MODULE, argument="keras_model_arch_table")
    _require_columns(db, table)
    if not db.execute(f"DELETE FROM {table.sql} WHERE model_id = $1", ("integer",), model_id):
        raise UndefinedObject(
            f"{MODULE}: Model id {'NULL' if model_id is None else model_id} not found",
            hint=f"SELECT model_id, name FROM {table.sql} lists them.",
        )
    db.info(f"{MODULE}: Model id {model_id} has been deleted from {table.text}.")


def _arch_table(db: Database, parsed: Name, shown: str) -> Relation:
    """The table, made when it is not there yet."""
    found = tables.find(db, parsed, shown)
    if found is None:
        name = tables.qualified(db, parsed, MODULE)
        if _create(db, name):
            db.info(f"{MODULE}: Created new keras model architecture table {shown}.")
        found = tables.find(db, name, shown)
        assert found is not None
    _require_columns(db, found)
    return found


def _create(db: Database, name: Name) -> bool:
    """False when another session has just made it."""
    try:
        with db.savepoint():
            db.execute(
                f"""
                CREATE TABLE {name.sql} (
                    model_id integer PRIMARY KEY,
                    model_arch json,
                    model_weights bytea,
                    name text,
                    description text,
                    __internal_madlib_id__ text
                )
                """
            )
    except db.plpy.SPIError as error:
        if error.sqlstate not in ("42P07", "23505"):  # the catalog's own unique index can be first to notice
            raise
        return False
    return True


def _require_columns(db: Database, table: Relation) -> None:
    present = tables.columns(db, table)
    missing = [column for column in COLUMNS if column not in present]
    if missing:
        raise UndefinedColumn(
            f"{MODULE}: Invalid keras model architecture table {table.text}, missing columns: {missing}",
            hint="load_keras_model makes a new table when it is given the name of none.",
        )
