"""Database sessions that the server opens to itself, driven without ever going deaf.

A Python function inside a server notices a cancel only where it listens.  So every wait in here is a short one, and
between two of them ``listen`` is called, which is where Ctrl-C, ``pg_cancel_backend`` and ``statement_timeout`` are
noticed.
"""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Generator, Sequence
from typing import Any, Callable, Optional

import psycopg2
from psycopg2 import extensions

from .interrupts import Listen

Statement = tuple[str, Optional[Sequence[Any]]]
Rows = list[tuple[Any, ...]]
# A piece of work for a session: yields statements, is sent their rows, returns its result.
Work = Generator[Statement, Rows, Any]

LISTEN_EVERY = 0.1  # seconds
ENDURE = 60.0
CONNECT_WITHIN = 20.0
PROGRESS = "cerebro progress "  # how a worker's notice that reports progress begins


class Session:
    """One connection that the server holds to itself."""

    def __init__(self, connection: Any, listen: Listen) -> None:
        self.connection = connection
        self.listen = listen
        self.cursor: Any = None
        self.work: Work | None = None
        self.progress: dict | None = None
        # Errors after which what was under way is tried again for a while.
        self.endures: Callable[[psycopg2.Error], bool] = lambda error: False
        self.another: Callable[[Listen], Session] | None = None  # opens one like this

    @classmethod
    def open(cls, listen: Listen, **parameters: Any) -> Session:
        session = cls(psycopg2.connect(async_=1, **parameters), listen)
        deadline = time.monotonic() + CONNECT_WITHIN
        while not session.ready():
            if time.monotonic() > deadline:
                session.close()
                raise psycopg2.OperationalError(f"no answer within {CONNECT_WITHIN:.0f} s")
            session._pause(LISTEN_EVERY)
        return session

    # -- one statement at a time, waiting for it ---------------------------------------------------

    def run(self, sql: str, parameters: Sequence[Any] | None = None) -> Rows:
        self.finish()
        deadline = time.monotonic() + ENDURE
        while True:
            try:
                self.send(sql, parameters)
                while not self.ready():
                    self._pause(LISTEN_EVERY)
                return self.rows()
            except psycopg2.Error as error:
                if not self.endures(error) or self.in_transaction or time.monotonic() > deadline:
                    raise
            time.sleep(LISTEN_EVERY)
            self.listen()

    def configure(self, **settings: str) -> None:
        """Settings for the rest of the session; those that this server does not have are left out."""
        self.run(*configured(**settings))

    def _pause(self, seconds: float) -> None:
        wait_any([self], seconds)
        self.listen()

    # -- a piece of work, step by step, while others work too ---------------------------------------

    def begin(self, work: Work) -> None:
        self.work = work
        self.progress = None
        self.send(*next(work))

    def advance(self) -> tuple[bool, Any]:
        """Take the work as far as it goes without waiting: (finished, its result)."""
        while self.ready():
            assert self.work is not None
            try:
                statement = self.work.send(self.rows())
            except StopIteration as end:
                self.work = None
                return True, end.value
            self.send(*statement)
        return False, None

    def finish(self) -> None:
        """Wait for the end of the work under way, if there is any."""
        while not self.attend():
            wait_any([self], LISTEN_EVERY)

    def attend(self) -> bool:
        """Take work that is done again and again a step further: whether it is over, be it for an error endured."""
        try:
            return self.work is None or self.advance()[0]
        except psycopg2.Error as error:
            self.work = None
            if not self.endures(error):
                raise
            return True

    def throw(self, error: BaseException) -> tuple[bool, Any]:
        """Tell the work that its statement failed; it may go on with another."""
        assert self.work is not None
        try:
            statement = self.work.throw(error)
        except StopIteration as end:
            self.work = None
            return True, end.value
        self.send(*statement)
        return False, None

    # -- the wire ---------------------------------------------------------------------------------

    def send(self, sql: str, parameters: Sequence[Any] | None = None) -> None:
        self.cursor = self.connection.cursor()
        self.cursor.execute(sql, parameters)

    def ready(self) -> bool:
        """Whether the statement under way has ended; raises what it raised."""
        state = self.connection.poll()
        while state == extensions.POLL_WRITE:
            wait_for([self.fileno()], select.POLLOUT, LISTEN_EVERY)
            state = self.connection.poll()
        self._read_notices()
        return state == extensions.POLL_OK

    def rows(self) -> Rows:
        return self.cursor.fetchall() if self.cursor.description else []

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status != extensions.TRANSACTION_STATUS_IDLE

    @property
    def busy(self) -> bool:
        return bool(self.connection.isexecuting())

    @property
    def lost(self) -> bool:
        return bool(self.connection.closed)

    @property
    def backend(self) -> int:
        return self.connection.info.backend_pid

    def _read_notices(self) -> None:
        for notice in self.connection.notices:
            _, _, text = notice.partition(PROGRESS)
            if text:
                try:
                    # Greenplum writes behind it which segment says so.
                    self.progress, _ = json.JSONDecoder().raw_decode(text)
                except ValueError:
                    continue
        del self.connection.notices[:]

    # -- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait, deaf, for what is under way to end; how it ends is nobody's concern any more."""
        self.work = None
        self.listen = lambda: None
        with contextlib.suppress(psycopg2.Error):
            while not self.ready():
                wait_any([self], LISTEN_EVERY)

    def cancel(self) -> None:
        """Ask the backend to stop what it does; the answer comes through ``ready``."""
        with contextlib.suppress(psycopg2.Error):  # it is gone already
            self.connection.cancel()

    def close(self) -> None:
        self.work = None
        self.connection.close()


def configured(**settings: str) -> Statement:
    wanted = ", ".join(["(%s, %s)"] * len(settings))
    return (
        f"SELECT pg_catalog.set_config(s.name, wanted, false) FROM pg_catalog.pg_settings s JOIN (VALUES {wanted})"
        " AS ours (name, wanted) USING (name)",
        [text for setting in settings.items() for text in setting],
    )


def wait_any(sessions: Sequence[Session], seconds: float) -> None:
    """Block until one of the sessions has something to say, at most so long."""
    wait_for([session.fileno() for session in sessions], select.POLLIN, seconds)


def wait_for(descriptors: Sequence[int], event: int, seconds: float) -> bool:
    """Whether one of the descriptors can be read (POLLIN) or written (POLLOUT) within so many seconds.

    Not by select(): it takes no descriptor above 1023, and a backend with many open files has such.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    return bool(poll.poll(1000 * seconds))
