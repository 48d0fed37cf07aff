"""Rows gathered in SQL, chunk by chunk: their ids, and for each input the bytes of their arrays.

A call of PL/Python per row would take most of the time of a prediction.  Memory holds one chunk at a time, whatever the
size of the table.  The rows of a chunk have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from cerebro_db.core.names import quote
from cerebro_db.core.records import dataclass

from ..data.preparation import SourceVariable, expression
from ..database.access import Database
from ..database.relations import Relation
from ..platform import Platform

CHUNK_BYTES, CHUNK_ROWS = 8 << 20, 65536
FULLEST_BLOCK = 291  # the most rows that fit into a block of 8 kB
LARGEST_CHUNK = 256 << 20  # bytes, if every block is that full


@dataclass(frozen=True)
class Source:
    """The rows to predict: their table, their id, and the inputs that their columns make."""

    table: Relation
    identity: str  # the id column, quoted
    inputs: list[SourceVariable]
    count: Callable[[], int]  # the number of the rows; an error if one of them cannot be predicted
    row_bytes: int

    @property
    def at_a_time(self) -> int:
        return at_a_time(self.row_bytes)

    def shares(self, db: Database, keys: Sequence[int], rows: int | None = None) -> list[str]:
        """One query per key: the chunks of its session's share (columns __dist_key__, rows, ids, variables).

        If the number of rows is not given, the server's estimate will do: it decides only how many rows a chunk has.
        """
        blocks, estimate = self._blocks(db)
        if blocks:
            found = (rows if rows is not None else estimate) or self.count()
            step = max(1, min(self._most_blocks, self.at_a_time * blocks // max(1, found), blocks // len(keys)))
            starts = [blocks // step * part // len(keys) * step for part in range(len(keys))]
            # The last stretch ends where the table ends when the query begins: rows may have moved there meanwhile.
            end = f"pg_catalog.pg_relation_size({self.table.oid}::oid) / current_setting('block_size')::bigint"
            stretches = zip(keys, starts, [*map(str, starts[1:]), end])
            return [self._in_blocks(key, start, until, step) for key, start, until in stretches]
        turn = f"COALESCE(abs(hashtext({self.identity}::text)::bigint) % {len(keys)}, 0)"  # a NULL is refused there
        return [self._in_turns(key, f"{turn} = {part}") for part, key in enumerate(keys)]

    def _blocks(self, db: Database) -> tuple[int, int]:
        """The number of blocks of the table, and an estimate of its rows; 0: there is none.

        There are no blocks if its rows cannot be read by ranges of them: policies are evaluated before the range, and
        tables that inherit from it have blocks of their own.
        """
        found = self._most_blocks and db.one(
            "SELECT b.blocks, CASE WHEN c.relpages > 0 THEN GREATEST(0, c.reltuples / c.relpages * b.blocks)::bigint"
            " ELSE 0 END AS rows"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam CROSS JOIN LATERAL (SELECT"
            "  GREATEST(1, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint)) AS b (blocks)"
            " WHERE c.oid = $1::oid AND c.relkind IN ('r', 'm') AND a.amname = 'heap'"
            " AND NOT c.relrowsecurity AND NOT c.relhassubclass"
            " AND current_setting('server_version_num')::integer >= 140000",
            ("bigint",),
            self.table.oid,
        )
        return (int(found["blocks"]), int(found["rows"])) if found else (0, 0)

    @property
    def _most_blocks(self) -> int:
        return LARGEST_CHUNK // (self.row_bytes * FULLEST_BLOCK)

    def _in_blocks(self, key: int, start: int, until: str, step: int) -> str:
        """A chunk is a number of blocks, however many rows they hold."""
        return (
            f"SELECT {int(key)} AS __dist_key__, c.* FROM generate_series({start}, {until} - 1, {step}) AS b (block)"
            f" CROSS JOIN LATERAL (SELECT {gathered(f'{self.identity}::text', self._arrays({}))}"
            f" FROM {self.table.sql} AS s WHERE s.ctid >= pg_catalog.format('(%s,0)', b.block)::tid"
            f" AND s.ctid < pg_catalog.format('(%s,0)', b.block + {step})::tid) c WHERE c.rows <> 0"
        )

    def _in_turns(self, key: int, condition: str) -> str:
        """A chunk is a number of rows.

        The rows are sorted by the number of their chunk, so that no chunk waits in memory until it is complete.  They
        come in that order already, but the planner cannot know.  Columns are sorted as they are stored.
        """
        names = list({column.name: None for variable in self.inputs for column in variable.columns})
        alias = {name: f"c{place}" for place, name in enumerate(names)}
        stored = ", ".join(f"{quote(name)} AS {alias[name]}" for name in names)
        return (
            f"SELECT {int(key)} AS __dist_key__, {gathered('id', self._arrays(alias))}"
            f" FROM (SELECT {self.identity}::text AS id, {stored}, {self._turn('')}"
            f" FROM {self.table.rows} AS s WHERE {condition} ORDER BY turn) r GROUP BY turn"
        )

    def _arrays(self, alias: dict[str, str]) -> list[str]:
        """The expression of each input; columns have other names than their own if there is an alias."""
        return [expression(variable, lambda c: alias.get(c.name) or quote(c.name)) for variable in self.inputs]

    def _turn(self, partition: str) -> str:
        return f"(row_number() OVER ({partition}) - 1) / {self.at_a_time} AS turn"

    # -- where a function gets only rows that its segment stores ---------------------------------------------

    def copied(self, table: str, keys: Sequence[int], here: Platform) -> str:
        """A statement that copies the rows into a table, spread over the segments of the keys."""
        listed = ", ".join(str(int(key)) for key in keys)
        turn = f"1 + COALESCE(abs(hashtext({self.identity}::text)::bigint) % {len(keys)}, 0)::integer"
        columns = ", ".join(f"{array} AS v{place}" for place, array in enumerate(self._arrays({})))
        return (
            f"CREATE TABLE {table} AS SELECT (ARRAY[{listed}])[{turn}] AS __dist_key__, {self.identity}::text AS id,"
            f" {columns} FROM {self.table.rows} AS s {here.distributed_by('__dist_key__')}"
        )

    def share_of_copy(self, table: str, key: int) -> str:
        """The chunks of one key.  The query partitions, sorts and groups by the key, so it runs where the rows lie."""
        columns, turn = [f"v{place}" for place in range(len(self.inputs))], self._turn("PARTITION BY __dist_key__")
        return (
            f"SELECT __dist_key__, {gathered('id', columns)}"
            f" FROM (SELECT __dist_key__, id, {', '.join(columns)}, {turn} FROM {table}"
            f" WHERE __dist_key__ = {int(key)} ORDER BY __dist_key__, turn) r GROUP BY __dist_key__, turn"
        )


def at_a_time(row_bytes: int) -> int:
    """The rows of a chunk."""
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))


def gathered(identity: str, arrays: Sequence[str]) -> str:
    """The aggregates of a chunk.  All have the rows in the same order, in which the rows come.

    A chunk with a row that has no id has -1 rows, which cannot be predicted.
    """
    variables = ", ".join(f"string_agg({array}, '')" for array in arrays)
    rows = f"CASE count({identity}) WHEN count(*) THEN count(*) ELSE -1 END"
    return f"{rows} AS rows, array_agg({identity}) AS ids, ARRAY[{variables}] AS variables"
