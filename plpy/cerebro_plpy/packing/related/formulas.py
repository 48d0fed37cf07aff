"""Aggregates of related rows, by sums of whole numbers: in whatever way these are added up, the bits are the same."""

from __future__ import annotations

import abc
from typing import Optional

from cerebro_db.core.packing.related import (
    COUNT,
    DIFFERENT,
    FARTHEST_STEP,
    SHARE,
    SINCE_FIRST,
    SINCE_LAST,
    Aggregate,
    RelatedMeasure,
)
from cerebro_db.core.sql import Sql, sql

from ...database.relations import Column
from ..rows import feature_sql

MINUTES, UNITS = 1440, 1  # of the time in a trend: steps of a day, or of a unit
STEPS, SQUARES, TIMES, TIMES_SQUARED, BOTH = "steps", "squares", "times", "times squared", "both"
Within = Optional[float]  # days or units before the example; None: all time


class Sums(abc.ABC):
    """What is known of the related rows of an example, as SQL.  ``place``: of a value among those that are read."""

    fine: int  # steps of a day or unit in a trend

    @abc.abstractmethod
    def rows(self, within: Within) -> Sql: ...

    @abc.abstractmethod
    def known(self, place: int, within: Within) -> Sql:
        """The number of rows in which a value is not NULL."""

    @abc.abstractmethod
    def total(self, place: int, what: str, within: Within) -> Sql:
        """The sum, over rows in which a value is not NULL, of one of STEPS, SQUARES, …"""

    @abc.abstractmethod
    def end(self, place: int, *, largest: bool) -> Sql:
        """The least or the largest value."""

    @abc.abstractmethod
    def equal(self, place: int, value: str, within: Within) -> Sql:
        """The number of rows with this value."""

    @abc.abstractmethod
    def different(self, place: int) -> Sql: ...

    @abc.abstractmethod
    def age(self, *, last: bool) -> Sql:
        """How long before the example its last row was, or its first one."""


def aggregate(each: Aggregate, place: int, measure: RelatedMeasure | None, sums: Sums) -> Sql:
    """``place``: of the value that the aggregate is of.  ``measure``: of the number that it is of."""
    within = each.within
    if each.kind == COUNT:
        return sql("({rows})::double precision", rows=sums.rows(within))
    if each.kind in (SINCE_LAST, SINCE_FIRST):
        return sums.age(last=each.kind == SINCE_LAST)
    if each.kind == DIFFERENT:
        return sql("({rows})::double precision", rows=sums.different(place))
    if each.kind == SHARE:
        assert each.value is not None
        return sql(
            "({equal})::double precision / NULLIF({rows}, 0)",
            equal=sums.equal(place, each.value, within),
            rows=sums.rows(within),
        )
    assert measure is not None
    return _of_number(each, place, measure, sums)


def _of_number(each: Aggregate, place: int, measure: RelatedMeasure, sums: Sums) -> Sql:
    """What sums of whole steps say of a number, in its own unit."""
    origin, step, within = measure.origin, measure.step, each.within
    if each.kind in ("least", "largest"):
        end = sums.end(place, largest=each.kind == "largest")
        return sql("{origin} + {step} * ({end})::double precision", origin=origin, step=step, end=end)
    count, total = sums.known(place, within), sums.total(place, STEPS, within)
    if each.kind == "sum":
        return sql("{origin} * ({count}) + {step} * ({total})::double precision",
                   origin=origin, count=count, step=step, total=total)  # fmt: skip
    if each.kind == "mean":
        return sql("{origin} + {step} * (({total})::double precision / NULLIF({count}, 0))",
                   origin=origin, step=step, total=total, count=count)  # fmt: skip
    if each.kind == "spread":
        return sql(
            "{step} * pg_catalog.sqrt((({count}) * ({squares}) - ({total}) * ({total}))::double precision)"
            " / NULLIF({count}, 0)",
            step=step,
            count=count,
            squares=sums.total(place, SQUARES, within),
            total=total,
        )
    # The slope of the number over the time.
    times = sums.total(place, TIMES, within)
    return sql(
        "{factor} * (({count}) * ({both}) - ({times}) * ({total}))::double precision"
        " / NULLIF((({count}) * ({squared}) - ({times}) * ({times}))::double precision, 0)",
        factor=step * sums.fine,
        count=count,
        both=sums.total(place, BOTH, within),
        times=times,
        total=total,
        squared=sums.total(place, TIMES_SQUARED, within),
    )


def term(what: str, value: Sql, time: Sql) -> Sql:
    if what == STEPS:
        return value
    if what == SQUARES:
        return sql("{value} * {value}", value=value)
    if what == BOTH:
        return sql("{value} * {time}", value=value, time=time)
    squared = sql("{time} * {time}", time=time) if what == TIMES_SQUARED else time
    return sql("CASE WHEN {value} IS NOT NULL THEN {squared} END", value=value, squared=squared)


# -- values --------------------------------------------------------------------------------------------------


def steps(measure: RelatedMeasure, column: Column, value: Sql) -> Sql:
    """A number in whole steps from the origin; NULL stays NULL, and so do NaN and infinity."""
    number = feature_sql.number(column, value)
    known = sql("{value} IS NOT NULL", value=value)
    if column.type in feature_sql.REALS:
        known = sql("{known} AND {number} NOT IN {not_finite}", known=known, number=number,
                    not_finite=feature_sql.NOT_FINITE)  # fmt: skip
    farthest = FARTHEST_STEP * measure.step  # so that nothing overflows
    near = sql("LEAST(GREATEST({number}, {low}), {high})", number=number, low=measure.origin - farthest,
               high=measure.origin + farthest)  # fmt: skip
    return sql(
        "CASE WHEN {known} THEN"
        " LEAST(GREATEST(pg_catalog.round(({near} - {origin}) / {step}), {low}), {high})::bigint END",
        known=known,
        near=near,
        origin=measure.origin,
        step=measure.step,
        low=-FARTHEST_STEP,
        high=FARTHEST_STEP,
    )


def moment(column: Column, value: Sql) -> Sql:
    """A time as times are compared: dates as a timestamp, in UTC, and numbers as they are.  NULL if it isn't finite."""
    if column.type in feature_sql.DATES:
        return feature_sql.moment(column, value)
    number = feature_sql.number(column, value)
    if column.type not in feature_sql.REALS:
        return number
    finite = sql("{number} NOT IN {not_finite}", number=number, not_finite=feature_sql.NOT_FINITE)
    return sql("CASE WHEN {finite} THEN {number} END", finite=finite, number=number)


def between(column: Column, earlier: Sql, later: Sql) -> Sql:
    """How many days, or units, lie between two moments.  ``column``: one of both times."""
    if column.type in feature_sql.DATES:
        return sql("pg_catalog.date_part('epoch', {later} - {earlier}) / {day}", later=later, earlier=earlier,
                   day=feature_sql.DAY)  # fmt: skip
    return sql("{later} - {earlier}", later=later, earlier=earlier)


def before(column: Column, moment: Sql, length: float) -> Sql:
    """The moment so many days, or units, before another one."""
    if column.type in feature_sql.DATES:
        return sql("{moment} - pg_catalog.make_interval(secs => {seconds})", moment=moment,
                   seconds=length * feature_sql.DAY)  # fmt: skip
    return sql("{moment} - {length}", moment=moment, length=length)


def fine_of(column: Column) -> int:
    return MINUTES if column.type in feature_sql.DATES else UNITS


def in_steps(column: Column, moment: Sql) -> Sql:
    """A moment in whole steps, for a trend."""
    number = moment
    if column.type in feature_sql.DATES:
        number = sql("pg_catalog.date_part('epoch', {moment}) / {day}", moment=moment, day=feature_sql.DAY)
    return sql(
        "LEAST(GREATEST(pg_catalog.round(({number}) * {fine}), {low}), {high})::bigint",
        number=number,
        fine=fine_of(column),
        low=-FARTHEST_STEP,
        high=FARTHEST_STEP,
    )
