"""The tables that store the states of a run's models, in the schema cerebro_state.

Small states of all models share two tables, so that a run has the same few tables however many models it has.  States
are only appended, to one of the two.  When it has grown to several times what the run needs, states are appended to the
other one, the few states that are still needed move there, and TRUNCATE frees the first.

A model with a large state has two tables of its own, which get its states in turn: moving costs as much as storing.
If its best state is kept, it has a third table, into which that state is copied.  If replicas of it train at the same
time, each of them has a table, and the model's tables have the averages.

Training never changes the weights of frozen layers.  Where a trainer says so, they are stored once for all states of a
run that have them, in a table named after their checksum.  Then the rows of a state are those of its own table and,
between them, those of that one.

TRUNCATE frees old states: unlike DELETE it works while the waiting caller's SELECT keeps its snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.names import STATE_SCHEMA, Name
from cerebro_db.core.options import BEST
from cerebro_db.core.protocol import FrozenPart
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, number_array, sql

from ...database.access import Database
from ...platform.base import Platform
from ...sessions.session import Session
from .run import SMALL_STATE, Model, Run, StoredWeights
from .shared_tables import BOTH, FEWEST_APPENDED, TIMES_NEEDED

# One row of a state fills a page and stays in one piece: 100 MB are stored in half the time that rows of 256 kB take,
# which TOAST cuts up and indexes.
PAGE, WHOLE_PAGE = 8192, 8160
WHOLE_PAGES = sql("toast_tuple_target = {bytes}", bytes=WHOLE_PAGE)
# Autovacuum would read and freeze each state before the next one replaces it, and has nothing to clean up: TRUNCATE
# leaves nothing.  (The server vacuums a table that gets too old all the same.)
NO_VACUUM = sql("autovacuum_enabled = false")
WAIT_FOR_READERS = literal("500ms")
NOTHING = sql("NULL")  # a statement of PL/pgSQL
OF_SHARED, OF_OWN = sql("model, hop, start, payload"), sql("hop, start, payload")  # the columns after __dist_key__


# -- the tables that small states share --------------------------------------------------------------------


def shared_names(storage: str) -> list[Name]:
    return [Name(STATE_SCHEMA, f"{storage}_shared_{number}") for number in BOTH]


def shared(storage: str) -> list[Sql]:
    return [name.sql for name in shared_names(storage)]


def is_small(state_bytes: int) -> bool:
    """Whether a state of this size is in the tables that all models share."""
    return state_bytes <= SMALL_STATE


def create_shared_sql(platform: Platform, storage: str) -> Sql:
    return joined("; ", [_create_shared_sql(platform, name) for name in shared_names(storage)])


def _create_shared_sql(platform: Platform, name: Name) -> Sql:
    table = name.sql
    return sql(
        "CREATE TABLE {table} (__dist_key__ integer NOT NULL, model integer NOT NULL, hop integer NOT NULL,"
        " start bigint NOT NULL, payload bytea NOT NULL) WITH ({whole_pages}, {no_vacuum}) {distributed_by};"
        " ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL;"
        " CREATE INDEX {index} ON {table} (model, hop)",
        table=table,
        index=identifier(f"{name.table}_index"),
        whole_pages=WHOLE_PAGES,
        no_vacuum=NO_VACUUM,
        distributed_by=platform.distributed_by("__dist_key__"),
    )


def released_sql(storage: str) -> Sql:
    """Changes nothing, but has all sessions close the files of the shared tables that they have read.

    A session keeps the files of tables open that it has read, and each of its calls reads the tables of another run.
    """
    changes = [
        sql(
            "ALTER TABLE {table} SET ({no_vacuum}); ALTER INDEX {index} SET (fillfactor = 90);",
            table=name.sql,
            no_vacuum=NO_VACUUM,
            index=name.suffixed("_index").sql,
        )
        for name in shared_names(storage)
    ]
    return sql(
        "DO $release$BEGIN SET LOCAL lock_timeout = {wait_for_readers}; {changes}"
        " EXCEPTION WHEN lock_not_available OR undefined_table OR undefined_object THEN NULL; END$release$",
        wait_for_readers=WAIT_FOR_READERS,
        changes=joined(" ", changes),
    )


def needed(run: Run, best: Mapping[int, int], keep_two: bool = False) -> list[tuple[int, int]]:
    """The states that a run still needs, each as model and hop.  It needs those, too, that are newer (``moved_sql``).

    ``best``: model -> the hop whose state is kept as the best.  ``keep_two``: a decision may copy the state before the
    last.
    """
    found: dict[tuple[int, int], None] = {}
    for number, model in run.models.items():
        hops = {model.hops, *([model.hops - 1] if keep_two else []), best.get(number, model.hops)}
        found.update(((number, hop), None) for hop in sorted(hops) if hop >= 0)
        if model.asked.start is not None and not model.hops:
            found[model.asked.start.model, model.asked.start.hop] = None
    return list(found)


def needed_bytes(run: Run) -> int:
    """About how many bytes the small states take that a run needs at one time."""
    sizes = [on_disk(model.state_bytes) for model in run.models.values() if is_small(model.state_bytes)]
    return sum(sizes) * (2 if run.options.keep == BEST else 1)


def moved_sql(storage: str, source: int, states: Sequence[tuple[int, int]]) -> Sql:
    """Moves states from one shared table to the other, and frees all states there that are older.

    It does nothing where somebody reads the table.  The lock comes first: what is appended after the copy would be
    lost.  States that are newer than the model's last one move, too: its replicas have stored them, or a session that
    was thought to be lost.
    """
    tables = shared(storage)
    return _once_locked(
        [tables[source]],
        sql(
            "INSERT INTO {target} (__dist_key__, {columns}) SELECT __dist_key__, {columns} FROM {source} s"
            " LEFT JOIN (SELECT model, max(hop) AS newest FROM {states} GROUP BY model) n USING (model)"
            " WHERE hop >= newest OR newest IS NULL OR (model, hop) IN (SELECT model, hop FROM {states});"
            " TRUNCATE {source}",
            source=tables[source],
            target=tables[1 - source],
            columns=OF_SHARED,
            states=sql(
                "unnest({models}::integer[], {hops}::integer[]) AS u (model, hop)",
                models=number_array(model for model, _ in states),
                hops=number_array(hop for _, hop in states),
            ),
        ),
    )


def _once_locked(tables: Sequence[Sql], then: Sql, otherwise: Sql = NOTHING) -> Sql:
    """Statements that need tables alone; others, where somebody (pg_dump, for hours maybe) reads one of them.

    It gives up before the server looks for a deadlock (after 1 s), since a reader may hold one table and want another.
    The block with EXCEPTION, which is a subtransaction, writes nothing: on Greenplum, rows that one has written can be
    lost while other sessions read the table (docs/decisions.md).
    """
    return sql(
        "DO $alone$DECLARE before text := current_setting('lock_timeout'); locked boolean := true;"
        " BEGIN SET LOCAL lock_timeout = {wait_for_readers};"
        " BEGIN LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;"
        " EXCEPTION WHEN lock_not_available OR deadlock_detected THEN locked := false; END;"
        " EXECUTE format('SET LOCAL lock_timeout = %L', before);"
        " IF locked THEN {then}; ELSE {otherwise}; END IF; END$alone$",
        wait_for_readers=WAIT_FOR_READERS,
        tables=joined(", ", tables),
        then=then,
        otherwise=otherwise,
    )


def among(states: Sequence[tuple[int, int]]) -> Sql:
    """The condition for the rows of these states in a shared table."""
    pairs = joined(", ", [sql("({model}, {hop})", model=model, hop=hop) for model, hop in states])
    return sql("(model, hop) IN ({pairs})", pairs=pairs)


# -- the tables of models with large states ----------------------------------------------------------------


def table_name(storage: str, model: int, hop: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_{hop % 2}")


def best_table_name(storage: str, model: int) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_{model}_best")


def replica_table_name(storage: str, model: int, replica: int) -> Name:
    """The table that stores the states of a replica of a model; replicas are numbered from 1."""
    return Name(STATE_SCHEMA, f"{storage}_{model}_replica_{replica}")


def own_table_of(run: Run, model: Model, hop: int) -> Sql:
    """The table that stores the large state of a model, or of its replica, after a hop."""
    if run.is_replica(model, hop):
        return replica_table_name(run.storage, model.number, hop % run.hops_per_epoch(model)).sql
    return table_name(run.storage, model.number, hop).sql


def ready_sql(platform: Platform, run: Run, model: Model, hop: int) -> Sql:
    """Makes the table for the large state of a hop, or empties it."""
    table = own_table_of(run, model, hop)
    if _is_first(run, model, hop):
        return create_sql(platform, table)
    return emptied_sql([table], sql("DELETE FROM {table}", table=table))


def _is_first(run: Run, model: Model, hop: int) -> bool:
    """Whether the state after a hop is the first one in its table."""
    between = run.hops_per_epoch(model) if run.averages else 1  # two states of the model, or of one replica
    if run.is_replica(model, hop):
        return hop < between
    given = [0] if model.large_start else []
    return not any((hop - earlier) % 2 == 0 for earlier in (*given, *range(between, hop, between)[:2]))


def superseded(run: Run, model: Model, hop: int) -> list[Sql]:
    """The tables of a model with large states whose states nothing needs once the state after a hop is committed."""
    if not run.averages:
        return [own_table_of(run, model, hop - 1)] if hop > 1 else []
    between = run.hops_per_epoch(model)
    if hop == 0 or run.is_replica(model, hop):
        return []
    before = [own_table_of(run, model, hop - between)] if hop > between and between % 2 else []
    return [*before, *(own_table_of(run, model, replica) for replica in range(hop - between + 1, hop))]


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
    """Frees the space of tables; runs ``otherwise`` where somebody reads one of them."""
    return _once_locked(tables, sql("TRUNCATE {tables}", tables=joined(", ", tables)), otherwise)


# -- frozen parts of large states, and large weights that models start from ----------------------------------


def frozen_table_name(storage: str, sha256: str) -> Name:
    return Name(STATE_SCHEMA, f"{storage}_frozen_{sha256[:16]}")


def given_table_name(storage: str, given: str) -> Name:
    """The table with large weights that models of a run start from.  It has the form of that of a frozen part."""
    return Name(STATE_SCHEMA, f"{storage}_given_{given[:16]}")


def store_frozen_sql(platform: Platform, storage: str, part: FrozenPart, made: Sql) -> Sql:
    """Stores a frozen part, unless it is there.  ``made``: a query for its rows, with columns __dist_key__ and made.

    A table of this name has all rows: both are committed together.  Of two sessions the second waits for the first, by
    a lock that nobody but the run's owner can take; it hinders neither readers nor writers.  If the name is taken by
    something of another user, the server says so.
    """
    name = frozen_table_name(storage, part.sha256)
    return sql(
        "DO $frozen$BEGIN LOCK TABLE {of_run} IN SHARE UPDATE EXCLUSIVE MODE;"
        " IF NOT {there} THEN {create};"
        " {into} SELECT s.__dist_key__, (s.made).start, (s.made).payload FROM ({made}) s; END IF; END$frozen$",
        of_run=shared(storage)[0],
        there=_is_there(name),
        create=create_frozen_sql(platform, name),
        into=into_frozen(name),
        made=made,
    )


def create_frozen_sql(platform: Platform, name: Name) -> Sql:
    return sql(
        "CREATE TABLE {table} (__dist_key__ integer NOT NULL, start bigint NOT NULL, payload bytea NOT NULL)"
        " WITH ({whole_pages}, {no_vacuum}) {distributed_by};"
        " ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL",
        table=name.sql,
        whole_pages=WHOLE_PAGES,
        no_vacuum=NO_VACUUM,
        distributed_by=platform.distributed_by("__dist_key__"),
    )


def into_frozen(name: Name) -> Sql:
    return sql("INSERT INTO {table} (__dist_key__, start, payload)", table=name.sql)


def dropped_sql(name: Name) -> Sql:
    """Drops a table, unless somebody reads it."""
    return _once_locked([name.sql], sql("DROP TABLE {table}", table=name.sql))


def is_there(session: Session, name: Name) -> bool:
    ((there,),) = session.run(sql("SELECT {there}", there=_is_there(name)))
    return bool(there)


def are_there(db: Database, names: Sequence[Name]) -> bool:
    """As ``is_there`` for all of these tables, in the caller's own session."""
    return bool(db.value(sql("SELECT {there}", there=joined(" AND ", map(_is_there, names)))))


def _is_there(name: Name) -> Sql:
    """Whether the user has this table.  Others can make things of its name, too, also views that run code."""
    return sql(
        "EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass({name}) AND relkind = 'r'"
        " AND pg_catalog.pg_get_userbyid(relowner) = current_user)",
        name=literal(name.quoted),
    )


def copy_body(db: Database, storage: str, part: FrozenPart, chunks: Name) -> None:
    """Copy a frozen part into a table of weights, where it belongs to no model and many refer to it."""
    frozen = frozen_table_name(storage, part.sha256).sql
    db.execute(
        sql(
            "INSERT INTO {chunks} SELECT NULL, start, payload, __dist_key__, $1 FROM {frozen} WHERE {one_copy}",
            chunks=chunks.sql,
            frozen=frozen,
            one_copy=one_copy(frozen),
        ),
        ("text",),
        part.sha256,
    )


def require_frozen_sql(name: Name) -> Sql:
    """Raises an error with a hint if the table of a frozen part, or of given weights, is gone."""
    return sql(
        "DO $frozen$BEGIN IF NOT {there} THEN"
        " RAISE EXCEPTION USING ERRCODE = {code}, MESSAGE = {message}, HINT = {hint}; END IF; END$frozen$",
        there=_is_there(name),
        code=literal(CorruptState.sqlstate),
        message=literal(f"the table {name} with the frozen part of model states, or with given weights, is not there"),
        hint=literal("It was dropped by hand. Without it, the models that need it cannot go on."),
    )


def one_copy(table: Sql) -> Sql:
    """The condition for the rows of one copy of a frozen part: on Greenplum each segment that needed it has one."""
    return sql("__dist_key__ = (SELECT __dist_key__ FROM {table} LIMIT 1)", table=table)


def _filled(own: Sql, hop: int, storage: str, part: FrozenPart, key: int) -> Sql:
    """The rows of a state and, between them, those of its frozen part: FROM … WHERE ….

    The rows of the frozen part get the key of the state's own ones.
    """
    frozen = frozen_table_name(storage, part.sha256).sql
    columns = sql("SELECT __dist_key__, hop, start, payload FROM {own} WHERE hop = {hop} AND start", own=own, hop=hop)
    return sql(
        "FROM ({columns} < {first} UNION ALL"
        " SELECT {key}, {hop}, start + {first}, payload FROM {frozen} WHERE {one_copy} UNION ALL"
        " {columns} >= {first}) s WHERE true",
        columns=columns,
        first=part.start,
        key=key,
        hop=hop,
        frozen=frozen,
        one_copy=one_copy(frozen),
    )


# -- both --------------------------------------------------------------------------------------------------


def into_start(session: Session, platform: Platform, run: Run, model: Model, *, large: bool) -> tuple[Sql, Sql]:
    """What stores the state that a model starts from: INSERT INTO …, and what comes before __dist_key__, hop, start.

    Makes a table for a large state.
    """
    model.large_start = large
    if large:
        session.run(create_sql(platform, own_table_of(run, model, 0)))
        return sql("INSERT INTO {table} (__dist_key__, {own})", table=own_table_of(run, model, 0), own=OF_OWN), sql("")
    table = shared(run.storage)[run.shared.current]
    run.shared.filled[run.shared.current] = True
    lead = sql("{model}, ", model=model.number)
    return sql("INSERT INTO {table} (model, __dist_key__, {own})", table=table, own=OF_OWN), lead


def has_own_table(model: Model, hop: int) -> bool:
    """Whether the state of a model after a hop has a table of its own."""
    return model.large_start if hop == 0 else not is_small(model.state_bytes)


def of_start(run: Run, start: StoredWeights) -> tuple[list[Sql], Sql, Sql]:
    """Where the weights are that models of groups start from: tables, their columns, and the condition for the rows.

    A large state is in the model's own table as long as the model has not trained on, and is its best one otherwise.
    """
    model = run.models[start.model]
    if is_small(model.state_bytes):
        return shared(run.storage), OF_SHARED, among([(start.model, start.hop)])
    is_last = model.hops == start.hop
    table = own_table_of(run, model, start.hop) if is_last else best_table_name(run.storage, start.model).sql
    return [table], OF_OWN, sql("hop = {hop}", hop=start.hop)


def read_from(run: Run, model: Model, hop: int, *, best: bool = False) -> Sql:
    """A state's own rows after a hop, with its copies on other segments, without a frozen part: FROM … WHERE ….

    ``best``: it is kept as the model's best state.
    """
    if has_own_table(model, hop):
        kept = best and 0 < hop < model.hops  # else the model's own table still has it
        table = best_table_name(run.storage, model.number).sql if kept else own_table_of(run, model, hop)
        return sql("FROM {table} WHERE hop = {hop}", table=table, hop=hop)
    return _shared_rows(run.storage, model.number, hop)


@dataclass(frozen=True)
class StatePlace:
    """Where a model's best state is, or its last one after so many hops."""

    storage: str
    model: int
    hop: int
    which: str
    state_bytes: int
    frozen: FrozenPart | None
    dist_key: int  # of the segment where it was written

    @property
    def tables(self) -> list[Name]:
        """The tables that may have it, or parts of it."""
        if is_small(self.state_bytes):
            return shared_names(self.storage)
        frozen = [] if self.frozen is None else [frozen_table_name(self.storage, self.frozen.sha256)]
        return [self._own, *frozen]

    @property
    def _own(self) -> Name:
        if self.which == BEST:
            return best_table_name(self.storage, self.model)
        return table_name(self.storage, self.model, self.hop)

    @property
    def rows_without_frozen(self) -> Sql:
        """Its rows but those of the frozen part, which it must have: FROM … WHERE …."""
        return sql(
            "FROM {table} WHERE hop = {hop} AND __dist_key__ = {key}",
            table=self._own.sql,
            hop=self.hop,
            key=self.dist_key,
        )

    @property
    def rows(self) -> Sql:
        """Its rows: FROM … WHERE …."""
        if is_small(self.state_bytes):
            rows = _shared_rows(self.storage, self.model, self.hop)
        elif self.frozen is None:
            rows = sql("FROM {table} WHERE hop = {hop}", table=self._own.sql, hop=self.hop)
        else:
            rows = _filled(self._own.sql, self.hop, self.storage, self.frozen, self.dist_key)
        return sql("{rows} AND __dist_key__ = {key}", rows=rows, key=self.dist_key)


def _shared_rows(storage: str, model: int, hop: int) -> Sql:
    # One statement sees a state in one of the tables, whenever it moves.
    first, second = shared(storage)
    return sql(
        "FROM (SELECT * FROM {first} UNION ALL SELECT * FROM {second}) s WHERE model = {model} AND hop = {hop}",
        first=first,
        second=second,
        model=model,
        hop=hop,
    )


def most_bytes(run: Run) -> int:
    """The most that the states of a run take on disk."""
    most = needed_bytes(run) and FEWEST_APPENDED + (TIMES_NEEDED + 2) * needed_bytes(run)
    tables = 3 if run.options.keep == BEST else 2
    shared: dict[Any, int] = {}  # the frozen parts, by what makes them equal
    for model in run.models.values():
        if not is_small(model.state_bytes):
            replicas = len(run.segments_of(model)) if run.averages else 0
            most += (tables + replicas) * on_disk(model.state_bytes - model.frozen_bytes)
            shared[model.given or model.number] = on_disk(model.frozen_bytes)
            if model.given is not None:
                shared["weights", model.given] = on_disk(model.state_bytes)
            if model.large_start and model.hops < 2 and model.start_frozen is None:
                most += on_disk(model.frozen_bytes)  # its rows have all bytes
    return most + sum(shared.values())


def on_disk(state_bytes: int) -> int:
    """About how many bytes a state takes in a table."""
    return PAGE * math.ceil(state_bytes / WHOLE_PAGE)
