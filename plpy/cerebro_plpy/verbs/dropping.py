"""``cerebro.drop_model`` and ``cerebro.unregister``: what they remove, and packed rows that nothing else needs."""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.names import Name

from ..database import dropping, relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from ..models import model_parts
from ..models.model_parts import TablesOfModel
from ..models.trained import require_trained
from ..registry import aliases
from ..runs.record import own_runs


@entry
def drop_model(db: Database, model_table: str | None) -> None:
    if references.is_reference(model_table):
        raise InvalidArgument(
            f"'{model_table}' is a registered model.", hint="cerebro.unregister() removes a version from the registry."
        )
    name, parts = _parts(db, model_table)
    tables = [*parts.tables.values()]
    packed = own_runs.rows_of_models(db, name)
    for table in tables:
        model_parts.require_droppable(db, table)
    dropping.drop(db, tables, hint="They need the model. Let them use another one first.")
    own_runs.drop_unneeded(db, packed)


@entry
def unregister(db: Database, registered_model: str | None, version: int | None, reason: str | None) -> None:
    packed = own_runs.rows_of_version(db, registered_model, version)
    aliases.remove_version(db, registered_model, version, reason)
    own_runs.drop_unneeded(db, packed)


def _parts(db: Database, text: str | None) -> tuple[Name, TablesOfModel]:
    """The name and the tables of the model; an error if there are none.  Some, also the model table, may be missing."""
    name = Name.parse(text, "model_table") if text and text.strip() else None
    if name is not None and relations.find(db, name) is None:
        for ending in ("_summary", "_info"):
            beside = relations.find(db, name.suffixed(ending))
            parts = model_parts.of(db, Name(beside.schema, name.table)) if beside is not None else None
            if beside is not None and parts is not None and parts.is_model:
                return Name(beside.schema, name.table), parts
    table = relations.existing(db, text, argument="model_table")
    parts = model_parts.of(db, table.name)
    if not parts.is_model:
        model_parts.require_droppable(db, table)
        require_trained(table, relations.columns(db, table))
        raise WrongState(
            f"'{table.text}' is not a table of trained models: it has no summary of a run.",
            hint="cerebro.models lists the model tables.",
        )
    return table.name, parts
