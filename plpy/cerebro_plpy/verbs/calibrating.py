"""``cerebro.calibrate``: by the rows for validation of the model's run, of another packed table, or of a query."""

from __future__ import annotations

import time
from typing import Any, Callable

from cerebro_db.core.names import Name

from .. import platform
from ..database.access import Database
from ..database.entry import entry
from ..definitions.references import ModelRef, model_ref
from ..judging import calibrate as judging
from ..judging.calibrate import KnownQuality
from ..models import calibrations
from ..models.model_cache import read_model
from ..models.trained import TrainedModel
from . import attempts, validation_rows


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
    related: str | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each target and measure.  ``seconds``: how long it may take."""
    until = None if seconds is None else time.monotonic() + seconds
    platform.of(db).require_own_session(db)
    model = read_model(db, model_ref(db, model_table), configuration)
    told, _ = judging.calibrate(
        db, model, _rows(db, model, query), target=target, decide_by=decide_by, until=until, related=related
    )
    return told


def calibrate_or_say(db: Database, output: Name, until: float | None) -> KnownQuality | None:
    """Calibrate the best model of a new table on the rows for validation, or say why it is not calibrated.

    How good it is on them; None if it is not calibrated.  ``until``: the deadline, as time.monotonic().
    """
    hint = f"SELECT * FROM cerebro.calibrate('{output}');"
    with attempts.or_told(db, "cerebro.calibrate", "the best model is not calibrated", hint):
        model = read_model(db, ModelRef.of_table(output), None)
        told, found = judging.calibrate(db, model, _rows(db, model, None), until=until)
        db.told(
            "the best model is calibrated on the rows for validation:"
            f" {judging.in_words(told, _by_default(db, model))}",
            "cerebro.predict(…, coverage => 0.9) gives intervals of numbers; calibrated => false or true, and"
            " thresholds => true, are for classes.",
        )
        return found
    return None


def _by_default(db: Database, model: TrainedModel) -> dict[str, bool]:
    applied = calibrations.by_default(db, model)
    return {} if applied is None else dict.fromkeys(applied.classes, True)


def calibrate_best(db: Database, output: Name, query: str | None, until: float | None = None) -> KnownQuality:
    """Calibrate the best model of a table; how good it is on these rows."""
    model = read_model(db, ModelRef.of_table(output), None)
    return judging.calibrate(db, model, _rows(db, model, query), until=until)[1]


def _rows(db: Database, model: TrainedModel, query: str | None) -> Callable[[], str]:
    """Return the query, or the packed rows for validation; they are looked up only after all other checks."""
    please = "Give a query that returns rows which did not train the model: cerebro.calibrate('…', 'SELECT * FROM …')."
    return lambda: validation_rows.packed_table_of(db, model, please) if query is None else query
