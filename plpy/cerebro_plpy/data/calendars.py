"""What a date becomes, computed once for each day instead of once for each row.

Most of what a date becomes depends on its day alone: six sines and cosines of its place in the year, the month and the
week.  In SQL they take as long as the numbers of twenty other columns.  So the elements of the days around the mean are
computed beforehand, by the same expressions, and a row takes those of its day from a long bytea.  Rows of other days,
and NULLs, are computed as usual.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.features import DateFeature, Feature
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, literal, sql

from ..database.access import Database
from ..database.relations import Column
from . import features

MOST_DAYS = 16_384
DEVIATIONS = 3  # from the mean to the first and to the last day
EARLIEST, LATEST = -700_000, 1_000_000  # days; PostgreSQL refuses some that are farther away


@dataclass(frozen=True)
class Calendar:
    first: int  # day, since 1970-01-01
    days: int
    elements: int  # of each day: so many of the feature's first elements
    stored: bytes  # float32

    def looked_up(self, column: Column, value: Sql, elements: Sequence[Sql]) -> Sql:
        """The bytes of a row's first elements, which these expressions would give."""
        day = features.day(column, value)
        width = 4 * self.elements
        return sql(
            "CASE WHEN {day} >= {epoch} + {first} AND {day} < {epoch} + {end}"
            " THEN pg_catalog.substr({stored}::bytea, 1 + {width} * ({day} - ({epoch} + {first})), {width})"
            " ELSE {computed} END",
            day=day,
            epoch=features.EPOCH,
            first=self.first,
            end=self.first + self.days,
            stored=literal("\\x" + self.stored.hex()),
            width=width,
            computed=element_bytes(elements),
        )


def of(db: Database, columns: Sequence[Column], prepared: Sequence[Feature]) -> dict[Feature, Calendar]:
    """A calendar for each feature of a date."""
    return {
        feature: calendar
        for feature, column in zip(prepared, columns)
        if isinstance(feature, DateFeature) and (calendar := _of_feature(db, column, feature)) is not None
    }


def element_bytes(elements: Sequence[Sql]) -> Sql:
    """The bytes of the elements of a real[], without the array's header."""
    return sql("pg_catalog.substr(cerebro._array_bytes(ARRAY[{elements}]), 21)", elements=joined(", ", elements))


def header(elements: int) -> Sql:
    """The header of a real[] with so many elements."""
    return sql(
        "pg_catalog.substr(cerebro._array_bytes(pg_catalog.array_fill(0::real, ARRAY[{elements}])), 1, 20)",
        elements=elements,
    )


def _of_feature(db: Database, column: Column, feature: DateFeature) -> Calendar | None:
    elements = features.elements_of_a_day(feature, column)
    half = min(MOST_DAYS // 2, int(DEVIATIONS * feature.deviation))
    first = int(feature.mean) - half
    if not elements or not half or first < EARLIEST or first + 2 * half > LATEST:
        return None
    when = sql("({epoch} + day)::{type}", epoch=features.EPOCH, type=feature.type.sql)
    of_a_day = features.floats(feature, column, when)[:elements]
    stored = db.value(
        sql(
            "SELECT pg_catalog.string_agg({computed}, '' ORDER BY day)"
            " FROM pg_catalog.generate_series({first}, {last}) AS day",
            computed=element_bytes(of_a_day),
            first=first,
            last=first + 2 * half - 1,
        )
    )
    return Calendar(first, 2 * half, elements, stored)
