"""``madlib_keras_fit_multiple_model``: a fit whose tables have the contents of MADlib's."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.names import Name

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from . import fit
from .request import check


@entry
def madlib_fit_multiple_model(db: Database, *arguments: Any) -> None:
    source, output, selection, _, _, validation, *_ = arguments
    names = {
        "source_table": source,
        "validation_table": validation,
        "model": output,
        "model_info": output and str(Name.parse(output, "model_output_table").suffixed("_info")),
        "model_selection_table": selection,
        **_named_by(db, selection),
    }
    written = {column: text and text.strip() for column, text in names.items()}
    fit.run_request(db, check(db, *arguments, madlib=True), written)


def _named_by(db: Database, selection: str | None) -> dict[str, str | None]:
    """The tables that the summary of a selection table names; nothing if there is no such summary."""
    if not (selection or "").strip():
        return {}
    summary = relations.find(db, Name.parse(selection, "model_selection_table").suffixed("_summary"))
    columns = {} if summary is None else relations.columns(db, summary)
    return {
        column: db.value(f"SELECT {column} FROM {summary.sql} LIMIT 1")
        for column in ("model_arch_table", "object_table")
        if summary is not None and column in columns
    }
