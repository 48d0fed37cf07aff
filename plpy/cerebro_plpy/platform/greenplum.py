"""Greenplum: a segment is a primary segment of the cluster, reached by a value of the distribution key.

The table cerebro.place has enough keys to reach every segment, and to place several trainers on one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cerebro_db.core.engines import gpu_of_each_segment
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, UndefinedObject, Unsupported
from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.sql import Sql, identifier, joined, literal, quoted, sql

from ..database import relations
from ..database.access import Database, Row
from .base import LeftState, Platform, RowsToPack, StatementLimit, StateRows
from .segments import ALL, KEY, DistributionRule

if TYPE_CHECKING:
    import psycopg2

SEGMENTS_DOWN = "gpstate -e names the segments that are down; gprecoverseg or gpstart brings them back."
# gp_interconnection_error, and what a segment says while it ends all of its processes and starts anew.
SEGMENT_LOST = ("58M01", "57P02", "57P03")
# What a new process says that looks for the state of the lost one (lookupSharedSnapshot in sharedsnapshot.c).
INTERNAL_ERROR, SEGMENT_LOST_TEXT = "XX000", "could not find Shared Local Snapshot"


class Greenplum(Platform):
    runs_functions_in_session = False
    cancels_statements = False
    subtransactions_are_safe = False
    # DISCARD ALL does not reach the segments, and idle processes of segments end by themselves.
    keeps_teams = False
    # The caller's session loses its segments when one of them is lost.  If that happens between two statements of a
    # Python function, the function cannot go on.
    waits_in_own_session = True
    transactions_share_messages = False  # "Cannot have an explicit BEGIN statement"
    # A segment's process that replaces a killed one knows the login, but no SET ROLE.  It has to finish what the killed
    # one has prepared, and only the role that prepared a transaction may finish it.
    sets_role_at_login = True
    commits_later = None  # a SET makes all segments part of the transaction, and its commit one of two phases
    loses_only_the_last_commits = False
    copies_rows_to_pack = False
    on_every_server = sql("FROM gp_dist_random('pg_catalog.gp_id')")
    shown_settings = (
        ("gp_enable_global_deadlock_detector", "if off, runs wait for transactions that have called cerebro.forget"),
        ("optimizer", "worker sessions set it to off"),
    )
    priority_setting = "gp_segworker_relative_priority"

    # -- segments ------------------------------------------------------------------------------------------

    def segments(self, db: Database, rule: DistributionRule = ALL, rows: int | None = None) -> int:
        return len(_primaries(db)) if rule.contents is None else len(rule.contents)

    def distribution_keys(self, db: Database, count: int, rule: DistributionRule = ALL) -> list[int]:
        """The segments take turns; each gets its smallest unused key.  Greenplum's hash decides which key is where."""
        rows = db.rows(
            sql(
                "SELECT k FROM (SELECT __dist_key__ AS k, gp_segment_id AS segment, row_number() OVER"
                " (PARTITION BY gp_segment_id ORDER BY __dist_key__) AS n FROM cerebro.place"
                " WHERE $2::integer[] IS NULL OR gp_segment_id = ANY ($2)) p ORDER BY n, segment LIMIT $1"
            ),
            ("integer", "integer[]"),
            count,
            rule.contents,
        )
        return [row["k"] for row in rows]

    def distribution_rule(self, db: Database, rules: str | None) -> DistributionRule:
        """``all_segments``, ``gpu_segments``, or a table whose column dbid names segments."""
        wanted = (rules or "all_segments").strip()
        if wanted.lower() == "all_segments":
            return ALL
        primaries = {row["dbid"]: row["content"] for row in _primaries(db)}
        if wanted.lower() == "gpu_segments":
            gpus = _gpus_by_content(db, self.distribution_keys(db, len(primaries)))
            dbids = [dbid for dbid, content in primaries.items() if gpus.get(content)]
            if not dbids:
                raise InvalidArgument("No GPUs configured on hosts.", hint="distribution_rules => 'all_segments'.")
        else:
            dbids = _dbids_of(db, wanted, primaries)
        return DistributionRule(sorted(primaries[dbid] for dbid in dbids), sorted(dbids))

    def gpus_of_segments(self, db: Database, keys: Sequence[int]) -> list[int | None]:
        """The segments of a host take turns with its GPUs."""
        counts, hosts = _gpus_by_content(db, keys), {row["content"]: row["host"] for row in _primaries(db)}
        contents = {row["key"]: row["content"] for row in _contents(db, keys)}
        return gpu_of_each_segment(
            [hosts[contents[key]] for key in keys], {hosts[content]: count for content, count in counts.items()}
        )

    def gpus_of_hosts(self, db: Database, texts: Sql) -> dict[str, list[str]]:
        primaries = _primaries(db)
        keys = self.distribution_keys(db, len(primaries))
        rows = db.rows(
            sql(
                "SELECT gp_segment_id AS content, {texts} AS gpus FROM cerebro.place {among}",
                texts=texts,
                among=_among(keys),
            )
        )
        found = {row["content"]: row["gpus"] for row in rows}
        return {row["host"]: found[row["content"]] for row in primaries}

    def require_own_session(self, db: Database) -> None:
        if db.value(sql("SELECT pg_catalog.current_setting('gp_role') AS role")) == "execute":
            raise Unsupported(
                "a query calls the function for each row, on the segments. It cannot run queries there.",
                hint="Call it once, with a query of all rows, and join its result:"
                " … JOIN cerebro.predict(model_table, $$SELECT …$$) p ON …",
            )

    def lost_a_segment(self, error: psycopg2.Error) -> bool:
        return error.pgcode in SEGMENT_LOST or (error.pgcode == INTERNAL_ERROR and SEGMENT_LOST_TEXT in str(error))

    def begin_call(self, called: str, instead: str) -> Sql:
        texts = joined(", ", map(literal, (called, instead)))
        return sql("SELECT cerebro._begin_call({texts}); ", texts=texts)

    # -- tables --------------------------------------------------------------------------------------------

    def distributed_by(self, column: str | None) -> Sql:
        if column is None:
            return sql("DISTRIBUTED RANDOMLY")
        return sql("DISTRIBUTED BY ({column})", column=identifier(column))

    def distribute(self, db: Database, name: Name, column: str) -> None:
        db.execute(sql("ALTER TABLE {name} SET {by}", name=name.sql, by=self.distributed_by(column)))

    def spread_packed_table(self) -> Sql:
        return self.distributed_by(KEY)

    # -- a hop ---------------------------------------------------------------------------------------------

    def on_segment(self, dist_key: int) -> Sql:
        return sql("FROM cerebro.place WHERE __dist_key__ = {key}", key=dist_key)

    def made_on_segment(self, function: Sql, dist_key: int) -> Sql:
        # The key is the column.  With a constant, the rows would be sent to the segment, and the function would run in
        # another process than the one that trained.
        return sql(
            "SELECT __dist_key__, {function} AS made {where}", function=function, where=self.on_segment(dist_key)
        )

    def states_made(self, visit: int, states: Sequence[LeftState], dist_key: int) -> list[Sql]:
        found = []
        for one in states:
            function = sql("cerebro_internal._state_out({visit}, {index})", visit=visit, index=one.index)
            made = self.made_on_segment(function, dist_key)
            found.append(
                sql(
                    "SELECT m.__dist_key__, {model} AS model, {hop} AS hop, m.made FROM ({made}) m",
                    model=one.model,
                    hop=one.hop,
                    made=made,
                )
            )
        return found

    def hop_states(self, rows: StateRows, here: int, there: int) -> tuple[list[Sql], Sql]:
        """A segment can give its function only rows that it stores, so the states' rows are copied first.

        Rows that an earlier attempt copied are harmless: the same bytes at the same offsets.
        """
        where = sql("{which} AND __dist_key__ = ", which=rows.which)
        copies = [
            sql(
                "INSERT INTO {into} (__dist_key__, {columns}) SELECT {here}, {columns} FROM {table}"
                " WHERE {where}{there}",
                into=rows.into,
                columns=rows.columns,
                here=here,
                table=table,
                where=where,
                there=there,
            )
            for table in rows.tables
        ]
        return copies if here != there else [], sql("{where}{here}", where=where, here=here)

    def frozen_rows(self, table: Sql, here: int, one_copy: Sql) -> tuple[list[Sql], Sql]:
        where = sql("__dist_key__ = {here}", here=here)
        copy = sql(
            "INSERT INTO {table} (__dist_key__, start, payload) SELECT {here}, start, payload FROM {table}"
            " WHERE {one_copy} AND NOT EXISTS (SELECT FROM {table} WHERE {where})",
            table=table,
            here=here,
            one_copy=one_copy,
            where=where,
        )
        # Of two sessions of one segment, the second waits, and finds the rows of the first.
        return [sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE", table=table), copy], where

    def bring_rows(
        self, table: Sql, columns: Sequence[Sql], key: int, here: int, temporary: Sql
    ) -> tuple[Sql, int, tuple[Sql, Sql] | None]:
        """Rows of another segment (validation rows packed for another number of segments) are copied for one read."""
        if key == here:
            return table, key, None
        before = sql(
            "CREATE TABLE {temporary} AS SELECT {here} AS __dist_key__, buffer_id, {columns}"
            " FROM {table} WHERE __dist_key__ = {key} {distributed_by}",
            temporary=temporary,
            here=here,
            columns=joined(", ", columns),
            table=table,
            key=key,
            distributed_by=self.distributed_by(KEY),
        )
        return temporary, here, (before, sql("DROP TABLE {temporary}", temporary=temporary))

    # -- rows in an order ----------------------------------------------------------------------------------

    def rows_to_pack(self, db: Database, wanted: RowsToPack) -> Iterator[Row]:
        """Rows have no order here, so they are sorted even without a seed.

        The chunks are gathered in one statement, which can be cancelled.  Its aggregates have an order of their own,
        because the rows of a subquery need not stay in theirs.
        """
        copied = Name(STATE_SCHEMA, f"rows_{token()}").sql  # not everybody may make temporary tables
        chunks = wanted.in_chunks(sort=True, order=sql(" ORDER BY r.place"))
        db.perform(
            sql("CREATE UNLOGGED TABLE {copied} AS {chunks} {by}",
                copied=copied, chunks=chunks, by=self.distributed_by("turn")),
            answers=False,
        )  # fmt: skip
        turns = db.value(sql("SELECT count(*) FROM {copied}", copied=copied))
        for turn in range(turns):
            yield from db.text(sql("SELECT * FROM {copied} WHERE turn = {turn}", copied=copied, turn=turn))
        db.text(sql("DROP TABLE {copied}", copied=copied))

    # -- limits of the server's own ------------------------------------------------------------------------

    def statement_limit(self, db: Database) -> StatementLimit | None:
        """That of the user's resource queue.  Superusers are in no queue."""
        found = db.one(
            sql(
                "SELECT q.rsqname::pg_catalog.text AS name, q.rsqcountlimit::pg_catalog.int4 AS statements"
                " FROM pg_catalog.pg_roles r JOIN pg_catalog.pg_resqueue q ON q.oid"
                " OPERATOR(pg_catalog.=) r.rolresqueue"
                " WHERE r.rolname OPERATOR(pg_catalog.=) current_user AND NOT r.rolsuper"
                " AND q.rsqcountlimit OPERATOR(pg_catalog.>=) 0::pg_catalog.float4"
                " AND pg_catalog.current_setting('gp_resource_manager') OPERATOR(pg_catalog.=) 'queue'"
            )
        )
        return None if found is None else self.queue_limit(found["name"], found["statements"])

    def queue_limit(self, queue: str | None, statements: int) -> StatementLimit | None:
        if queue is None:
            return None
        return StatementLimit(
            statements,
            f"resource queue {queue}",
            f"As a superuser: ALTER RESOURCE QUEUE {quoted(queue)} WITH (ACTIVE_STATEMENTS=…).",
        )

    def queues_statements(self, db: Database) -> bool:
        return db.value(sql("SELECT pg_catalog.current_setting('gp_resource_manager') AS v")) == "queue"

    # -- the doctor ----------------------------------------------------------------------------------------

    def too_old(self, major_version: int) -> str | None:
        return None


def _dbids_of(db: Database, text: str, primaries: dict[int, int]) -> list[int]:
    table = relations.find(db, Name.parse(text))
    if table is None:
        raise UndefinedObject(
            f"segments_to_use table ({text}) doesn't exist.",
            hint="distribution_rules takes 'all_segments', 'gpu_segments', or a table with a column dbid.",
        )
    if "dbid" not in relations.columns(db, table):
        raise UndefinedColumn(
            "distribution rules table must contain dbib column",
            hint=f"The column is dbid: CREATE TABLE {table.name} (dbid integer, …).",
        )
    found = [row["dbid"] for row in db.rows(sql("SELECT dbid FROM {table}", table=table.sql))]
    known = f"The primary segments are: {', '.join(map(str, primaries))} (SELECT dbid FROM gp_segment_configuration)."
    if len(set(found)) < len(found):
        raise BadData("distribution rules table contains duplicate dbids")
    if not found:
        raise BadData(f"the distribution rules table '{text}' is empty.", hint=known)
    for dbid in found:
        if dbid not in primaries:
            raise BadData(f"invalid dbid:{dbid} in the distribution rules table", hint=known)
    return found


def _primaries(db: Database) -> list[dict[str, Any]]:
    return db.rows(
        sql(
            "SELECT dbid, content, hostname AS host FROM pg_catalog.gp_segment_configuration"
            " WHERE role = 'p' AND content >= 0 ORDER BY content"
        )
    )


def _gpus_by_content(db: Database, keys: Sequence[int]) -> dict[int, int]:
    """How many GPUs the host of each segment has.  The segments themselves look for them."""
    rows = db.rows(
        sql(
            "SELECT gp_segment_id AS content, cerebro_internal._gpus() AS gpus FROM cerebro.place {among}",
            among=_among(keys),
        )
    )
    return {row["content"]: row["gpus"] for row in rows}


def _contents(db: Database, keys: Sequence[int]) -> list[dict[str, Any]]:
    return db.rows(
        sql("SELECT __dist_key__ AS key, gp_segment_id AS content FROM cerebro.place {among}", among=_among(keys))
    )


def _among(keys: Sequence[int]) -> Sql:
    return sql("WHERE __dist_key__ IN ({keys})", keys=joined(", ", keys))
