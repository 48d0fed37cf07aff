"""``madlib_keras_fit_multiple_model``, and ``madlib_fit_multiple_model``: a fit that leaves MADlib's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.names import Name, with_ending
from cerebro_db.core.sql import identifier, sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..runs import fit
from ..runs.request.request import FitMultipleArguments, check
from . import model_tables


def table_or_none(text: str | None) -> str | None:
    """As in MADlib, an empty name of a validation table means that there is none."""
    return text if text is not None and text.strip() else None


@entry(called="madlib_fit_multiple_model error")
def fit_multiple_model(db: Database, *arguments: Any) -> int:
    """Tables, losses and metrics have their full names; folds and options are possible."""
    return fit.run_request(
        db, model_tables.began(check(db, FitMultipleArguments(*arguments)), model_tables.MULTIPLE, {})
    ).id


@entry(called="madlib_keras_fit_multiple error")
def madlib_fit_multiple_model(db: Database, *arguments: Any) -> None:
    given = FitMultipleArguments(*arguments)
    given = replace(given, validation_table=table_or_none(given.validation_table))
    names = {
        "source_table": given.source_table,
        "validation_table": given.validation_table,
        "model": given.model_output_table,
        "model_info": with_ending(given.model_output_table, "_info"),
        "model_selection_table": given.model_selection_table,
        **_named_by(db, given.model_selection_table),
    }
    fit.run_request(db, model_tables.began(check(db, given, madlib=True), model_tables.MULTIPLE, names))


def _named_by(db: Database, selection: str | None) -> dict[str, str | None]:
    """The tables that the summary of a selection table names; nothing if there is no such summary."""
    if not (selection or "").strip():
        return {}
    summary = relations.beside(db, Name.parse(selection, "model_selection_table"), "_summary")
    columns = {} if summary is None else relations.columns(db, summary)
    return {
        column: db.value(sql("SELECT {column} FROM {summary} LIMIT 1", column=identifier(column), summary=summary.sql))
        for column in ("model_arch_table", "object_table")
        if summary is not None and column in columns
    }
