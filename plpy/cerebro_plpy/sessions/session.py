"""One connection that the server holds to itself, driven without ever ignoring a cancel.

A Python function inside a server notices a cancel only where it listens.  So every wait in here is short, and
``listen`` is called between two waits: there Ctrl-C, ``pg_cancel_backend`` and ``statement_timeout`` take effect.

Work for a session is a coroutine that awaits ``Statement`` objects.  The driver advances the coroutines of all sessions
from one loop, so all segments work at the same time and no thread is needed.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Callable, TypeVar

import psycopg2
from psycopg2 import extensions

from cerebro_db.core.protocol import Progress, progress_in
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, in_psycopg2, joined, sql

from ..database import listening
from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY, wait_for
from .statement_slots import StatementSlots

Rows = list[tuple[Any, ...]]
T = TypeVar("T")

ENDURE = 60.0  # seconds for which a statement is repeated after an error that passes
CONNECT_WITHIN = 20.0  # seconds
LEAVE_WITHIN = 3.0  # seconds that cancelled sessions get to end their statements
UNLIMITED = StatementSlots()


@dataclass(frozen=True)
class Statement:
    """Awaited by a piece of work: the session runs it and sends the rows back.

    Each ``{}`` in the SQL is the place of a parameter.
    """

    sql: Sql
    parameters: Sequence[Any] | None = None
    low_priority: bool = False  # a poll: every other statement for the session goes first
    bounds: bool = False  # it begins or ends a transaction
    answers: bool | None = None  # whether it returns rows; None: if it is a query
    joins: tuple[Statement, ...] = ()  # the statements that it was joined from

    def __await__(self) -> Generator[Statement, Rows, Rows]:
        return (yield self)

    @classmethod
    def joined(cls, statements: Sequence[Statement], *, low_priority: bool = False) -> Statement:
        """Several statements in one message: one round trip, and the rows of the last one."""
        if len(statements) == 1 and not low_priority:
            return statements[0]
        parts = tuple(part for one in statements for part in one.parts)
        parameters = [value for one in parts for value in one.parameters or ()]
        return cls(joined("; ", [one.sql for one in parts]), parameters or None, low_priority, joins=parts)

    @property
    def parts(self) -> tuple[Statement, ...]:
        """The statements of the message, one by one."""
        return self.joins or (self,)


BEGIN = Statement(sql("BEGIN"), bounds=True)
COMMIT = Statement(sql("COMMIT"), bounds=True)
ROLLBACK = Statement(sql("ROLLBACK"), bounds=True)


Work = Coroutine[Any, Rows, T]


class Session:
    """A connection of the server to itself, with at most one piece of work under way."""

    own = False  # whether it is the caller's own session instead, whose transaction nothing ends

    def __init__(self, connection: Any, listen: Listen) -> None:
        self.connection = connection
        self.role = ""  # which logged in, if it is not the caller's own session
        self.owner: Any = None  # the user for whom it did (logins.Owner)
        self.listen = listen
        self.cursor: Any = None
        self.work: Work[Any] | None = None
        self.progress: Progress | None = None  # what the segment's trainer reported last
        self.hear: Callable[[str], None] = lambda message: None  # gets the messages of the server, such as notices
        # Whether a statement is repeated after this error.
        self.endures: Callable[[psycopg2.Error], bool] = lambda error: False
        self.segments_lost = False  # whether it has endured the loss of a segment
        self.another: Callable[[Listen], Session] | None = None  # opens a session like this one
        self.slots = UNLIMITED
        self.lasting = False  # whether its statements may take minutes
        self._kept_back: Statement | None = None  # until a slot is free
        self._failure: psycopg2.Error | None = None  # of a statement that ended while another session was waited for

    @classmethod
    def open(cls, listen: Listen, **parameters: Any) -> Session:
        session = cls(psycopg2.connect(async_=1, **parameters), listen)
        session.role = parameters["user"]
        deadline = time.monotonic() + CONNECT_WITHIN
        while not session.ready():
            if time.monotonic() > deadline:
                session.close()
                raise psycopg2.OperationalError(f"no answer within {CONNECT_WITHIN:.0f} s")
            session._pause(LISTEN_EVERY)
        return session

    # -- one statement, and wait for it ------------------------------------------------------------

    def run(self, statement: Sql, parameters: Sequence[Any] | None = None) -> Rows:
        return self.run_statement(Statement(statement, parameters))

    def run_statement(self, statement: Statement) -> Rows:
        self.finish()
        deadline = time.monotonic() + ENDURE
        while True:
            try:
                self.send(statement)
                return self.answer()
            except psycopg2.Error as error:
                if not self.endures(error) or self.in_transaction or time.monotonic() > deadline:
                    raise
            time.sleep(LISTEN_EVERY)
            self.listen()

    def answer(self) -> Rows:
        """Wait for the rows of the statement that was sent."""
        while not self.ready():
            self._pause(LISTEN_EVERY)
        return self.rows()

    def configure(self, **settings: str) -> None:
        """Change settings for the rest of the session; settings that this server does not have are left out."""
        self.run_statement(configured(**settings))

    def outlive(self) -> None:
        """Let what is sent from now on go on when this client is gone.

        A session goes on without a client as long as it has nothing to send.  This one is told to send no messages, so
        it has nothing to send before its transaction ends; then it finds that the client is gone, and ends.
        """
        self.configure(client_connection_check_interval="0", statement_timeout="0", lock_timeout="0")
        self.run(sql("SET client_min_messages = error"))

    def ends_within(self, seconds: float) -> bool:
        """Whether the statement under way has ended after so many seconds; raises its error."""
        deadline = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() > deadline:
                return False
            self._pause(LISTEN_EVERY)
        return True

    def _pause(self, seconds: float) -> None:
        wait_any([self], seconds)
        self.listen()

    # -- a piece of work, step by step, while other sessions work too -------------------------------

    def begin(self, work: Work[Any]) -> None:
        self.work = work
        self.progress = None
        self.send(work.send(None))  # type: ignore[arg-type]  # a coroutine is started with None

    def advance(self) -> tuple[bool, Any]:
        """Take the work as far as it goes without waiting: (finished, its result)."""
        while self.ready():
            assert self.work is not None
            try:
                statement = self.work.send(self.rows())
            except StopIteration as end:
                self.work = None
                return True, end.value
            self.send(statement)
        return False, None

    def finish(self) -> None:
        """Wait for the end of the work under way, if there is any."""
        while not self.attend():
            self._pause(LISTEN_EVERY)

    def attend(self) -> bool:
        """Advance work that is repeated later anyway.  True if it is over, even by an error that passes."""
        try:
            return self.work is None or self.advance()[0]
        except psycopg2.Error as error:
            self.work = None
            if not self.endures(error):
                raise
            return True

    # -- the wire ---------------------------------------------------------------------------------

    def send(self, statement: Statement) -> None:
        """Send a statement, or keep it back until the session gets a slot."""
        self._kept_back = statement
        if self.slots.take(self):
            try:
                self._send(statement)
            except psycopg2.Error:
                self.slots.leave(self)
                raise

    def send_kept_back(self) -> None:
        try:
            assert self._kept_back is not None
            self._send(self._kept_back)
        except psycopg2.Error as error:
            self._failure = error

    def _send(self, statement: Statement) -> None:
        self._kept_back = None
        self.cursor = self.connection.cursor()
        self.cursor.execute(in_psycopg2(statement.sql, statement.parameters), statement.parameters)

    def ready(self) -> bool:
        """Whether the statement under way has ended; raises its error."""
        if self._kept_back is not None:
            self.slots.look()
        if self._kept_back is not None:
            return False
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
            ended = self._ended()
        except BaseException:
            self.slots.leave(self)
            raise
        if ended:
            self.slots.leave(self)
        return ended

    def notice_end(self) -> None:
        """Give the slot back if the statement under way has ended; its error is raised by ``ready``."""
        if self._kept_back is None and self._failure is None:
            try:
                ended = self._ended()
            except psycopg2.Error as error:
                self._failure, ended = error, True
            if ended:
                self.slots.leave(self)

    def _ended(self) -> bool:
        state = self.connection.poll()
        while state == extensions.POLL_WRITE:
            wait_for([self.fileno()], select.POLLOUT, LISTEN_EVERY)
            state = self.connection.poll()
        self._read_notices()
        return state == extensions.POLL_OK

    def rows(self) -> Rows:
        return self.cursor.fetchall() if self.cursor.description else []

    def columns(self) -> list[tuple[str, int]]:
        """The names of the columns of the last statement, and the numbers of their types."""
        return [(column.name, column.type_code) for column in self.cursor.description or ()]

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE

    @property
    def busy(self) -> bool:
        return self._kept_back is not None or bool(self.connection.isexecuting())

    @property
    def lost(self) -> bool:
        return bool(self.connection.closed)

    @property
    def backend(self) -> int:
        return self.connection.info.backend_pid

    def _read_notices(self) -> None:
        for notice in self.connection.notices:
            self.progress = progress_in(notice) or self.progress
            self.hear(notice)
        del self.connection.notices[:]

    def require_life(self) -> None:
        """Raise what has ended an idle session: else its next statement would be thought to have ended it."""
        while wait_for([self.fileno()], select.POLLIN, 0):  # a message of the server, or for ever the end of the file
            self.ready()

    # -- the end ----------------------------------------------------------------------------------

    @listening.paused()
    def settle(self) -> None:
        """Wait, without listening, until the statement under way has ended; its outcome no longer matters."""
        self.work = None
        self.listen = lambda: None
        if self.slots.limited and self.busy:  # it may be in a resource queue, for hours
            self.cancel()
        with contextlib.suppress(psycopg2.Error):
            while not self.ready():
                wait_any([self], LISTEN_EVERY)

    def cancel(self) -> None:
        """Ask the backend to cancel its statement; ``ready`` then raises the error."""
        if self._kept_back is not None:
            self._kept_back = None
            self.slots.leave(self)
            return
        with contextlib.suppress(psycopg2.Error):  # the session is gone already
            self.connection.cancel()

    def close(self) -> None:
        self.work = None
        self._kept_back = None
        self.connection.close()
        self.slots.leave(self)


def worker_settings(commits_wait: bool) -> dict[str, str]:
    """The settings of worker sessions."""
    # A trainer must not compute on for a driver that is gone; Greenplum's own planner (ORCA) is left out.
    settings = {"client_connection_check_interval": "1s", "optimizer": "off"}
    return settings if commits_wait else {**settings, "synchronous_commit": "off"}


def configured(**settings: str) -> Statement:
    wanted = joined(", ", [sql("({}, {})")] * len(settings))
    return Statement(
        sql(
            "SELECT pg_catalog.set_config(s.name, wanted, false) FROM pg_catalog.pg_settings s JOIN (VALUES {wanted})"
            " AS ours (name, wanted) USING (name)",
            wanted=wanted,
        ),
        [text for setting in settings.items() for text in setting],
    )


def wait_any(sessions: Sequence[Session], seconds: float) -> None:
    """Wait until one of the sessions has something to say, at most so long."""
    wait_for([session.fileno() for session in sessions], select.POLLIN, seconds)


def leave(sessions: Sequence[Session]) -> None:
    """Wait until the statements of the sessions have ended, but not for long."""
    deadline = time.monotonic() + LEAVE_WITHIN
    for session in sessions:
        with contextlib.suppress(psycopg2.Error):
            while not session.ready() and time.monotonic() < deadline:
                wait_any([session], LISTEN_EVERY)
