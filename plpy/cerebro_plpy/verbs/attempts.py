"""Steps of a call that may fail without the call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import platform
from ..database.access import Database

CANCELLED = "57"  # the class of the errors of a cancel, a timeout and an end of the session


@contextlib.contextmanager
def or_told(db: Database, called: str, otherwise: str, hint: str) -> Iterator[None]:
    """Around such a step: after an error, what it did is undone, and a notice says why.  A cancel ends the call.

    Where the caller's transaction cannot go on after an error, the error ends the call, in the name of the function
    ``called``.
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
        db.notice(f"{otherwise}: {error}", hint)
