"""Carries out what follows the training of a run: in the call that began it, in its driver, or when it is resumed."""

from __future__ import annotations

import time
from typing import Any

from cerebro_db.core import documents, following
from cerebro_db.core.events import Event, Following
from cerebro_db.core.following import Step
from cerebro_db.core.names import Name
from cerebro_db.core.search.budget import FollowUp
from cerebro_db.core.sql import sql

from ..database.access import Database
from . import calibrating, ensembling
from .record.log import RunLog
from .record.run import Run


def of_training(db: Database, joins: FollowUp | None, calibrates: FollowUp | None) -> list[Step]:
    """The steps of a call of ``cerebro.train``."""
    steps = ((Following.ENSEMBLE, joins), (Following.CALIBRATE, calibrates))
    found = [Step(task, needs) for task, needs in steps if needs is not None]
    known = sql("SELECT pg_catalog.to_regprocedure('cerebro._after_retraining(bigint, text)') IS NOT NULL")
    return found if found and db.value(known) else []  # before ALTER EXTENSION, the log takes no such event


def carry_out(db: Database, run: Run, output: Name, deadline: float | None = None) -> None:
    """Carry out the steps that are not done.  With each goes its event, in the transaction of the model tables.

    ``deadline``: of the call, as time.monotonic(); None: each step has the seconds that may be kept back for it.
    """
    steps = run.options.follows
    if not steps:  # where segments can be lost, the caller's session is asked nothing
        return
    log = RunLog.of_caller(db, run.id)
    done = log.events.followed()
    for place, step in enumerate(steps):
        if step.task.value in done:
            continue
        until = deadline if deadline is None else deadline - following.kept_back(steps[place + 1 :])
        if deadline is None and step.needs is not None and step.needs.most > 0:
            until = time.monotonic() + step.needs.most
        found: dict[str, Any] = {}
        if step.task is Following.ENSEMBLE:
            ensembling.add(db, output, until)
        elif step.task is Following.CALIBRATE:
            calibrating.calibrate(db, output, until)
        else:
            found = _after_retraining(db, run.id, step)
        log.events.note(Event.FOLLOWED, **{**found, "task": step.task.value})


def _after_retraining(db: Database, run: int, step: Step) -> dict[str, Any]:
    after = sql("SELECT cerebro._after_retraining($1, $2)::pg_catalog.text")
    text = db.value(after, ("bigint", "text"), run, step.task.value)
    return dict(documents.decoded(text, f"what followed run {run}"))
