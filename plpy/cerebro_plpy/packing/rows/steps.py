"""The steps of a window, each of the same number of rows: a target, a weight and a key for each, as arrays.

The later rows that a window forecasts are steps, too: one row each.

The target of a step is the most frequent class of its rows, or the mean of their numbers.  It is NO_CLASS or NaN if no
row has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

from cerebro_db.core.packing.buffer_format import NO_CLASS
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.sql import Sql, identifier, sql

from ...database.relations import Column
from .preparation import SourceVariable, class_number, value

LAST_KNOWN = sql("(array_agg(u.value ORDER BY u.place DESC) FILTER (WHERE u.value IS NOT NULL))[1]")
KeyOfAll = Callable[[Sql], Sql]  # the aggregate of the keys of some rows


def outputs_of(outputs: Sequence[SourceVariable], windows: Windows) -> list[SourceVariable]:
    """The outputs as the relation of windows has them: each is an array if windows have steps."""
    if not windows.steps:
        return list(outputs)
    found = []
    for one in outputs:
        element = "smallint" if one.preparation.label_type else "real"
        column = Column(one.columns[0].name, f"{element}[]", f"{element}[]", "A", element)
        names = tuple(each.name for each in one.columns)
        shape = (windows.steps, *one.shape)
        found.append(replace(one, columns=[column], gathered=names, shape=shape, steps=windows.steps))
    return found


def value_of_row(output: SourceVariable) -> Sql:
    """The number of a row's class, or the number to predict; NULL if the row has none, -2 for an unknown class."""
    found = value(output, lambda column: identifier(column.name))
    if not output.preparation.label_type:
        return sql("({found})[1]::double precision", found=found)
    number = class_number(output, found)
    return sql("CASE WHEN ({label}) IS NOT NULL THEN COALESCE({number}, -2) END::smallint", label=found, number=number)


def values(output: SourceVariable, rows: Sql, windows: Windows) -> Sql:
    """The targets of the steps of a window; NULL if no step has any.  ``rows``: the array of the values of its rows."""
    if output.preparation.label_type:
        # An unknown class becomes NULL, which packing refuses.
        aggregate = sql(
            "CASE WHEN COALESCE(min(u.value), 0) <> -2 THEN COALESCE(mode() WITHIN GROUP (ORDER BY u.value), {none})"
            " END::smallint",
            none=NO_CLASS,
        )
    else:
        aggregate = sql("ARRAY[COALESCE(avg(u.value), 'NaN')::real]")
    known = sql("EXISTS (SELECT FROM unnest({rows}) AS u (value) WHERE u.value IS NOT NULL)", rows=rows)
    return sql("CASE WHEN {known} THEN {steps} END", known=known, steps=of_each(rows, windows, aggregate))


def of_each(rows: Sql, windows: Windows, aggregate: Sql) -> Sql:
    """An array with an aggregate over the values of each step's rows, ``u.value``."""
    return sql(
        "ARRAY(SELECT {aggregate} FROM unnest({rows}) WITH ORDINALITY AS u (value, place)"
        " GROUP BY (u.place - 1) / {every} ORDER BY (u.place - 1) / {every})",
        aggregate=aggregate,
        rows=rows,
        every=windows.every or 1,  # a later row is a step of its own
    )


def of_later(key: Sql, windows: Windows) -> Sql:
    """An array with the key of each row that a window forecasts; ``f.ahead`` is the number of rows to it."""
    return sql(
        "ARRAY(SELECT {key} FROM pg_catalog.generate_series({nearest}, {horizon}) AS f (ahead) ORDER BY f.ahead)",
        key=key,
        nearest=windows.nearest,
        horizon=windows.horizon,
    )


def lasts(rows: Sql, windows: Windows) -> Sql:
    """The values of the last rows of the steps."""
    if windows.every <= 1:
        return rows
    return sql(
        "ARRAY(SELECT ({rows})[{every} * u.place] FROM generate_series(1, {steps}) AS u (place) ORDER BY u.place)",
        rows=rows,
        every=windows.every,
        steps=windows.steps,
    )


def most_frequent_pair(pairs: Sql) -> Sql:
    """The pair of a key and a class that most rows have."""
    return sql("COALESCE(mode() WITHIN GROUP (ORDER BY {pairs} COLLATE \"C\"), '[]')", pairs=pairs)


def mean_pair(pairs: Sql) -> Sql:
    """The pair of no key and the mean of the numbers of the rows."""
    return sql(
        "pg_catalog.json_build_array(NULL::text, avg((({pairs})::json ->> 1)::double precision))::text", pairs=pairs
    )
