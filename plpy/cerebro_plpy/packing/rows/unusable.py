"""The error for a value that cannot be packed: how many rows have such values, and how to find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing import buffer_format, images
from cerebro_db.core.sql import Sql, identifier, joined, shown, sql
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from . import preparation
from .preparation import SourceVariable


def error_of(db: Database, source: Relation, variable: SourceVariable, wrong: buffer_format.Unusable) -> BadData:
    if wrong.what == "bytes":
        return _of_bytes(db, source, variable)
    problem = {
        "shape": "has arrays of different shapes"
        + (f": {list(variable.shape)} and {list(wrong.shape)}" if wrong.shape else ""),
        "null": "has arrays with NULL elements",
        "finite": "has values that are NaN or infinite",
    }[wrong.what]
    where = joined(" OR ", (_condition(variable, column, wrong.what) for column in variable.columns))
    other = sql("NULL")
    if wrong.what == "shape" and not wrong.shape:
        name = variable.columns[0].array(identifier(variable.columns[0].name))
        lengths = joined(", ", (sql("array_length({name}, {place})", name=name, place=place) for place in range(1, 7)))
        other = sql("min(array_to_string(ARRAY[{lengths}], ', ')) FILTER (WHERE {where})", lengths=lengths, where=where)
    (found,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE {where}) AS bad, count(*) AS rows, {other} AS other FROM {rows} AS s",
            where=where,
            other=other,
            rows=source.rows,
        )
    )
    if found["other"]:
        problem += f": {list(variable.shape)} and [{found['other']}]"
    return BadData(
        f"{_columns_of(variable)} of table {source.text} {problem}.",
        detail=f"{found['bad']} of {found['rows']} rows "
        + (f"do not have shape {list(variable.shape)}." if wrong.what == "shape" else "do."),
        hint=f"Find them with: {shown(sql('SELECT * FROM {rows} WHERE {where}', rows=source.sql, where=where))}",
    )


def require_alike(db: Database, source: Relation, arrays: Sequence[SourceVariable]) -> None:
    """An error if a row's array or bytes have another shape than the variable, or an element is no finite number."""
    checks = [(one, what) for one in arrays for what in (("bytes",) if one.is_pixels else ("shape", "null", "finite"))]
    if not checks:
        return
    counts = [
        sql("count(*) FILTER (WHERE {condition}) AS c{i}", condition=_condition(one, one.columns[0], what), i=i)
        for i, (one, what) in enumerate(checks)
    ]
    (found,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=joined(", ", counts), rows=source.rows))
    for place, (one, what) in enumerate(checks):
        if found[f"c{place}"]:
            raise error_of(db, source, one, buffer_format.Unusable(what))


def unknown_label(db: Database, source: Relation, variable: SourceVariable) -> str | None:
    """A label that has no class; None if there is no such label any more."""
    found = db.scan(
        sql(
            "SELECT {label} AS label FROM {rows} AS s WHERE {code} IS NULL LIMIT 1",
            label=preparation.value(variable, by_name),
            rows=source.rows,
            code=preparation.packed_value(variable, by_name, uneven=False),
        )
    )
    return found[0]["label"] if found else None


def by_name(column: Column) -> Sql:
    return sql("s.{name}", name=identifier(column.name))


def _of_bytes(db: Database, source: Relation, variable: SourceVariable) -> BadData:
    (column,) = variable.columns
    name, size = sql("s.{name}", name=identifier(column.name)), buffer_format.elements(variable.shape)
    condition = _condition(variable, column, "bytes")
    key = relations.unique_key(db, source) if source.oid else []
    shown_key = sql("pg_catalog.concat_ws(', ', {key})", key=joined(", ", map(identifier, key))) if key else sql("NULL")
    found = db.scan(
        sql(
            "SELECT pg_catalog.octet_length({name}) AS bytes, {key} AS key,"
            " COALESCE(pg_catalog.encode(pg_catalog.substr({name}::bytea, 1, {most}), 'hex'), '') AS beginning,"
            " count(*) OVER () AS bad FROM {rows} AS s WHERE {condition} LIMIT 1",
            name=name,
            key=shown_key,
            most=images.MOST_BEGINNING,
            rows=source.rows,
            condition=condition,
        )
    )
    one: dict[str, Any] = found[0] if found else {"bytes": None, "key": None, "beginning": "", "bad": 0}
    which = f"{', '.join(key)} = {one['key']}" if key else "one of them"
    has = "NULL" if one["bytes"] is None else counted(one["bytes"], "byte")
    format = images.format_of(bytes.fromhex(one["beginning"]))
    find = shown(sql("SELECT * FROM {rows} AS s WHERE {condition}", rows=source.sql, condition=condition))
    return BadData(
        f"column '{column.name}' of table {source.text} has values without the {counted(size, 'byte')} that the shape"
        f" {list(variable.shape)} has.",
        detail=f"{counted(one['bad'], 'row')}; {which}: {has}" + ("." if format is None else f", a {format} file."),
        hint=f"Find them with: {find}" if format is None else images.DECODE,
    )


def format_in(db: Database, source: Relation, column: Column) -> str | None:
    """The format of the files of images in a column of bytes, by its first value."""
    name = sql("s.{name}", name=identifier(column.name))
    found = db.scan(
        sql(
            "SELECT pg_catalog.encode(pg_catalog.substr({name}::bytea, 1, {most}), 'hex') AS beginning"
            " FROM {rows} AS s WHERE {name} IS NOT NULL LIMIT 1",
            name=name,
            most=images.MOST_BEGINNING,
            rows=source.rows,
        )
    )
    return images.format_of(bytes.fromhex(found[0]["beginning"])) if found else None


def _columns_of(variable: SourceVariable) -> str:
    """The columns as the user named them: an input of plain numbers has several."""
    names = [column.name for column in variable.columns]
    if len(names) == 1:
        return f"column '{names[0]}'"
    return f"one of the columns {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"


def _condition(variable: SourceVariable, column: Column, what: str) -> Sql:
    name = column.array(identifier(column.name))
    if what == "bytes":
        size = buffer_format.elements(variable.shape)
        return sql("pg_catalog.octet_length({name}) IS DISTINCT FROM {size}", name=name, size=size)
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
