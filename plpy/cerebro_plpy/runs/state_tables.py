"""The tables that store the states of a run's models, in the schema cerebro_state.

A model has two tables.  Its states are written to one of them while the other holds the last committed state.  TRUNCATE
frees old states: unlike DELETE it works while the waiting caller's SELECT keeps its snapshot.  A model whose best state
is kept has a third table, into which that state is copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebro_db.core.events import Initial
from cerebro_db.core.names import STATE_SCHEMA, Name
from cerebro_db.core.options import BEST

from ..platform.base import Platform
from .run import Model, Run

# One row of a state fills a page and stays in one piece: 100 MB are stored in half the time that rows of 256 kB take,
# which TOAST cuts up and indexes.
PAGE, WHOLE_PAGE = 8192, 8160
WHOLE_PAGES = f"toast_tuple_target = {WHOLE_PAGE}"
# Autovacuum would read and freeze each state before the next one replaces it, and has nothing to clean up: TRUNCATE
# leaves nothing.  (The server vacuums a table that gets too old all the same.)
NO_VACUUM = "autovacuum_enabled = false"
# Small states are only appended, and their table is emptied now and then: TRUNCATE costs several times what a small
# state does.
APPENDED_BYTES, MOST_APPENDED = 1 << 20, 16  # in one table
WAIT_FOR_READERS = "500ms"
FREE_AT_ONCE = 1 << 20  # bytes; an old state larger than this is freed in the transaction that replaces it


def table_name(storage: str, model: int, hop: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_{hop % 2}")


def best_table_name(storage: str, model: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_best")


def table_of_state(storage: str, model: int, hop: int, which: str) -> Name:
    """The table that stores a model's best state, or its last one after so many hops."""
    return best_table_name(storage, model) if which == BEST else table_name(storage, model, hop)


def table_of(run: Run, model: Model, hop: int) -> str:
    """The table that stores a model's state after a hop."""
    return table_name(run.storage, model.number, hop).sql


def ready_sql(platform: Platform, run: Run, model: Model, hop: int) -> str | None:
    """Makes the table for a hop's state, or empties it if that is due."""
    table = table_of(run, model, hop)
    if hop <= 1 or (hop == 2 and model.initial == Initial.RANDOM):
        return create_sql(platform, table)
    # The last state begins its table anew, so that nothing else is left when the run has finished.
    due = hop // 2 % appended(model.state_bytes) == 0 or hop == run.hops_of(model)
    return emptied_sql([table], f"DELETE FROM {table}") if due else None


def appended(state_bytes: int) -> int:
    """How many states a table gets before it is emptied."""
    return min(MOST_APPENDED, APPENDED_BYTES // max(1, state_bytes)) or 1


def most_bytes(run: Run) -> int:
    """The most that the states of a run take on disk."""
    sizes = [PAGE * math.ceil(model.state_bytes / WHOLE_PAGE) for model in run.models.values()]
    tables = 3 if run.options.get("keep") == BEST else 2
    return sum(tables * size * appended(model.state_bytes) for size, model in zip(sizes, run.models.values()))


def create_sql(platform: Platform, table: str) -> str:
    return (
        f"CREATE TABLE {table} (__dist_key__ integer NOT NULL, hop integer NOT NULL, start bigint NOT NULL,"
        f" payload bytea NOT NULL) WITH ({WHOLE_PAGES}, {NO_VACUUM}) {platform.distributed_by('__dist_key__')};"
        f" ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL"
    )


def emptied_sql(tables: Sequence[str], otherwise: str = "NULL") -> str:
    """Frees the space of tables; runs ``otherwise`` where somebody (pg_dump, for hours maybe) reads one of them.

    It gives up before the server looks for a deadlock (after 1 s), since a reader may hold one table and want another.
    """
    return (
        "DO $empty$DECLARE before text := current_setting('lock_timeout');"
        f" BEGIN SET LOCAL lock_timeout = '{WAIT_FOR_READERS}'; TRUNCATE {', '.join(tables)};"
        " EXECUTE format('SET LOCAL lock_timeout = %L', before);"
        f" EXCEPTION WHEN lock_not_available OR deadlock_detected THEN {otherwise}; END$empty$"
    )
