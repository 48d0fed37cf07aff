"""How long the texts are that become words, and how many words they have, from a sample of the rows.

The words are those of packing: ``_word_ids`` finds them.  With so many ids that words seldom share one, the number of
ids is the number of words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing.columns import NOTHING, Found
from cerebro_db.core.packing.features import MOST_IDS, WordsFeature
from cerebro_db.core.sql import identifier, sql
from cerebro_db.core.sql_types import SqlType

from ...database.access import Database
from ...database.relations import Relation
from ..checked_arguments import CheckedColumns
from ..rows import feature_sql
from . import sample

SAMPLE = 5000  # texts: dividing each into words takes as long as packing it
LONGEST = deciding.LENGTHS[-1]


def note(db: Database, some: Relation, rows: int, found: Sequence[Found], asked: CheckedColumns) -> None:
    """Note the length and the number of words of the texts that become words, unless ``prepare`` says both.

    Of texts that may be titles, the words decide whether they do.

    ``some``: the rows, or a sample of them.  ``rows``: how many there are.
    """
    for one in found:
        wish = asked.wishes.get(one.name, NOTHING)
        words = deciding.choice_of(one, wish) == "words" and not (
            {"length", "ids"} <= set(wish.arguments) or "vocabulary" in wish.arguments
        )
        if one.filled and (words or (wish.choice is None and deciding.may_be_titles(one))):
            _note(db, sample.of(db, some, rows, SAMPLE), one)


def _note(db: Database, some: Relation, found: Found) -> None:
    name = identifier(found.name)
    divided = WordsFeature(found.family, SqlType(found.type), LONGEST, MOST_IDS)
    (row,) = db.scan(
        sql(
            "WITH t AS (SELECT {ids} AS ids FROM {rows} AS s WHERE {name} IS NOT NULL)"
            " SELECT (SELECT count(*) FROM t) AS texts,"
            " (SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY COALESCE(array_position(ids, 0) - 1, {longest}))"
            " FROM t) AS length,"
            " (SELECT count(*) FROM (SELECT u.id FROM t, unnest(ids) AS u (id) WHERE u.id <> 0"
            " GROUP BY u.id HAVING count(*) > 1) g) AS different,"
            " (SELECT sum(CASE WHEN n > 1 THEN n ELSE 0 END) / sum(n) FROM (SELECT u.id, count(*) AS n"
            " FROM (SELECT DISTINCT ids FROM t) d, unnest(ids) AS u (id) WHERE u.id <> 0 GROUP BY u.id) g) AS repeated",
            ids=feature_sql.word_ids(divided, name),
            rows=some.rows,
            name=name,
            longest=LONGEST,
        )
    )
    if row["texts"]:
        found.length = int(row["length"])
        found.repeated = float(row["repeated"] or 0)
        # By Heaps' law, the number of words grows about with the root of the number of texts.
        found.different = round(row["different"] * math.sqrt(max(1.0, found.filled / row["texts"])))
