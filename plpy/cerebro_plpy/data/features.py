"""The SQL that applies a feature (cerebro_db.core.features) to a column, and finds values that training did not have.

The statistics that packing starts from read columns with the same expressions (``number`` and ``text``), so a value
means the same to both.  No expression depends on a setting of the session, such as its time zone or DateStyle.
"""

from __future__ import annotations

import json
import math

from cerebro_db.core.distributions import limits
from cerebro_db.core.features import Category, Date, Feature, Number, Words
from cerebro_db.core.names import literal

from ..database.relations import Column

DATES = ("date", "timestamp without time zone", "timestamp with time zone")
REALS = ("real", "double precision", "numeric")
NOT_FINITE = "('NaN', 'Infinity', '-Infinity')"
DAY = 86400
PERIODS = {  # the cycles of a date: how far within its cycle a moment is, and how long the cycle is
    "year": ("(pg_catalog.date_part('doy', {0}) - 1)", 366),
    "month": ("(pg_catalog.date_part('day', {0}) - 1)", 31),
    "week": ("pg_catalog.date_part('dow', {0})", 7),
    "day": ("pg_catalog.date_part('epoch', {0}::time)", DAY),
}


# -- values --------------------------------------------------------------------------------------------------


def number(column: Column, value: str) -> str:
    """A column as double precision; dates in days since 1970."""
    if column.type == "boolean":
        return f"{value}::integer::double precision"
    if column.type == "money":
        return f"{value}::numeric::double precision"
    if column.type == "interval":
        return f"pg_catalog.date_part('epoch', {value})"
    if column.type in DATES:
        return f"pg_catalog.date_part('epoch', {moment(column, value)}) / {DAY}"
    if column.type == "time without time zone":
        return f"pg_catalog.date_part('epoch', {value}) / {DAY}"
    return f"{value}::double precision"


def moment(column: Column, value: str) -> str:
    """A date or time as a timestamp; NULL if it is infinite."""
    if column.type == "time without time zone":
        return value
    inside = f"{value} AT TIME ZONE 'UTC'" if column.type == "timestamp with time zone" else f"{value}::timestamp"
    return f"CASE WHEN pg_catalog.isfinite({value}) THEN {inside} END"


def text(column: Column, value: str) -> str:
    """A column as text, compared byte by byte.  Numbers of all types have the same text for the same number."""
    if column.type in ("real", "double precision"):
        finite = f"CASE WHEN {value} IN {NOT_FINITE} THEN NULL ELSE {value}::double precision END"
        value = f"({finite})::numeric"
    elif column.type == "numeric":
        value = f"{value}::double precision::numeric"
    elif column.type == "money":
        value = f"{value}::numeric"
    elif column.type == "interval":
        value = f"pg_catalog.date_part('epoch', {value})::numeric"
    elif column.type in DATES:
        value = f"pg_catalog.to_char({moment(column, value)}, 'YYYY-MM-DD HH24:MI:SS.US')"
    return f'({value})::text COLLATE "C"'


# -- what they become ----------------------------------------------------------------------------------------


def floats(feature: Feature, column: Column, value: str) -> list[str]:
    """The elements of a real[] that a number or date becomes."""
    if isinstance(feature, Number):
        return _number(feature, column, value)
    assert isinstance(feature, Date)
    return _date(feature, column, value)


def _number(feature: Number, column: Column, value: str) -> list[str]:
    known = number(column, value)
    if feature.not_finite == "null" and column.type in REALS:
        known = f"CASE WHEN {known} IN {NOT_FINITE} THEN NULL ELSE {known} END"
    filled = f"COALESCE({known}, {feature.fill!r})"
    elements = [f"({_transformed(feature, filled)})::real"]
    return [*elements, f"(({known}) IS NULL)::integer::real"] if feature.missing else elements


def _transformed(feature: Number, value: str) -> str:
    if feature.transform == "quantile":
        return _interpolated(feature, value)
    if feature.transform == "log":
        largest = feature.unit * 1e100
        within = f"LEAST(GREATEST({value}, {-largest!r}), {largest!r})"
        value = f"pg_catalog.sign({within}) * pg_catalog.ln(1 + pg_catalog.abs({within}) / {feature.unit!r})"
    low, high = limits(feature.mean, feature.deviation)
    # This is (x - mean) / deviation.  A value next to the mean becomes 0 rather than a number too small for real.
    start = feature.mean - feature.deviation
    return f"(LEAST(GREATEST({value}, {low!r}), {high!r}) - {start!r}) / {feature.deviation!r} - 1"


def _interpolated(feature: Number, value: str) -> str:
    """A line from knot to knot; beyond the knots the score of the last."""
    knots, scores = feature.knots, feature.scores
    slopes = [(y2 - y1) / (x2 - x1) for x1, x2, y1, y2 in zip(knots, knots[1:], scores, scores[1:])]
    starts = [y - slope * x for x, y, slope in zip(knots, scores, slopes)]
    place = f"1 + pg_catalog.width_bucket({value}, {_array(knots)})"
    start = _array([scores[0], *starts, scores[-1]])
    slope = _array([0.0, *slopes, 0.0])
    within = f"LEAST(GREATEST({value}, {knots[0]!r}), {knots[-1]!r})"
    # Rounded to what a float32 near 1 can hold: no value is too small for real.
    return f"({start})[{place}] + ({slope})[{place}] * {within} + 1 - 1"


def _array(values: tuple[float, ...] | list[float]) -> str:
    return "'{" + ",".join(map(repr, values)) + "}'::double precision[]"


def _date(feature: Date, column: Column, value: str) -> list[str]:
    when = f"({moment(column, value)})"
    elements = []
    for cycle in feature.cycles:
        position, length = PERIODS[cycle]
        angle = f"{position.format(when)} * {2 * math.pi / length!r}"
        elements += [f"COALESCE(pg_catalog.{wave}({angle}), 0)::real" for wave in ("sin", "cos")]
    if feature.deviation:
        low, high = limits(feature.mean, feature.deviation)
        start = feature.mean - feature.deviation
        days = f"LEAST(GREATEST(COALESCE({number(column, value)}, {feature.mean!r}), {low!r}), {high!r})"
        elements.append(f"(({days} - {start!r}) / {feature.deviation!r} - 1)::real")
    return [*elements, f"({when} IS NULL)::integer::real"] if feature.missing else elements


def code(feature: Feature, column: Column, value: str) -> str:
    """The integer that a category becomes."""
    assert isinstance(feature, Category)
    spelled = text(column, value)
    if not feature.buckets:
        return f"COALESCE({_looked_up(feature, spelled)}, 0)"
    return f"COALESCE({_looked_up(feature, spelled)}, {feature.first_bucket} + {_bucket(spelled, feature.buckets)}, 0)"


def _looked_up(feature: Category, spelled: str) -> str:
    """The code of a listed value, else NULL.  A key of a jsonb is found by binary search."""
    codes = literal(json.dumps(feature.codes, ensure_ascii=False))
    return f"({codes}::pg_catalog.jsonb OPERATOR(pg_catalog.->) ({spelled}))::integer"


def _bucket(spelled: str, buckets: int) -> str:
    return _of_so_many(f"pg_catalog.hashtextextended({spelled}, 0)", buckets)


def _of_so_many(hashed: str, count: int) -> str:
    """A number from 0 that is less than ``count``."""
    return f"((({hashed} % {count}) + {count}) % {count})::integer"


def word_ids(feature: Feature, value: str) -> str:
    """The integer[] that a text becomes."""
    assert isinstance(feature, Words)
    return f"cerebro._word_ids({value}::text, {feature.length}, {feature.ids})"


# -- what they have not seen ---------------------------------------------------------------------------------


def is_unknown(feature: Feature, column: Column, value: str) -> str | None:
    """The condition for a category that training has not seen; None if there is no such value."""
    if not isinstance(feature, Category) or feature.buckets:
        return None
    spelled = text(column, value)
    return f"{value} IS NOT NULL AND {_looked_up(feature, spelled)} IS NULL"


def is_not_finite(feature: Feature, column: Column, value: str) -> str | None:
    """The condition for a number that must not be; None if all numbers may be."""
    if not isinstance(feature, Number) or feature.not_finite == "null" or column.type not in REALS:
        return None
    return f"{value}::double precision IN {NOT_FINITE}"
