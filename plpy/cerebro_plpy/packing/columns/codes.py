"""Whole numbers that are codes: foreign keys, and columns whose name says so and whose values come again.

A bin of numbers holds several codes, so the values of such columns are counted once more, as texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing.columns import Found

from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import CheckedColumns
from . import statistics
from .statistics import Looked


def counted(
    db: Database, training: Relation, looked: Sequence[Looked], found: Sequence[Found], asked: CheckedColumns, most: int
) -> list[Found]:
    """What the rows tell about each column, of codes about each value; at least so many of the most frequent values."""
    places = [
        place for place, one in enumerate(found) if one.name not in asked.wishes and deciding.values_may_be_codes(one)
    ]
    again = statistics.as_texts(db, training, [looked[place] for place in places], most)
    result = list(found)
    for place, one in zip(places, again):
        before = found[place]
        one.refers, one.identifies = before.refers, before.identifies
        one.named_as_codes = deciding.repeat(one)
        if one.refers or one.named_as_codes:
            result[place] = one
    return result
