"""``cerebro.drop_model``: drops a model table with its companions."""

from __future__ import annotations

from cerebro_db.core.errors import DependentObjects, InvalidArgument, NotPermitted, Unsupported, WrongState
from cerebro_db.core.model_columns import has_groups
from cerebro_db.core.sql import joined, sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Relation
from ..registry import references
from .trained import require_trained

CHUNKS = {"start", "payload"}  # columns of the table of weights that are too large for one value


@entry
def drop_model(db: Database, model_table: str | None) -> None:
    if references.is_reference(model_table):
        raise InvalidArgument(
            f"'{model_table}' is a registered model.", hint="cerebro.unregister() removes a version from the registry."
        )
    tables = _tables(db, relations.existing(db, model_table, argument="model_table"))
    for table in tables:
        _require_droppable(db, table)
    try:
        with db.savepoint():
            db.patiently(sql("DROP TABLE {tables}", tables=joined(", ", (table.sql for table in tables))))
    except db.plpy.SPIError as error:
        if error.sqlstate != DependentObjects.sqlstate:
            raise
        _, detail, *_ = getattr(error, "spidata", None) or (None, None)
        raise DependentObjects(
            f"'{tables[0].text}' stays, because other objects depend on it or on a table beside it.",
            detail=detail,
            hint="Drop these objects first.",
        ) from None


def _tables(db: Database, table: Relation) -> list[Relation]:
    """The model table and its companions; an error unless it is one."""
    named = require_trained(table, relations.columns(db, table))
    summary, info, weights = (relations.beside(db, table, ending) for ending in ("_summary", "_info", "_weights"))
    if summary is None or "layout" not in relations.columns(db, summary):
        raise WrongState(
            f"'{table.text}' is not a table of trained models: it has no summary of a run.",
            hint=f"If you want it gone nevertheless: DROP TABLE {table.name};",
        )
    found = [table, summary]
    if info is not None and named.configuration in relations.columns(db, info):
        found.append(info)
    if weights is not None and set(relations.columns(db, weights)) >= CHUNKS:
        found.append(weights)
    groups = relations.beside(db, table, "_groups")
    if groups is not None and has_groups(relations.columns(db, groups)):
        found.append(groups)
    return found


def _require_droppable(db: Database, table: Relation) -> None:
    if table.kind not in ("r", "p"):
        raise Unsupported(
            f"'{table.text}' is a {relations.READABLE[table.kind]}, not a table.",
            hint="cerebro.models lists the model tables.",
        )
    owner = db.one(
        sql(
            "SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_mine,"
            " pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text AS name"
            " FROM pg_catalog.pg_class c WHERE c.oid = $1::oid"
        ),
        ("bigint",),
        table.oid,
    )
    if owner is not None and not owner["is_mine"]:
        raise NotPermitted(f"'{table.text}' belongs to {owner['name']}.", hint="Only its owner can drop it.")
