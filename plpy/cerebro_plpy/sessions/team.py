"""The worker sessions of a run, one per segment, and the orders that they pass on to their trainers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Optional, TypeVar

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.errors import GpuMissing, RowsLost, TrainerFailed
from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.protocol import Computation, Failure, Order, TrainerSettings, WorkerOpened
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import Sql, identifier, joined, sql

from .. import platform
from ..database import listening
from ..database.access import Database
from ..database.cancellation import Listen, listener
from ..database.polling import LISTEN_EVERY
from . import logins
from .failures import Refused, failure_of, session_was_lost
from .overlap import TaskQueue
from .session import BEGIN, COMMIT, ENDURE, ROLLBACK, Session, Statement, Work, leave, wait_any, worker_settings
from .team_options import TeamOptions

MOST_ENDED = 5  # sessions of one segment that are ended while they are opened
POLL_SECONDS = 0.1  # for which a session waits for its trainer when another task may want the session

A = TypeVar("A")
# The versions of a partition's rows, as the system columns show them; None: the table has no such columns.
Versions = Optional[list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Resident:
    """A model's state after a hop, in the memory of a trainer."""

    hop: int
    token: str
    trainer_pid: int


@dataclass
class Worker:
    """One segment of a run, as the driver sees it: its session, and what its trainer has in memory."""

    segment: int
    dist_key: int
    session: Session
    worker_pid: int  # the process that has the trainer: on Greenplum a segment's process, not the session's backend
    trainer_pid: int
    place: str = ""  # workers of the same place can take over each other's files; "": of none
    cached: dict[str, Versions] = field(default_factory=dict)  # handle -> the versions of the cached rows
    verified: set[str] = field(default_factory=set)  # handles whose versions this call has compared already
    resident: dict[int, Resident] = field(default_factory=dict)  # by model
    frozen: set[str] = field(default_factory=set)  # the checksums of the frozen parts that the session has as files
    tasks: TaskQueue = field(default_factory=TaskQueue)
    failing: set[int] = field(default_factory=set)  # models whose trainer died here since a unit last succeeded

    def forget(self) -> None:
        """A new trainer has nothing in memory."""
        self.cached.clear()
        self.verified.clear()
        self.resident.clear()
        self.frozen.clear()

    def still_resident(self, tokens: Sequence[str], trainer_pid: int) -> None:
        """A trainer has answered: of the states that it had in memory, only these are left."""
        gone = [m for m, one in self.resident.items() if one.trainer_pid == trainer_pid and one.token not in tokens]
        for model in gone:
            del self.resident[model]

    def reopened(self, opened: WorkerOpened) -> None:
        """The worker serves another call: its cached rows may still be of use, its models have other numbers."""
        if (self.worker_pid, self.trainer_pid) != (opened.worker_pid, opened.trainer_pid):
            self.forget()
        self.worker_pid, self.trainer_pid, self.place = opened.worker_pid, opened.trainer_pid, opened.place
        self.verified.clear()
        self.resident.clear()
        self.frozen.clear()
        self.failing.clear()


class Team:
    """The worker sessions of one call."""

    def __init__(
        self,
        db: Database,
        owner: logins.Owner,
        dist_keys: Sequence[int],
        options: TeamOptions,
        listen: Listen,
        run: int | None = None,
    ) -> None:
        """``run``: the run that the team works for, which the names of its sessions tell."""
        self.db = db
        self.run = run
        self.owner = owner
        self.dist_keys = list(dist_keys)
        self.options = options
        self.listen = listen
        self.platform = platform.of(db)
        self.workers: list[Worker] = []

    @classmethod
    def opened(cls, db: Database, dist_keys: Sequence[int], options: TeamOptions, listen: Listen | None = None) -> Team:
        """A team of the current user's with new sessions."""
        team = cls(db, logins.Owner.current(db), dist_keys, options, listen or listener(db.plpy))
        team.open()
        return team

    # -- sessions and trainers --------------------------------------------------------------------

    def open(self) -> None:
        """Open a session and start a trainer for every segment; the trainers start at the same time."""
        begun: dict[int, Session | None] = {}
        try:
            for segment in range(len(self.dist_keys)):
                begun[segment] = self._begun(segment)
            for segment, dist_key in enumerate(self.dist_keys):
                session, opened = self._open_in_time(segment, begun.pop(segment))
                self.workers.append(
                    Worker(segment, dist_key, session, opened.worker_pid, opened.trainer_pid, opened.place)
                )
        except BaseException:
            for left in begun.values():
                if left is not None:
                    left.close()
            self.close()
            raise

    def reopen(self) -> None:
        """Replace the sessions that a failure has closed."""
        if not self.workers:
            self.open()

    def _open_in_time(self, segment: int, begun: Session | None = None) -> tuple[Session, WorkerOpened]:
        """A Greenplum segment that lost a process answers again after a moment, so this tries for a while.

        A session that somebody ends while it is being opened is opened again, too.
        """
        deadline, ended = time.monotonic() + ENDURE, 0
        while True:
            try:
                return self._open(begun or self._asked(segment))
            except psycopg2.Error as error:
                begun = None
                ended += session_was_lost(error, self.platform) and not self.platform.lost_a_segment(error)
                again = ended < MOST_ENDED and session_was_lost(error, self.platform)
                if not again or time.monotonic() > deadline:
                    raise failure_of(f"segment {segment}", error, self.platform) from error
            time.sleep(LISTEN_EVERY)
            self.listen()

    def _open(self, session: Session) -> tuple[Session, WorkerOpened]:
        try:
            ((answer,),) = session.answer()
        except BaseException:
            session.close()
            raise
        return session, protocol.decode_opened(answer)

    def _begun(self, segment: int) -> Session | None:
        """A session whose trainer starts; None if that failed in a way in which it may succeed the next time."""
        with contextlib.suppress(psycopg2.Error):
            return self._asked(segment)
        return None

    def _asked(self, segment: int) -> Session:
        session = logins.session_of(self.owner, self.application(segment), self.listen)
        session.lasting = True
        try:
            session.configure(**worker_settings(self.commits_wait))
            session.send(self.open_trainer(segment))
        except BaseException:
            session.close()
            raise
        return session

    @property
    def commits_wait(self) -> bool:
        """Whether commits wait for the disk, if the server's setting says so."""
        return bool(self.options.synchronous_commit or not self.platform.loses_only_the_last_commits)

    def application(self, segment: int) -> str:
        return f"cerebro_db segment {segment}{'' if self.run is None else f' of run {self.run}'}"

    def trainer_settings(self, segment: int) -> TrainerSettings:
        return self.options.settings(segment)

    def open_trainer(self, segment: int) -> Statement:
        """Starts the segment's trainer if it has none; returns the process ids of worker and trainer."""
        where = self.platform.on_segment(self.dist_keys[segment])
        settings = protocol.encode_settings(self.trainer_settings(segment))
        return Statement(sql("SELECT cerebro_internal._worker_open({}) {where}", where=where), (settings,))

    def replace(self, worker: Worker) -> None:
        """Open a new session and trainer for a segment whose old ones are gone."""
        self._end([worker])
        worker.forget()
        worker.session, opened = self._open_in_time(worker.segment)
        worker.worker_pid, worker.trainer_pid, worker.place = opened.worker_pid, opened.trainer_pid, opened.place

    # -- orders -------------------------------------------------------------------------------------

    async def order(
        self, worker: Worker, order: Order[A], *, before: Sequence[Statement] = (), low_priority: bool = False
    ) -> A:
        """Give an order to a segment and its trainer; returns the answer, or raises Refused or GpuMissing.

        The statements ``before`` travel in the same message.
        """
        where = self.platform.on_segment(worker.dist_key)
        statement = Statement(sql("SELECT cerebro_internal._work({}) {where}", where=where), (protocol.to_json(order),))
        ((reply,),) = await Statement.joined([*before, statement], low_priority=low_priority)
        answer = protocol.reply_of(order, reply)
        if isinstance(answer, Failure):
            error = answer.error()
            if isinstance(error, RowsLost):
                worker.cached.clear()
                worker.verified.clear()
            raise error if isinstance(error, GpuMissing) else Refused(error)
        return answer

    async def order_and_share(self, worker: Worker, order: Computation[A], *, before: Sequence[Statement] = ()) -> A:
        """As ``order``, but other tasks may use the session while the trainer computes."""
        await self.order(worker, protocol.Begin(order), before=before)
        while True:
            collected = await self.order(worker, protocol.CollectResult(POLL_SECONDS), low_priority=True)
            answer = collected.answer_to(order)
            if answer is not None:
                return answer

    async def read(self, worker: Worker, data: DataSet, number: int) -> tuple[str, float]:
        """Make sure that the trainer has a partition's rows in its cache: (handle, seconds it took)."""
        partition = data.partitions[number]
        handle = f"{data.table}/{number}/{partition.sha256}"
        if handle in worker.verified:
            return handle, 0.0
        started = time.monotonic()
        versions = await self.versions(data.table, partition.key, data.layout.end)
        if versions is not None and worker.cached.get(handle) == versions:
            worker.verified.add(handle)
            return handle, time.monotonic() - started
        # Drop what a failed attempt may have left, and what earlier calls have cached.
        for stale in {handle, *worker.cached} - worker.verified:
            await self.order(worker, protocol.DropRows(stale))
            worker.cached.pop(stale, None)
        table, columns = Name.parse(data.table).sql, list(map(identifier, data.variables))
        calls = joined(", ", (sql("cerebro_internal._data_in({}, {}, {column})", column=column) for column in columns))
        temporary = Name(STATE_SCHEMA, f"part_{token()}").sql
        table, key, around = self.platform.bring_rows(table, columns, partition.key, worker.dist_key, temporary)
        rows = _buffers(table, key, data.layout.end)
        query = Statement(
            sql("SELECT {calls} FROM {rows}", calls=calls, rows=rows),
            [text for name in data.variables for text in (handle, name)],
        )
        if around is not None:
            before, after = map(Statement, around)
            query = Statement.joined([BEGIN, before, query, after, COMMIT])
        await query
        try:
            await self.order(worker, protocol.LoadRows(handle, data.for_trainer, partition.rows, partition.sha256))
        except Refused as refused:
            if isinstance(refused.error, (TrainerFailed, RowsLost)):
                raise
            raise refused.error from refused  # the rows are not those that were packed: no model's fault
        worker.cached[handle] = versions
        worker.verified.add(handle)
        return handle, time.monotonic() - started

    async def versions(self, packed: str, key: int, end: int) -> Versions:
        """The versions of a partition's rows as our user sees them now; equal versions have equal bytes."""
        heap = sql(
            "SELECT 1 FROM pg_catalog.pg_class t WHERE t.oid = pg_catalog.to_regclass({}) AND t.relkind IN ('r', 'p')"
            " AND pg_catalog.has_table_privilege(t.oid, 'SELECT')"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am a ON a.oid = c.relam"
            "  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid"
            "  WHERE (c.oid = t.oid OR i.inhparent = t.oid) AND a.amname <> 'heap')"
        )
        if not await Statement(heap, (packed,)):
            return None  # a view, or a kind of table that may lack the system columns, or our user may not read them
        rows = _buffers(Name.parse(packed).sql, key, end)
        return await Statement(sql("SELECT tableoid, ctid, xmin FROM {rows}", rows=rows))

    # -- all segments at once -----------------------------------------------------------------------

    def run_all(self, work: dict[int, Work[A]]) -> dict[int, A]:
        """Let several segments work at the same time and wait for all of them: segment -> result."""
        results: dict[int, A] = {}
        try:
            for segment, steps in work.items():
                self.workers[segment].session.begin(steps)
            while len(results) < len(work):
                pending = [segment for segment in work if segment not in results]
                wait_any([self.workers[segment].session for segment in pending], LISTEN_EVERY)
                self.listen()
                for segment in pending:
                    done, result = self.workers[segment].session.advance()
                    if done:
                        results[segment] = result
        except BaseException:
            self.abandon()
            raise
        return results

    # -- the end --------------------------------------------------------------------------------------

    @listening.paused()
    def abandon(self) -> None:
        """Cancel whatever the sessions do and close them: after a cancel or an error."""
        for worker in self.workers:
            worker.session.cancel()
        leave([worker.session for worker in self.workers])
        self.close()

    @listening.paused()
    def close(self) -> None:
        """End all sessions."""
        self._end(self.workers)
        self.workers.clear()

    def _end(self, workers: Sequence[Worker]) -> None:
        """Sessions that still answer first end their trainers and remove their files."""
        leaving = []
        for worker in workers:
            with contextlib.suppress(psycopg2.Error):
                if not worker.session.lost and worker.session.ready():
                    where = self.platform.on_segment(worker.dist_key)
                    close = Statement(sql("SELECT cerebro_internal._worker_close() {where}", where=where))
                    worker.session.send(Statement.joined([ROLLBACK, close]))
                    leaving.append(worker.session)
        leave(leaving)
        for worker in workers:
            with contextlib.suppress(psycopg2.Error):
                worker.session.close()


def _buffers(table: Sql, key: Sql | int, end: int) -> Sql:
    """The buffers of a partition that a layout has, in their order, as a query names them after FROM."""
    return sql(
        "{table} WHERE __dist_key__ = {key} AND buffer_id < {end} ORDER BY buffer_id", table=table, key=key, end=end
    )
