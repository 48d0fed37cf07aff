"""Carries out what follows the training of a run: in the call that began it, in its driver, or when it is resumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.events import Event, Following
from cerebro_db.core.following import Step
from cerebro_db.core.names import Name

from ..database.access import Database
from . import calibrating, ensembling
from .calibrating import Calibrating
from .record.log import RunLog

TOO_LONG = "too_long"  # an argument of the calibration


def of_training(joins: ensembling.Ensembling | None, calibrates: Calibrating | None, *, limited: bool) -> list[Step]:
    """The steps of a call of ``cerebro.train``.  ``limited``: its budget is that of the whole call."""
    steps = []
    if joins is not None:
        steps.append(Step(Following.ENSEMBLE, joins.seconds if limited else None))
    if calibrates is not None:
        kept_back = calibrates.seconds if limited else None
        steps.append(Step(Following.CALIBRATE, kept_back, {TOO_LONG: calibrates.too_long}))
    return steps


def kept_back(steps: Sequence[Step]) -> float:
    """The seconds of the budget for these steps."""
    return sum(step.seconds or 0.0 for step in steps if step.arguments.get(TOO_LONG) is not True)


def carry_out(db: Database, run: int, steps: Sequence[Step], output: Name, deadline: float | None = None) -> None:
    """Carry out the steps that are not done.  With each goes its event, in the transaction of the model tables.

    ``deadline``: of the call, as time.monotonic(); None: each step has the seconds that were kept back for it.
    """
    log = RunLog.of_caller(db, run)
    done = log.events.followed()
    for place, step in enumerate(steps):
        if step.task in done:
            continue
        until = None
        if step.seconds is not None:
            after = kept_back(steps[place + 1 :])
            until = time.monotonic() + step.seconds if deadline is None else deadline - after
        _carry_out(db, step, output, until)
        log.events.note(Event.FOLLOWED, task=step.task.value)


def _carry_out(db: Database, step: Step, output: Name, until: float | None) -> None:
    if step.task is Following.ENSEMBLE:
        ensembling.add(db, output, until)
    elif step.task is Following.CALIBRATE:
        asked: Any = step.arguments.get(TOO_LONG)
        calibrating.calibrate(db, output, Calibrating(step.seconds or 0.0, asked is True), until)
