"""The time that a forecast is for: so many steps after the last row of a window, as its horizon says."""

from __future__ import annotations

from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.sql_types import DATES, INTEGERS

from ..database.access import Database
from ..database.relations import Column, Relation

NAME = "forecast_for"
DAY = sql("interval '1 day'")
NO_SHIFT = sql("interval '0'")


@dataclass(frozen=True)
class ForecastTime:
    column: str  # that orders the rows
    value: Sql  # over the last row of a window
    type: Sql


def with_key(key: Sql, time: ForecastTime) -> Sql:
    """The pair of a row's key and the time, as text; NULL if the key is."""
    return sql(
        "CASE WHEN {key} IS NOT NULL THEN"
        " (ARRAY[{key}, ({time})::pg_catalog.text]::pg_catalog.text[])::pg_catalog.text END",
        key=key,
        time=time.value,
    )


def of(db: Database, source: Relation, windows: Windows, present: dict[str, Column]) -> ForecastTime | None:
    """The time as SQL; None: the model forecasts no later row, or no step can be added to what orders the rows.

    A step is the most frequent distance of consecutive rows, because the rows of the future are not there.  Months are
    steps, too.  Rows at the ends of months are counted from the day after, because months differ in length.
    """
    if not windows.horizon or len(windows.order) > 1:
        return None
    column = present[windows.order[0]]
    name, shift = identifier(column.name), NO_SHIFT
    if column.type in INTEGERS:
        value, step = sql("{name}::bigint", name=name), sql("r.value - r.before")
    elif column.type in DATES:
        value, step = sql("{name}", name=name), sql("pg_catalog.age(r.value, r.before)")
        if column.type == "date":
            value = sql("{name}::timestamp without time zone", name=name)
        if _ends_months(db, source, value):
            shift = DAY
        value = sql("({value} + {shift})", value=value, shift=shift)
    else:
        return None
    by = joined(", ", map(identifier, windows.by))
    (found,) = db.scan(
        sql(
            "SELECT (pg_catalog.mode() WITHIN GROUP (ORDER BY {step}))::pg_catalog.text AS step"
            " FROM (SELECT {value} AS value, pg_catalog.lag({value}) OVER ({partition}ORDER BY {name}) AS before"
            " FROM {rows} AS s) r"
            " WHERE r.before <> r.value",
            step=step,
            value=value,
            partition=sql("PARTITION BY {by} ", by=by) if by else sql(""),
            name=name,
            rows=source.rows,
        )
    )
    if found["step"] is None:
        return ForecastTime(column.name, sql("NULL::{type}", type=column.cast), column.cast)
    kind = sql("bigint") if column.type in INTEGERS else sql("interval")
    back = sql("") if column.type in INTEGERS else sql(" - {shift}", shift=shift)
    later = sql("({value} + {horizon} * {step}::{kind}{back})::{type}", value=value, horizon=windows.horizon,
                step=literal(found["step"]), kind=kind, back=back, type=column.cast)  # fmt: skip
    return ForecastTime(column.name, later, column.cast)


def _ends_months(db: Database, source: Relation, value: Sql) -> bool:
    first = sql("pg_catalog.bool_and(pg_catalog.date_part('day', {value} + {day}) = 1)", value=value, day=DAY)
    (found,) = db.scan(sql("SELECT {first} AS ends FROM {rows} AS s", first=first, rows=source.rows))
    return bool(found["ends"])
