"""The rows of a run's models: their weights go from state tables into the model table, and never through Python.

Large weights are inserted by two sessions at once, the caller's and another one of the same user, which sees nothing of
the caller's transaction.  So the table is made and committed among the state tables, both sessions insert into it, and
the caller's transaction then moves it to its name.  Others see it there with all its rows when that transaction
commits, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.names import Name
from cerebro_db.core.sql import Sql, identifier, literal, sql

from ... import platform
from ...data import weights
from ...database import relations
from ...database.access import Database
from ...platform import machine
from ...platform.base import Platform
from ...sessions.session import Rows, Session, Statement
from ..record import state_tables
from ..record.log import StateOnRecord, architecture_of

LEAST = 16 << 20  # bytes of weights; fewer are inserted in less time than it takes to share the work
MEMORY = 10  # times the bytes of the largest state must be available, for the copies that each session makes

Run = dict[str, Any]  # the row of cerebro.run_plan


def make(db: Database, name: Name, run: Run, states: Sequence[StateOnRecord], other: Session | None) -> None:
    """Make the model table, and the one of the chunks of weights that are too large for a value.

    ``other``: a session of the same user that has nothing else to do.
    """
    rows = _ModelRows(db, name, run)
    theirs = _for_another_session(db, name, states) if other is not None else []
    unfinished = state_tables.unfinished_models_name(run["storage"])
    if other is not None and theirs and _is_held(db, other, unfinished):
        theirs = []
    if other is not None and theirs:
        _make_together(rows, unfinished, other, states, theirs)
    else:
        if relations.find(db, unfinished) is not None:  # of a call that ended early
            db.patiently(sql("DROP TABLE {unfinished}", unfinished=unfinished.sql))
        db.execute(_created(platform.of(db), name))
        db.execute(_external(name))
        for state in states:
            rows.insert(name, state)
    if len(rows.changed) == len(states):
        raise CorruptState(f"the states of run {run['run']} are not those that were committed")


def _is_held(db: Database, other: Session, table: Name) -> bool:
    """Whether this transaction has moved a table of that name, which the other session still sees and waits for."""
    seen = sql("SELECT pg_catalog.to_regclass({name}) IS NOT NULL", name=literal(table.quoted))
    return bool(other.run(seen)[0][0]) and relations.find(db, table) is None


def _make_together(
    rows: _ModelRows, table: Name, other: Session, states: Sequence[StateOnRecord], theirs: Sequence[StateOnRecord]
) -> None:
    db, name = rows.db, rows.name
    other.run(
        sql(
            "DROP TABLE IF EXISTS {table}; {created}; {external}",
            table=table.sql,
            created=_created(platform.of(db), table),
            external=_external(table),
        )
    )
    inserts = Statement.joined([Statement(rows.insert_if_sound(table, state)) for state in theirs])
    other.begin(_sent(inserts))
    try:
        for state in states:
            if state not in theirs:
                rows.insert(table, state)
        other.finish()
    except BaseException:
        other.cancel()
        raise
    there = {row["key"] for row in db.rows(sql("SELECT configuration AS key FROM {table}", table=table.sql))}
    for state in theirs:
        if state.key not in there:  # its rows are not in order, or not those that were committed
            rows.insert(table, state)
    assert name.schema is not None
    moved = Name(name.schema, table.table)
    db.execute(sql("ALTER TABLE {table} SET SCHEMA {schema}", table=table.sql, schema=identifier(name.schema)))
    db.execute(sql("ALTER TABLE {moved} RENAME TO {name}", moved=moved.sql, name=identifier(name.table)))


async def _sent(statement: Statement) -> Rows:
    return await statement


def _for_another_session(db: Database, name: Name, states: Sequence[StateOnRecord]) -> list[StateOnRecord]:
    """Half of the large states; none where a table that another session made would not be as the caller's own.

    The caller's settings and the default privileges of the schema hold for a table that is made there.
    """
    large = [state for state in states if state.weights_bytes >= LEAST and state.state_bytes <= weights.LARGEST_VALUE]
    if len(large) < 2 or name.schema in (None, relations.TEMPORARY) or platform.of(db).waits_in_own_session:
        return []
    available = machine.memory_available()
    if available is not None and available < MEMORY * max(state.state_bytes for state in large):
        return []
    plain = db.value(
        sql(
            "SELECT pg_catalog.current_setting('default_tablespace') = ''"
            " AND pg_catalog.current_setting('default_table_access_method') = 'heap'"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_default_acl d"
            " JOIN pg_catalog.pg_namespace n ON n.oid = d.defaclnamespace WHERE n.nspname = $1)"
        ),
        ("text",),
        name.schema,
    )
    return large[1::2] if plain else []


class _ModelRows:
    """What is known while rows are inserted."""

    def __init__(self, db: Database, name: Name, run: Run) -> None:
        self.db, self.name = db, name
        self.changed: list[int] = []  # the configurations whose states are not those that were committed
        self._run = run
        self._chunks: Name | None = None

    def insert(self, table: Name, state: StateOnRecord) -> None:
        db, rows = self.db, self._rows_of(state)
        if not weights.has_checksum(db, rows, state.state_sha256):
            self.changed.append(state.key)
            tables = " or ".join(name.quoted for name in state_tables.tables_of_state(*self._where(state)))
            db.warning(
                f"configuration {state.key} is left out: its state is not the one that was committed",
                hint=f"Rows of {tables} were changed or deleted by hand.",
            )
            return
        first, size = state.weights_offset, state.weights_bytes
        if size > weights.LARGEST_VALUE:
            cut = weights.chunks_sql(state.key, rows, first, size)
            db.execute(sql("INSERT INTO {chunks} {cut}", chunks=self._chunk_table().sql, cut=cut))
            nothing = sql("SELECT NULL::bytea AS value, {key} AS __dist_key__", key=self._dist_key(state))
            db.execute(self._inserted(table, state, nothing))
            return
        for query in weights.value_queries(rows, first, size):
            if db.execute(self._inserted(table, state, query)):
                break

    def insert_if_sound(self, table: Name, state: StateOnRecord) -> Sql:
        """Inserts no row if the rows of the state are not in order, or not those that were committed."""
        rows = self._rows_of(state)
        in_order, _ = weights.value_queries(rows, state.weights_offset, state.weights_bytes)
        sound = sql(
            "SELECT value, __dist_key__ FROM ({in_order}) v WHERE ({sound})",
            in_order=in_order,
            sound=weights.is_sound(rows, state.state_sha256),
        )
        return self._inserted(table, state, sound)

    def _inserted(self, table: Name, state: StateOnRecord, query: Sql) -> Sql:
        # The value is in FROM and not in a sub-select of its own, whose result PostgreSQL would copy.
        return sql(
            "INSERT INTO {table} SELECT {key}, value, ({architecture}), __dist_key__ FROM ({query}) w",
            table=table.sql,
            key=state.key,
            architecture=architecture_of(self._run["run"], state.key),
            query=query,
        )

    def _rows_of(self, state: StateOnRecord) -> Sql:
        rows = state_tables.rows_of_state(*self._where(state))
        return sql("{rows} AND __dist_key__ = {dist_key}", rows=rows, dist_key=self._dist_key(state))

    def _where(self, state: StateOnRecord) -> tuple[str, int, int, str, int]:
        return self._run["storage"], state.model, state.hop, state.which, state.state_bytes

    def _dist_key(self, state: StateOnRecord) -> int:
        return int(self._run["dist_keys"][state.segment])

    def _chunk_table(self) -> Name:
        if self._chunks is None:
            self._chunks = chunks = self.name.suffixed("_weights")
            self.db.execute(
                sql(
                    "CREATE TABLE {chunks} (configuration integer, start bigint, payload bytea,"
                    " __dist_key__ integer) WITH ({whole_pages}) {distributed_by}",
                    chunks=chunks.sql,
                    whole_pages=state_tables.WHOLE_PAGES,
                    distributed_by=platform.of(self.db).distributed_by("__dist_key__"),
                )
            )
            self.db.execute(sql("ALTER TABLE {chunks} ALTER COLUMN payload SET STORAGE EXTERNAL", chunks=chunks.sql))
        return self._chunks


def _created(here: Platform, name: Name) -> Sql:
    return sql(
        "CREATE TABLE {name} (configuration integer, weights bytea, architecture json, __dist_key__ integer)"
        " {distributed_by}",
        name=name.sql,
        distributed_by=here.distributed_by("__dist_key__"),
    )


def _external(name: Name) -> Sql:
    return sql("ALTER TABLE {name} ALTER COLUMN weights SET STORAGE EXTERNAL", name=name.sql)
