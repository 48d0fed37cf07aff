"""The tables that store the states of a run's models, in the schema cerebro_state.

A model has two tables.  Its states are written to one of them while the other holds the last committed state.  TRUNCATE
frees old states: unlike DELETE it works while the waiting caller's SELECT keeps its snapshot.  A model whose best state
is kept has a third table, into which that state is copied.  If replicas of a model train at the same time, each of them
has a table of its own, and the model's tables have the averages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebro_db.core.events import Initial
from cerebro_db.core.names import STATE_SCHEMA, Name
from cerebro_db.core.options import BEST
from cerebro_db.core.sql import Sql, joined, literal, sql

from ...platform.base import Platform
from .run import Model, Run

# One row of a state fills a page and stays in one piece: 100 MB are stored in half the time that rows of 256 kB take,
# which TOAST cuts up and indexes.
PAGE, WHOLE_PAGE = 8192, 8160
WHOLE_PAGES = sql("toast_tuple_target = {bytes}", bytes=WHOLE_PAGE)
# Autovacuum would read and freeze each state before the next one replaces it, and has nothing to clean up: TRUNCATE
# leaves nothing.  (The server vacuums a table that gets too old all the same.)
NO_VACUUM = sql("autovacuum_enabled = false")
# Small states are only appended, and their table is emptied now and then: TRUNCATE costs several times what a small
# state does.
APPENDED_BYTES, MOST_APPENDED = 1 << 20, 16  # in one table
WAIT_FOR_READERS = literal("500ms")
NOTHING = sql("NULL")  # a statement of PL/pgSQL
FREE_AT_ONCE = 1 << 20  # bytes; an old state larger than this is freed in the transaction that replaces it


def table_name(storage: str, model: int, hop: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_{hop % 2}")


def best_table_name(storage: str, model: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_best")


def table_of_state(storage: str, model: int, hop: int, which: str) -> Name:
    """The table that stores a model's best state, or its last one after so many hops."""
    return best_table_name(storage, model) if which == BEST else table_name(storage, model, hop)


def replica_table_name(storage: str, model: int, replica: int) -> Name:
    """The table that stores the states of a replica of a model; replicas are numbered from 1."""
    return Name(STATE_SCHEMA, f"{storage}_{model}_replica_{replica}")


def table_of(run: Run, model: Model, hop: int) -> Sql:
    """The table that stores the state of a model, or of its replica, after a hop."""
    if run.is_replica(model, hop):
        return replica_table_name(run.storage, model.number, hop % run.hops_per_epoch(model)).sql
    return table_name(run.storage, model.number, hop).sql


def ready_sql(platform: Platform, run: Run, model: Model, hop: int) -> Sql | None:
    """Makes the table for a hop's state, or empties it if that is due."""
    table = table_of(run, model, hop)
    if _is_first(run, model, hop):
        return create_sql(platform, table)
    # The last state begins its table anew, so that nothing else is left when the run has finished.
    due = _number_in_table(run, model, hop) % appended(model.state_bytes) == 0 or hop == run.hops_of(model)
    return emptied_sql([table], sql("DELETE FROM {table}", table=table)) if due else None


def _is_first(run: Run, model: Model, hop: int) -> bool:
    """Whether the state after a hop is the first one in its table."""
    between = run.hops_per_epoch(model) if run.averages else 1  # two states of the model, or of one replica
    if run.is_replica(model, hop):
        return hop < between
    given = [] if model.asked.initial == Initial.RANDOM else [0]
    return not any((hop - earlier) % 2 == 0 for earlier in (*given, *range(between, hop, between)[:2]))


def _number_in_table(run: Run, model: Model, hop: int) -> int:
    """How many states, about, the table has got before that of a hop."""
    if not run.averages:
        return hop // 2
    epoch, replica = divmod(hop, run.hops_per_epoch(model))
    return epoch if replica or run.hops_per_epoch(model) % 2 == 0 else epoch // 2


def superseded(run: Run, model: Model, hop: int) -> list[Sql]:
    """The tables whose states nothing needs once the state after a hop is committed."""
    if not run.averages:
        return [table_of(run, model, hop - 1)] if hop > 1 else []
    between = run.hops_per_epoch(model)
    if hop == 0 or run.is_replica(model, hop):
        return []
    before = [table_of(run, model, hop - between)] if hop > between and between % 2 else []
    return [*before, *(table_of(run, model, replica) for replica in range(hop - between + 1, hop))]


def appended(state_bytes: int) -> int:
    """How many states a table gets before it is emptied."""
    return min(MOST_APPENDED, APPENDED_BYTES // max(1, state_bytes)) or 1


def most_bytes(run: Run) -> int:
    """The most that the states of a run take on disk."""
    sizes = [PAGE * math.ceil(model.state_bytes / WHOLE_PAGE) for model in run.models.values()]
    tables = 3 if run.options.keep == BEST else 2
    return sum(
        (tables + (len(run.segments_of(model)) if run.averages else 0)) * size * appended(model.state_bytes)
        for size, model in zip(sizes, run.models.values())
    )


def create_sql(platform: Platform, table: Sql) -> Sql:
    return sql(
        "CREATE TABLE {table} (__dist_key__ integer NOT NULL, hop integer NOT NULL, start bigint NOT NULL,"
        " payload bytea NOT NULL) WITH ({whole_pages}, {no_vacuum}) {distributed_by};"
        " ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL",
        table=table,
        whole_pages=WHOLE_PAGES,
        no_vacuum=NO_VACUUM,
        distributed_by=platform.distributed_by("__dist_key__"),
    )


def emptied_sql(tables: Sequence[Sql], otherwise: Sql = NOTHING) -> Sql:
    """Frees the space of tables; runs ``otherwise`` where somebody (pg_dump, for hours maybe) reads one of them.

    It gives up before the server looks for a deadlock (after 1 s), since a reader may hold one table and want another.
    """
    return sql(
        "DO $empty$DECLARE before text := current_setting('lock_timeout');"
        " BEGIN SET LOCAL lock_timeout = {wait_for_readers}; TRUNCATE {tables};"
        " EXECUTE format('SET LOCAL lock_timeout = %L', before);"
        " EXCEPTION WHEN lock_not_available OR deadlock_detected THEN {otherwise}; END$empty$",
        wait_for_readers=WAIT_FOR_READERS,
        tables=joined(", ", tables),
        otherwise=otherwise,
    )
