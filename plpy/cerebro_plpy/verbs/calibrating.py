"""``cerebro.calibrate``: by the rows for validation of the model's run, of another packed table, or of a query."""

from __future__ import annotations

import time
from typing import Any, Callable

from cerebro_db.core.errors import CerebroError, WrongState
from cerebro_db.core.models.quality import Quality
from cerebro_db.core.names import Name

from .. import platform
from ..database.access import Database
from ..database.entry import entry
from ..definitions.references import ModelRef, model_ref
from ..judging import calibrate as judging
from ..models.model_cache import read_model
from ..models.trained import TrainedModel
from ..packing import packed
from ..runs.record import own_runs
from . import attempts


@entry
def calibrate(
    db: Database,
    model_table: str | None,
    query: str | None,
    target: str | None,
    configuration: int | None,
    *,
    decide_by: str | None,
    seconds: float | None,
) -> list[dict[str, Any]]:
    """Return a row for each target and measure.  ``seconds``: how long it may take."""
    until = None if seconds is None else time.monotonic() + seconds
    platform.of(db).require_own_session(db)
    model = read_model(db, model_ref(db, model_table), configuration)
    return judging.calibrate(db, model, _rows(db, model, query), target=target, decide_by=decide_by, until=until)


def calibrate_or_say(db: Database, output: Name, until: float | None) -> list[Quality]:
    """Calibrate the best model of a new table on the rows for validation, or say why it is not calibrated.

    How good it is on them; empty if it is not calibrated.  ``until``: the deadline, as time.monotonic().
    """
    hint = f"SELECT * FROM cerebro.calibrate('{output}');"
    with attempts.or_told(db, "cerebro.calibrate", "the best model is not calibrated", hint):
        found = calibrate_best(db, output, None, until)
        db.told(
            "the best model is calibrated on the rows for validation",
            "cerebro.predict(…, coverage => 0.9) gives intervals of numbers; calibrated => true and thresholds => true"
            " are for classes.",
        )
        return found
    return []


def calibrate_best(db: Database, output: Name, query: str | None, until: float | None = None) -> list[Quality]:
    """Calibrate the best model of a table; how good it is on these rows."""
    model = read_model(db, ModelRef.of_table(output), None)
    qualities: list[Quality] = []
    judging.calibrate(db, model, _rows(db, model, query), until=until, qualities=qualities)
    return qualities


def _rows(db: Database, model: TrainedModel, query: str | None) -> Callable[[], str]:
    """Return the query, or the packed rows for validation; they are looked up only after all other checks."""
    return lambda: _validation_table(db, model) if query is None else query


def _validation_table(db: Database, model: TrainedModel) -> str:
    """The packed table that the run evaluated its models on."""
    please = "Give a query that returns rows which did not train the model: cerebro.calibrate('…', 'SELECT * FROM …')."
    run = own_runs.of_trained(db, model.table, model.layout)
    if run is None:
        raise WrongState(
            f"'{model.table.text}' was trained by another role, or imported, so it cannot say which rows to read.",
            hint=please,
        )
    try:
        found = run.packed_validation(db)
        if found is not None:
            packed.read(db, found.name.quoted, argument="validation_table", please=please)
    except CerebroError as error:
        raise WrongState(f"the rows for validation cannot be read: {error.message}", hint=please) from None
    if found is None:
        raise WrongState(f"the run of '{model.table.text}' had no rows for validation.", hint=please)
    return found.name.quoted
