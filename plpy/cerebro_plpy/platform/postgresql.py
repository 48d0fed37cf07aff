"""PostgreSQL: a segment is one list partition of the packed table, served by one worker session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cerebro_db.core.engines import gpu_of_each_segment
from cerebro_db.core.names import Name, token
from cerebro_db.core.sql import Sql, joined, literal, sql

from ..database.access import Database, Row
from .base import LeftState, Platform, RowsToPack, StateRows
from .machine import cores, gpus
from .segments import ALL, MOST_SEGMENTS, DistributionRule

if TYPE_CHECKING:
    import psycopg2

OLDEST_VERSION = 13

# A segment's trainer takes seconds to start and builds every model anew, which so many rows hardly repay.
ROWS_PER_SEGMENT = 500

BLOCKS_PER_CHUNK = 512  # 4 MB


class PostgreSQL(Platform):
    runs_functions_in_session = True
    cancels_statements = True
    subtransactions_are_safe = True
    keeps_teams = True
    waits_in_own_session = False
    transactions_share_messages = True
    sets_role_at_login = False
    commits_later = sql("SET LOCAL synchronous_commit = off")
    loses_only_the_last_commits = True
    copies_rows_to_pack = True

    def segments(self, db: Database, rule: DistributionRule = ALL, rows: int | None = None) -> int:
        """One per GPU; without a GPU, one per processor; fewer for a table with few rows."""
        enough = MOST_SEGMENTS if rows is None else self.segments_that_pay(rows)
        return min(gpus() or cores(), enough, MOST_SEGMENTS)

    def segments_that_pay(self, rows: int) -> int:
        return max(1, rows // ROWS_PER_SEGMENT)

    def distribution_keys(self, db: Database, count: int, rule: DistributionRule = ALL) -> list[int]:
        return list(range(count))

    def distribution_rule(self, db: Database, rules: str | None) -> DistributionRule:
        if (rules or "all_segments").strip().lower() != "all_segments":
            db.notice("distribution_rules is ignored: buffers go to all segments; the argument segments says how many")
        return ALL

    def gpus_of_segments(self, db: Database, keys: Sequence[int]) -> list[int | None]:
        return gpu_of_each_segment(["here"] * len(keys), {"here": gpus()})

    def gpus_of_hosts(self, db: Database, texts: Sql) -> dict[str, list[str]]:
        return {"localhost": db.value(sql("SELECT {texts}", texts=texts))}

    def require_own_session(self, db: Database) -> None:
        pass  # all processes can

    def lost_a_segment(self, error: psycopg2.Error) -> bool:
        return False

    def distributed_by(self, column: str | None) -> Sql:
        return sql("")

    def distribute(self, db: Database, name: Name, column: str) -> None:
        pass

    def spread_packed_table(self) -> Sql:
        return sql("PARTITION BY LIST (__dist_key__)")

    def make_packed_table(self, db: Database, name: Name, columns: list[tuple[str, str]], keys: list[int]) -> None:
        super().make_packed_table(db, name, columns, keys)
        for partition, key in zip(self.partitions(name, len(keys)), keys):
            db.execute(
                sql(
                    "CREATE TABLE {partition} PARTITION OF {name} FOR VALUES IN ({key})",
                    partition=partition.sql,
                    name=name.sql,
                    key=key,
                )
            )

    def on_segment(self, dist_key: int) -> Sql:
        return sql("")

    def made_on_segment(self, function: Sql, dist_key: int) -> Sql:
        return sql("SELECT {key} AS __dist_key__, {function} AS made", key=dist_key, function=function)

    def states_made(self, visit: int, states: Sequence[LeftState], dist_key: int) -> list[Sql]:
        left = joined(
            ", ",
            [sql("({index}, {model}, {hop})", index=one.index, model=one.model, hop=one.hop) for one in states],
        )
        return [
            sql(
                "SELECT {key} AS __dist_key__, model, hop, cerebro_internal._state_out({visit}, index) AS made"
                " FROM (VALUES {left}) v (index, model, hop)",
                key=dist_key,
                visit=visit,
                left=left,
            )
        ]

    def hop_states(self, rows: StateRows, here: int, there: int) -> tuple[list[Sql], Sql]:
        return [], rows.which

    def frozen_rows(self, table: Sql, here: int, one_copy: Sql) -> tuple[list[Sql], Sql]:
        return [], one_copy

    def bring_rows(
        self, table: Sql, columns: Sequence[Sql], key: int, here: int, temporary: Sql
    ) -> tuple[Sql, int, tuple[Sql, Sql] | None]:
        return table, key, None

    def rows_to_pack(self, db: Database, wanted: RowsToPack) -> Iterator[Row]:
        if wanted.are_many and self._reads_ranges(db):
            yield from self._of_new_table(db, wanted)
            return
        sort = wanted.seed is not None
        by_numbers = sort and wanted.differ
        cursor = db.cursor(wanted.by_numbers() if by_numbers else wanted.in_chunks(sort=sort, order=sql("")))
        while len(batch := cursor.fetch(1)):
            yield batch[0]
        cursor.close()

    @staticmethod
    def _of_new_table(db: Database, wanted: RowsToPack) -> Iterator[Row]:
        """From a new table with the values of the rows: a chunk is a range of its blocks, so nothing is sorted for it.

        Parallel workers compute and sort these values, as they do not for a cursor.  They would mix rows that keep
        their order; an INSERT gets none.
        """
        name = f"cerebro_rows_{token()}"
        copied, sorts = Name("pg_temp", name).sql, wanted if wanted.seed is not None else wanted.in_place
        rows = sorts or wanted
        values = sql("SELECT {chosen} FROM ({numbered}) AS q", chosen=rows.chosen, numbered=rows.numbered)
        make = sql(
            "CREATE TEMPORARY TABLE {copied} USING heap ON COMMIT DROP AS {values}", copied=copied, values=values
        )
        if sorts is None:
            db.text(sql("{make} WITH NO DATA", make=make))
            db.text(sql("INSERT INTO {copied} {values}", copied=copied, values=values))
        else:
            order = joined(", ", (sql("q.{name}", name=name) for name in rows.sorted_by))
            db.text(sql("{make} ORDER BY {order}", make=make, order=order))
        (found,) = db.text(
            sql(
                "SELECT pg_catalog.pg_relation_size({copied}::pg_catalog.regclass) OPERATOR(pg_catalog./)"
                " pg_catalog.current_setting('block_size')::pg_catalog.int8 AS blocks",
                copied=literal(f"pg_temp.{name}"),
            )
        )
        aggregates = wanted.aggregates(sql(""))
        for start in range(0, found["blocks"], BLOCKS_PER_CHUNK):
            (chunk,) = db.text(
                sql(
                    "SELECT {aggregates} FROM {copied} AS r"
                    " WHERE r.ctid OPERATOR(pg_catalog.>=) '({start},0)'::pg_catalog.tid"
                    " AND r.ctid OPERATOR(pg_catalog.<) '({end},0)'::pg_catalog.tid",
                    aggregates=aggregates,
                    copied=copied,
                    start=start,
                    end=start + BLOCKS_PER_CHUNK,
                )
            )
            yield chunk
        db.text(sql("DROP TABLE {copied}", copied=copied))

    @staticmethod
    def _reads_ranges(db: Database) -> bool:
        """Whether a temporary table can be made, and ranges of its blocks can be read without reading all."""
        return bool(
            db.value(
                sql(
                    "SELECT pg_catalog.current_setting('server_version_num')::integer OPERATOR(pg_catalog.>=) 140000"
                    " AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')"
                )
            )
        )

    def too_old(self, major_version: int) -> str | None:
        return f"PostgreSQL {OLDEST_VERSION} or later is needed." if major_version < OLDEST_VERSION else None
