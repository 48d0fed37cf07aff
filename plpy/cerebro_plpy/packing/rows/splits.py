"""Which rows are for training and which for validation, as conditions on the columns of the source.

A row is on its side because of a hash of its key, so it stays there when rows are added.  The folds of folds.py use the
same hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.division import MOST_STRATA, Division
from cerebro_db.core.packing.subgroups import MOST_GROUPS
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from ...database.access import Database
from ...database.relations import Column, Relation
from . import feature_sql, group_key, preparation
from .preparation import Alias

STEPS = 1 << 30  # values of the hash
FEW_COLUMNS = 4  # of more columns, such as all of a table without a key, making texts takes longer than all else


@dataclass(frozen=True)
class Split:
    """How to divide the rows.  ``by``, ``at``: the columns of split_by and split_at."""

    share: float
    by: tuple[Column, ...]
    at: Column | None
    stratify: Column | None
    groups: tuple[Column, ...] = ()  # each of the groups has rows on both sides, if it has two rows or more

    @property
    def is_random(self) -> bool:
        """Whether each row goes to a side by its own hash."""
        return not self.by and self.at is None and self.stratify is None

    def division(self, db: Database, source: Relation, columns: Sequence[Column], hashed: Sql) -> Division:
        """The rule by which the rows are divided, with the limits that follow from the rows.  They have no groups."""
        if self.at is not None:
            return Division(at=self.at.name, moment=self._moment(db, source, self.at))
        names = tuple(column.name for column in columns)
        if self.stratify is not None:
            limits = self._limits_of_classes(db, source, self.stratify, hashed)
            return Division(names, stratify=self.stratify.name, limits=limits)
        limit = self._limit_of_groups(db, source, hashed) if self.by else int(self.share * STEPS)
        return Division(names, limit)

    def of_each_group(self, db: Database, source: Relation, hashed: Sql) -> Sql:
        """The condition of the rows for validation: of each group those with low hashes.

        A small group has a limit of its own.
        """
        key, usual = group_key.of(self.groups, by_name), int(self.share * STEPS)
        found = db.scan(
            sql(
                "SELECT key, min(h) AS low, max(h) AS high FROM (SELECT {key} AS key, {hashed} AS h FROM {rows} AS s) r"
                " GROUP BY key HAVING min(h) < max(h) AND (min(h) >= {usual} OR max(h) < {usual}) LIMIT {most}",
                key=key,
                hashed=hashed,
                rows=source.rows,
                usual=usual,
                most=MOST_GROUPS,
            )
        )
        if not found:
            return sql("{hashed} < {usual}", hashed=hashed, usual=usual)
        limits = {row["key"]: row["low"] + 1 if row["low"] >= usual else row["high"] for row in found}
        return sql(
            "{hashed} < COALESCE(({limits}::pg_catalog.jsonb OPERATOR(pg_catalog.->) {key})::bigint, {usual})",
            hashed=hashed,
            limits=literal(json.dumps(limits, ensure_ascii=False)),
            key=key,
            usual=usual,
        )

    def _limit_of_groups(self, db: Database, source: Relation, hashed: Sql) -> int:
        """The hash from which on groups are for training.  Of two or more groups, each side gets one."""
        (found,) = db.scan(
            sql("SELECT min({hashed}) AS low, max({hashed}) AS high FROM {rows} AS s", hashed=hashed, rows=source.rows)
        )
        return int(min(max(int(self.share * STEPS), found["low"] + 1), found["high"]))

    def _moment(self, db: Database, source: Relation, column: Column) -> str:
        """The rows after it are for validation.  Rows of the same moment stay together.

        If the last moment has more rows than the share, its rows alone are for validation.
        """
        name = column.array(identifier(column.name))
        (found,) = db.scan(
            sql(
                "SELECT CASE WHEN p.moment < p.last THEN p.moment ELSE"
                " (SELECT percentile_disc(1) WITHIN GROUP (ORDER BY {name}) FROM {rows} AS s WHERE {name} < p.last)"
                " END::text AS moment, p.last::text AS last FROM"
                " (SELECT percentile_disc({share}) WITHIN GROUP (ORDER BY {name}) AS moment,"
                "  percentile_disc(1) WITHIN GROUP (ORDER BY {name}) AS last FROM {rows} AS s) p",
                share=1 - self.share,
                name=name,
                rows=source.rows,
            )
        )
        if found["moment"] is None and found["last"] is not None:
            return str(found["last"])  # the only moment; whoever divides the rows says that none is left
        if found["moment"] is None:
            raise BadData(f"the column '{column.name}' of split_at is NULL in all rows.", hint="Choose another column.")
        return str(found["moment"])

    def _limits_of_classes(self, db: Database, source: Relation, column: Column, hashed: Sql) -> dict[str, int]:
        """Of each class the highest hash of the rows for validation, which have the lowest ones."""
        label = stratum(column, by_name)
        rows = db.scan(
            sql(
                """
            SELECT label, max(h) AS last
              FROM (SELECT label, h, row_number() OVER (PARTITION BY label ORDER BY h) AS place,
                           count(*) OVER (PARTITION BY label) AS n
                      FROM (SELECT {label} AS label, {hashed} AS h FROM {rows} AS s) c) d
             WHERE place <= n * {share}::double precision
             GROUP BY label
            """,
                label=label,
                hashed=hashed,
                rows=source.rows,
                share=self.share,
            )
        )
        require_few(len(rows), column)
        if not rows:
            raise BadData(
                f"stratify: each value of column '{column.name}' has too few rows to be divided.",
                hint="Leave stratify out. It is for a target with few values.",
            )
        return {row["label"]: row["last"] for row in rows}


def condition_of(division: Division, present: Mapping[str, Column], hashed: Sql) -> Sql:
    """The condition of the rows for validation; it is never NULL.  ``hashed``: the hash of the division's columns."""
    if division.at is not None:
        assert division.moment is not None
        column = present[division.at]
        return sql(
            "COALESCE({value} > {moment}::{type}, false)",
            value=column.array(identifier(column.name)),
            moment=literal(division.moment),
            type=column.cast,
        )
    if division.stratify is not None:
        assert division.limits is not None
        cases = joined(
            " ",
            (sql("WHEN {label} THEN {last}", label=literal(one), last=last) for one, last in division.limits.items()),
        )
        label = stratum(present[division.stratify], by_name)
        return sql("{hashed} <= CASE {label} {cases} ELSE -1 END", hashed=hashed, label=label, cases=cases)
    assert division.limit is not None
    return sql("{hashed} < {limit}", hashed=hashed, limit=division.limit)


def divided(source: Relation, condition: Sql) -> tuple[Relation, Relation]:
    """The rows for training, and those for validation, which fulfil the condition."""
    return source.also(sql("NOT ({condition})", condition=condition)), source.also(condition)


def hash_of(columns: Sequence[Column], alias: Alias) -> Sql:
    """A number from 0 to STEPS - 1."""
    return within_steps(whole_hash_of(columns, alias))


def whole_hash_of(columns: Sequence[Column], alias: Alias) -> Sql:
    """A number of 64 bits."""
    if len(columns) > FEW_COLUMNS:
        return preparation.hash_of_row(columns, alias)
    # Texts of several columns: the length of each tells them apart.
    texts = [feature_sql.text(column, alias(column)) for column in columns]
    spelled = joined(" || ", (sql("COALESCE(length({one}) || ':' || {one}, '-')", one=one) for one in texts))
    return sql("pg_catalog.hashtextextended({spelled}, 17)", spelled=spelled)


def within_steps(hashed: Sql) -> Sql:
    """A number from 0 to STEPS - 1 that is made of a hash of 64 bits."""
    return sql("({hashed} & {mask})", hashed=hashed, mask=STEPS - 1)


def part_of(hashed: Sql, parts: int) -> Sql:
    """A number from 1 to ``parts``, of bits of a hash of 64 bits that do not divide the rows."""
    return sql("(1 + ({hashed} >> 32 & 65535) % {parts})::integer", hashed=hashed, parts=parts)


def by_name(column: Column) -> Sql:
    return identifier(column.name)


def stratum(column: Column, alias: Alias) -> Sql:
    """The class of a row, as text."""
    return sql("COALESCE({text}, '')", text=feature_sql.text(column, alias(column)))


def require_few(strata: int, column: Column) -> None:
    if strata > MOST_STRATA:
        raise InvalidArgument(
            f"stratify: column '{column.name}' has more than {MOST_STRATA} different values.",
            hint="Stratify by a column with few values, or leave stratify out.",
        )
