"""What worker sessions see of the caller's transaction, and it of theirs: only what is committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cerebro_db.core.errors import Unsupported, WrongState
from cerebro_db.core.packing.layout import has_grown
from cerebro_db.core.sql import sql

from ..database.access import Database
from .packed import Packed
from .rows.summary import parsed

if TYPE_CHECKING:
    from ..sessions.session import Session


def require_committed(db: Database, recorder: Session, packed_tables: Iterable[Packed]) -> None:
    """Refuse tables that the caller has made or changed in a transaction that is still open."""
    for data in packed_tables:
        if data.relation.temporary:
            raise Unsupported(
                f"'{data.relation.text}' is a temporary table, which worker sessions cannot see.",
                hint="Pack into an ordinary table.",
            )
        seen = recorder.run(sql("SELECT to_regclass({})::oid"), (data.relation.name.quoted,))[0][0]
        layout = None
        if seen == data.relation.oid:
            found = recorder.run(
                sql("SELECT layout::text FROM {companion}", companion=data.relation.name.suffixed("_summary").sql)
            )
            # Read as the caller's own was: a number may be written in another way.
            layout = parsed(db, found[0][0], data.relation.text) if found else None
        if layout is None or layout != data.layout and not has_grown(data.layout, layout):
            raise WrongState(
                f"'{data.relation.text}' was made or changed in this transaction, which is not"
                " committed, so worker sessions cannot see it.",
                hint="COMMIT first, then call it again.",
            )


def seen_only_here(db: Database, packed_tables: Sequence[Packed]) -> list[str]:
    """Those of the tables that only this transaction sees as they are: temporary ones, and new or changed ones."""
    changed = sql("""
        SELECT txid_current_if_assigned() IS NOT NULL AND EXISTS (
            SELECT FROM pg_catalog.pg_class c
             WHERE (c.oid = $1::oid OR c.oid IN (SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = $1::oid))
               AND (age(c.xmin) <= 0
                    OR pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
                       + pg_stat_get_xact_tuples_deleted(c.oid) > 0))
    """)
    return [
        data.relation.text
        for data in packed_tables
        if data.relation.temporary or db.value(changed, ("bigint",), data.relation.oid)
    ]


def refuse_transaction(db: Database) -> None:
    """Refuse a transaction that would not see what the worker sessions commit."""
    facts = db.one(
        sql(
            "SELECT current_setting('transaction_isolation') AS isolation,"
            " current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby"
        )
    )
    assert facts is not None
    if facts["standby"] or facts["read_only"] == "on":
        raise Unsupported("it writes, and this transaction is read-only.", hint="Use the primary.")
    if facts["isolation"] != "read committed":
        raise Unsupported(
            f"a {facts['isolation']} transaction would not see the results of the run.",
            hint="Call it in a transaction of the default isolation level, READ COMMITTED.",
        )
