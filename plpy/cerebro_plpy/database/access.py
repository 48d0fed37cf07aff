"""The caller's session: statements with parameters, cursors and messages, over ``plpy``."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.names import token

from . import cancellation

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
        """The number of rows that the statement touched."""
        return int(self._run(sql, types, values).nrows())

    def columns_of(self, sql: str) -> list[tuple[str, int]]:
        """The names of a query's columns, and the OIDs of their types."""
        result = self._run(sql, (), ())
        return list(zip(result.colnames(), result.coltypes()))

    def scan(self, sql: str, *labels: list[Any]) -> list[Row]:
        """As ``rows``, for a query that may take long and returns numbers and texts.  Parameters are arrays of text."""
        return cancellation.scan(self.plpy, self._plan, sql, labels)

    def patiently(self, sql: str, *labels: list[Any]) -> None:
        """As ``execute``, for a statement that may take long or wait for the locks of others."""
        cancellation.patiently(self.plpy, self._plan, sql, labels)

    def text(self, sql: str) -> Any:
        """The result of statements without parameters, as plpy returns it."""
        return cancellation.execute(self.plpy, sql)

    def perform(self, sql: str, *, answers: bool) -> list[Row]:
        """Run statements that may take long, where no others can be cancelled (``Platform.cancels_statements``).

        The first row of the last one if it ``answers``, or no row.
        """
        return cancellation.perform(self.plpy, self._plan, sql, answers=answers)

    def cursor(self, sql: str, types: Types | list[str] = (), *values: Any, drops: str | None = None) -> Cursor:
        """``drops``: a table, as SQL, that is dropped when the cursor is closed."""
        # The random name cannot be that of a cursor of the user's, nor of a function of ours that the query calls.
        return Cursor(self, f"cerebro_{token()}", sql, types, values, drops)

    def savepoint(self) -> Any:
        """``with db.savepoint(): …`` - an exception undoes what was done inside, and goes on."""
        return self.plpy.subtransaction()

    def notice(self, text: str, hint: str | None = None) -> None:
        self.plpy.notice(text, **({"hint": hint} if hint else {}))

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
        return cancellation.execute(self.plpy, self._plan(sql, tuple(types)), list(values))

    def _plan(self, sql: str, types: Types) -> Any:
        plan = self._plans.get((sql, types))
        if plan is None:
            plan = self._plans[sql, types] = self.plpy.prepare(sql, list(types))
        return plan


class Cursor:
    """The rows of a query, fetched batch by batch.  Close it."""

    def __init__(
        self, db: Database, name: str, sql: str, types: Types | list[str], values: tuple[Any, ...], drops: str | None
    ) -> None:
        self.db, self.name, self.drops = db, name, drops
        db._run(f"DECLARE {name} NO SCROLL CURSOR FOR {sql}", types, values)

    def wait(self) -> None:
        """Wait for the first row and skip it."""
        self.db.patiently(f"MOVE 1 FROM {self.name}")

    def fetch(self, rows: int) -> Any:
        """The next rows; none at the end."""
        return self.db._run(f"FETCH {int(rows)} FROM {self.name}", (), ())

    def close(self) -> None:
        self.db._run(f"CLOSE {self.name}", (), ())
        if self.drops:
            self.db._run(f"DROP TABLE {self.drops}", (), ())
