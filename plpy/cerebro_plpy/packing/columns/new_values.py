"""Which columns of few whole numbers have other numbers in the rows for validation than in those for training.

As categories, their values would be unknown there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing.columns import Found
from cerebro_db.core.sql import identifier, joined, number_array, sql
from cerebro_db.core.sql_types import INTEGERS

from ...database import relations
from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import CheckedColumns


def note(db: Database, others: Relation, later: bool, found: Sequence[Found], asked: CheckedColumns) -> None:
    """Note the share of new values of the columns that become categories because they have few numbers.

    ``others``: the rows for validation.  ``later``: they come after those for training.
    """
    present = relations.columns(db, others)
    looked = [
        one
        for one in found
        if one.name not in asked.wishes
        and deciding.may_be_codes(one)
        and (column := present.get(one.name)) is not None  # else packing these rows says what is missing
        and column.readable
        and column.type in INTEGERS
    ]
    if not looked:
        return
    counts = [
        sql(
            "avg(({name} <> ALL ({values}::double precision[]))::integer)::double precision AS n{place}",
            name=identifier(one.name),
            values=number_array(one.numbers.values or []),
            place=place,
        )
        for place, one in enumerate(looked)
    ]
    (row,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=joined(", ", counts), rows=others.rows))
    for place, one in enumerate(looked):
        one.new, one.later = row[f"n{place}"] or 0.0, later


def tell(db: Database, found: Sequence[Found], asked: CheckedColumns) -> None:
    """Say which columns have become numbers for this reason."""
    for one in found:
        if one.name not in asked.wishes and deciding.may_be_codes(one) and one.changes:
            why = f"{one.new:.0%} of the rows for validation have a value that no training row has"
            wish = json.dumps({one.name: "category"}, ensure_ascii=False)
            hint = f"prepare => '{wish}' makes it a category, in which these values count as unknown."
            db.told(f"the column '{one.name}' is a number and no category: {why}", hint)
