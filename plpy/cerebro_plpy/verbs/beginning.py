"""The entries of the three verbs ``cerebro.train``, ``search`` and ``fit``: each begins with what takes longest.

Importing the framework takes longer than all else that a call does before its first visit.  So it begins before this
session imports our code for the rest of the call, 0.1 s of its processor.
"""

from __future__ import annotations

import time
from typing import Any

from ..database.access import Database
from ..database.entry import entry
from ..sessions import warm_up


@entry
def train(db: Database, **arguments: Any) -> int | None:
    """Return the number of the run; None for a dry run."""
    return _run(db, "cerebro.train", **arguments)


@entry(called="cerebro.search")
def search_space(db: Database, **arguments: Any) -> int | None:
    return _run(db, "cerebro.search", **arguments)


@entry
def fit(db: Database, **arguments: Any) -> int | None:
    return _run(db, "cerebro.fit", **arguments)


def _run(db: Database, verb: str, **arguments: Any) -> int | None:
    begun = time.monotonic()
    # An engine that the options name is imported when they have been read.
    if not arguments.get("dry_run") and "engine" not in (arguments.get("options") or ""):
        warm_up.ahead(db)
    from ..runs.request.given import of_call
    from .training import run_verb

    return run_verb(db, of_call(verb, **arguments), begun)
