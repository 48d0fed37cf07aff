"""The error for a value that cannot be packed: how many rows have such values, and how to find them."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData
from cerebro_db.core.sql import Sql, identifier, joined, shown, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from .preparation import SourceVariable


def error_of(db: Database, source: Relation, variable: SourceVariable, wrong: packing.Unusable) -> BadData:
    problem = {
        "shape": "has arrays of different shapes"
        + (f": {list(variable.shape)} and {list(wrong.shape)}" if wrong.shape else ""),
        "null": "has arrays with NULL elements",
        "finite": "has values that are NaN or infinite",
    }[wrong.what]
    where = joined(" OR ", (_condition(variable, column, wrong.what) for column in variable.columns))
    (found,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE {where}) AS bad, count(*) AS rows FROM {rows} AS s",
            where=where,
            rows=source.rows,
        )
    )
    return BadData(
        f"{_columns_of(variable)} of table {source.text} {problem}.",
        detail=f"{found['bad']} of {found['rows']} rows "
        + (f"do not have shape {list(variable.shape)}." if wrong.what == "shape" else "do."),
        hint=f"Find them with: {shown(sql('SELECT * FROM {rows} WHERE {where}', rows=source.sql, where=where))}",
    )


def require_alike(db: Database, source: Relation, arrays: Sequence[SourceVariable]) -> None:
    """An error if a row's array has another shape than the variable, or an element that is no finite number."""
    checks = [(one, what) for one in arrays for what in ("shape", "null", "finite")]
    if not checks:
        return
    counts = [
        sql("count(*) FILTER (WHERE {condition}) AS c{i}", condition=_condition(one, one.columns[0], what), i=i)
        for i, (one, what) in enumerate(checks)
    ]
    (found,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=joined(", ", counts), rows=source.rows))
    for place, (one, what) in enumerate(checks):
        if found[f"c{place}"]:
            raise error_of(db, source, one, packing.Unusable(what))


def _columns_of(variable: SourceVariable) -> str:
    """The columns as the user named them: an input of plain numbers has several."""
    names = [column.name for column in variable.columns]
    if len(names) == 1:
        return f"column '{names[0]}'"
    return f"one of the columns {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"


def _condition(variable: SourceVariable, column: Column, what: str) -> Sql:
    name = column.array(identifier(column.name))
    if what == "shape":
        dimensions = sql("array_ndims({name}) IS DISTINCT FROM {wanted}", name=name, wanted=len(variable.shape))
        lengths = [
            sql("array_length({name}, {place}) <> {size}", name=name, place=place, size=size)
            for place, size in enumerate(variable.shape, 1)
        ]
        return joined(" OR ", [dimensions, *lengths])
    values = sql("unnest({name}) AS e", name=name) if column.element else sql("(VALUES ({name})) AS v(e)", name=name)
    test = sql("e IS NULL") if what == "null" else sql("e::text IN ('NaN', 'Infinity', '-Infinity')")
    return sql("EXISTS (SELECT FROM {values} WHERE {test})", values=values, test=test)
