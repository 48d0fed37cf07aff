"""How the values of columns are distributed: counted in bins when rows are packed, and in the same bins later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cerebro_db.core.packing.columns import Found
from cerebro_db.core.packing.drift import CATEGORY, DATE, MOST_LISTED, NUMBER, Profile, edges_of
from cerebro_db.core.packing.features import CategoryFeature, Feature, WordsFeature
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, number_array, sql

from ...database.access import Database
from ...database.relations import Column, Relation
from ..rows import feature_sql
from ..rows.preparation import SourceVariable


@dataclass(frozen=True)
class Binned:
    """A column with the bins of a profile."""

    column: Column
    profile: Profile

    @property
    def bin(self) -> Sql:
        """The number of a row's bin, from 0; the last one is that of NULL."""
        name, last = sql("s.{name}", name=identifier(self.column.name)), self.profile.bins - 1
        if self.profile.kind != CATEGORY:
            return sql(
                "COALESCE(pg_catalog.width_bucket({value}, {edges}::double precision[]), {last})",
                value=feature_sql.number(self.column, name),
                edges=number_array(self.profile.edges),
                last=last,
            )
        listed = joined(", ", map(literal, self.profile.values))
        return sql(
            "CASE WHEN {name} IS NULL THEN {last}"
            " ELSE COALESCE(pg_catalog.array_position(ARRAY[{listed}]::text[], {text}) - 1, {others}) END",
            name=name,
            last=last,
            listed=listed,
            text=feature_sql.text(self.column, name),
            others=last - 1,
        )


def of(
    db: Database, some: Relation, variables: Sequence[SourceVariable], found: Mapping[str, Found]
) -> tuple[Profile, ...]:
    """The profiles of the inputs and targets that are numbers, dates or categories.

    ``some``: the rows, or a sample of many rows.  ``found``: what the rows tell about each column.
    """
    columns = list(_kinds(variables, found))
    listed = _most_frequent(db, some, [column for column, _, kind in columns if kind == CATEGORY])
    empty = [
        Profile(
            column.name,
            is_target,
            kind,
            edges_of(found[column.name].numbers) if kind != CATEGORY else (),
            tuple(listed.get(column.name, ())),
        )
        for column, is_target, kind in columns
    ]
    counts = counted(db, some, [Binned(column, one) for (column, _, _), one in zip(columns, empty)])
    return tuple(replace(one, rows=tuple(rows)) for one, rows in zip(empty, counts))


def counted(db: Database, source: Relation, columns: Sequence[Binned]) -> list[list[int]]:
    """The rows in each bin of each column."""
    counts = [[0] * one.profile.bins for one in columns]
    if columns:
        grouped = sql(
            "SELECT u.c, u.b, count(*) AS n FROM {rows} AS s, unnest({places}, ARRAY[{bins}]::integer[]) AS u (c, b)"
            " GROUP BY 1, 2",
            rows=source.rows,
            places=_places(columns),
            bins=joined(", ", (one.bin for one in columns)),
        )
        for row in db.scan(grouped):
            counts[row["c"]][row["b"]] = row["n"]
    return counts


def _kinds(variables: Sequence[SourceVariable], found: Mapping[str, Found]) -> Iterator[tuple[Column, bool, str]]:
    for variable in variables:
        if variable.later:
            continue  # the columns are those of another input
        prepared = variable.preparation
        if prepared.target is not None:
            (column, *_) = variable.columns
            if column.name not in found:  # an array, or a type of the user's
                continue
            yield column, True, CATEGORY if prepared.target == "class" else NUMBER
        for feature, column in zip(prepared.features, variable.columns):
            if not isinstance(feature, WordsFeature):
                yield column, False, _kind(feature)


def _kind(feature: Feature) -> str:
    if isinstance(feature, CategoryFeature):
        return CATEGORY
    return DATE if feature.prepared_as == DATE and feature.family == "date" else NUMBER


def _most_frequent(db: Database, source: Relation, columns: Sequence[Column]) -> dict[str, list[str]]:
    """The most frequent values of each column, as texts."""
    if not columns:
        return {}
    texts = [feature_sql.text(column, sql("s.{name}", name=identifier(column.name))) for column in columns]
    grouped = db.scan(
        sql(
            "SELECT c, v FROM (SELECT g.c, g.v, row_number() OVER (PARTITION BY g.c ORDER BY g.n DESC, g.v) AS place"
            " FROM (SELECT u.c, u.v, count(*) AS n"
            " FROM {rows} AS s, unnest({places}, ARRAY[{texts}]::text[]) AS u (c, v)"
            " WHERE u.v IS NOT NULL GROUP BY 1, 2) g) r WHERE place <= {most} ORDER BY c, place",
            rows=source.rows,
            places=_places(columns),
            texts=joined(", ", texts),
            most=MOST_LISTED,
        )
    )
    found: dict[str, list[str]] = {column.name: [] for column in columns}
    for row in grouped:
        found[columns[row["c"]].name].append(row["v"])
    return found


def _places(columns: Sequence[object]) -> Sql:
    return sql("ARRAY[{places}]", places=joined(", ", range(len(columns))))
