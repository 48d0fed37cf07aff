"""A run that goes on in the background of this Python process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg2

from .errors import ClientError, of_driver, translated
from .orm import LeaderboardEntry, RunProgress

if TYPE_CHECKING:
    from .door import Cerebro

log = logging.getLogger("cerebro_db")

FOUND_WITHIN = 0.2  # seconds between two looks for the run's number


class RunHandle:
    """What ``submit`` gives at once: wait for the run, look at it, or cancel it.

    The statement runs on a connection of its own in a thread; a process that ends waits for it.
    """

    def __init__(self, cerebro: Cerebro, statement: Any, values: dict[str, Any] | None = None) -> None:
        self._cerebro = cerebro
        self._error: BaseException | None = None
        self._run: int | None = None
        self._begun = threading.Event()
        self._ended = threading.Event()
        with translated():
            self._checked_out = cerebro.engine.connect()
            driver: Any = self._checked_out.connection.driver_connection
            self._connection = driver
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid(), clock_timestamp()")
                self._pid, self._since = cursor.fetchone()
        self._thread = threading.Thread(target=self._work, args=(statement, values), name="cerebro run")
        self._thread.start()

    def _work(self, statement: Any, values: dict[str, Any] | None) -> None:
        self._begun.set()
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values)
                self._run = cursor.fetchone()[0]
        except psycopg2.Error as error:
            self._error = of_driver(error)
            self._error.__cause__ = error
        except BaseException as error:
            self._error = error
        finally:
            for notice in self._connection.notices:
                log.log(logging.WARNING if notice.startswith("WARNING") else logging.INFO, "%s", notice.strip())
            # Not back to the pool: it would keep the trainers of the run alive for nothing.
            with contextlib.suppress(Exception):
                self._checked_out.invalidate()
            with contextlib.suppress(Exception):
                self._checked_out.close()
            self._ended.set()

    @property
    def run(self) -> int:
        """The run's number; waits the second or so until the run is on record."""
        while self._run is None:
            ended = self._ended.wait(FOUND_WITHIN)
            if self._run is None:
                self._run = self._look()
            if ended and self._run is None:
                raise self._error or ClientError("The run ended before it was on record.")
        return self._run

    def _look(self) -> int | None:
        rows = self._cerebro.rows(
            "SELECT max(run) FROM cerebro.event"
            " WHERE event = 'started' AND at >= %s AND (detail ->> 'pid')::integer = %s",
            (self._since, self._pid),
        )
        return rows[0][0]

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the run's number or raises what went wrong."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"still running after {timeout} s")
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def wait_or_cancel(self) -> int:
        """Waits for the end; Ctrl-C cancels the run."""
        try:
            while not self._ended.wait(1.0):  # a wait without end could not be interrupted everywhere
                pass
        except BaseException:
            self.cancel()
            raise
        return self.wait()

    def cancel(self) -> None:
        """Stops the run, and waits until it has stopped. What it has committed stays."""
        self._begun.wait()
        while not self._ended.is_set():
            # Again and again: a request that meets the connection between two statements is lost.
            with contextlib.suppress(psycopg2.Error):
                self._connection.cancel()
            self._ended.wait(0.5)
        self._thread.join()

    def progress(self) -> RunProgress:
        return self._cerebro.progress(self)

    def follow(self, every: float = 0.5) -> Iterator[RunProgress]:
        return self._cerebro.follow(self, every)

    def leaderboard(self) -> list[LeaderboardEntry]:
        return self._cerebro.leaderboard(self)

    def __repr__(self) -> str:
        state = "failed" if self._error else "ended" if self.done else "running"
        return f"<RunHandle of {'a run' if self._run is None else f'run {self._run}'}: {state}>"
