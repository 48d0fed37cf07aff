"""Steps with the rights of the role ``cerebro_registry``, which owns all tables of registered models and nothing else.

``_as_registry()`` of SQL is SECURITY DEFINER and has no arguments: it runs the step that a function of ours has left
here just before, after that function has checked, with its caller's rights, what the caller may do.  Only Python code
of the extension can leave a step, so a call of a user's own finds none.  A step returns its result to Python, and
nothing to SQL.  So the weights of a model reach the trainer of a session that may use the model, but no query of it
(``segment/current.py`` keeps them there).
"""

from __future__ import annotations

from typing import Callable, TypeVar

from cerebro_db.core.errors import CerebroError, NotPermitted
from cerebro_db.core.sql import sql

from ..database import cancellation
from ..database.access import Database
from ..database.entry import INTERNAL, entry

Result = TypeVar("Result")

_step: Callable[[Database], None] | None = None


def as_registry(db: Database, step: Callable[[Database], Result]) -> Result:
    """What the step returns.  Its statements run as ``cerebro_registry``; none of them may run code of a user."""
    global _step
    found: list[Result] = []
    refused: list[CerebroError] = []

    def run(registry: Database) -> None:
        try:
            found.append(step(registry))
        except CerebroError as error:
            refused.append(error)
            raise

    _step = run
    if cancellation.is_dispatching():
        cancellation.admit()  # as the function was that calls this
    try:
        db.execute(sql("SELECT cerebro_internal._as_registry()"))
    except db.plpy.SPIError:
        if not refused:
            raise
        raise refused[0] from None
    finally:
        _step = None
    return found[0]


@entry(called=INTERNAL)
def run_step(db: Database) -> None:
    global _step
    step, _step = _step, None
    if step is None:
        raise NotPermitted("cerebro_internal._as_registry() is a part of cerebro.register() and of predictions.")
    step(db)
