"""Adds an ensemble of the best models to their table at the end of cerebro.train, within the budget."""

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

START_SECONDS, ROW_SECONDS = 2.5, 5e-5  # two models to build, and evaluating a row for validation
MOST_OF_BUDGET = 0.15
CANCELLED = "57"  # the class of the errors of a cancel, a timeout and an end of the session


@dataclass(frozen=True)
class Ensembling:
    """What follows the training of a call."""

    seconds: float  # that are kept back for it


def planned(db: Database, given: Given, rows: Rows, budget: float | None) -> Ensembling | None:
    """None for a call that adds no ensemble: it has no rows for validation, folds or groups.

    ``budget``: the seconds of the whole call.  A short one is better used for training.
    """
    if given.verb != TRAIN or given.dry_run or rows.validation is None:
        return None
    if rows.layout.groups is not None or not platform.of(db).subtransactions_are_safe:
        return None
    seconds = START_SECONDS + ROW_SECONDS * read_layout(db, rows.validation.quoted).rows
    return None if budget is not None and seconds > MOST_OF_BUDGET * budget else Ensembling(seconds)


def add(db: Database, output: Name, deadline: float | None) -> None:
    """Add the ensemble, if it has several members.  ``deadline``: until when, as time.monotonic()."""
    if db.value(sql("SELECT count(*) FROM {output}", output=output.sql)) < 2:
        return
    call = f"SELECT cerebro.ensemble('{output}', NULL);"
    seconds = None if deadline is None else deadline - time.monotonic()
    if seconds is not None and seconds < START_SECONDS / 2:
        db.notice("no ensemble is made, because the budget is used", call)
        return
    try:
        with db.savepoint():
            within = sql("SELECT cerebro.ensemble($1, NULL, seconds => $2)")
            db.rows(within, ("text", "double precision"), output.quoted, seconds)
    except db.plpy.SPIError as error:
        if error.sqlstate.startswith(CANCELLED):
            raise
        db.notice(f"no ensemble is made: {str(error).removeprefix('cerebro.ensemble: ')}", call)
