"""The SQL that applies a feature (cerebro_db.core.packing.features) to a column, and finds values that training did not
have.

The statistics that packing starts from read columns with the same expressions (``number`` and ``text``), so a value
means the same to both.  No expression depends on a setting of the session, such as its time zone or DateStyle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from cerebro_db.core.packing.distributions import limits
from cerebro_db.core.packing.features import (
    CategoryFeature,
    DateFeature,
    Feature,
    MeansFeature,
    NumberFeature,
    WordsFeature,
)
from cerebro_db.core.sql import Sql, joined, literal, number_array, sql
from cerebro_db.core.sql_types import BUILT_IN, WITH_ZONE

from ...database.relations import Column

DATES = ("date", "timestamp without time zone", "timestamp with time zone")
REALS = ("real", "double precision", "numeric")
WITHOUT_ZONE = BUILT_IN - {WITH_ZONE}
NOT_FINITE = sql("('NaN', 'Infinity', '-Infinity')")
DAY = 86400
FEW_CODES = 16
PERIODS: dict[
    str, tuple[Callable[[Sql], Sql], int]
] = {  # the cycles of a date: how far within its cycle a moment is, and how long the cycle is
    "year": (lambda when: sql("(pg_catalog.date_part('doy', {when}) - 1)", when=when), 366),
    "month": (lambda when: sql("(pg_catalog.date_part('day', {when}) - 1)", when=when), 31),
    "week": (lambda when: sql("pg_catalog.date_part('dow', {when})", when=when), 7),
    "day": (lambda when: sql("pg_catalog.date_part('epoch', {when}::time)", when=when), DAY),
}


# -- values --------------------------------------------------------------------------------------------------


def number(column: Column, value: Sql) -> Sql:
    """A column as double precision; dates in days since 1970."""
    if column.type == "boolean":
        return sql("{value}::integer::double precision", value=value)
    if column.type == "money":
        return sql("({units} * 0.01)::double precision", units=_units(value))
    if column.type == "interval":
        return sql("pg_catalog.date_part('epoch', {value})", value=value)
    if column.type == "date":
        days = sql("({value} - date '1970-01-01')::double precision", value=value)
        return sql("CASE WHEN pg_catalog.isfinite({value}) THEN {days} END", value=value, days=days)
    if column.type in DATES:
        return sql("pg_catalog.date_part('epoch', {moment}) / {day}", moment=moment(column, value), day=DAY)
    if column.type == "time without time zone":
        return sql("pg_catalog.date_part('epoch', {value}) / {day}", value=value, day=DAY)
    return sql("{value}::double precision", value=value)


def moment(column: Column, value: Sql) -> Sql:
    """A date or time as a timestamp; NULL if it is infinite."""
    if column.type == "time without time zone":
        return value
    inside = _timestamp(column, value)
    return sql("CASE WHEN pg_catalog.isfinite({value}) THEN {inside} END", value=value, inside=inside)


def _timestamp(column: Column, value: Sql) -> Sql:
    """A date or time as a timestamp, which may be infinite."""
    if column.type == "time without time zone":
        return value
    if column.type == "timestamp with time zone":
        return sql("({value} AT TIME ZONE 'UTC')", value=value)
    return sql("{value}::timestamp", value=value)


def may_hold_moments(column: Column) -> bool:
    """Whether it is an array, a range or a row whose text may depend on the session's time zone."""
    return column.category in "RC" or (column.element or "text") not in WITHOUT_ZONE


def _units(value: Sql) -> Sql:
    """The integer that money is stored as.  A cast to numeric would divide it by what lc_monetary says."""
    stored = sql("pg_catalog.encode(pg_catalog.cash_send({value}), 'hex')", value=value)
    return sql("('x' || {stored})::bit(64)::bigint", stored=stored)


def text(column: Column, value: Sql) -> Sql:
    """A column as text, compared byte by byte.  Numbers of all types have the same text for the same number."""
    value = column.array(value)
    if column.type in ("real", "double precision"):
        finite = sql(
            "CASE WHEN {value} IN {not_finite} THEN NULL ELSE {value}::double precision END",
            value=value,
            not_finite=NOT_FINITE,
        )
        value = sql("({finite})::numeric", finite=finite)
    elif column.type == "numeric":
        value = sql("{value}::double precision::numeric", value=value)
    elif column.type == "money":
        value = sql("({units} * 0.01)", units=_units(value))
    elif column.type == "interval":
        value = sql("pg_catalog.date_part('epoch', {value})::numeric", value=value)
    elif column.type in DATES:
        value = sql("pg_catalog.to_char({moment}, 'YYYY-MM-DD HH24:MI:SS.US')", moment=moment(column, value))
    elif may_hold_moments(column):
        value = sql("cerebro_internal._text_in_utc({value})", value=value)
    return sql('({value})::text COLLATE "C"', value=value)


# -- what they become ----------------------------------------------------------------------------------------


def floats(feature: Feature, column: Column, value: Sql) -> list[Sql]:
    """The elements of a real[] that a number or date becomes."""
    if isinstance(feature, NumberFeature):
        return _number(feature, column, value)
    if isinstance(feature, MeansFeature):
        return means(feature, feature.means, sql("0"), column, value)
    assert isinstance(feature, DateFeature)
    return _date(feature, column, value)


def means(feature: MeansFeature, of: Sequence[Sequence[float]], before: Sql, column: Column, value: Sql) -> list[Sql]:
    """The means of a value, which are in ``of`` after so many others; 0 for NULL and values that are not listed."""
    place = sql("{before} + {place}", before=before, place=looked_up(feature.places, text(column, value)))
    return [sql("COALESCE(({them})[{place}], 0)::real", them=_array(list(them)), place=place) for them in of]


def _number(feature: NumberFeature, column: Column, value: Sql) -> list[Sql]:
    known = number(column, value)
    if feature.not_finite == "null" and column.type in REALS:
        known = sql("CASE WHEN {known} IN {not_finite} THEN NULL ELSE {known} END", known=known, not_finite=NOT_FINITE)
    filled = sql("COALESCE({known}, {fill})", known=known, fill=feature.fill)
    elements = [sql("({transformed})::real", transformed=_transformed(feature, filled))]
    return [*elements, sql("(({known}) IS NULL)::integer::real", known=known)] if feature.missing else elements


def _transformed(feature: NumberFeature, value: Sql) -> Sql:
    if feature.transform == "quantile":
        return _interpolated(feature, value)
    if feature.transform == "log":
        largest = feature.unit * 1e100
        within = _between(-largest, value, largest)
        value = sql(
            "pg_catalog.sign({within}) * pg_catalog.ln(1 + pg_catalog.abs({within}) / {unit})",
            within=within,
            unit=feature.unit,
        )
    low, high = limits(feature.mean, feature.deviation)
    # This is (x - mean) / deviation.  A value next to the mean becomes 0 rather than a number too small for real.
    start = feature.mean - feature.deviation
    return sql(
        "({within} - {start}) / {deviation} - 1",
        within=_between(low, value, high),
        start=start,
        deviation=feature.deviation,
    )


def _between(low: float, value: Sql, high: float) -> Sql:
    return sql("LEAST(GREATEST({value}, {low}), {high})", value=value, low=low, high=high)


def _interpolated(feature: NumberFeature, value: Sql) -> Sql:
    """A line from knot to knot; beyond the knots the score of the last."""
    knots, scores = feature.knots, feature.scores
    slopes = [(y2 - y1) / (x2 - x1) for x1, x2, y1, y2 in zip(knots, knots[1:], scores, scores[1:])]
    starts = [y - slope * x for x, y, slope in zip(knots, scores, slopes)]
    place = sql("1 + pg_catalog.width_bucket({value}, {array})", value=value, array=_array(knots))
    start = _array([scores[0], *starts, scores[-1]])
    slope = _array([0.0, *slopes, 0.0])
    within = _between(knots[0], value, knots[-1])
    # Rounded to what a float32 near 1 can hold: no value is too small for real.
    return sql(
        "({start})[{place}] + ({slope})[{place}] * {within} + 1 - 1",
        start=start,
        place=place,
        slope=slope,
        within=within,
    )


def _array(values: tuple[float, ...] | list[float]) -> Sql:
    return sql("{values}::double precision[]", values=number_array(values))


def _date(feature: DateFeature, column: Column, value: Sql) -> list[Sql]:
    when = _timestamp(column, value)  # one that is infinite has no place in a cycle: NULL
    elements = []
    for cycle in feature.cycles:
        position, length = PERIODS[cycle]
        angle = sql("{position} * {turn}", position=position(when), turn=2 * math.pi / length)
        elements.append(sql("COALESCE(pg_catalog.sin({angle}), 0)::real", angle=angle))
        elements.append(sql("COALESCE(pg_catalog.cos({angle}), 0)::real", angle=angle))
    if feature.deviation:
        low, high = limits(feature.mean, feature.deviation)
        start = feature.mean - feature.deviation
        filled = sql("COALESCE({number}, {mean})", number=number(column, value), mean=feature.mean)
        days = _between(low, filled, high)
        elements.append(
            sql("(({days} - {start}) / {deviation} - 1)::real", days=days, start=start, deviation=feature.deviation)
        )
    if not feature.missing:
        return elements
    return [*elements, sql("(({moment}) IS NULL)::integer::real", moment=moment(column, value))]


def code(feature: Feature, column: Column, value: Sql) -> Sql:
    """The integer that a category becomes."""
    assert isinstance(feature, CategoryFeature)
    spelled = text(column, value)
    if not feature.buckets:
        return sql("COALESCE({looked_up}, 0)", looked_up=looked_up(feature.codes, spelled))
    return sql(
        "COALESCE({looked_up}, {first_bucket} + {bucket}, 0)",
        looked_up=looked_up(feature.codes, spelled),
        first_bucket=feature.first_bucket,
        bucket=_bucket(spelled, feature.buckets),
    )


def looked_up(codes: Mapping[str, int], spelled: Sql) -> Sql:
    """The code of a listed value, else NULL.  A key of a jsonb is found by binary search; few values are compared."""
    if not codes:
        return sql("NULL::integer")
    if len(codes) <= FEW_CODES:
        cases = (sql("WHEN {value} THEN {code}", value=literal(one), code=code) for one, code in codes.items())
        return sql("CASE {spelled} {cases} END", spelled=spelled, cases=joined(" ", cases))
    return sql("({codes} OPERATOR(pg_catalog.->) ({spelled}))::integer", codes=_as_jsonb(codes), spelled=spelled)


def _is_listed(feature: CategoryFeature, spelled: Sql) -> Sql:
    if len(feature.codes) <= FEW_CODES:
        return sql("{looked_up} IS NOT NULL", looked_up=looked_up(feature.codes, spelled))
    return sql(
        "COALESCE(pg_catalog.jsonb_exists({codes}, {spelled}), false)", codes=_as_jsonb(feature.codes), spelled=spelled
    )


def _as_jsonb(codes: Mapping[str, int]) -> Sql:
    return sql("{codes}::pg_catalog.jsonb", codes=literal(json.dumps(codes, ensure_ascii=False)))


def _bucket(spelled: Sql, buckets: int) -> Sql:
    return _of_so_many(sql("pg_catalog.hashtextextended({spelled}, 0)", spelled=spelled), buckets)


def _of_so_many(hashed: Sql, count: int) -> Sql:
    """A number from 0 that is less than ``count``."""
    return sql("((({hashed} % {count}) + {count}) % {count})::integer", hashed=hashed, count=count)


def word_ids(feature: Feature, value: Sql) -> Sql:
    """The integer[] that a text becomes."""
    assert isinstance(feature, WordsFeature)
    if feature.vocabulary:
        return sql(
            "cerebro_internal._word_pieces({value}::text, {length}, {vocabulary}::bytea)",
            value=value,
            length=feature.length,
            vocabulary=literal("\\x" + feature.vocabulary.encode().hex()),
        )
    return sql(
        "cerebro_internal._word_ids({value}::text, {length}, {ids})",
        value=value,
        length=feature.length,
        ids=feature.ids,
    )


# -- what they have not seen ---------------------------------------------------------------------------------


def is_unknown(feature: Feature, column: Column, value: Sql) -> Sql | None:
    """The condition for a category that training has not seen; None if there is no such value."""
    if not isinstance(feature, CategoryFeature) or feature.buckets:
        return None
    listed = _is_listed(feature, text(column, value))
    return sql("{value} IS NOT NULL AND NOT ({listed})", value=value, listed=listed)


def is_not_finite(feature: Feature, column: Column, value: Sql) -> Sql | None:
    """The condition for a number that must not be; None if all numbers may be."""
    if not isinstance(feature, NumberFeature) or feature.not_finite == "null" or column.type not in REALS:
        return None
    return sql("{value}::double precision IN {not_finite}", value=value, not_finite=NOT_FINITE)
