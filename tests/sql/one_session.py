"""One session for all tests of a module: each new session would import the extension's Python code first."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from psycopg2 import sql

from tests.conftest import connect


class OneSession:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection = connect(dsn)

    @contextlib.contextmanager
    def schema(self) -> Iterator[Any]:
        """The connection with a first schema and settings of its own. A test that ended the session gets another."""
        if self._connection.closed:
            self._connection = connect(self.dsn)
        name = sql.Identifier(f"t_{secrets.token_hex(6)}")
        with self._connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            cursor.execute(sql.SQL("SET search_path = {}, public, cerebro").format(name))
        self._connection.notices.clear()
        try:
            yield self._connection
        finally:
            if self._connection.closed:
                self._connection = connect(self.dsn)
            for statement in ("ROLLBACK", "DISCARD ALL", "SET client_min_messages = warning"):
                with self._connection.cursor() as cursor:
                    cursor.execute(statement)
            with self._connection.cursor() as cursor:
                cursor.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))
                cursor.execute("RESET client_min_messages")

    def close(self) -> None:
        self._connection.close()
