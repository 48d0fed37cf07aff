"""The plan of a run, as its owner sees it: the shape in which it trains, the others, and what it really took."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import UndefinedObject

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from .record.log import RunLog
from .record.run import no_such_run


@entry
def plan(db: Database, run: int) -> list[dict[str, Any]]:
    """The rows of cerebro.plan: the chosen shape first."""
    log = RunLog.of_caller(db, run)
    options = log.known.options()
    if options is None:
        raise no_such_run(run)
    if options.plan is None:
        raise UndefinedObject(
            f"run {run} has no plan.", hint="An earlier version has begun it. From 0.3.0 on, runs have a plan."
        )
    _, segments = log.known.size(relations.current_role(db))
    shapes = [(True, options.plan.chosen), *((False, one) for one in options.plan.others)]
    took = log.profiles.took()
    return [
        {
            "selected": selected,
            "engine": one.engine,
            "threads": one.threads,
            "segments": segments,
            "parallel": one.parallel,
            "seconds": one.seconds,
            "share": one.share,
            "why": one.why,
            "took": took if selected else None,
        }
        for selected, one in shapes
    ]
