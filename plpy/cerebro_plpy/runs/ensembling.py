"""Adds an ensemble of the best models to their table at the end of cerebro.train, within the budget."""

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
    """None for a call that adds no ensemble: it has no rows for validation, folds or groups.

    ``budget``: the seconds of the whole call.
    """
    if given.verb != TRAIN or given.dry_run or rows.validation is None:
        return None
    if rows.layout.groups is not None:
        return None
    if not platform.of(db).subtransactions_are_safe:  # an error would end the whole call
        model = given.model_table
        db.notice(
            "on Greenplum, cerebro.train() adds no ensemble and no calibration",
            f"Afterwards: SELECT cerebro.ensemble('{model}', NULL); SELECT * FROM cerebro.calibrate('{model}');",
        )
        return None
    # A trainer starts and builds a program, which most models share. To predict takes less than to evaluate.
    return FollowUp(firsts=2, passes=4, most=MOST_OF_BUDGET * (budget or 0.0))


def add(db: Database, output: Name, deadline: float | None) -> None:
    """Add the ensemble, if it has several members.  ``deadline``: until when, as time.monotonic()."""
    if db.value(sql("SELECT count(*) FROM {output}", output=output.sql)) < 2:
        if deadline is not None:
            db.notice("no ensemble is made, because one model alone is none", "A larger budget may train several.")
        return
    # Without time, the best two are compared.
    seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
    within = sql("SELECT cerebro.ensemble($1, NULL, seconds => $2)")
    if not platform.of(db).subtransactions_are_safe:  # an error ends the call, and a resumed run tries again
        db.rows(within, ("text", "double precision"), output.quoted, seconds)
        return
    try:
        with db.savepoint():
            db.rows(within, ("text", "double precision"), output.quoted, seconds)
    except db.plpy.SPIError as error:
        if error.sqlstate.startswith(CANCELLED):
            raise
        db.notice(
            f"no ensemble is made: {str(error).removeprefix('cerebro.ensemble: ')}",
            f"SELECT cerebro.ensemble('{output}', NULL);",
        )
