"""``cerebro.evaluate``, ``importance`` and ``explain``: by rows of a query, or the run's rows for validation.

And what a page about a model shows of these rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cerebro_db.core.errors import CerebroError, Unsupported

from .. import platform
from ..database.access import Database
from ..database.entry import entry, entry_of_rows
from ..definitions.references import model_ref
from ..judging import evaluating, explaining, pages
from ..judging import importance as importances
from ..judging.explaining import ExplainArguments
from ..judging.importance import ImportanceArguments
from ..judging.judged_rows import JudgingArguments
from ..models.model_cache import read_model
from ..models.trained import TrainedModel
from ..packing import packed
from ..packing.packed import Packed
from ..runs.record import own_runs
from . import validation_rows

PLEASE = "Give a query that returns rows which did not train the model: {function}('{model}', 'SELECT * FROM …')."
EVALUATE, IMPORTANCE = "cerebro.evaluate", "cerebro.importance"


@entry
def evaluate(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """Return a row for each metric."""
    given = JudgingArguments(function=EVALUATE, key=None, wanted="any", **arguments)
    if given.query is not None:
        found = evaluating.of_query(db, given)
    else:
        model, table = _validated(db, given.model_table, given.configuration)
        found = evaluating.of_packed_table(db, model, table, given)
    return [{"metric": one.metric, "value": one.value, "baseline": one.baseline} for one in found]


@entry
def importance(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """Return a row for each column."""
    given = ImportanceArguments(**arguments)
    if given.query is None:
        _, table = _validated(db, given.model_table, given.configuration, IMPORTANCE)
        given = replace(given, query=table)
    return importances.importance(db, given)


@entry
def validation_sample(db: Database, model_table: str | None, configuration: int | None) -> str:
    """The document for a page about the model."""
    return json.dumps(pages.document(db, *_validated(db, model_table, configuration)))


@entry
def validation_explained(
    db: Database, model_table: str | None, configuration: int | None, numbers: list[int | None] | None
) -> str:
    """Why the examples of the page have their predictions."""
    return json.dumps(pages.explained(db, *_validated(db, model_table, configuration), numbers or []))


def _validated(
    db: Database, model_table: str | None, configuration: int | None, function: str = EVALUATE
) -> tuple[TrainedModel, str]:
    """The model, and the packed table with the rows for validation of its run."""
    platform.of(db).require_own_session(db)
    model = read_model(db, model_ref(db, model_table), configuration)
    please = PLEASE.format(function=function, model=model_table)
    if model.grouped is not None:
        raise Unsupported(
            f"'{model.table.text}' has models of groups, which the rows for validation do not judge together.",
            hint=please,
        )
    return model, validation_rows.packed_table_of(db, model, please)


# -- explanations ----------------------------------------------------------------------------------------------


@entry_of_rows("cerebro.explain")
def explained(db: Database, **arguments: Any) -> Iterator[dict[str, Any]]:
    return explaining.explained(db, ExplainArguments(**arguments), lambda model: _kept(db, model))


def _kept(db: Database, model: TrainedModel) -> Packed | None:
    """The packed rows on which the run evaluated its models, if they are still there and the caller's."""
    run = own_runs.of_trained(db, model.table, model.layout)
    try:
        found = None if run is None else run.packed_validation(db)
        if found is None:
            return None
        table = packed.read(db, found.name.quoted, argument="validation_table")
        packed.require_same_shapes(model.layout, model.table.text, table)
        return table
    except CerebroError:
        return None
