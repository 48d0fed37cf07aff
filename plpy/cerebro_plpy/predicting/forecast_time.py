"""The time that a forecast is for: so many steps after the last row of a window, as its horizon says."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.sql_types import DATES, INTEGERS

from ..database.access import Database
from ..database.relations import Column, Relation

NAME = "forecast_for"
DAY = sql("interval '1 day'")
NO_SHIFT = sql("interval '0'")
BITS = {"smallint": 15, "integer": 31, "bigint": 63}
LATEST = 70_000_000  # days after 1970: in the year 193,625; timestamps end in the year 294,276
INEXACT = 1.1  # the days of an interval are counted with months of 30 days, which are too short


@dataclass(frozen=True)
class ForecastTime:
    column: str  # that orders the rows
    value: Sql  # over the last row of a window; NULL if its type has no such late value
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

    Of several later rows it is an expression over ``f.ahead``, the number of rows, which ``steps.of_later`` gives.
    """
    if not windows.horizon:
        return None
    found = _of_one_order(db, source, windows, present) if len(windows.order) == 1 else None
    if found is None and windows.nearest:
        return ForecastTime(windows.order[0], sql("NULL::pg_catalog.text"), sql("pg_catalog.text"))
    return found


def _of_one_order(db: Database, source: Relation, windows: Windows, present: dict[str, Column]) -> ForecastTime | None:
    column = present[windows.order[0]]
    if column.type in INTEGERS:
        value = _later_number(db, source, windows, column)
    elif column.type in DATES:
        value = _later_date(db, source, windows, column)
    else:
        return None
    return ForecastTime(column.name, value or sql("NULL::{type}", type=column.cast), column.cast)


def _later_number(db: Database, source: Relation, windows: Windows, column: Column) -> Sql | None:
    value = sql("{name}::numeric", name=identifier(column.name))
    found = _step(db, source, windows, value, sql("r.value - r.before"), sql("NULL"))
    if found is None:
        return None
    most = 2 ** BITS[column.type] - 1
    later = sql("({value} + {ahead} * {step}::numeric)", value=value, ahead=_ahead(windows), step=int(found["step"]))
    return sql(
        "(CASE WHEN {later} <= {most}::numeric THEN {later}::{type} END)", later=later, most=most, type=column.cast
    )


def _later_date(db: Database, source: Relation, windows: Windows, column: Column) -> Sql | None:
    """Months are steps, too.  Rows at the ends of months are counted from the day after: months differ in length."""
    name = identifier(column.name)
    of_row = sql("{name}::timestamp without time zone", name=name) if column.type == "date" else name
    value = _before(LATEST, column, of_row)
    shift = DAY if _ends_months(db, source, value) else NO_SHIFT
    value = sql("({value} + {shift})", value=value, shift=shift)
    days = sql("pg_catalog.date_part('epoch', g.distance) / 86400::float8")
    found = _step(db, source, windows, value, sql("pg_catalog.age(r.value, r.before)"), days)
    if found is None or (latest := LATEST - INEXACT * windows.horizon * found["days"]) < 0:
        return None
    later = sql("({value} + {ahead}::float8 * {step}::interval - {shift})::{type}", value=value,
                ahead=_ahead(windows), step=literal(found["step"]), shift=shift, type=column.cast)  # fmt: skip
    return _before(int(latest), column, later)


def _ahead(windows: Windows) -> Sql:
    return sql("f.ahead") if windows.nearest else sql("{horizon}", horizon=windows.horizon)


def _before(latest: int, column: Column, value: Sql) -> Sql:
    """The value, or NULL in rows whose date is not so many days after 1970, or infinite."""
    return sql(
        "(CASE WHEN pg_catalog.isfinite({name}) AND {name} < (date '1970-01-01' + {latest})::{type} THEN {value} END)",
        name=identifier(column.name),
        latest=latest,
        type=column.cast,
        value=value,
    )


def _step(
    db: Database, source: Relation, windows: Windows, value: Sql, distance: Sql, days: Sql
) -> dict[str, Any] | None:
    """The most frequent distance of consecutive rows, because the rows of the future are not there.

    '1 mon' and '30 days' are equal intervals, but not the same step: so distances count by their text, too.
    """
    by = joined(", ", map(identifier, windows.by))
    found = db.scan(
        sql(
            "SELECT g.distance::pg_catalog.text AS step, {days} AS days"
            " FROM (SELECT {distance} AS distance"
            " FROM (SELECT {value} AS value, pg_catalog.lag({value}) OVER ({partition}ORDER BY {name}) AS before"
            " FROM {rows} AS s) r"
            " WHERE r.before <> r.value) g"
            " GROUP BY g.distance, g.distance::pg_catalog.text"
            " ORDER BY pg_catalog.count(*) DESC, g.distance, step LIMIT 1",
            days=days,
            distance=distance,
            value=value,
            partition=sql("PARTITION BY {by} ", by=by) if by else sql(""),
            name=identifier(windows.order[0]),
            rows=source.rows,
        )
    )
    return found[0] if found else None


def _ends_months(db: Database, source: Relation, value: Sql) -> bool:
    first = sql("pg_catalog.bool_and(pg_catalog.date_part('day', {value} + {day}) = 1)", value=value, day=DAY)
    (found,) = db.scan(sql("SELECT {first} AS ends FROM {rows} AS s", first=first, rows=source.rows))
    return bool(found["ends"])
