"""``madlib_keras_fit_multiple_model``, and ``madlib_fit_multiple_model``: a fit that leaves MADlib's tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.names import Name, with_ending
from cerebro_db.core.options import parsed
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, sql
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.models import model_parts
from cerebro_plpy.packing import visibility
from cerebro_plpy.runs import fit
from cerebro_plpy.runs.request import cross_validation, output
from cerebro_plpy.runs.request.request import (
    AskedRun,
    Configurations,
    RunRequest,
    of_configurations,
    read_rows,
    read_selection,
    require_epochs,
)

from .entry import entry, new_table
from .tables import model_tables

EPOCHS = ("num_iterations", "metrics_compute_frequency")  # the names of the arguments


@dataclass(frozen=True)
class FitMultipleArguments:
    """The arguments of ``madlib_fit_multiple_model``."""

    source_table: str
    model_output_table: str
    model_selection_table: str
    num_iterations: int
    use_gpus: bool | None
    validation_table: str | None
    metrics_compute_frequency: int | None
    warm_start: bool | None
    name: str | None
    description: str | None
    use_caching: bool | None  # of no effect: trainers always keep their rows
    options: str | None = None


def table_or_none(text: str | None) -> str | None:
    """As in MADlib, an empty name of a validation table means that there is none."""
    return text if text is not None and text.strip() else None


@entry(called="madlib_fit_multiple_model error")
def fit_multiple_model(db: Database, **arguments: Any) -> int:
    """Tables, losses and metrics have their full names; folds and options are possible."""
    request = _request(db, FitMultipleArguments(**arguments), as_madlib=False)
    return fit.run_request(db, model_tables.began(request, model_tables.MULTIPLE, {})).id


@entry(called="madlib_keras_fit_multiple error")
def madlib_fit_multiple_model(db: Database, **arguments: Any) -> None:
    given = FitMultipleArguments(**arguments)
    given = replace(given, validation_table=table_or_none(given.validation_table))
    names = {
        "source_table": given.source_table,
        "validation_table": given.validation_table,
        "model": given.model_output_table,
        "model_info": with_ending(given.model_output_table, "_info"),
        "model_selection_table": given.model_selection_table,
        **_named_by(db, given.model_selection_table),
    }
    fit.run_request(db, model_tables.began(_request(db, given, as_madlib=True), model_tables.MULTIPLE, names))


def _request(db: Database, given: FitMultipleArguments, *, as_madlib: bool) -> RunRequest:
    """``as_madlib``: without folds, with a callback TensorBoard, and evaluated on the training table."""
    visibility.refuse_transaction(db)
    epochs, frequency = given.num_iterations, given.metrics_compute_frequency
    require_epochs(epochs, frequency, EPOCHS)
    source, validation = read_rows(db, given.source_table, given.validation_table, epochs, folds=not as_madlib)
    cross_validation.require_no_groups(source, *cross_validation.ONLY_FIT)
    selection = relations.filled(
        db,
        given.model_selection_table,
        f"Please ensure that the model selection table ({given.model_selection_table}) has been created by"
        " load_model_selection_table() or generate_model_configs().",
        argument="model_selection_table",
    )
    if given.warm_start:
        name = output.of_warm_start(db, given.model_output_table, "model_output_table")
    else:
        name = new_table(db, given.model_output_table, model_parts.ENDINGS[1:], argument="model_output_table")
    asked = AskedRun(
        source=source,
        validation=validation,
        output=name,
        epochs=epochs,
        frequency=frequency,
        use_gpus=given.use_gpus,
        options=parsed(given.options or None),
        name=given.name,
        description=given.description,
    )

    def listed(known: Known, _: str | None) -> Configurations:
        return read_selection(db, selection, known, as_madlib)

    return of_configurations(db, asked, listed, warm_start=given.warm_start, evaluate_training=as_madlib)


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
