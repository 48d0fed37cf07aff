"""Calibrates the best model at the end of cerebro.train, within the budget. Then it can predict intervals at once."""

from __future__ import annotations

import time

from cerebro_db.core.names import Name
from cerebro_db.core.search.budget import FollowUp
from cerebro_db.core.sql import sql

from .. import platform
from ..database.access import Database
from .request.given import TRAIN, Given
from .request.training_rows import Rows

MOST_OF_BUDGET = 0.15
CANCELLED = "57"  # the class of the errors of a cancel, a timeout and an end of the session


def planned(db: Database, given: Given, rows: Rows, budget: float | None) -> FollowUp | None:
    """None for a call that does not calibrate: it has no rows for validation, or models of groups.

    ``budget``: the seconds of the whole call.
    """
    if given.verb != TRAIN or given.dry_run or rows.validation is None:
        return None
    if rows.layout.groups is not None:  # a calibration is that of one model
        return None
    if not platform.of(db).subtransactions_are_safe:  # an error would end the whole call
        return None
    # The model may be an ensemble, which is another program. Computing takes about as long as predicting.
    return FollowUp(firsts=2, passes=4, most=MOST_OF_BUDGET * (budget or 0.0))


def calibrate(db: Database, output: Name, deadline: float | None) -> None:
    """Calibrate the best model, or say why it is not calibrated.  ``deadline``: until when, as time.monotonic()."""
    seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        with db.savepoint():
            within = sql("SELECT FROM cerebro.calibrate($1, seconds => $2)")
            db.rows(within, ("text", "double precision"), output.quoted, seconds)
    except db.plpy.SPIError as error:
        if error.sqlstate.startswith(CANCELLED):
            raise
        db.notice(
            f"the best model is not calibrated: {str(error).removeprefix('cerebro.calibrate: ')}",
            f"SELECT * FROM cerebro.calibrate('{output}');",
        )
        return
    db.notice(
        "the best model is calibrated on the rows for validation",
        "cerebro.predict(…, coverage => 0.9) gives intervals of numbers; calibrated => true and thresholds => true"
        " are for classes.",
    )
