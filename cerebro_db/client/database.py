"""Runs statements on a database and returns rows; each statement commits by itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Protocol

from sqlalchemy.orm import Session

from cerebro_db.core.texts import harmless

from . import frames, interrupts
from .connections import engine_of
from .errors import translated

log = logging.getLogger("cerebro_db")
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"


class RunsStatements(Protocol):
    """Where statements run: each in a transaction of its own, or all in one."""

    def rows(self, statement: Any, values: Any = None) -> list[tuple[Any, ...]]: ...


class Transaction:
    """Runs statements in one transaction."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def rows(self, statement: Any, values: Any = None) -> list[tuple[Any, ...]]:
        with translated():
            interrupts.cancelling(self.cursor.connection, lambda: self.cursor.execute(statement, values))
            return self.cursor.fetchall() if self.cursor.description else []

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """After an error within, the transaction goes on as it was before."""
        self.rows("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            self.rows("ROLLBACK TO SAVEPOINT attempt")
            raise
        finally:
            self.rows("RELEASE SAVEPOINT attempt")


class DatabaseClient:
    def __init__(self, target: Any = None) -> None:
        self.engine = engine_of(target)

    def close(self) -> None:
        """Closes the connections of the client."""
        self.engine.dispose()

    def rows(self, statement: Any, values: Any = None) -> list[tuple[Any, ...]]:
        """The rows of one statement, which is written as psycopg2 expects it. The server's notices are logged."""
        return self.rows_and_notices(statement, values)[0]

    def rows_and_notices(self, statement: Any, values: Any = None) -> tuple[list[tuple[Any, ...]], list[str]]:
        """As ``rows``, and the notices, harmless where they are printed."""
        with translated(), self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.notices = []
            with driver.cursor() as cursor, frames.loaded(cursor, values) as sent:
                interrupts.cancelling(driver, lambda: cursor.execute(statement, sent))
                notices = [harmless(notice.strip(), lines=True) for notice in driver.notices]
                for notice in notices:
                    # Without a handler, Python writes warnings to the terminal.
                    level = logging.WARNING if notice.startswith("WARNING") else logging.INFO
                    log.log(level, "%s", notice)
                return cursor.fetchall() if cursor.description else [], notices

    @contextlib.contextmanager
    def transaction(self, begin: str = "BEGIN") -> Iterator[Transaction]:
        """One transaction, which commits unless there is an error. ``SNAPSHOT`` begins one that reads a
        single state of the database."""
        with translated(), self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute(begin)
                try:
                    yield Transaction(cursor)
                except BaseException:
                    if not driver.closed:
                        cursor.execute("ROLLBACK")
                    raise
                cursor.execute("COMMIT")

    def objects(self, query: Any) -> list[Any]:
        """The ORM objects of one SELECT. They stay readable after the session is closed."""
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            found = list(session.scalars(query))
            session.expunge_all()
            return found
