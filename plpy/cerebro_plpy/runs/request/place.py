"""Where a run trains: in worker sessions, or in the caller's own session, one segment after the other."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.options import SESSION, WORKERS

from ... import platform
from ...database.access import Database
from ...packing import visibility
from ...packing.packed import Packed


def in_own_session(db: Database, wanted: str | None, tables: Sequence[Packed | None], stop_when: str | None) -> bool:
    """Whether the run trains in the caller's session: the option says so, or no other session sees its rows."""
    here = visibility.seen_only_here(db, [data for data in tables if data is not None])
    if wanted == WORKERS or not (here or wanted):
        return False
    if stop_when is not None:
        raise InvalidArgument(
            "stop_when needs another session, but this run trains in your own session.",
            hint="Leave stop_when out, or COMMIT the packed tables first and train in worker sessions.",
        )
    why = f"'{here[0]}' is visible only in this transaction" if here else f"execution is '{SESSION}'"
    db.notice(
        f"training in this session, one segment after the other, because {why};"
        " nothing is committed before your transaction is",
        "A run in worker sessions is faster and can be resumed: COMMIT after packing." if here else None,
    )
    if not platform.of(db).subtransactions_are_safe:
        db.warning(
            "if other sessions train or query runs before your transaction ends, the log of this run can lose rows",
            "This call fails if it finds rows missing. A run in worker sessions loses none.",
        )
    return True
