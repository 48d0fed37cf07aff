"""Statistics of a table's columns: plain aggregates, computed where the rows are.

A number is counted in a bin of its own size: 256 bins from each power of two to the next.  A text is counted as it is.
One statement groups all numbers by column and bin, another one all texts by column and value.  They return groups, not
rows.

Of a large table, a sample is grouped first.  A column with many different values is known well enough then, but for its
NULLs and its extremes, which the statement that counts the rows finds, too.  The other columns are grouped in all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.packing.columns import MANY_WORDS, MOST_VALUES, Found, Wish
from cerebro_db.core.packing.distributions import Bin, Distribution
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from ...database.access import Database, Row
from ...database.relations import Column, Relation
from ..rows import counting, feature_sql

LARGEST = 1e140  # the squares of many such numbers add up to a double; larger numbers count as this one
NOT_FINITE = 900_000  # the bin of NaN and infinity
# The bin of x.  Larger numbers have larger bins, negative ones those below 0; the constant is above all exponents.
BIN = sql(
    """
    CASE WHEN u.x = 0 THEN 0
         WHEN u.x > 0 AND u.x <= {high} THEN 300000 + pg_catalog.floor(pg_catalog.ln(u.x) * 369.3299304675746)
         WHEN u.x < 0 AND u.x >= {low} THEN -300000 - pg_catalog.floor(pg_catalog.ln(-u.x) * 369.3299304675746)
         WHEN u.x IN {not_finite} THEN {bin}
         ELSE pg_catalog.sign(u.x) * 800000
    END::integer
""",
    high=LARGEST,
    low=-LARGEST,
    not_finite=feature_sql.NOT_FINITE,
    bin=NOT_FINITE,
)
CLIPPED = sql("LEAST(GREATEST(u.x, {low}), {high})", low=-LARGEST, high=LARGEST)
A_NUMBER = literal("^ *[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)? *$")


# Rows: their mean is off by half a hundredth of the deviation, a quantile by a quarter of a percent of the rows.
SAMPLE = 50_000


@dataclass(frozen=True)
class Looked:
    """A column to look at.  ``as_text``: its values are counted as texts.  ``whole``: in all rows, not in a sample."""

    column: Column
    family: str
    as_text: bool
    is_key: bool = False
    refers: bool = False
    whole: bool = False

    @property
    def value(self) -> Sql:
        name = identifier(self.column.name)
        return (feature_sql.text if self.as_text else feature_sql.number)(self.column, name)

    @property
    def has_time(self) -> bool:
        """Whether its values may have a time of day."""
        return self.column.type.startswith("timestamp")


def as_text(family: str, wish: Wish) -> bool:
    if family == "boolean":
        return wish.choice != "number"
    return wish.choice == "category" or family not in ("number", "money", "interval", "date", "time")


def totals(db: Database, source: Relation, columns: Sequence[Looked]) -> Row:
    """The number of rows, and what all rows tell about the columns for which a sample may stand."""
    # PostgreSQL gives no parallel workers to a subquery that computes each value once.
    counts = [count for place, one in enumerate(columns) if not one.whole for count in _totals(place, one)]
    return counting.counted(db, source, counts)


def of(
    db: Database, source: Relation, some: Relation, columns: Sequence[Looked], total: Row, most: int = MOST_VALUES
) -> list[Found]:
    """What the rows tell about each column; of a text the most frequent values, at least so many if there are.

    A column may be there twice, as an input and as a target.  ``some``: a sample of the rows, or all of them.
    ``total``: the ``totals`` of these columns.
    """
    if some is source:
        return _grouped(db, source, columns, most)
    places = {one: place for place, one in enumerate(columns) if not one.whole}
    known = dict(zip(places, _grouped(db, some, list(places), most)))
    many = {one: found for one, found in known.items() if _has_many(one, found, most)}
    _count_numbers(db, source, places, many, total)
    found = {
        one: completed
        for one, its in many.items()
        if (completed := _complete(one, its, total, places[one])) is not None
    }
    others = [one for one in columns if one not in found]
    found.update(zip(others, _grouped(db, source, others, most)))
    return [found[one] for one in columns]


def as_texts(db: Database, source: Relation, columns: Sequence[Looked], most: int) -> list[Found]:
    """What the rows tell about each column, whose values are counted as texts."""
    return _grouped(db, source, [replace(one, as_text=True) for one in columns], most)


def _has_many(looked: Looked, found: Found, most: int) -> bool:
    """Whether a column has so many different values that those of a sample stand for all."""
    if not looked.as_text:
        return not found.numbers.constant and not found.few_numbers
    return found.groups > most and (found.groups < found.texts or found.words >= MANY_WORDS)


def _complete(one: Looked, known: Found, total: Row, place: int) -> Found | None:
    """With the NULLs, extremes and times of day of all rows; None if numbers are not finite."""
    filled = total[f"n{place}"]
    if one.as_text:
        share = filled / known.texts
        known.words_in_all = round(share * known.words_in_all)
        known.look_like_numbers = total.get(f"a{place}", 0)
        # A value that one row of the sample has may be the only one of its kind: buckets hold such values.
        known.values = [(value, round(share * count)) for value, count in known.values if count > 1]
        known.texts = filled
    else:
        # Of all numbers, PostgreSQL takes NaN for the largest.
        ends = [float(total[f"{end}{place}"]) for end in ("l", "h")]
        if not all(map(math.isfinite, ends)):
            return None
        low, high = (max(-LARGEST, min(LARGEST, end)) for end in ends)
        known.finite = filled
        known.with_time = known.with_time or total.get(f"t{place}", 0) > 0
        farther = {low, high} - {known.numbers.low, known.numbers.high}
        # Each stands for one row of all: with the weight of a row of the sample, one date in the year 9999 would
        # make the deviation of ten million dates ten times as large.
        weight = min(1.0, known.numbers.rows / filled)
        known.numbers = Distribution([*known.numbers.bins, *(Bin(weight, end, 0.0, end, end) for end in farther)])
    known.nulls = total["rows"] - filled
    return known


def _totals(place: int, looked: Looked) -> list[Sql]:
    """The aggregates that look at all rows of a column; their names end with its place."""
    value = looked.value
    counts = [sql("count({value}) AS n{place}", value=value, place=place)]
    if looked.as_text:
        return counts
    if looked.has_time:
        counts.append(
            sql("count(*) FILTER (WHERE {value} <> floor({value})) AS t{place}", value=value, place=place),
        )
    return [
        *counts,
        sql("min({value}) AS l{place}", value=value, place=place),
        sql("max({value}) AS h{place}", value=value, place=place),
    ]


def _count_numbers(
    db: Database, source: Relation, places: Mapping[Looked, int], found: Mapping[Looked, Found], total: Row
) -> None:
    """Count the texts that are numbers, of columns with nothing else in the sample."""
    counts = [
        sql("count(*) FILTER (WHERE {value} ~ {a_number}) AS a{place}", value=one.value, a_number=A_NUMBER,
            place=places[one])
        for one, known in found.items() if one.as_text and known.look_like_numbers == known.texts
    ]  # fmt: skip
    if counts:
        total.update(counting.counted(db, source, counts))


def _grouped(db: Database, source: Relation, columns: Sequence[Looked], most: int) -> list[Found]:
    groups: dict[Looked, list[Row]] = {one: [] for one in columns}
    numbers = [one for one in groups if not one.as_text]
    texts = [one for one in groups if one.as_text]
    for some, rows in ((numbers, _numbers(db, source, numbers)), (texts, _texts(db, source, texts, most))):
        for row in rows:
            groups[some[row["c"]]].append(row)
    found = {one: (_found_texts if one.as_text else _found_numbers)(one, rows) for one, rows in groups.items()}
    return [found[one] for one in columns]


def _arrays(columns: Sequence[Looked], kind: Sql) -> tuple[Sql, Sql]:
    """The places of the columns, and a row's values in the same order."""
    places = joined(", ", range(len(columns)))
    return sql("ARRAY[{places}]", places=places), sql(
        "ARRAY[{columns}]::{kind}[]", columns=joined(", ", (one.value for one in columns)), kind=kind
    )


def _numbers(db: Database, source: Relation, columns: Sequence[Looked]) -> list[Row]:
    if not columns:
        return []
    moments = [place for place, one in enumerate(columns) if one.has_time]
    timed = (
        sql("count(*) FILTER (WHERE u.c IN ({moments}) AND u.x <> floor(u.x))", moments=joined(", ", moments))
        if moments
        else sql("0")
    )
    if len(columns) == 1:  # a call of unnest() for each row takes longer than all else
        numbers = sql("(SELECT 0 AS c, {value} AS x FROM {rows} AS s) AS u", value=columns[0].value, rows=source.rows)
    else:
        # With unnest() in a SELECT list, PostgreSQL would group the numbers in one process.
        places, values = _arrays(columns, sql("double precision"))
        numbers = sql(
            "{rows} AS s, unnest({places}, {values}) AS u (c, x)", rows=source.rows, places=places, values=values
        )
    return db.scan(
        sql(
            """
        SELECT u.c, {bin} AS b, count(*) AS n, avg({clipped}) AS mean, var_pop({clipped}) AS variance,
               min({clipped}) AS low, max({clipped}) AS high, {timed} AS timed
          FROM {numbers}
         GROUP BY 1, 2
        """,
            bin=BIN,
            clipped=CLIPPED,
            timed=timed,
            numbers=numbers,
        )
    )


def _texts(db: Database, source: Relation, columns: Sequence[Looked], most: int) -> list[Row]:
    if not columns:
        return []
    places, values = sql("0"), columns[0].value
    if len(columns) > 1:
        places, values = (sql("unnest({them})", them=one) for one in _arrays(columns, sql("text")))
    return db.scan(
        sql(
            """
        SELECT c, v, n, texts, filled, words, look
          FROM (SELECT g.*, row_number() OVER (PARTITION BY c ORDER BY n DESC, v) AS place,
                       count(v) OVER (PARTITION BY c) AS texts,
                       sum(CASE WHEN v IS NOT NULL THEN n END) OVER (PARTITION BY c) AS filled,
                       sum(n * (1 + length(v) - length(replace(v, ' ', '')))) OVER (PARTITION BY c) AS words,
                       sum(CASE WHEN v ~ {a_number} THEN n END) OVER (PARTITION BY c) AS look
                  FROM (SELECT u.c, u.x AS v, count(*) AS n
                          FROM (SELECT {places} AS c, {values} AS x FROM {rows} AS s) u
                         GROUP BY 1, 2) g) r
         WHERE v IS NULL OR place <= {most}
        """,
            a_number=A_NUMBER,
            places=places,
            values=values,
            rows=source.rows,
            most=most + 2,
        )
    )


def _found_numbers(looked: Looked, rows: list[Row]) -> Found:
    bins = [
        Bin(row["n"], float(row["mean"]), float(row["variance"]), float(row["low"]), float(row["high"]))
        for row in rows
        if row["b"] not in (None, NOT_FINITE)
    ]
    return _found(
        looked,
        nulls=sum(row["n"] for row in rows if row["b"] is None),
        not_finite=sum(row["n"] for row in rows if row["b"] == NOT_FINITE),
        numbers=Distribution(bins),
        with_time=any(row["timed"] for row in rows),
        groups=len(bins),
    )


def _found_texts(looked: Looked, rows: list[Row]) -> Found:
    texts = [(row["v"], row["n"]) for row in rows if row["v"] is not None]
    return _found(
        looked,
        nulls=sum(row["n"] for row in rows if row["v"] is None),
        values=sorted(texts, key=lambda one: (-one[1], one[0])),
        texts=int(rows[0]["filled"] or 0),
        groups=rows[0]["texts"],
        words_in_all=int(rows[0]["words"] or 0),
        look_like_numbers=int(rows[0]["look"] or 0),
    )


def _found(looked: Looked, nulls: int, groups: int, **more: Any) -> Found:
    column = looked.column
    nothing = {"not_finite": 0, "numbers": Distribution([]), "with_time": False, "values": [], "texts": 0,
               "words_in_all": 0, "look_like_numbers": 0}  # fmt: skip
    return Found(
        name=column.name, type=column.type, shown=column.shown, family=looked.family, is_key=looked.is_key,
        refers=looked.refers, nulls=nulls, groups=groups, **{**nothing, **more},
    )  # fmt: skip
