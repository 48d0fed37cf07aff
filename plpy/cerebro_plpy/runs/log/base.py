"""What the parts of the log have in common: how it asks, and whose rows it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Callable, TypeVar

from cerebro_db.core.errors import CorruptState, InvalidArgument
from cerebro_db.core.events import Event
from cerebro_db.core.protocol import MetricStates, codec

from ...database.access import Database
from ...sessions.session import Rows, Session, Statement
from ..run import no_such_run

Ask = Callable[[str, Sequence[Any]], Rows]

# The tables have the number of a row's owner, and the views show the name.
ME = "pg_catalog.quote_ident(current_user)::pg_catalog.regrole"
OWN = f"run = %s AND owner = {ME}"
OWN_IN_VIEW = "run = %s AND owner = current_user"
# Users may write events of their own, also for models that do not exist: only those of real models count.
MODEL_EVENTS = "cerebro.event e JOIN cerebro.model m USING (run, owner, model)"
PLPY_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "bigint"), (float, "double precision"))


def asking(db: Database) -> Ask:
    """Asks through the caller's own session.  JSON comes back as text there."""

    def ask(sql: str, parameters: Sequence[Any] = ()) -> Rows:
        pieces = sql.split("%s")
        numbered = pieces[0] + "".join(f"${place}{piece}" for place, piece in enumerate(pieces[1:], 1))
        types = [next((name for kind, name in PLPY_TYPES if isinstance(value, kind)), "text") for value in parameters]
        return [tuple(row.values()) for row in db.rows(numbered, types, *parameters)]

    return ask


L = TypeVar("L", bound="Log")


class Log:
    """The log of one run, through one session."""

    def __init__(self, ask: Ask, run: int) -> None:
        self.ask = ask
        self.run = run

    @classmethod
    def of(cls: type[L], recorder: Session, run: int) -> L:
        return cls(recorder.run, run)

    @classmethod
    def of_caller(cls: type[L], db: Database, run: int | None) -> L:
        if run is None:
            raise no_such_run(run)
        return cls(asking(db), run)

    def _all(self, sql: str, *parameters: Any) -> Rows:
        return self.ask(sql, (self.run, *parameters))

    def _value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self._all(sql, *parameters)
        return rows[0][0] if rows else None

    def _insert(self, table: str, row: dict[str, Any]) -> Statement:
        row = {"run": self.run, **row}
        values = [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]
        marks = ", ".join(["%s"] * len(row))
        return Statement(f"INSERT INTO cerebro.{table} ({', '.join(row)}) VALUES ({marks})", values)


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


def listed(events: Iterable[Event]) -> str:
    return ", ".join(f"'{event}'" for event in events)
