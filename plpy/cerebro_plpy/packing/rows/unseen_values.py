"""Values that the training rows did not have: categories that become unknown, NULLs, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, NumberFeature
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, sql

from ...database.access import Database
from . import feature_sql
from .preparation import Alias, SourceVariable


@dataclass(frozen=True)
class Surprise:
    column: str
    condition: Sql
    is_error: bool
    what: str  # after "N rows …"
    hint: str


def of(
    variables: Sequence[SourceVariable],
    alias: Alias = lambda column: identifier(column.name),
    *,
    may_be_null: Collection[str] = (),
) -> list[Surprise]:
    """What has to be looked for in the columns of these variables.  ``may_be_null``: columns where a NULL is usual."""
    found = []
    for variable in variables:
        if variable.gathered:  # the rows of windows are looked at before they become windows
            continue
        for feature, column in zip(variable.preparation.features, variable.columns):
            name = alias(column)
            if condition := feature_sql.is_unknown(feature, column, name):
                assert isinstance(feature, CategoryFeature)
                found.append(
                    Surprise(column.name, condition, feature.unknown == "error",
                             "have a value that training has not seen"
                             + ("" if feature.unknown == "error" else "; it counts as unknown"),
                             "Leave these rows out, or train again with rows that have these values, or without"
                             ' "unknown": "error" in prepare.')
                )  # fmt: skip
            if condition := feature_sql.is_not_finite(feature, column, name):
                found.append(
                    Surprise(column.name, condition, True, "are NaN or infinite",
                             "Leave these rows out, or pack the training table with prepare =>"
                             f' \'{{"{column.name}": {{"not_finite": "null"}}}}\'.')
                )  # fmt: skip
            usual = column.name in may_be_null
            if isinstance(feature, (NumberFeature, DateFeature)) and not feature.missing and not usual:
                found.append(
                    Surprise(column.name, sql("{name} IS NULL", name=name), False,
                             "are NULL, but no training row is; a number counts as the median then, a date as 0", "")
                )  # fmt: skip
    return found


def counts(surprises: Sequence[Surprise]) -> list[Sql]:
    """The aggregates that count them: columns s0, s1, …"""
    return [
        sql("count(*) FILTER (WHERE {condition}) AS s{place}", condition=one.condition, place=place)
        for place, one in enumerate(surprises)
    ]


def require_none(surprises: Sequence[Surprise], found: dict[str, Any], table: str) -> None:
    """An error if there is a value that must not be."""
    for place, one in enumerate(surprises):
        if one.is_error and found[f"s{place}"]:
            raise BadData(f"{_said(one, place, found, table)}.", hint=one.hint)


def _said(one: Surprise, place: int, found: dict[str, Any], table: str) -> str:
    return f"column '{one.column}' of {table}: {found[f's{place}']} of {found['rows']} rows {one.what}"


def tell(db: Database, table: str, surprises: Sequence[Surprise], found: dict[str, Any]) -> None:
    """A notice for each column with such values, or an error."""
    require_none(surprises, found, table)
    for place, one in enumerate(surprises):
        if found[f"s{place}"]:
            db.notice(f"{_said(one, place, found, table)}")
