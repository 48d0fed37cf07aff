"""What worker sessions see of the caller's transaction, and it of theirs: only what is committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cerebro_db.core.errors import Unsupported, WrongState

from ..database.access import Database
from .packed import Packed

if TYPE_CHECKING:
    from ..sessions.session import Session


def require_committed(recorder: Session, packed_tables: Iterable[Packed], module: str) -> None:
    """Refuse tables that the caller has made or changed in a transaction that is still open."""
    for data in packed_tables:
        seen = recorder.run("SELECT to_regclass(%s)::oid", (data.relation.sql,))[0][0]
        layout = None
        if seen == data.relation.oid:
            found = recorder.run(f"SELECT layout FROM {data.relation.name.suffixed('_summary').sql}")
            layout = found[0][0] if found else None
        if layout != data.layout:
            raise WrongState(
                f"{module} error: '{data.relation.text}' was made or changed in this transaction, which is not"
                " committed, so worker sessions cannot see it.",
                hint="COMMIT first, then call it again.",
            )


def refuse_transaction(db: Database, module: str) -> None:
    """Refuse a transaction that would not see what the worker sessions commit."""
    facts = db.one(
        "SELECT current_setting('transaction_isolation') AS isolation,"
        " current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby"
    )
    assert facts is not None
    if facts["standby"] or facts["read_only"] == "on":
        raise Unsupported(f"{module} error: it writes, and this transaction is read-only.", hint="Use the primary.")
    if facts["isolation"] != "read committed":
        raise Unsupported(
            f"{module} error: a {facts['isolation']} transaction would not see the results of the run.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )
