"""The caller's session: statements with parameters, cursors and messages, over ``plpy``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cerebro_db.core.names import token
from cerebro_db.core.sql import Sql, identifier, sql, text_of
from cerebro_db.core.texts import harmless

from . import cancellation, listening
from .kept import KeptByRole
from .words import ErrorWords

Row = dict[str, Any]
Types = tuple[str, ...]
UNKNOWN = object()
SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


class Database:
    """Runs SQL as the caller of the function.  Values travel as plan parameters, never in the text.

    Statements are of the type Sql, and no text can become one (cerebro_db.core.sql).  ``listening`` is paused while the
    server works on a statement, because the server itself then listens for a cancel.

    ``called``: the SQL function that the caller called, which stands before the messages of its errors (``entry.py``).
    ``words``: what some of these messages say.
    """

    def __init__(self, plpy: Any, called: str = "", words: type[ErrorWords] = ErrorWords) -> None:
        self.plpy, self.called, self.words = plpy, called, words
        self._plans: dict[tuple[str, Types], Any] = {}  # of this call
        self._verbose: Any = UNKNOWN
        self._is_step = False  # of a call that says less than all, but more than nothing

    def rows(self, statement: Sql, types: Types | list[str] = (), *values: Any) -> list[Row]:
        return list(self._run(statement, types, values))

    def one(self, statement: Sql, types: Types | list[str] = (), *values: Any) -> Row | None:
        """The first row, or None."""
        result = self._run(statement, types, values)
        return result[0] if len(result) else None

    def value(self, statement: Sql, types: Types | list[str] = (), *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.one(statement, types, *values)
        return next(iter(row.values())) if row else None

    def execute(self, statement: Sql, types: Types | list[str] = (), *values: Any) -> int:
        """The number of rows that the statement touched."""
        return int(self._run(statement, types, values).nrows())

    def columns_of(self, statement: Sql) -> list[tuple[str, int]]:
        """The names of a query's columns, and the OIDs of their types."""
        result = self.text(statement)
        return list(zip(result.colnames(), result.coltypes()))

    @listening.paused()
    def scan(self, statement: Sql, *labels: list[Any]) -> list[Row]:
        """As ``rows``, for a query that may take long and returns numbers and texts.  Parameters are arrays of text."""
        return cancellation.scan(self.plpy, self._plan, text_of(statement), labels)

    @listening.paused()
    def patiently(self, statement: Sql, *labels: list[Any]) -> None:
        """As ``execute``, for a statement that may take long or wait for the locks of others."""
        cancellation.patiently(self.plpy, self._plan, text_of(statement), labels)

    @listening.paused()
    def text(self, statement: Sql) -> Any:
        """The result of statements without parameters, as plpy returns it."""
        return cancellation.execute(self.plpy, text_of(statement))

    @listening.paused()
    def refuse_several(self, query: Sql) -> None:
        """A database error if this is more than one statement.  No row is read."""
        cancellation.refuse_several(self.plpy, self._plan, text_of(query))

    @listening.paused()
    def perform(self, statement: Sql, *, answers: bool) -> list[Row]:
        """Run statements that may take long, where no others can be cancelled (``Platform.cancels_statements``).

        The first row of the last one if it ``answers``, or no row.
        """
        return cancellation.perform(self.plpy, self._plan, text_of(statement), answers=answers)

    def cursor(self, statement: Sql, types: Types | list[str] = (), *values: Any) -> Cursor:
        # The random name cannot be that of a cursor of the user's, nor of a function of ours that the query calls.
        return Cursor(self, f"cerebro_{token()}", statement, types, values)

    def kept_plan(self, statement: Sql, types: Types) -> Any:
        """The plan of a statement, which the caller keeps for the role that it was made for."""
        return self.plpy.prepare(text_of(statement), list(types))

    @listening.paused()
    def cursor_of_plan(self, plan: Any, *values: Any) -> PlanCursor:
        return PlanCursor(self.plpy.cursor(plan, list(values)))

    def opened_cursor(self, name: Any) -> Cursor | PlanCursor:
        """A cursor of ours that is open already.  ``name``: or else the cursor itself."""
        if not isinstance(name, str):
            return PlanCursor(name)
        cursor = Cursor.__new__(Cursor)
        cursor.db, cursor.text, cursor.name = self, name, identifier(name)
        return cursor

    def savepoint(self) -> Any:
        """``with db.savepoint(): …`` - an exception undoes what was done inside, and goes on."""
        return self.plpy.subtransaction()

    @contextlib.contextmanager
    def naming(self, called: str) -> Iterator[None]:
        """``with db.naming("cerebro.register"): …`` - the messages of its errors begin with this function."""
        before, self.called = self.called, called
        yield
        self.called = before  # after an error, ``entry`` reads it

    def notice(self, text: str, hint: str | None = None) -> None:
        """Something that people need to know, whatever ``cerebro.details`` says."""
        self.plpy.notice(harmless(text, lines=True), **_hint(hint))

    def told(self, text: str, hint: str | None = None) -> None:
        """What a call decides, how it goes on, and what comes of it: not said if ``cerebro.details`` is off."""
        if self.verbose is not False:
            self.notice(text, hint)

    def progress(self, text: str) -> None:
        """How far a long step is: as ``told``, but steps say it, too."""
        if self.verbose is not False or self._is_step:
            self.notice(text)

    def detail(self, text: str, hint: str | None = None) -> None:
        """How it is done: said only if ``cerebro.details`` is on."""
        if self.verbose:
            self.notice(text, hint)

    @property
    def verbose(self) -> bool | None:
        """The setting ``cerebro.details`` of the caller's session; None if it is not set."""
        if self._verbose is UNKNOWN:
            text = self.value(sql("SELECT pg_catalog.current_setting('cerebro.details', true)"))
            self._verbose = SWITCH.get((text or "").strip().lower())
            if text and self._verbose is None:  # the server takes any text, and no error may end a run for it
                self.warning(f"cerebro.details is '{text[:40]}', which is neither on nor off", "RESET cerebro.details;")
        return self._verbose

    def ask_for_details(self) -> None:
        """Read the setting now, so that no later message runs a statement."""
        _ = self.verbose

    def tell_all(self) -> None:
        """Say the details of this call, as if ``cerebro.details`` were on."""
        self._verbose = True

    @contextlib.contextmanager
    def as_steps(self) -> Iterator[None]:
        """``with db.as_steps(): …`` - these are steps of a larger call, so what they tell is a detail."""
        before, was_step = self.verbose, self._is_step
        self._verbose, self._is_step = before or False, was_step or before is None
        try:
            yield
        finally:
            self._verbose, self._is_step = before, was_step

    def info(self, text: str) -> None:
        self.plpy.info(harmless(text, lines=True))

    def warning(self, text: str, hint: str | None = None) -> None:
        self.plpy.warning(harmless(text, lines=True), **_hint(hint))

    def is_error(self, error: BaseException, sqlstate: str) -> bool:
        """Whether an exception is a database error of that SQLSTATE."""
        return isinstance(error, self.plpy.SPIError) and getattr(error, "sqlstate", None) == sqlstate

    @listening.paused()
    def _run(self, statement: Sql, types: Types | list[str], values: tuple[Any, ...], *, shared: bool = True) -> Any:
        if len(types) != len(values):
            raise TypeError(f"{len(types)} types for {len(values)} values: {statement!r}")
        if not values and not shared:  # it runs once
            return cancellation.execute(self.plpy, text_of(statement))
        return cancellation.execute(self.plpy, self._plan(text_of(statement), tuple(types), shared), list(values))

    def _plan(self, text: str, types: Types, shared: bool = False) -> Any:
        asked = (text, types)
        if not (shared and len(text) <= LONGEST_SHARED and cancellation.shares_plans(self.plpy)):
            if asked not in self._plans:
                self._plans[asked] = self.plpy.prepare(text, list(types))
            return self._plans[asked]
        plan = _shared.get(asked)
        if plan is None:
            plan = self.plpy.prepare(text, list(types))
            _shared.put(asked, plan)
        return plan


# Plans that the next call of the session has, too.  PostgreSQL makes a plan anew when a table of it or the search_path
# has changed, but not when a new table takes a name that stands without a schema.  So no statement with a user's query
# or such a name is shared: see ``text`` and ``Cursor``.  On Greenplum each call makes its own plans.
MOST_SHARED = 100
_shared: KeptByRole[tuple[str, Types], Any] = KeptByRole(MOST_SHARED)
LONGEST_SHARED = 8000  # characters


def _hint(hint: str | None) -> dict[str, str]:
    """The keyword argument of a message. Clients write messages to a terminal, with names of others in them."""
    return {"hint": harmless(hint, lines=True)} if hint else {}


class PlanCursor:
    """The rows of a kept plan, as those of a ``Cursor``."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @listening.paused()
    def fetch(self, rows: int) -> Any:
        return list(self.rows.fetch(rows))

    def close(self) -> None:
        self.rows.close()


class Cursor:
    """The rows of a query, fetched batch by batch.  Close it."""

    def __init__(self, db: Database, name: str, query: Sql, types: Types | list[str], values: tuple[Any, ...]) -> None:
        self.db, self.text = db, name
        self.name = identifier(name)
        db._run(
            sql("DECLARE {name} NO SCROLL CURSOR FOR {query}", name=self.name, query=query), types, values, shared=False
        )

    def fetch(self, rows: int) -> Any:
        """The next rows; none at the end."""
        return self.db._run(sql("FETCH {rows} FROM {name}", rows=rows, name=self.name), (), (), shared=False)

    def close(self) -> None:
        # REFRESH MATERIALIZED VIEW, CREATE INDEX and ANALYZE allow no CLOSE in the functions that they call, because a
        # cursor belongs to no role.  PL/pgSQL may close it there.
        self.db._run(sql("SELECT cerebro_internal._close_cursor($1)"), ("text",), (self.text,))
