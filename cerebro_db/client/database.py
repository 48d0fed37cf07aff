"""Runs statements on a database and returns rows; each statement commits by itself."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.orm import Session

from cerebro_db.core.texts import harmless

from .connections import engine_of
from .errors import translated

log = logging.getLogger("cerebro_db")


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
            with driver.cursor() as cursor:
                cursor.execute(statement, values)
                notices = [harmless(notice.strip(), lines=True) for notice in driver.notices]
                for notice in notices:
                    # Without a handler, Python writes warnings to the terminal.
                    level = logging.WARNING if notice.startswith("WARNING") else logging.INFO
                    log.log(level, "%s", notice)
                return cursor.fetchall() if cursor.description else [], notices

    def objects(self, query: Any) -> list[Any]:
        """The ORM objects of one SELECT. They stay readable after the session is closed."""
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            found = list(session.scalars(query))
            session.expunge_all()
            return found
