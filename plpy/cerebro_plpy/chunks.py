"""How rows are gathered in SQL, so many at a time: their ids, and per input the bytes of their arrays.

PL/Python called per row would take most of the time of a prediction.  A chunk is what there is in memory, whatever the
size of the table.  There is no order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro_db.core.names import quote

from .db import Database
from .tables import Relation
from .variables import Variable

CHUNK_BYTES, CHUNK_ROWS = 8 << 20, 65536
FULLEST_BLOCK = 291  # rows that PostgreSQL can put into its 8 kB
LARGEST_CHUNK = 256 << 20  # bytes, of blocks that are so full


@dataclass(frozen=True)
class Source:
    """The rows to be read: where they are, how they are told apart, the inputs that their columns make."""

    table: Relation
    identity: str  # a column, quoted
    inputs: list[Variable]
    rows: int  # of the table, or so
    row_bytes: int

    @property
    def at_a_time(self) -> int:
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // self.row_bytes))

    def shares(self, db: Database, keys: Sequence[int]) -> list[str]:
        """Queries for the chunks of all rows, dealt over so many sessions: __dist_key__, rows, ids, variables."""
        if blocks := self._blocks(db):
            step = max(1, min(self._most_blocks, self.at_a_time * blocks // max(1, self.rows), blocks // len(keys)))
            starts = [blocks // step * part // len(keys) * step for part in range(len(keys))]
            # To the end as it is when the query begins: rows may have moved there.
            end = f"pg_catalog.pg_relation_size({self.table.oid}::oid) / current_setting('block_size')::bigint"
            stretches = zip(keys, starts, [*map(str, starts[1:]), end])
            return [self._in_blocks(key, start, until, step) for key, start, until in stretches]
        turn = f"abs(hashtext({self.identity}::text)::bigint) % {len(keys)}"
        return [self._in_turns(key, f"{turn} = {part}") for part, key in enumerate(keys)]

    def _blocks(self, db: Database) -> int:
        """How many the table has, if any range of them is quickly found: 0 with policies, which come before that, or
        with tables that inherit from it, which have blocks of their own."""
        if not self._most_blocks:
            return 0
        return int(
            db.value(
                "SELECT GREATEST(1, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint)"
                " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam"
                " WHERE c.oid = $1::oid AND c.relkind IN ('r', 'm') AND a.amname = 'heap'"
                " AND NOT c.relrowsecurity AND NOT c.relhassubclass"
                " AND current_setting('server_version_num')::integer >= 140000",
                ("bigint",),
                self.table.oid,
            )
            or 0
        )

    @property
    def _most_blocks(self) -> int:
        return LARGEST_CHUNK // (self.row_bytes * FULLEST_BLOCK)

    def _in_blocks(self, key: int, start: int, until: str, step: int) -> str:
        """A chunk is what is in so many blocks, however many rows that are."""
        return (
            f"SELECT {int(key)} AS __dist_key__, c.* FROM generate_series({start}, {until} - 1, {step}) AS b (block)"
            f" CROSS JOIN LATERAL (SELECT {gathered(f'{self.identity}::text', self._arrays({}))}"
            f" FROM {self.table.sql} AS s WHERE s.ctid >= pg_catalog.format('(%s,0)', b.block)::tid"
            f" AND s.ctid < pg_catalog.format('(%s,0)', b.block + {step})::tid) c WHERE c.rows > 0"
        )

    def _in_turns(self, key: int, condition: str) -> str:
        """A chunk is the next so many rows.  They are sorted as they come, which the planner cannot know, so that no
        chunk waits in memory for its end; what is sorted is as it is stored."""
        names = list({column.name: None for variable in self.inputs for column in variable.columns})
        alias = {name: f"c{place}" for place, name in enumerate(names)}
        stored = ", ".join(f"{quote(name)} AS {alias[name]}" for name in names)
        return (
            f"SELECT {int(key)} AS __dist_key__, {gathered('id', self._arrays(alias))}"
            f" FROM (SELECT {self.identity}::text AS id, {stored}, {self._turn('')} FROM {self.table.sql}"
            f" WHERE {condition} ORDER BY turn) r GROUP BY turn"
        )

    def _arrays(self, alias: dict[str, str]) -> list[str]:
        """Per input, its bytes; columns go by their names or by others."""
        arrays = [variable.array(lambda c: alias.get(c.name) or quote(c.name)) for variable in self.inputs]
        return [f"cerebro._array_bytes({array})" for array in arrays]

    def _turn(self, partition: str) -> str:
        return f"(row_number() OVER ({partition}) - 1) / {self.at_a_time} AS turn"

    # -- on Greenplum, where a session is handed only what its segment stores --------------------------------

    def dealt(self, table: str, keys: Sequence[int]) -> str:
        """Makes a table of the rows, dealt over the segments."""
        listed = ", ".join(str(int(key)) for key in keys)
        turn = f"1 + (abs(hashtext({self.identity}::text)::bigint) % {len(keys)})::integer"
        columns = ", ".join(f"{array} AS v{place}" for place, array in enumerate(self._arrays({})))
        return (
            f"CREATE TABLE {table} AS SELECT (ARRAY[{listed}])[{turn}] AS __dist_key__, {self.identity}::text AS id,"
            f" {columns} FROM {self.table.sql} DISTRIBUTED BY (__dist_key__)"
        )

    def share_of_dealt(self, table: str, key: int) -> str:
        """Partitioned, sorted and grouped by the key, so that all of it happens where the rows lie."""
        columns, turn = [f"v{place}" for place in range(len(self.inputs))], self._turn("PARTITION BY __dist_key__")
        return (
            f"SELECT __dist_key__, {gathered('id', columns)}"
            f" FROM (SELECT __dist_key__, id, {', '.join(columns)}, {turn} FROM {table}"
            f" WHERE __dist_key__ = {int(key)} ORDER BY __dist_key__, turn) r GROUP BY __dist_key__, turn"
        )


def gathered(identity: str, arrays: Sequence[str]) -> str:
    """All three in the same order: that in which the rows come."""
    variables = ", ".join(f"string_agg({array}, '')" for array in arrays)
    return f"count(*) AS rows, array_agg({identity}) AS ids, ARRAY[{variables}] AS variables"
