"""The rows for validation that the run of a model kept."""

from __future__ import annotations

from cerebro_db.core.errors import CerebroError, WrongState
from cerebro_db.core.models import refits
from cerebro_db.core.sql import identifier, sql

from ..database import relations
from ..database.access import Database
from ..models import document_columns
from ..models.trained import TrainedModel
from ..packing import packed
from ..runs.record import own_runs


def packed_table_of(db: Database, model: TrainedModel, please: str) -> str:
    """The packed table that the run evaluated its models on; an error if this user did not begin the run.

    ``please``: what to do without it.
    """
    _refuse_refitted(db, model, please)
    run = own_runs.of_trained(db, model.table, model.layout)
    if run is None:
        raise WrongState(
            f"'{model.table.text}' was trained by another role or imported, or its run was forgotten, so nothing says"
            " which rows to read.",
            hint=please,
        )
    try:
        found = run.packed_validation(db)
        if found is not None:
            packed.read(db, found.name.quoted, argument="validation_table", please=please)
    except CerebroError as error:
        raise WrongState(f"the rows for validation cannot be read: {error.message}", hint=please) from None
    if found is None or model.layout.folds:  # with folds, the run evaluated its models on the rows that it trained on
        raise WrongState(f"the run of '{model.table.text}' had no rows for validation alone.", hint=please)
    return found.name.quoted


def _refuse_refitted(db: Database, model: TrainedModel, please: str) -> None:
    info = model.tables.info
    present = {} if info is None or not model.named.has_key else relations.columns(db, info)
    if info is None or not {"reason", model.named.training_loss} <= set(present):
        return
    document_columns.require_known_types(present, info.text, ["reason"])
    reason = db.value(
        sql(
            "SELECT reason FROM {info} WHERE {number} = $1 AND {trained} IS NULL",
            info=info.sql,
            number=identifier(model.named.configuration),
            trained=identifier(model.named.training_loss),
        ),
        ("integer",),
        model.key,
    )
    if refits.is_refitted(reason):
        raise WrongState(
            f"configuration {model.key} of '{model.table.text}' was trained on all rows, so none of them can judge it.",
            hint=please,
        )
