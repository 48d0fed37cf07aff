"""What the parts of the log have in common: how it asks, and whose rows it asks for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

from cerebro_db.core import codec
from cerebro_db.core.errors import BadData, CorruptState, InvalidArgument
from cerebro_db.core.events import Event
from cerebro_db.core.protocol import MetricStates
from cerebro_db.core.sql import Sql, identifier, joined, literal, marks, numbered, sql
from cerebro_db.core.texts import shortened

from ....database.access import Database
from ....sessions.session import Rows, Statement

Ask = Callable[[Sql, Sequence[Any]], Rows]

# The tables have the number of a row's owner, and the views show the name.
ME = sql("pg_catalog.quote_ident(current_user)::pg_catalog.regrole")
OWN = sql("run = {} AND owner = {me}", me=ME)
OF_ALL_ROWS = sql("b.group_number IS NULL")  # in a query of cerebro.leaderboard or cerebro.model as ``b``
OWN_IN_VIEW = sql("run = {} AND owner = current_user")
LONGEST_TEXT = 10_000  # characters of a message or a reason; the tables take no longer ones
PLPY_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "bigint"), (float, "double precision"))


def asking(db: Database) -> Ask:
    """Asks through the caller's own session.  JSON comes back as text there."""

    def ask(statement: Sql, parameters: Sequence[Any] = ()) -> Rows:
        types = [next((name for kind, name in PLPY_TYPES if isinstance(value, kind)), "text") for value in parameters]
        return [tuple(row.values()) for row in db.rows(numbered(statement), types, *parameters)]

    return ask


def among(columns: str, found: Sql) -> Sql:
    """Whether these columns have values that a query finds.

    IS TRUE has the server run the query once, and not join it.  Of a run that has just written thousands of rows the
    server knows nothing yet: to join two tables it would compare each row of the one with each of the other.
    """
    listed = joined(", ", map(identifier, columns.split()))
    return sql("(({listed}) IN ({found})) IS TRUE", listed=listed, found=found)


class Part:
    """A part of the log of one run, through one session."""

    def __init__(self, ask: Ask, run: int) -> None:
        self.ask = ask
        self.run = run

    def _of_models(self, condition: Sql | None = None) -> Sql:
        """Whether the column model has the number of a model of the run, for which a condition holds.

        Users may write events of their own, also for models that do not exist: only those of real models count.
        """
        also = sql("") if condition is None else sql(" AND {condition}", condition=condition)
        own = sql("b.run = {run} AND b.owner = {me}{also}", run=self.run, me=ME, also=also)
        return among("model", sql("SELECT b.model FROM cerebro.model b WHERE {own}", own=own))

    def _all(self, statement: Sql, *parameters: Any) -> Rows:
        return self.ask(statement, (self.run, *parameters))

    def _value(self, statement: Sql, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self._all(statement, *parameters)
        return rows[0][0] if rows else None

    def _insert(self, table: str, row: dict[str, Any]) -> Statement:
        row = {"run": self.run, **row}
        values = [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]
        insert = sql(
            "INSERT INTO cerebro.{table} ({columns}) VALUES ({values})",
            table=identifier(table),
            columns=joined(", ", map(identifier, row)),
            values=marks(len(row)),
        )
        return Statement(insert, values)


@contextlib.contextmanager
def as_written(run: int | None) -> Iterator[None]:
    """Around what reads a whole log: BadData if its rows contradict each other.

    Users can write and remove rows of their own runs, so any row that another names may be missing.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        told = str(error) if isinstance(error, (ValueError, RuntimeError)) else None
        raise BadData(
            f"the log of run {run} cannot be read: its rows contradict each other",
            detail=told,
            hint="Rows of the log were added, changed or removed by hand. cerebro.forget() removes the run.",
        ) from error


def recordable(counted: MetricStates) -> str:
    """The states as text: jsonb has no NaN."""
    return codec.to_json(codec.encode(counted))


def counted_states(text: str | None) -> MetricStates | None:
    """The states on record; None where a user has written a row by hand."""
    if text is None:
        return None
    try:
        return codec.decode(MetricStates, codec.from_json(text), "the state")
    except InvalidArgument as error:
        raise CorruptState(
            f"the metric states on record are not those that were written: {error.message}",
            hint="Rows of cerebro.hop or cerebro.evaluation were changed or added by hand.",
        ) from error


def recordable_detail(value: Any) -> Any:
    """What an event says, as the log takes it: messages of errors may be of any length."""
    if isinstance(value, str):
        return shortened(value, LONGEST_TEXT)
    if isinstance(value, Mapping):
        return {key: recordable_detail(one) for key, one in value.items()}
    return value


def listed(events: Iterable[Event]) -> Sql:
    return joined(", ", map(literal, events))
