"""Steps that may fail without ending the call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cerebro_db.core.errors import CerebroError

from .. import platform
from ..database.access import Database

CANCELLED = "57"  # SQLSTATE class of a cancel, a timeout and an end of the session


@contextlib.contextmanager
def or_told(db: Database, called: str, otherwise: str, hint: str) -> Iterator[None]:
    """Around such a step: an error undoes it, and a notice gives the reason.  A cancel ends the call.

    ``called``: the function that the error names where the caller's transaction cannot go on, so that it ends the call.
    ``otherwise``: what the notice says first.  ``hint``: how to try again, unless the error says what else to do.
    """
    if not platform.of(db).subtransactions_are_safe:
        with db.naming(called):
            yield
        return
    try:
        with db.savepoint():
            yield
    except Exception as error:
        if str(getattr(error, "sqlstate", "")).startswith(CANCELLED):
            raise
        # What was refused would be refused again.
        db.notice(f"{otherwise}: {error}", error.hint if isinstance(error, CerebroError) else hint)
