"""Budgets as users write them: an interval, or a JSON object with limits."""

from __future__ import annotations

from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.sql import sql

from ...database.access import Database

HINT = """For instance '10 minutes', or '{"unit_hours": 2}'."""


def read(db: Database, text: str, where: str) -> Any:
    """The limits as JSON.  An interval is a limit of seconds."""
    if text.lstrip().startswith("{"):
        return documents.argument(text, where, HINT)
    try:
        with db.savepoint():
            seconds = float(db.value(sql("SELECT extract(epoch FROM $1::interval)"), ("text",), text))
    except db.plpy.SPIError as error:
        if not error.sqlstate.startswith("22"):
            raise
        raise InvalidArgument(
            f"{where} is {documents.shown(text)}; it must be an interval or a JSON object.", hint=HINT
        ) from None
    if seconds <= 0:
        raise InvalidArgument(f"{where} is {documents.shown(text)}; it must be longer than that.", hint=HINT)
    return {"seconds": seconds}
