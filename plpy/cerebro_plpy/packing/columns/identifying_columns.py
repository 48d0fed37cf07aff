"""Which columns identify rows: numbers given out one by one, and keys of the tables below a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.packing import identifiers
from cerebro_db.core.packing.columns import NOTHING, Found
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import INTEGERS

from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import CheckedColumns


def note(db: Database, training: Relation, found: Sequence[Found], asked: CheckedColumns) -> None:
    """Note the columns that identify rows.  All rows are looked at: those for training are a part of the numbers."""
    looked = [
        one
        for one in found
        if not asked.wishes.get(one.name, NOTHING).names_column
        and not one.is_key
        and one.filled
        and (one.name in asked.keys_below or one.may_identify)
    ]
    if not looked:
        return
    counts = [count for place, one in enumerate(looked) for count in _counts(one, place)]
    everything = replace(training, condition=None)
    (row,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=joined(", ", counts), rows=everything.rows))
    for place, one in enumerate(looked):
        rows, different = row[f"n{place}"], row[f"d{place}"]
        if one.name in asked.keys_below and rows == different:
            one.identifies = "it is a key of a table below the view: its values only identify rows"
        elif one.name in asked.keys_below:
            one.refers = True
        elif row[f"w{place}"]:
            one.identifies = identifiers.reason(one.numbers, one.name, rows, different, row[f"c{place}"])


def _counts(found: Found, place: int) -> list[Sql]:
    """Rows, different values, and of numbers: whether they are whole, and whether they are consecutive."""
    name = identifier(found.name)
    counts = [
        sql("count({name}) AS n{place}", name=name, place=place),
        sql("count(DISTINCT {name}) AS d{place}", name=name, place=place),
    ]
    if found.family != "number":
        return counts
    whole = sql("true") if found.type in INTEGERS else sql("bool_and({name} = pg_catalog.trunc({name}))", name=name)
    consecutive = sql("max({name})::numeric - min({name})::numeric + 1 = count(*)", name=name)
    return [
        *counts,
        sql("{whole} AS w{place}", whole=whole, place=place),
        sql("{consecutive} AS c{place}", consecutive=consecutive, place=place),
    ]
