"""What the rows of a table tell about its columns: plain aggregates in one statement, computed where the rows are.

A number is counted in a bin of its own size: 256 bins from each power of two to the next.  A text is counted as it is.
So the statement groups by column, bin and text, whatever the types of the columns, and returns groups, not rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro_db.core.columns import MOST_VALUES, Found, Wish
from cerebro_db.core.distributions import Bin, Distribution
from cerebro_db.core.names import quote

from ..database.access import Database, Row
from ..database.relations import Column, Relation
from . import features

LARGEST = 1e140  # the squares of many such numbers add up to a double
# The bin of x. Larger numbers have larger bins, negative ones those below 0; the constant is above all exponents.
BIN = (
    "CASE WHEN u.x = 0 THEN 0 ELSE (pg_catalog.sign(u.x) *"
    " (300000 + pg_catalog.floor(pg_catalog.ln(pg_catalog.abs(u.x)) * 369.3299304675746)))::integer END"
)
A_NUMBER = "^ *[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)? *$"


@dataclass(frozen=True)
class Looked:
    """A column to look at.  ``as_text``: its values are counted as texts."""

    column: Column
    family: str
    as_text: bool
    is_key: bool = False
    refers: bool = False

    @property
    def values(self) -> tuple[str, str, str]:
        """Its text and its number, one of which is NULL, and 1 for a date with a time of day."""
        name = quote(self.column.name)
        if self.as_text:
            return features.text(self.column, name), "NULL", "0"
        number = features.number(self.column, name)
        if self.family == "date":
            time = f"pg_catalog.date_part('epoch', ({features.moment(self.column, name)})::time)"
            return "NULL", number, f"({time} > 0)::integer"
        if self.column.type not in features.REALS:
            return "NULL", number, "0"
        odd = f"{number} IN {features.NOT_FINITE}"
        # GREATEST and LEAST leave NULL out.
        clipped = f"LEAST(GREATEST({number}, {-LARGEST!r}), {LARGEST!r})"
        return f"CASE WHEN {odd} THEN 'odd' END", f"CASE WHEN {odd} OR {name} IS NULL THEN NULL ELSE {clipped} END", "0"


def as_text(family: str, wish: Wish) -> bool:
    if family == "boolean":
        return wish.choice != "number"
    return wish.choice == "category" or family not in ("number", "money", "interval", "date", "time")


def of(db: Database, source: Relation, columns: Sequence[Looked], most: int = MOST_VALUES) -> list[Found]:
    """What the rows tell about each column; of a text the most frequent values, at least so many if there are."""
    if not columns:
        return []
    texts, numbers, timed = (", ".join(part) for part in zip(*(one.values for one in columns)))
    places = ", ".join(map(str, range(len(columns))))
    rows = db.scan(
        f"""
        SELECT c, v, n, mean, variance, low, high, timed, texts, filled, words, look
          FROM (SELECT g.*, row_number() OVER (PARTITION BY c ORDER BY n DESC, v) AS place,
                       count(v) OVER (PARTITION BY c) AS texts,
                       sum(CASE WHEN v IS NOT NULL THEN n END) OVER (PARTITION BY c) AS filled,
                       sum(n * (1 + length(v) - length(replace(v, ' ', '')))) OVER (PARTITION BY c) AS words,
                       sum(CASE WHEN v ~ '{A_NUMBER}' THEN n END) OVER (PARTITION BY c) AS look
                  FROM (SELECT u.c, {BIN} AS b, u.v, count(*) AS n, avg(u.x) AS mean, var_pop(u.x) AS variance,
                               min(u.x) AS low, max(u.x) AS high, sum(u.t) AS timed
                          FROM (SELECT unnest(ARRAY[{places}]) AS c, unnest(ARRAY[{texts}]::text[]) AS v,
                                       unnest(ARRAY[{numbers}]::double precision[]) AS x,
                                       unnest(ARRAY[{timed}]::integer[]) AS t
                                  FROM {source.rows} AS s) u
                         GROUP BY 1, 2, 3) g) r
         WHERE v IS NULL OR place <= {most + 2}
        """
    )
    groups: list[list[Row]] = [[] for _ in columns]
    for row in rows:
        groups[row["c"]].append(row)
    return [_found(one, mine) for one, mine in zip(columns, groups)]


def _found(looked: Looked, rows: list[Row]) -> Found:
    column, family = looked.column, looked.family
    nulls = sum(row["n"] for row in rows if row["v"] is None and row["low"] is None)
    bins = [
        Bin(row["n"], float(row["mean"]), float(row["variance"]), float(row["low"]), float(row["high"]))
        for row in rows
        if row["low"] is not None
    ]
    texts = [row for row in rows if row["v"] is not None and looked.as_text]
    words = int(rows[0]["words"] or 0) if looked.as_text else 0
    return Found(
        name=column.name,
        type=column.type,
        shown=column.shown,
        family=family,
        is_key=looked.is_key,
        refers=looked.refers,
        nulls=nulls,
        not_finite=sum(row["n"] for row in rows if row["v"] is not None and not looked.as_text),
        numbers=Distribution(bins),
        with_time=any(row["timed"] for row in rows),
        values=sorted(((row["v"], row["n"]) for row in texts), key=lambda one: (-one[1], one[0])),
        texts=int(rows[0]["filled"] or 0) if looked.as_text else 0,
        groups=rows[0]["texts"] if looked.as_text else len(bins),
        words_in_all=words,
        look_like_numbers=int(rows[0]["look"] or 0) if looked.as_text else 0,
    )
