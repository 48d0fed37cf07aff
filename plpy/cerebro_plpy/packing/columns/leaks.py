"""Warns of a column that alone predicts the target nearly perfectly: it may be known only when the target is.

A column's values are put into groups: the values of a category, or 64 ranges of a number with equally many rows.  How
well the groups predict the target is computed as if each row were predicted by the other rows of its group, so a group
of one row says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_db.core.packing.columns import Found
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, number_array, sql
from cerebro_db.core.sql_types import SqlType

from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import CheckedColumns, family_of
from ..rows import feature_sql
from ..rows.preparation import SourceVariable, label_text
from . import sample, statistics
from .statistics import Looked

RANGES = 64
FEWEST_ROWS = 50
SAMPLE = 20_000  # rows; more of them hardly tell more
# Of classes: at most so many wrong rows, and at most so many of those that always predicting the same class gets wrong.
MOST_WRONG, MOST_WRONG_OF_USUAL = 0.01, 0.05
LEAST_R2 = 0.99
LARGEST = 1e70  # the fourth powers of many such numbers add up to a double; larger numbers count as this one


@dataclass(frozen=True)
class Leak:
    """A column that predicts the target."""

    column: str
    how_well: str


def tell(
    db: Database, some: Relation, found: Sequence[Found], outs: Sequence[SourceVariable], asked: CheckedColumns
) -> None:
    """Warn of each column of these that predicts a target.  ``some``: the training rows, or a larger sample of them."""
    by_name = {column.name: column for column in asked.inputs}
    looked = []
    for one in found:
        column = by_name[one.name]
        family = family_of(column)
        if family is not None and one.filled >= FEWEST_ROWS:
            as_text = bool(one.texts) or statistics.as_text(family, asked.wish(column))
            looked.append((Looked(column, family, as_text), one))
    if not looked:
        return
    rows = sample.of(db, some, max(one.rows for _, one in looked), SAMPLE)
    for out in outs:
        if out.is_array:
            continue
        for leak in (_of_class if isinstance(out.preparation, OneHot) else _of_number)(db, rows, looked, out):
            db.warning(
                f"the column '{leak.column}' alone predicts '{out.name}' nearly perfectly ({leak.how_well})",
                hint="If new rows will not have it before the target is known, leave it out: prepare =>"
                f""" '{{"{leak.column}": "ignore"}}'.""",
            )


def _group(looked: Looked, found: Found) -> Sql:
    """The group of a row's value, as text."""
    if looked.as_text:
        return looked.value
    knots = sorted({found.numbers.quantile(place / RANGES) for place in range(1, RANGES)})
    return sql(
        "pg_catalog.width_bucket({value}::double precision, {knots}::double precision[])::text",
        value=looked.value,
        knots=number_array(knots),
    )


def _grouped(looked: Sequence[tuple[Looked, Found]]) -> tuple[Sql, Sql]:
    """The columns' places, and the groups of a row in the same order; the first puts all rows into one group."""
    groups = [sql("''"), *(_group(*one) for one in looked)]
    places = joined(", ", range(len(groups)))
    return sql("ARRAY[{places}]", places=places), sql("ARRAY[{groups}]::text[]", groups=joined(", ", groups))


def _clipped(value: Sql) -> Sql:
    return sql("LEAST(GREATEST({value}, {low}), {high})", value=value, low=-LARGEST, high=LARGEST)


def _of_class(db: Database, rows: Relation, looked: Sequence[tuple[Looked, Found]], out: SourceVariable) -> list[Leak]:
    target = out.columns[0]
    places, groups = _grouped(looked)
    answers = db.scan(
        sql(
            """
        SELECT c, sum(n)::bigint AS rows,
               COALESCE(sum(n) FILTER (WHERE place = 1 AND n - 1 > COALESCE(runner_up, 0)), 0)::bigint AS right
          FROM (SELECT c, n, row_number() OVER (PARTITION BY c, b ORDER BY n DESC) AS place,
                       lead(n) OVER (PARTITION BY c, b ORDER BY n DESC) AS runner_up
                  FROM (SELECT u.c, u.b, u.y, count(*) AS n
                          FROM (SELECT unnest({places}) AS c, unnest({groups}) AS b, {target} AS y FROM {rows} AS s) u
                         GROUP BY 1, 2, 3) g) r
         GROUP BY c
        """,
            places=places,
            groups=groups,
            target=label_text(identifier(target.name), SqlType(target.type)),
            rows=rows.rows,
        )
    )
    figures = {answer["c"]: answer for answer in answers}
    if not figures:
        return []
    usual = figures[0]["rows"] - figures[0]["right"]
    found = []
    for place, (one, _) in enumerate(looked, 1):
        total, wrong = figures[place]["rows"], figures[place]["rows"] - figures[place]["right"]
        if total >= FEWEST_ROWS and wrong <= min(MOST_WRONG * total, MOST_WRONG_OF_USUAL * usual):
            found.append(Leak(one.column.name, f"{100 * (1 - wrong / total):.4g} % of the rows"))
    return found


def _of_number(db: Database, rows: Relation, looked: Sequence[tuple[Looked, Found]], out: SourceVariable) -> list[Leak]:
    places, groups = _grouped(looked)
    numbers = joined(
        ", ",
        [sql("NULL"), *(sql("NULL") if one.as_text else _clipped(one.value) for one, _ in looked)],
    )
    column = out.columns[0]
    answers = db.scan(
        sql(
            """
        SELECT c, sum(n)::bigint AS rows, sum(n) FILTER (WHERE n = 1)::bigint AS alone,
               sum(n * spread * (n / (n - 1.0)) ^ 2) FILTER (WHERE n > 1) AS within, max(line) AS line
          FROM (SELECT u.c, u.b, count(*)::double precision AS n, var_pop(u.y) AS spread, max(l.line) AS line
                  FROM (SELECT unnest({places}) AS c, unnest({groups}) AS b, {target} AS y FROM {rows} AS s) u
                  LEFT JOIN (SELECT v.c, regr_r2(v.y, v.x) AS line
                               FROM (SELECT unnest({places}) AS c, unnest(ARRAY[{numbers}]::double precision[]) AS x,
                                            {target} AS y
                                       FROM {rows} AS s) v
                              GROUP BY 1) l ON l.c = u.c
                 GROUP BY 1, 2) g
         GROUP BY c
        """,
            places=places,
            groups=groups,
            numbers=numbers,
            target=_clipped(feature_sql.number(column, identifier(column.name))),
            rows=rows.rows,
        )
    )
    figures: dict[int, Any] = {answer["c"]: answer for answer in answers}
    if not figures or not (whole := float(figures[0]["within"] or 0.0)):
        return []
    variance = whole / figures[0]["rows"]
    found = []
    for place, (one, _) in enumerate(looked, 1):
        mine = figures[place]
        left = float(mine["within"] or 0.0) + variance * int(mine["alone"] or 0)
        r2 = max(1 - left / whole, float(mine["line"] or 0.0))
        if mine["rows"] >= FEWEST_ROWS and r2 >= LEAST_R2:
            found.append(Leak(one.column.name, f"R² {r2:.4g}"))
    return found
