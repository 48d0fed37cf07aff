"""Means of the targets beside the codes of categories with many values, which few rows of a value teach slowly.

A row for training must not tell its own target.  So the rows for training are in parts by a hash, and a row gets the
means over the rows of the other parts.  All other rows get the means over all rows for training, which the layout
keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing.columns import NUMBERS
from cerebro_db.core.packing.features import FARTHEST, MOST_MEANS, CategoryFeature, Feature, MeansFeature
from cerebro_db.core.packing.preparation import Categories, Measured, Numbers, OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from ...database.access import Database
from ...database.relations import Column, Relation
from ..checked_arguments import CheckedColumns
from ..rows import feature_sql, preparation
from ..rows.preparation import SourceVariable, applied
from ..rows.splits import by_name
from .chosen_variables import Prepared

PARTS = 5
MOST_VALUES = 2000  # the most frequent ones
LONGEST = 1000  # characters of a value
PRIOR = 10.0  # rows of the mean of all, which each value has besides its own
LEAST_EXPLAINED = 0.05  # of a target's variance; means that explain less are left out, unless prepare asks for them
DIGITS = 4  # so that the order in which numbers were added up makes no difference


@dataclass(frozen=True)
class Goal:
    """What means are of: a number to predict, or whether a row is of a class."""

    name: str
    value: Sql  # of a row, around 0
    of_all: float  # its mean over all rows
    variance: float


def added(
    db: Database, training: Relation, decided: Prepared, asked: CheckedColumns, part: Sql
) -> list[SourceVariable]:
    """The inputs with means of the targets among the numbers.  ``part``: the part of a row, from 1 on."""
    ins, found = decided.inputs, decided.found
    wanted = [
        (column, LEAST_EXPLAINED if asked.wish(column).arguments.get("means") is None else None)
        for column, feature in _categories(ins)
        if deciding.wants_means(found[column.name], feature, asked.wish(column))
    ]
    goals = _goals(db, training, decided.outputs) if wanted else []
    if not goals:
        return list(ins)
    known = next((one for one in ins if isinstance(one.preparation, Numbers)), None)
    columns: list[Column] = list(known.columns) if known is not None else []
    features: list[Feature] = list(known.preparation.features) if known is not None else []
    of_other_parts, told = {}, []
    for column, least in wanted:
        values = _values(db, training, column, goals, part)
        if values is None or column in columns:
            continue
        made = _means(column, found[column.name].family, goals, values, decided.rows, least)
        if made is not None:
            feature, of_other_parts[len(features)] = made
            columns.append(column)
            features.append(feature)
            told.append(f"{column.name} ({', '.join(feature.of)})")
    if not told:
        return list(ins)
    db.told(f"beside their category, these columns have means of the target: {', '.join(told)}")
    numbers = replace(applied(NUMBERS, columns, Numbers(tuple(features))), of_other_parts=of_other_parts)
    return [numbers, *(one for one in ins if one is not known)]


def refuse(asked: CheckedColumns) -> None:
    """Of windows, a row's target belongs to several."""
    for name, wish in asked.wishes.items():
        if wish.arguments.get("means"):
            raise InvalidArgument(
                f"prepare: {name!r}: means cannot be used together with sequence.", hint="Leave one of them out."
            )


def _categories(ins: Sequence[SourceVariable]) -> list[tuple[Column, CategoryFeature]]:
    return [
        (column, feature)
        for one in ins
        if isinstance(one.preparation, Categories)
        for column, feature in zip(one.columns, one.preparation.features)
        if isinstance(feature, CategoryFeature)
    ]


def _goals(db: Database, training: Relation, outs: Sequence[SourceVariable]) -> list[Goal]:
    """Of classes, all but the most frequent one: the last mean would follow from the others."""
    goals: list[Goal] = []
    for out in outs:
        its = out.preparation
        if isinstance(its, OneHot):
            code = preparation.packed_value(out, by_name, uneven=False)
            rows = db.scan(
                sql(
                    "SELECT {code} AS code, count(*) AS rows FROM {rows} AS s GROUP BY 1", code=code, rows=training.rows
                )
            )
            of_all = sum(row["rows"] for row in rows)
            frequent = sorted(rows, key=lambda row: (-row["rows"], row["code"]))[1:]
            for row in sorted(frequent[:MOST_MEANS], key=lambda row: int(row["code"])):
                share = row["rows"] / of_all
                label = its.labels[row["code"]] or out.name
                is_it = sql("({code} = {number})::integer::double precision", code=code, number=row["code"])
                goals.append(Goal(label, is_it, share, share * (1 - share)))
        elif isinstance(its, Measured) and not out.is_array:
            number = feature_sql.number(out.columns[0], by_name(out.columns[0]))
            value = sql("(({number}) - {mean}) / {by}", number=number, mean=its.mean, by=its.deviation)
            goals.append(Goal(out.name, value, 0.0, 1.0))
    return goals[:MOST_MEANS]


@dataclass(frozen=True)
class Values:
    """The frequent values of a column, with their rows in each part, and the sums of each goal there."""

    rows: dict[str, list[int]]
    sums: dict[str, list[list[float]]]  # part by part, of each goal


def _values(db: Database, training: Relation, column: Column, goals: Sequence[Goal], part: Sql) -> Values | None:
    each = [sql("{value} AS g{place}", value=one.value, place=place) for place, one in enumerate(goals)]
    sums = [sql("sum(g{place}) AS s{place}", place=place) for place in range(len(goals))]
    rows = db.scan(
        sql(
            "WITH g AS (SELECT v, p, count(*) AS n, {sums}"
            " FROM (SELECT {value} AS v, {part} AS p, {each} FROM {rows} AS s) r WHERE length(v) <= {longest}"
            " GROUP BY v, p),"
            " t AS (SELECT v FROM g GROUP BY v HAVING sum(n) > 1 ORDER BY sum(n) DESC, v LIMIT {most})"
            " SELECT g.* FROM g JOIN t USING (v) ORDER BY v, p",
            sums=joined(", ", sums),
            value=feature_sql.text(column, identifier(column.name)),
            part=part,
            each=joined(", ", each),
            rows=training.rows,
            longest=LONGEST,
            most=MOST_VALUES,
        )
    )
    parts = max((row["p"] for row in rows), default=0)
    found = Values({}, {})
    for row in rows:
        counts = found.rows.setdefault(row["v"], [0] * parts)
        its = found.sums.setdefault(row["v"], [[0.0] * len(goals) for _ in range(parts)])
        counts[row["p"] - 1] = row["n"]
        its[row["p"] - 1] = [float(row[f"s{place}"]) for place in range(len(goals))]
    return found if rows else None


def _means(
    column: Column, family: str, goals: Sequence[Goal], values: Values, rows: int, least: float | None
) -> tuple[MeansFeature, tuple[tuple[float, ...], ...]] | None:
    """The means over all rows, and part by part those over the rows of other parts; None if none explains enough."""
    in_all = {value: sum(counts) for value, counts in values.rows.items()}
    parts = range(len(next(iter(values.rows.values()))))
    chosen, means, of_others = [], [], []
    for place, goal in enumerate(goals):
        total = {value: math.fsum(one[place] for one in its) for value, its in values.sums.items()}
        plain = {value: _smoothed(total[value], of, goal.of_all) for value, of in in_all.items()}
        others = [
            {
                value: _smoothed(
                    total[value] - values.sums[value][part][place], of - values.rows[value][part], goal.of_all
                )
                for value, of in in_all.items()
            }
            for part in parts
        ]
        if least is not None and _explained(values, place, goal, others) < least * rows * goal.variance:
            continue
        by = math.sqrt(math.fsum(in_all[value] * one * one for value, one in plain.items()) / sum(in_all.values()))
        chosen.append(goal.name)
        means.append(tuple(_rounded(one / (by or 1.0)) for one in plain.values()))
        of_others.append(tuple(_rounded(one / (by or 1.0)) for its in others for one in its.values()))
    if not chosen:
        return None
    feature = MeansFeature(family, SqlType(column.type), tuple(chosen), tuple(in_all), tuple(means))
    return feature, tuple(of_others)


def _explained(values: Values, place: int, goal: Goal, others: Sequence[Mapping[str, float]]) -> float:
    """By how much the squared errors of all rows become less with the means of other parts."""
    return math.fsum(
        2 * mean * (values.sums[value][part][place] - rows * goal.of_all) - rows * mean * mean
        for part, its in enumerate(others)
        for value, mean in its.items()
        for rows in [values.rows[value][part]]
    )


def _smoothed(total: float, rows: int, of_all: float) -> float:
    """How far the mean of so many rows is from that of all; that of few rows is drawn towards it."""
    return (total + PRIOR * of_all) / (rows + PRIOR) - of_all


def _rounded(value: float) -> float:
    return round(max(-FARTHEST, min(FARTHEST, value)), DIGITS) + 0.0
