"""What every platform must be able to do.  Each difference between PostgreSQL and Greenplum is a member of Platform."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cerebro_db.core.errors import LimitExceeded
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted

from ..database.access import Database, Row
from ..database.relations import PLACE
from .segments import ALL, DistributionRule

if TYPE_CHECKING:
    import psycopg2


@dataclass(frozen=True)
class Pieces:
    """The pieces of groups by which rows are sorted first."""

    group: Sql  # an expression over ``s`` that gives a number per row, as ``g``
    piece: Sql  # an expression over ``g`` and ``n`` that gives the number of the row's piece, as ``p``


@dataclass(frozen=True)
class RowsToPack:
    """What packing reads of the rows, and how they are gathered in chunks.

    Without a seed, rows keep the order in which the source gives them, on platforms where rows have an order.
    """

    source: Sql  # what a query names after FROM
    placed: Sql | None  # the same with the column PLACE, by which rows can be sorted to keep their order
    stored: Sequence[Sql]  # the columns to read, as ``s.column AS c0``
    values: Sequence[Sql]  # expressions over them, as ``q.c0 AS v0``
    gathered: Callable[[Sql], Sequence[Sql]]  # aggregates over ``r.v0``; the Sql stands within each for its order
    order: Sql  # an expression over ``s`` that gives a number per row
    seed: int | None
    chunk: int  # rows, roughly
    are_many: bool  # storing the values of the rows for a moment pays
    rows: int  # about so many there are
    differ: bool  # no two rows have the same number
    pieces: Pieces | None = None

    @property
    def chosen(self) -> Sql:
        values = [*self.values, *([sql("q.p AS p")] if self.pieces else [])]
        return joined(", ", values)

    @property
    def in_place(self) -> RowsToPack | None:
        """The same rows in the order that they have, if they can be sorted by it; they have no groups."""
        if self.placed is None or self.pieces is not None:
            return None
        return replace(self, source=self.placed, order=sql("s.{place}", place=identifier(PLACE)))

    @property
    def numbered(self) -> Sql:
        """The query of the stored columns, with the number as ``n``, and with groups the row's piece as ``p``."""
        group = sql(", {group} AS g", group=self.pieces.group) if self.pieces else sql("")
        rows = sql(
            "SELECT {stored}, {order} AS n{group} FROM {source} AS s",
            stored=joined(", ", self.stored),
            order=self.order,
            group=group,
            source=self.source,
        )
        if self.pieces is None:
            return rows
        names = joined(", ", (sql("c{place}", place=place) for place in range(len(self.stored))))
        return sql(
            "SELECT {names}, n, {piece} AS p FROM ({rows}) AS r", names=names, piece=self.pieces.piece, rows=rows
        )

    @property
    def sorted_by(self) -> Sequence[Sql]:
        """The columns of ``numbered`` by which rows are sorted."""
        return [*([sql("p")] if self.pieces else []), sql("n")]

    def aggregates(self, order: Sql) -> Sql:
        """The columns of a chunk: ``rows``, those of ``gathered``, and ``p``, the pieces of its rows.

        ``order``: what an aggregate's arguments are ordered by, unless they come in order.
        """
        pieces = sql("cerebro_internal._array_bytes(pg_catalog.array_agg(r.p{order})) AS p", order=order)
        return joined(", ", [sql("count(*) AS rows"), *self.gathered(order), *([pieces] if self.pieces else [])])

    def by_numbers(self) -> Sql:
        """As ``in_chunks``, of rows that differ, sorted once: a chunk is a range of their numbers, which are hashes."""
        bits = max(1, (self.rows // self.chunk).bit_length())
        by = [*([sql("p")] if self.pieces else []), sql("turn")]
        return sql(
            "SELECT {aggregates} FROM (SELECT {chosen}, q.turn FROM (SELECT b.*, b.n >> {shift} AS turn"
            " FROM ({numbered}) AS b) AS q ORDER BY {sorted}, q.n) AS r GROUP BY {groups} ORDER BY {groups}",
            aggregates=self.aggregates(sql("")),
            chosen=self.chosen,
            shift=64 - bits,
            numbered=self.numbered,
            sorted=joined(", ", (sql("q.{name}", name=name) for name in by)),
            groups=joined(", ", (sql("r.{name}", name=name) for name in by)),
        )

    def in_chunks(self, *, sort: bool, order: Sql) -> Sql:
        """A query of the chunks, each with its number as ``turn``.

        What the table stores is sorted, so that large values stay where they are while rows are sorted.
        """
        by = sql("ORDER BY {by}", by=joined(", ", self.sorted_by)) if sort else sql("")
        return sql(
            "SELECT r.turn, {aggregates} FROM (SELECT {chosen}, q.turn, q.place FROM (SELECT t.*,"
            " (t.place - 1) / {chunk} AS turn FROM (SELECT b.*, row_number() OVER ({by}) AS place"
            " FROM ({numbered}) AS b) AS t) AS q ORDER BY q.turn, q.place) AS r GROUP BY r.turn ORDER BY r.turn",
            aggregates=self.aggregates(order),
            chosen=self.chosen,
            chunk=self.chunk,
            by=by,
            numbered=self.numbered,
        )


@dataclass(frozen=True)
class StatementLimit:
    """How many statements a user may run at a time.  Any more wait in a queue until another one ends."""

    statements: int
    who: str  # what sets the limit
    advice: str

    def require(self, statements: int, why: str) -> None:
        """Refuse what could only wait for itself: it needs so many statements at the same time."""
        if self.statements < statements:
            raise LimitExceeded(
                f"{self.who} lets {counted(self.statements, 'statement')} run at a time, and this needs"
                f" {statements}: {why}",
                hint=self.advice,
            )

    def found(self, segments: int) -> str:
        """The limit beside what a run on so many segments needs; a sentence for people."""
        return (
            f"{self.who} lets {self.statements} statements run at a time; a run on {counted(segments, 'segment')}"
            f" uses up to {needed(segments)}{self.effect(segments)}"
        )

    def effect(self, segments: int) -> str:
        if self.statements < FEWEST:
            return f" and at least {FEWEST}"
        if self.short_for(segments):
            return f", so {counted(self.working, 'segment')} will work at a time"
        return ""

    def short_for(self, segments: int) -> bool:
        return self.statements < needed(segments)

    @property
    def slots(self) -> int:
        """The statements that the sessions of a call may run at a time, beside the caller's own."""
        return max(1, self.statements - 1)

    @property
    def working(self) -> int:
        """The segments that may work at a time; one statement is left to the run's record where that is possible."""
        return max(1, self.slots - 1)


FEWEST = 2  # statements: the caller's own, and one after the other those of its sessions


def needed(segments: int) -> int:
    """The statements that a run has under way at the same time: one per segment, the caller's and that of the log."""
    return segments + 2


@dataclass(frozen=True)
class LeftState:
    """A state that a visit has left: its place in the order, and whose it is."""

    index: int
    model: int
    hop: int


@dataclass(frozen=True)
class StateRows:
    """The rows of states: in which tables they may be, into which one copies go, and which rows they are."""

    tables: Sequence[Sql]
    into: Sql
    columns: Sql  # after __dist_key__
    which: Sql  # a condition


class Platform(abc.ABC):
    """PostgreSQL or Greenplum, as ``platform.of(db)`` tells.  Platforms have no state; methods get what they need."""

    # Functions called by a query over a table run in the session that sent the query, and can therefore be given any
    # row that the session sees.  Otherwise they run on the segments, and get only the rows stored there.
    runs_functions_in_session: bool
    # A cancel ends a statement that PL/Python runs.  Otherwise those that may take long go through Database.perform.
    cancels_statements: bool
    # What PL/Python has written cannot be lost by what other sessions do. Each of its statements is a subtransaction.
    subtransactions_are_safe: bool
    # Worker sessions may stay open for the next call.
    keeps_teams: bool
    # A function that polls for a long time must poll through a session of its own, because the caller's session would
    # not survive the loss of a segment.
    waits_in_own_session: bool
    # A message may have statements before BEGIN and after COMMIT.
    transactions_share_messages: bool
    # A worker role acts for its user from the moment of its login, on the segments, too.  Otherwise SET ROLE is enough.
    sets_role_at_login: bool
    # A crash of the server that loses a commit loses all commits after it, too: there is one write-ahead log.
    # Under this setting the commit of a small transaction does not wait for the disk; None: there is no such setting.
    commits_later: Sql | None
    loses_only_the_last_commits: bool
    # Packing may copy the rows first.  Otherwise the order of the rows would be another one in the copy.
    copies_rows_to_pack: bool
    # What makes a query call its function once on each server that has segments.
    on_every_server: Sql = sql("")
    # Settings that the doctor shows only on this platform, each with a note.  Every value is fine.
    shown_settings: Sequence[tuple[str, str]] = ()
    priority_setting: str | None = None  # lowers the priority of segments' processes, and so of trainers

    # -- segments ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def segments(self, db: Database, rule: DistributionRule = ALL, rows: int | None = None) -> int:
        """The number of segments for a table (with so many rows) whose user asks for no number."""

    def segments_that_pay(self, rows: int) -> int | None:
        """Above this number, more segments make training such a table slower; None where users choose no number."""
        return None

    @abc.abstractmethod
    def distribution_keys(self, db: Database, count: int, rule: DistributionRule = ALL) -> list[int]:
        """One value of __dist_key__ per segment; rows with that value are stored on that segment."""

    @abc.abstractmethod
    def distribution_rule(self, db: Database, rules: str | None) -> DistributionRule:
        """The rule that the argument distribution_rules asks for."""

    @abc.abstractmethod
    def gpus_of_segments(self, db: Database, keys: Sequence[int]) -> list[int | None]:
        """The GPU of each segment; None for a segment whose host has none."""

    @abc.abstractmethod
    def gpus_of_hosts(self, db: Database, texts: Sql) -> dict[str, list[str]]:
        """Host to the descriptions of its GPUs; ``texts`` is the SQL call that describes those of one host."""

    def queue_limit(self, queue: str | None, statements: int) -> StatementLimit | None:
        """The limit of a resource queue; None without a queue."""
        return None

    @abc.abstractmethod
    def require_own_session(self, db: Database) -> None:
        """Refuse to go on in a process that cannot run queries."""

    @abc.abstractmethod
    def lost_a_segment(self, error: psycopg2.Error) -> bool:
        """Whether a statement failed because a segment's process is gone; the segment is usually back in a moment."""

    def begin_call(self, called: str, instead: str) -> Sql:
        """How the body of a user's function begins that calls ours: a statement that refuses queries it cannot bear.

        ``instead``: what its caller can do then.
        """
        return sql("")

    # -- tables --------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def distributed_by(self, column: str | None) -> Sql:
        """The clause at the end of CREATE TABLE that distributes rows by a column; may be empty.  None: at random."""

    @abc.abstractmethod
    def distribute(self, db: Database, name: Name, column: str) -> None:
        """Distribute the rows of a table anew, by this column."""

    def make_packed_table(self, db: Database, name: Name, columns: list[tuple[str, str]], keys: list[int]) -> None:
        """Create the table of buffers, its rows on the segments of ``keys``; columns are (name, type)."""
        body = joined(
            ", ",
            [
                sql("__dist_key__ integer NOT NULL"),
                *(
                    sql("{column} {kind}", column=identifier(column), kind=SqlType(kind).sql)
                    for column, kind in columns
                ),
            ],
        )
        db.execute(
            sql(
                "CREATE TABLE {name} ({body}) {spread}",
                name=name.sql,
                body=body,
                spread=self.spread_packed_table(),
            )
        )
        # Buffers hardly compress.  Stored out of line and uncompressed they are read by a plain copy.
        external = [
            sql("ALTER COLUMN {column} SET STORAGE EXTERNAL", column=identifier(column))
            for column, kind in columns
            if kind == "bytea"
        ]
        db.execute(sql("ALTER TABLE {name} {external}", name=name.sql, external=joined(", ", external)))

    @abc.abstractmethod
    def spread_packed_table(self) -> Sql:
        """The clause at the end of CREATE TABLE that spreads a packed table over its segments."""

    def partitions(self, name: Name, segments: int) -> list[Name]:
        """The names of a packed table's partitions.  They must be free on every platform, so that a dump can move."""
        return [name.suffixed(f"_seg{segment}") for segment in range(segments)]

    # -- a hop ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def on_segment(self, dist_key: int) -> Sql:
        """The FROM clause that runs the functions of a SELECT on one segment, in its writer process; may be empty."""

    @abc.abstractmethod
    def made_on_segment(self, function: Sql, dist_key: int) -> Sql:
        """A query for the rows of a set-returning function on one segment: columns __dist_key__ and made."""

    @abc.abstractmethod
    def states_made(self, visit: int, states: Sequence[LeftState], dist_key: int) -> list[Sql]:
        """Queries for the rows of states that a visit has left: columns __dist_key__, model, hop and made."""

    @abc.abstractmethod
    def hop_states(self, rows: StateRows, here: int, there: int) -> tuple[list[Sql], Sql]:
        """How the segment of key ``here`` reads states that were stored on the segment of key ``there``.

        First the statements that copy the states' rows to this segment, if copies are needed, then the condition for
        reading the rows from their tables.
        """

    @abc.abstractmethod
    def frozen_rows(self, table: Sql, here: int, one_copy: Sql) -> tuple[list[Sql], Sql]:
        """As ``hop_states``, for the table of a frozen part.  Copies stay, so they are made once.

        ``one_copy``: the condition for the rows of one copy.
        """

    @abc.abstractmethod
    def bring_rows(
        self, table: Sql, columns: Sequence[Sql], key: int, here: int, temporary: Sql
    ) -> tuple[Sql, int, tuple[Sql, Sql] | None]:
        """How the segment of key ``here`` reads the packed rows of key ``key``: (table, key, around).

        The SELECT reads the returned table with the returned key.  ``around``: the statements before and after it, in
        one transaction with it.  ``temporary`` is the name of no table.
        """

    # -- rows in an order ----------------------------------------------------------------------------------

    @abc.abstractmethod
    def rows_to_pack(self, db: Database, wanted: RowsToPack) -> Iterator[Row]:
        """The rows in packing order, in chunks: ``wanted.aggregates`` of each."""

    # -- limits of the server's own ------------------------------------------------------------------------

    def statement_limit(self, db: Database) -> StatementLimit | None:
        """The limit on statements that the current user's sessions may run at the same time; None: no limit."""
        return None

    def queues_statements(self, db: Database) -> bool:
        """Whether statements may wait in a queue before they run."""
        return False

    # -- the doctor ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def too_old(self, major_version: int) -> str | None:
        """What to do if PostgreSQL of this major version is too old; None if it will do."""
