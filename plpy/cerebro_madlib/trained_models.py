"""Reads the model that a call names: by the name of a table, and by its mst_key if the table has several models."""

from __future__ import annotations

from cerebro_db.core import model_columns
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.names import Name
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.serving import trained
from cerebro_plpy.serving.trained import TrainedModel


def read_model(db: Database, text: str, mst_key: int | None) -> TrainedModel:
    relations.hold(db, text)
    if mst_key is None:
        _require_one_model(db, text)
    return trained.read(db, text, mst_key)[0]


def _require_one_model(db: Database, text: str) -> None:
    """Of several models none is the one that is meant.  Whatever else is wrong with the table is said later."""
    table = relations.find(db, Name.parse(text)) if text and text.strip() else None
    form = None if table is None else model_columns.of(relations.columns(db, table))
    if table is None or form is None or not form.has_key:
        return
    info = relations.beside(db, table, "_info")
    if info is not None and relations.beside(db, table, "_summary") is not None:
        raise InvalidArgument(
            "Multi-model needs to pass mst_key",
            hint=f"SELECT {form.configuration}, * FROM {info.name} lists the models.",
        )
