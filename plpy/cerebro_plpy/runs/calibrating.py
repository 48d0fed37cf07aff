"""Calibrates the best model at the end of cerebro.train, within the budget. Then it can predict intervals at once."""

from __future__ import annotations

import time

from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from .. import platform
from ..data.summary import read_layout
from ..database.access import Database
from .request.given import TRAIN, Given
from .request.training_rows import Rows

# Starting a trainer, and predicting a row for validation.  On an idle machine, half of this is enough.
START_SECONDS, ROW_SECONDS = 1.0, 4e-5
MOST_OF_BUDGET = 0.2
CANCELLED = "57"  # the class of the errors of a cancel, a timeout and an end of the session


@dataclass(frozen=True)
class Calibrating:
    """What follows the training of a call."""

    seconds: float  # that are kept back for it
    too_long: bool  # for the budget


def planned(db: Database, given: Given, rows: Rows, budget: float | None) -> Calibrating | None:
    """None for a call that does not calibrate: it has no rows for validation, or models of groups.

    ``budget``: the seconds of the whole call.
    """
    if given.verb != TRAIN or given.dry_run or rows.validation is None:
        return None
    if rows.layout.groups is not None:  # a calibration is that of one model
        return None
    if not platform.of(db).subtransactions_are_safe:  # an error would end the whole call
        return None
    seconds = START_SECONDS + ROW_SECONDS * read_layout(db, rows.validation.quoted).rows
    return Calibrating(seconds, budget is not None and seconds > MOST_OF_BUDGET * budget)


def calibrate(db: Database, output: Name, asked: Calibrating, deadline: float | None) -> None:
    """Calibrate the best model, or say why it is not calibrated.  ``deadline``: of the call, as time.monotonic()."""
    call = f"SELECT * FROM cerebro.calibrate('{output}');"
    if asked.too_long:
        could = f"that could take {asked.seconds:.0f} s of the budget"
        db.notice(f"the best model is not calibrated, because {could}", call)
        return
    if deadline is not None and time.monotonic() > deadline:
        db.notice("the best model is not calibrated, because the budget is used", call)
        return
    try:
        with db.savepoint():
            db.rows(sql("SELECT FROM cerebro.calibrate($1)"), ("text",), output.quoted)
    except db.plpy.SPIError as error:
        if error.sqlstate.startswith(CANCELLED):
            raise
        db.notice(f"the best model is not calibrated: {str(error).removeprefix('cerebro.calibrate: ')}", call)
        return
    db.notice(
        "the best model is calibrated on the rows for validation",
        "cerebro.predict(…, coverage => 0.9) gives intervals of numbers; calibrated => true and thresholds => true"
        " are for classes.",
    )
