"""Takes the place of worker sessions: runs their statements in the caller's own session, and commits nothing.

Uncommitted and temporary tables are trained there, and tables of a server that allows no connection to itself.  A
statement runs when its result is needed, so the segments work one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psycopg2

from cerebro_db.core.sql import Sql, is_query, joined, sql, with_constants

from .. import platform
from ..database.access import Database
from ..database.cancellation import Listen
from .session import Rows, Session, Statement

# Errors that end the call: a cancel, an end of the session, and on Greenplum the loss of a segment.
FOR_GOOD = ("57", "58M")
JSON_TYPES = (114, 3802)  # the numbers of json and jsonb

_always_ready: int | None = None  # a file that is always readable


class StatementFailed(psycopg2.Error):
    """The error of a statement, as a connection would report it."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        _, detail, hint, *_ = getattr(error, "spidata", None) or (None, None, None)
        self._sqlstate = error.sqlstate
        self._diagnosis = SimpleNamespace(message_primary=str(error), message_detail=detail, message_hint=hint)

    @property
    def pgcode(self) -> str | None:  # type: ignore[override]
        return self._sqlstate

    @property
    def diag(self) -> Any:
        return self._diagnosis


class OwnSession(Session):
    """Takes statements as any session does, and runs them in the caller's transaction."""

    own = True

    def __init__(self, db: Database, listen: Listen) -> None:
        super().__init__(None, listen)
        self.another = lambda listen: OwnSession(db, listen)
        self._db = db
        self._cancels_statements = platform.of(db).cancels_statements
        self._pending: Statement | None = None
        self._answer: Rows = []
        self._columns: dict[Sql, int] = {}  # query -> how many columns it has, if two of them share a name; else 0

    # -- one statement ----------------------------------------------------------------------------

    def _send(self, statement: Statement) -> None:
        self._kept_back, self._pending = None, statement

    def _ended(self) -> bool:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._answer = []
            try:
                self._run_here([part for part in pending.parts if not part.bounds])  # the caller's own goes on
            except self._db.plpy.SPIError as error:
                if error.sqlstate.startswith(FOR_GOOD):
                    raise
                raise StatementFailed(error) from error
        return True

    def _run_here(self, statements: Sequence[Statement]) -> None:
        if not statements:
            return
        plpy = self._db.plpy
        here = joined("; ", [with_constants(one.sql, one.parameters or ()) for one in statements])
        last, reads = statements[-1], is_query(statements[0].sql)
        # What worker sessions would be asked may take hours, and each change may wait for the lock of another session.
        if not self._cancels_statements and (self.lasting or not reads):
            found = self._db.perform(here, answers=is_query(last.sql) if last.answers is None else last.answers)
            self._answer = [tuple(row.values()) for row in found]
            return
        if len(statements) == 1 and reads and (count := self._repeated_names(last.sql, here)):
            # PL/Python gives rows by the names of their columns.
            names = joined(", ", (sql("c{number}", number=number) for number in range(count)))
            here = sql("SELECT * FROM ({query}) AS q ({names})", query=here, names=names)
        result = self._db.text(here)
        try:
            types = result.coltypes()
        except plpy.Error:  # a statement without rows
            return
        self._answer = [
            tuple(
                json.loads(value) if kind in JSON_TYPES and value is not None else value
                for kind, value in zip(types, row.values())
            )
            for row in result
        ]

    def _repeated_names(self, statement: Sql, here: Sql) -> int:
        """How many columns a query has, if two of them share a name; else 0."""
        if statement not in self._columns:
            names = self._db.text(sql("SELECT * FROM ({query}) AS q LIMIT 0", query=here)).colnames()
            self._columns[statement] = len(names) if len(set(names)) < len(names) else 0
        return self._columns[statement]

    def rows(self) -> Rows:
        return self._answer

    # -- what a connection is asked otherwise -------------------------------------------------------

    def fileno(self) -> int:
        global _always_ready
        if _always_ready is None:
            _always_ready = os.open(os.devnull, os.O_RDONLY)
        return _always_ready

    @property
    def in_transaction(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return self._pending is not None

    @property
    def lost(self) -> bool:
        return False

    @property
    def backend(self) -> int:
        return os.getpid()

    def require_life(self) -> None:
        pass

    def settle(self) -> None:
        self.work = self._pending = None
        self.listen = lambda: None

    def cancel(self) -> None:
        self._kept_back = self._pending = None

    def close(self) -> None:
        self.work = self._kept_back = self._pending = None
