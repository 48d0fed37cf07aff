"""A thin layer over ``plpy``: statements with parameters, and errors that users can read."""

from __future__ import annotations

import secrets
from functools import wraps
from typing import Any, Callable

from cerebro_db.core.errors import MAKE_ROOM, NO_ROOM, CerebroError, DiskFull

from . import interrupts

Row = dict[str, Any]
Types = tuple[str, ...]


class Database:
    """Runs SQL as the caller of the function.  Values travel as plan parameters, never in the text."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy
        self._plans: dict[tuple[str, Types], Any] = {}

    def rows(self, sql: str, types: Types | list[str] = (), *values: Any) -> list[Row]:
        return list(self._run(sql, types, values))

    def one(self, sql: str, types: Types | list[str] = (), *values: Any) -> Row | None:
        """The first row, or None."""
        result = self._run(sql, types, values)
        return result[0] if len(result) else None

    def value(self, sql: str, types: Types | list[str] = (), *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.one(sql, types, *values)
        return next(iter(row.values())) if row else None

    def execute(self, sql: str, types: Types | list[str] = (), *values: Any) -> int:
        """How many rows the statement touched."""
        return int(self._run(sql, types, values).nrows())

    def scan(self, sql: str, *labels: list[str]) -> list[Row]:
        """As ``rows``, of a query that may take long and gives numbers and texts; it takes arrays of text."""
        if not interrupts.on_greenplum(self.plpy):
            return self.rows(sql, ["text[]"] * len(labels), *labels)
        plan = self._plan("SELECT cerebro._scan($1, $2) AS found", ("text", "text[]"))
        return interrupts.scan(self.plpy, plan, [sql, *labels] if labels else [sql, None])

    def patiently(self, sql: str, *labels: list[str]) -> None:
        """As ``execute``, of what may take long or waits for others' locks."""
        if not interrupts.on_greenplum(self.plpy):
            self.execute(sql, ["text[]"] * len(labels), *labels)
            return
        plan = self._plan("SELECT cerebro._await($1, $2) AS found", ("text", "text[]"))
        interrupts.scan(self.plpy, plan, [sql, *labels] if labels else [sql, None])

    def cursor(self, sql: str, types: Types | list[str] = (), *values: Any) -> Cursor:
        # Its name must not be that of a cursor of the user's, or of a function of ours that the query calls.
        return Cursor(self, f"cerebro_{secrets.token_hex(6)}", sql, types, values)

    def savepoint(self) -> Any:
        """``with db.savepoint(): …`` - an exception undoes what was done inside, and goes on."""
        return self.plpy.subtransaction()

    def notice(self, text: str) -> None:
        self.plpy.notice(text)

    def info(self, text: str) -> None:
        self.plpy.info(text)

    def warning(self, text: str, hint: str | None = None) -> None:
        self.plpy.warning(text, **({"hint": hint} if hint else {}))

    def is_error(self, error: BaseException, sqlstate: str) -> bool:
        """Whether an exception is a database error of that SQLSTATE."""
        return isinstance(error, self.plpy.SPIError) and getattr(error, "sqlstate", None) == sqlstate

    def _run(self, sql: str, types: Types | list[str], values: tuple[Any, ...]) -> Any:
        if len(types) != len(values):
            raise TypeError(f"{len(types)} types for {len(values)} values: {sql}")
        plan = self._plan(sql, tuple(types))
        if interrupts.on_greenplum(self.plpy):
            return interrupts.execute(self.plpy, plan, list(values))
        return self.plpy.execute(plan, list(values))

    def _plan(self, sql: str, types: Types) -> Any:
        plan = self._plans.get((sql, types))
        if plan is None:
            plan = self._plans[sql, types] = self.plpy.prepare(sql, list(types))
        return plan


class Cursor:
    """The rows of a query, so many at a time; close it."""

    def __init__(self, db: Database, name: str, sql: str, types: Types | list[str], values: tuple[Any, ...]) -> None:
        self.db, self.name = db, name
        db._run(f"DECLARE {name} NO SCROLL CURSOR FOR {sql}", types, values)

    def wait(self) -> None:
        """For the first row, which is lost."""
        self.db.patiently(f"MOVE 1 FROM {self.name}")

    def fetch(self, rows: int) -> Any:
        """The next rows, none at the end."""
        return self.db._run(f"FETCH {int(rows)} FROM {self.name}", (), ())

    def close(self) -> None:
        self.db._run(f"CLOSE {self.name}", (), ())


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a UDF of a function that takes a Database: it is called with ``plpy`` instead.

    A CerebroError becomes a PostgreSQL error with SQLSTATE, DETAIL and HINT.  An error of a statement
    (a cancel is one, too) keeps its own.  Anything else is a defect of ours and keeps its traceback.
    """

    @wraps(function)
    def call(plpy: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with interrupts.held_back(plpy):
                return function(Database(plpy), *args, **kwargs)
        except CerebroError as error:
            failure = _postgres_error(plpy, error.message, error.sqlstate, error.detail, error.hint)
        except plpy.SPIError as error:
            _, detail, hint, *_ = getattr(error, "spidata", None) or (None, None, None)
            failure = _postgres_error(plpy, str(error), error.sqlstate, detail, hint)
            if not error.sqlstate.startswith("57"):  # cancelled: no defect
                failure = failure.with_traceback(error.__traceback__)  # it may be a defect in our SQL
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            failure = _postgres_error(plpy, str(error), DiskFull.sqlstate, None, MAKE_ROOM)
        except KeyboardInterrupt as interrupt:
            # How Greenplum lets Python code hear of a cancel: here, as soon as it is no longer held back.
            failure = _postgres_error(plpy, str(interrupt) or interrupts.CANCELLED, "57014", None, None)
        raise failure

    return call


def _postgres_error(plpy: Any, message: str, sqlstate: str, detail: str | None, hint: str | None) -> Any:
    """What ``plpy.error`` raises, without the "plpy.Error: " that PL/Python puts before each message.

    PL/Python writes "<class name>: <text>", so a class is named after the first part of the message.
    """
    head, colon, text = message.partition(": ")
    name, text = (head, text) if colon and head else ("cerebro", message)
    error = type(name, (plpy.Error,), {"__module__": "builtins"})(text)
    error.sqlstate, error.detail, error.hint = sqlstate, detail, hint
    return error
