"""Whether worker sessions see packed tables as the caller does: they see only what is committed."""

from __future__ import annotations

from collections.abc import Iterable

from cerebro_db.core.errors import WrongState

from ..sessions.session import Session
from .packed import Packed


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
