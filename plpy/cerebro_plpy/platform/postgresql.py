"""PostgreSQL: a segment is one list partition of the packed table, served by one worker session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cerebro_db.core.engines import gpu_of_each_segment
from cerebro_db.core.names import Name, quote, token

from ..database.access import Cursor, Database
from .base import Platform, RowsToPack
from .machine import cores, gpus
from .segments import ALL, KEY, MOST_SEGMENTS, Rule

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
    sets_role_at_login = False
    loses_only_the_last_commits = True

    def segments(self, db: Database, rule: Rule = ALL, rows: int | None = None) -> int:
        """One per GPU; without a GPU, one per processor; fewer for a table with few rows."""
        enough = MOST_SEGMENTS if rows is None else self.segments_that_pay(rows)
        return min(gpus() or cores(), enough, MOST_SEGMENTS)

    def segments_that_pay(self, rows: int) -> int:
        return max(1, rows // ROWS_PER_SEGMENT)

    def distribution_keys(self, db: Database, count: int, rule: Rule = ALL) -> list[int]:
        return list(range(count))

    def distribution_rule(self, db: Database, rules: str | None, module: str) -> Rule:
        if (rules or "all_segments").strip().lower() != "all_segments":
            db.notice("distribution_rules is ignored: buffers go to all segments; the argument segments says how many")
        return ALL

    def gpus_of_segments(self, db: Database, keys: Sequence[int]) -> list[int | None]:
        return gpu_of_each_segment(["here"] * len(keys), {"here": gpus()})

    def gpus_of_hosts(self, db: Database, texts: str) -> dict[str, list[str]]:
        return {"localhost": db.value(f"SELECT {texts}")}

    def require_own_session(self, db: Database, module: str) -> None:
        pass  # all processes can

    def lost_a_segment(self, error: psycopg2.Error) -> bool:
        return False

    def distributed_by(self, column: str) -> str:
        return ""

    def spread_packed_table(self) -> str:
        return f"PARTITION BY LIST ({quote(KEY)})"

    def make_packed_table(self, db: Database, name: Name, columns: list[tuple[str, str]], keys: list[int]) -> None:
        super().make_packed_table(db, name, columns, keys)
        for partition, key in zip(self.partitions(name, len(keys)), keys):
            db.execute(f"CREATE TABLE {partition.sql} PARTITION OF {name.sql} FOR VALUES IN ({int(key)})")

    def on_segment(self, dist_key: int) -> str:
        return ""

    def made_on_segment(self, function: str, dist_key: int) -> str:
        return f"SELECT {int(dist_key)} AS {KEY}, {function} AS made"

    def committed_later(self, statement: str) -> str:
        return f"BEGIN; SET LOCAL synchronous_commit = off; {statement}; COMMIT"

    def hop_state(self, table: str, hop: int, here: int, there: int) -> tuple[str | None, str]:
        return None, f"WHERE hop = {int(hop)}"

    def bring_rows(
        self, table: str, columns: Sequence[str], key: int, here: int, temporary: str
    ) -> tuple[str, str, int, str]:
        return "", table, key, ""

    def rows_to_pack(self, db: Database, wanted: RowsToPack) -> Cursor:
        seed = wanted.seed
        if seed is None:
            stored = ", ".join(wanted.stored)
            return db.cursor(f"{wanted.chosen} (SELECT {stored} FROM {wanted.source} AS s) AS q")
        if not wanted.costly or not self._may_use_workers(db):
            # What the table stores is sorted, so that large values stay where they are while rows are sorted.
            return db.cursor(f"{wanted.chosen} ({wanted.numbered} ORDER BY n) AS q", ("bigint",), seed)
        # Parallel workers compute and sort the values of a new table; PostgreSQL gives a cursor's query no workers.
        copied = f"pg_temp.cerebro_rows_{token()}"
        ordered = f"{wanted.chosen} ({wanted.numbered}) AS q ORDER BY q.n"
        db.execute(f"CREATE TEMPORARY TABLE {copied} ON COMMIT DROP AS {ordered}", ("bigint",), seed)
        return db.cursor(f"SELECT * FROM {copied}", drops=copied)

    @staticmethod
    def _may_use_workers(db: Database) -> bool:
        return bool(
            db.value(
                "SELECT pg_catalog.current_setting('max_parallel_workers_per_gather')::integer OPERATOR(pg_catalog.>) 0"
                " AND pg_catalog.current_setting('max_parallel_workers')::integer OPERATOR(pg_catalog.>) 0"
                " AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')"
            )
        )

    def too_old(self, major_version: int) -> str | None:
        return f"PostgreSQL {OLDEST_VERSION} or later is needed." if major_version < OLDEST_VERSION else None
