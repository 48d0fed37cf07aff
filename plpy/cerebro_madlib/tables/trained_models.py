"""Reads the model that a call names: by the name of a table, and by its mst_key if the table has several models."""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.models import model_columns
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.models import trained
from cerebro_plpy.models.trained import ModelTables, TrainedModel


def read_model(db: Database, tables: ModelTables, mst_key: int | None) -> TrainedModel:
    form = model_columns.of(relations.columns(db, tables.table))
    if mst_key is None and form is not None and form.has_key and tables.info is not None and tables.summary is not None:
        raise InvalidArgument(
            "Multi-model needs to pass mst_key",
            hint=f"SELECT {form.configuration}, * FROM {tables.info.name} lists the models.",
        )
    return trained.read(db, tables, mst_key)
