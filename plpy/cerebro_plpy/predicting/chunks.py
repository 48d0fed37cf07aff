"""Rows gathered in SQL, chunk by chunk: their ids, and for each input the bytes of their arrays.

A call of PL/Python per row would take most of the time of a prediction.  Memory holds one chunk at a time, whatever the
size of the table.  The rows of a chunk have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Part, Sql, identifier, joined, sql

from ..database.access import Database
from ..database.relations import Relation
from ..packing.rows.preparation import SourceVariable, expression
from ..platform import Platform

CHUNK_BYTES, CHUNK_ROWS = 8 << 20, 65536
FULLEST_BLOCK = 291  # the most rows that fit into a block of 8 kB
LARGEST_CHUNK = 256 << 20  # bytes, if every block is that full


@dataclass(frozen=True)
class Source:
    """The rows to predict: their table, their id, and the inputs that their columns make."""

    table: Relation
    identity: Sql  # the id column
    inputs: list[SourceVariable]
    count: Callable[[], int]  # the number of the rows; an error if one of them cannot be predicted
    row_bytes: int
    of_steps: bool = False  # the id is an array, with one for each step of a window

    @property
    def _id(self) -> Sql:
        return sql("{identity}::{kind}", identity=self.identity, kind=sql("text[]") if self.of_steps else sql("text"))

    @property
    def at_a_time(self) -> int:
        return at_a_time(self.row_bytes)

    def shares(self, db: Database, keys: Sequence[int], rows: int | None = None) -> list[Sql]:
        """One query per key: the chunks of its session's share (columns __dist_key__, rows, ids, variables).

        If the number of rows is not given, the server's estimate will do: it decides only how many rows a chunk has.
        """
        blocks, estimate = self._blocks(db)
        if blocks:
            found = (rows if rows is not None else estimate) or self.count()
            step = max(1, min(self._most_blocks, self.at_a_time * blocks // max(1, found), blocks // len(keys)))
            starts = [blocks // step * part // len(keys) * step for part in range(len(keys))]
            # The last stretch ends where the table ends when the query begins: rows may have moved there meanwhile.
            end = sql(
                "pg_catalog.pg_relation_size({oid}::oid) / current_setting('block_size')::bigint", oid=self.table.oid
            )
            ends: list[Part] = [*starts[1:], end]
            stretches = zip(keys, starts, ends)
            return [self._in_blocks(key, start, until, step) for key, start, until in stretches]
        turn = sql(
            "COALESCE(abs(hashtext({identity}::text)::bigint) % {shares}, 0)", identity=self.identity, shares=len(keys)
        )  # a NULL is refused there
        return [self._in_turns(key, sql("{turn} = {part}", turn=turn, part=part)) for part, key in enumerate(keys)]

    def _blocks(self, db: Database) -> tuple[int, int]:
        """The number of blocks of the table, and an estimate of its rows; 0: there is none.

        There are no blocks if its rows cannot be read by ranges of them: policies are evaluated before the range,
        tables that inherit from it have blocks of their own, and who may read some columns only may not read ctid.
        """
        found = self._most_blocks and db.one(
            sql(
                "SELECT b.blocks, CASE WHEN c.relpages > 0 THEN GREATEST(0, c.reltuples / c.relpages *"
                " b.blocks)::bigint"
                " ELSE 0 END AS rows"
                " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam CROSS JOIN LATERAL (SELECT"
                "  GREATEST(1, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint))"
                " AS b (blocks)"
                " WHERE c.oid = $1::oid AND c.relkind IN ('r', 'm') AND a.amname = 'heap'"
                " AND NOT c.relrowsecurity AND NOT c.relhassubclass"
                " AND pg_catalog.has_table_privilege(c.oid, 'SELECT')"
                " AND current_setting('server_version_num')::integer >= 140000"
            ),
            ("bigint",),
            self.table.oid,
        )
        return (int(found["blocks"]), int(found["rows"])) if found else (0, 0)

    @property
    def _most_blocks(self) -> int:
        return LARGEST_CHUNK // (self.row_bytes * FULLEST_BLOCK)

    def _in_blocks(self, key: int, start: int, until: Part, step: int) -> Sql:
        """A chunk is a number of blocks, however many rows they hold."""
        return sql(
            "SELECT {key} AS __dist_key__, c.* FROM generate_series({start}, {until} - 1, {step}) AS b (block)"
            " CROSS JOIN LATERAL (SELECT {gathered}"
            " FROM {table} AS s WHERE s.ctid >= pg_catalog.format('(%s,0)', b.block)::tid"
            " AND s.ctid < pg_catalog.format('(%s,0)', b.block + {step})::tid) c WHERE c.rows <> 0",
            key=key,
            start=start,
            until=until,
            step=step,
            gathered=gathered(self._id, self._arrays({})),
            table=self.table.sql,
        )

    def _in_turns(self, key: int, condition: Sql) -> Sql:
        """A chunk is a number of rows.

        The rows are sorted by the number of their chunk, so that no chunk waits in memory until it is complete.  They
        come in that order already, but the planner cannot know.  Columns are sorted as they are stored.
        """
        names = list({column.name: None for variable in self.inputs for column in variable.columns})
        alias = {name: sql("c{place}", place=place) for place, name in enumerate(names)}
        stored = joined(", ", (sql("{name} AS {alias}", name=identifier(name), alias=alias[name]) for name in names))
        return sql(
            "SELECT {key} AS __dist_key__, {gathered}"
            " FROM (SELECT {identity} AS id, {stored}, {turn}"
            " FROM {rows} AS s WHERE {condition} ORDER BY turn) r GROUP BY turn",
            key=key,
            gathered=gathered(sql("id"), self._arrays(alias)),
            identity=self._id,
            stored=stored,
            turn=self._turn(sql("")),
            rows=self.table.rows,
            condition=condition,
        )

    def _arrays(self, alias: dict[str, Sql]) -> list[Sql]:
        """The expression of each input; columns have other names than their own if there is an alias."""
        return [expression(variable, lambda c: alias.get(c.name) or identifier(c.name)) for variable in self.inputs]

    def _turn(self, partition: Sql) -> Sql:
        return sql(
            "(row_number() OVER ({partition}) - 1) / {at_a_time} AS turn", partition=partition, at_a_time=self.at_a_time
        )

    # -- where a function gets only rows that its segment stores ---------------------------------------------

    def copied(self, table: Sql, keys: Sequence[int], here: Platform) -> Sql:
        """A statement that copies the rows into a table, spread over the segments of the keys."""
        listed = joined(", ", keys)
        turn = sql(
            "1 + COALESCE(abs(hashtext({identity}::text)::bigint) % {shares}, 0)::integer",
            identity=self.identity,
            shares=len(keys),
        )
        columns = joined(
            ", ", (sql("{array} AS v{place}", array=array, place=place) for place, array in enumerate(self._arrays({})))
        )
        return sql(
            "CREATE TABLE {table} AS SELECT (ARRAY[{listed}])[{turn}] AS __dist_key__, {identity} AS id,"
            " {columns} FROM {rows} AS s {distributed_by}",
            table=table,
            listed=listed,
            turn=turn,
            identity=self._id,
            columns=columns,
            rows=self.table.rows,
            distributed_by=here.distributed_by("__dist_key__"),
        )

    def share_of_copy(self, table: Sql, key: int) -> Sql:
        """The chunks of one key.  The query partitions, sorts and groups by the key, so it runs where the rows lie."""
        columns = [sql("v{place}", place=place) for place in range(len(self.inputs))]
        turn = self._turn(sql("PARTITION BY __dist_key__"))
        return sql(
            "SELECT __dist_key__, {gathered}"
            " FROM (SELECT __dist_key__, id, {columns}, {turn} FROM {table}"
            " WHERE __dist_key__ = {key} ORDER BY __dist_key__, turn) r GROUP BY __dist_key__, turn",
            gathered=gathered(sql("id"), columns),
            columns=joined(", ", columns),
            turn=turn,
            table=table,
            key=key,
        )


def bytes_per_row(layout: Layout) -> int:
    """An estimate for all inputs and outputs of a row, with headers and id."""
    return sum(64 + 8 * variable.elements for variable in (*layout.inputs, *layout.outputs))


def at_a_time(row_bytes: int) -> int:
    """The rows of a chunk."""
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))


def gathered(identity: Sql, arrays: Sequence[Sql]) -> Sql:
    """The aggregates of a chunk.  All have the rows in the same order, in which the rows come.

    A chunk with a row that has no id has -1 rows, which cannot be predicted.
    """
    return sql(
        "CASE count({identity}) WHEN count(*) THEN count(*) ELSE -1 END AS rows, array_agg({identity}) AS ids,"
        " {arrays}",
        identity=identity,
        arrays=gathered_arrays(arrays),
    )


def gathered_arrays(arrays: Sequence[Sql]) -> Sql:
    variables = joined(", ", (sql("string_agg({array}, '')", array=array) for array in arrays))
    return sql("ARRAY[{variables}] AS variables", variables=variables)
