"""PostgreSQL: a segment is one list partition of the packed table, served by one worker session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cerebro_db.core.engines import gpu_of_each_segment
from cerebro_db.core.names import Name, token
from cerebro_db.core.sql import Sql, joined, sql

from ..database.access import Cursor, Database
from .base import LeftState, Platform, RowsToPack, StateRows
from .machine import cores, gpus
from .segments import ALL, MOST_SEGMENTS, DistributionRule

if TYPE_CHECKING:
    import psycopg2

OLDEST_VERSION = 13

# A segment's trainer takes seconds to start and builds every model anew, which so many rows hardly repay.
ROWS_PER_SEGMENT = 500


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

    def rows_to_pack(self, db: Database, wanted: RowsToPack) -> Cursor:
        seed = wanted.seed
        if seed is None:
            stored = joined(", ", wanted.stored)
            return db.cursor(
                sql(
                    "{chosen} (SELECT {stored} FROM {source} AS s) AS q",
                    chosen=wanted.chosen,
                    stored=stored,
                    source=wanted.source,
                )
            )
        if not wanted.costly or not self._may_use_workers(db):
            # What the table stores is sorted, so that large values stay where they are while rows are sorted.
            return db.cursor(
                sql(
                    "{chosen} ({numbered} ORDER BY {order}) AS q",
                    chosen=wanted.chosen,
                    numbered=wanted.numbered,
                    order=joined(", ", wanted.sorted_by),
                ),
                ("bigint",),
                seed,
            )
        # Parallel workers compute and sort the values of a new table; PostgreSQL gives a cursor's query no workers.
        copied = Name("pg_temp", f"cerebro_rows_{token()}").sql
        ordered = sql(
            "{chosen} ({numbered}) AS q ORDER BY {order}",
            chosen=wanted.chosen,
            numbered=wanted.numbered,
            order=joined(", ", (sql("q.{name}", name=name) for name in wanted.sorted_by)),
        )
        db.execute(
            sql("CREATE TEMPORARY TABLE {copied} ON COMMIT DROP AS {ordered}", copied=copied, ordered=ordered),
            ("bigint",),
            seed,
        )
        return db.cursor(sql("SELECT * FROM {copied}", copied=copied), drops=copied)

    @staticmethod
    def _may_use_workers(db: Database) -> bool:
        return bool(
            db.value(
                sql(
                    "SELECT pg_catalog.current_setting('max_parallel_workers_per_gather')::integer"
                    " OPERATOR(pg_catalog.>) 0"
                    " AND pg_catalog.current_setting('max_parallel_workers')::integer OPERATOR(pg_catalog.>) 0"
                    " AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')"
                )
            )
        )

    def too_old(self, major_version: int) -> str | None:
        return f"PostgreSQL {OLDEST_VERSION} or later is needed." if major_version < OLDEST_VERSION else None
