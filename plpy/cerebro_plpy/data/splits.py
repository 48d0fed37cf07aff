"""Which rows are for training and which for validation, as conditions on the columns of the source.

A row is on its side because of a hash of its key, so it stays there when rows are added.  The folds of folds.py use the
same hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import literal, quote
from cerebro_db.core.records import dataclass

from ..database.access import Database
from ..database.relations import Column, Relation
from . import features, preparation
from .preparation import Alias

STEPS = 1 << 30  # values of the hash
MOST_STRATA = 1000
FEW_COLUMNS = 4  # of more columns, such as all of a table without a key, making texts takes longer than all else


@dataclass(frozen=True)
class Split:
    """How to divide the rows.  ``by``, ``at``: the columns of split_by and split_at."""

    share: float
    by: tuple[Column, ...]
    at: Column | None
    stratify: Column | None

    def condition(self, db: Database, source: Relation, key: Sequence[Column], module: str) -> str:
        """The condition of the rows for validation; it is never NULL."""
        if self.at is not None:
            return self._latest(db, source, self.at, module)
        hashed = hash_of(self.by or key, by_name)
        if self.stratify is not None:
            return self._of_each_class(db, source, self.stratify, hashed, module)
        return f"{hashed} < {self._limit_of_groups(db, source, hashed) if self.by else int(self.share * STEPS)}"

    def _limit_of_groups(self, db: Database, source: Relation, hashed: str) -> int:
        """The hash from which on groups are for training.  Of two or more groups, each side gets one."""
        (found,) = db.scan(f"SELECT min({hashed}) AS low, max({hashed}) AS high FROM {source.rows} AS s")
        return int(min(max(int(self.share * STEPS), found["low"] + 1), found["high"]))

    def _latest(self, db: Database, source: Relation, column: Column, module: str) -> str:
        """The rows after the moment that divides them.  Rows of the same moment stay together."""
        name = quote(column.name)
        (found,) = db.scan(
            f"SELECT percentile_disc({1 - self.share!r}) WITHIN GROUP (ORDER BY {name})::text AS moment"
            f" FROM {source.rows} AS s"
        )
        if found["moment"] is None:
            raise BadData(
                f"{module}: the column '{column.name}' of split_at is NULL in all rows.", hint="Choose another column."
            )
        return f"COALESCE({name} > {literal(found['moment'])}::{column.type}, false)"

    def _of_each_class(self, db: Database, source: Relation, column: Column, hashed: str, module: str) -> str:
        """Of each class the rows with the lowest hashes."""
        label = stratum(column, by_name)
        rows = db.scan(
            f"""
            SELECT label, max(h) AS last
              FROM (SELECT label, h, row_number() OVER (PARTITION BY label ORDER BY h) AS place,
                           count(*) OVER (PARTITION BY label) AS n
                      FROM (SELECT {label} AS label, {hashed} AS h FROM {source.rows} AS s) c) d
             WHERE place <= n * {self.share!r}::double precision
             GROUP BY label
            """
        )
        require_few(len(rows), column)
        if not rows:
            raise BadData(
                f"{module}: stratify: each value of column '{column.name}' has too few rows to be divided.",
                hint="Leave stratify out. It is for a target with few values.",
            )
        cases = " ".join(f"WHEN {literal(row['label'])} THEN {row['last']}" for row in rows)
        return f"{hashed} <= CASE {label} {cases} ELSE -1 END"


def hash_of(columns: Sequence[Column], alias: Alias) -> str:
    """A number from 0 to STEPS - 1."""
    if len(columns) <= FEW_COLUMNS:
        # Texts of several columns: the length of each tells them apart.
        texts = [features.text(column, alias(column)) for column in columns]
        spelled = " || ".join(f"COALESCE(length({one}) || ':' || {one}, '-')" for one in texts)
        hashed = f"pg_catalog.hashtextextended({spelled}, 17)"
    else:
        hashed = preparation.hash_of_any(columns, alias, "17")
    return f"({hashed} & {STEPS - 1})"


def by_name(column: Column) -> str:
    return quote(column.name)


def stratum(column: Column, alias: Alias) -> str:
    """The class of a row, as text."""
    return f"COALESCE({features.text(column, alias(column))}, '')"


def require_few(strata: int, column: Column) -> None:
    if strata > MOST_STRATA:
        raise InvalidArgument(
            f"stratify: column '{column.name}' has more than {MOST_STRATA} different values.",
            hint="Stratify by a column with few values, or leave stratify out.",
        )
