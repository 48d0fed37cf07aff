"""The folds of ``cerebro.pack``: the rows of each fold are the validation rows of one model of a configuration.

The fold of a row follows from the hash that also chooses the rows for validation, so it stays when rows are added.  Of
the values of split_by and of classes, each fold has the same number; there, rows that are added can move the limits
between folds.  So they can in a small group of group_by, which has limits of its own if it would lack a fold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.division import Division
from cerebro_db.core.packing.preparation import MOST_FOLDS, Fold
from cerebro_db.core.packing.subgroups import spread
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, literal, number_array, sql
from cerebro_db.core.texts import counted

from ..database.access import Database
from ..database.relations import Column, Relation
from .rows import group_key, splits, variables, windowed
from .rows.preparation import Alias, SourceVariable
from .rows.splits import STEPS, by_name


@dataclass(frozen=True)
class Folds:
    """``by``: rows that are alike in these columns are in one fold; empty: the key."""

    count: int
    by: tuple[Column, ...]
    stratify: Column | None

    def group(self) -> Sql:
        """Of windows: the number that tells the fold of a row."""
        return splits.hash_of(self.by, by_name)


def asked_for(
    given: PackArguments, present: dict[str, Column], source: Relation, windows: Windows | None
) -> Folds | None:
    """The folds that the arguments ask for; None: none."""
    count, split_by, stratify = given.folds, given.split_by, given.stratify
    if count is None:
        return None
    if not 2 <= count <= MOST_FOLDS:
        raise InvalidArgument(
            f"folds is {count}; it must be from 2 to {MOST_FOLDS}.", hint="Usual numbers are 5 and 10."
        )
    for name in ("validation", "validation_table", "split_at"):
        if getattr(given, name):
            raise InvalidArgument(
                f"folds and {name} cannot be used together.",
                hint="With folds, each row is a row for validation of one of the models. Leave one of the two out.",
            )
    if split_by and stratify:
        raise InvalidArgument("split_by and stratify cannot be used together.", hint="Choose one of them.")
    if stratify and windows is not None:
        raise InvalidArgument(
            "stratify and sequence cannot be used together.", hint="Divide the windows with split_by."
        )
    if windows is not None and not windows.by and not split_by:
        raise InvalidArgument(
            'folds of windows need subjects, and sequence has no "by".',
            hint='Name the columns of a subject in "by", or one in split_by. Windows of one fold share no subject with'
            " those of another.",
        )

    by: tuple[Column, ...] = ()
    if split_by:
        by = (variables.pick_one(present, split_by, "split_by", source),)
    if windows is not None and not by:
        by = tuple(present[name] for name in windows.by)
    classes = variables.target_to_stratify(present, given.target, source) if stratify else None
    return Folds(count, by, classes)


def division_of(folds: Folds, key: Sequence[Column]) -> Division | None:
    """The rule, if the fold of a row follows from the row alone."""
    return None if folds.by or folds.stratify is not None else Division(tuple(column.name for column in key))


def of_division(division: Division, count: int, present: Mapping[str, Column]) -> SourceVariable:
    """The variable of the folds of rows that are divided by the rule of others."""
    columns = [present[name] for name in division.columns]

    def number(alias: Alias) -> Sql:
        return _by_hash(splits.hash_of(columns, alias), count)

    return _variable(columns, count, number)


def _by_hash(hashed: Sql, count: int) -> Sql:
    return sql("(1 + {hashed} * {count} / {steps})::integer", hashed=hashed, count=count, steps=STEPS)


def _variable(
    columns: list[Column], count: int, number: Callable[[Alias], Sql], gathered: tuple[str, ...] = ()
) -> SourceVariable:
    fold = Fold(count)
    return SourceVariable(
        variables.FOLD, columns, fold, fold.dtype(True), (1,), may_be_null=True, gathered=gathered, made=number
    )


def found(
    db: Database,
    rows: Relation,
    folds: Folds,
    key: Sequence[Column],
    windows: Windows | None,
    group_by: tuple[Column, ...],
) -> SourceVariable:
    """The variable of the folds.  Each fold has a row."""
    columns = [*(folds.by or key)] if windows is None else [windowed.GROUP]
    hashed_columns = tuple(columns)

    def hashed(alias: Alias) -> Sql:
        return splits.hash_of(hashed_columns, alias) if windows is None else alias(windowed.GROUP)

    def by_hash(alias: Alias) -> Sql:
        return _by_hash(hashed(alias), folds.count)

    number: Callable[[Alias], Sql] = by_hash
    if folds.stratify is not None:
        number = _of_each_class(db, rows, folds.stratify, folds.count, hashed)
        columns += [] if folds.stratify in columns else [folds.stratify]
    elif folds.by:
        number = _of_units(db, rows, folds.count, hashed)
    if group_by and folds.stratify is None and (not folds.by or set(group_by) <= set(folds.by)):
        number = _within_groups(db, rows, group_by, folds.count, hashed, number)
        columns += [one for one in group_by if one not in columns]
    _require_rows(db, rows, number(by_name), folds)
    if group_by:
        _tell_groups(db, rows, number(by_name), group_by)
    names = tuple(one.name for one in folds.by) if windows is not None else ()
    return _variable(columns, folds.count, number, names)


def _of_units(db: Database, rows: Relation, count: int, hashed: Callable[[Alias], Sql]) -> Callable[[Alias], Sql]:
    """The SQL of the fold: each fold has the same number of values of ``folds.by``, in the order of the hashes.

    There are often few, so the hash alone would leave folds empty.
    """
    found = db.scan(
        sql(
            """
        SELECT place * {count} / n AS fold, min(h) AS first
          FROM (SELECT h, row_number() OVER (ORDER BY h) - 1 AS place, count(*) OVER () AS n
                  FROM (SELECT DISTINCT {hashed} AS h FROM {rows} AS s) c) d
         GROUP BY 1
        """,
            count=count,
            hashed=hashed(by_name),
            rows=rows.rows,
        )
    )
    limits = _array(_limits({row["fold"]: row["first"] for row in found}, count))
    return lambda alias: sql("(1 + pg_catalog.width_bucket({hashed}, {limits}))", hashed=hashed(alias), limits=limits)


def _of_each_class(
    db: Database, rows: Relation, column: Column, count: int, hashed: Callable[[Alias], Sql]
) -> Callable[[Alias], Sql]:
    """The SQL of the fold: of each class, each fold has the same share, in the order of the hashes."""
    label = splits.stratum(column, by_name)
    found = db.scan(
        sql(
            """
        SELECT label, place * {count} / n AS fold, min(h) AS first
          FROM (SELECT label, h, row_number() OVER (PARTITION BY label ORDER BY h) - 1 AS place,
                       count(*) OVER (PARTITION BY label) AS n
                  FROM (SELECT {label} AS label, {hashed} AS h FROM {rows} AS s) c) d
         GROUP BY 1, 2
        """,
            count=count,
            label=label,
            hashed=hashed(by_name),
            rows=rows.rows,
        )
    )
    firsts: dict[str, dict[int, int]] = {}
    for row in found:
        firsts.setdefault(row["label"], {})[row["fold"]] = row["first"]
    splits.require_few(len(firsts), column)
    cases = joined(
        " ",
        (
            sql("WHEN {label} THEN {limits}", label=literal(name), limits=_array(_limits(one, count)))
            for name, one in sorted(firsts.items())
        ),
    )
    return lambda alias: sql(
        "(1 + pg_catalog.width_bucket({hashed}, CASE {stratum} {cases} END))",
        hashed=hashed(alias),
        stratum=splits.stratum(column, alias),
        cases=cases,
    )


def _within_groups(
    db: Database,
    rows: Relation,
    group_by: tuple[Column, ...],
    count: int,
    hashed: Callable[[Alias], Sql],
    usual: Callable[[Alias], Sql],
) -> Callable[[Alias], Sql]:
    """The SQL of the fold: every group has rows in as many folds as it has hashes for.

    A group that lacks a fold by the usual limits gets limits of its own: if it has enough hashes, each fold has the
    same number of them; else each hash is in another fold, in its usual one or close to it.  So the rows of many small
    groups are in all folds.
    """
    firsts: dict[str, list[tuple[int, int]]] = {}
    for row in db.scan(
        sql(
            """
        SELECT key, min(h) AS first, min(fold) AS usual
          FROM (SELECT key, h, fold, count(*) OVER (PARTITION BY key) AS n, sum(begins) OVER (PARTITION BY key) AS used,
                       row_number() OVER (PARTITION BY key ORDER BY h) - 1 AS place
                  FROM (SELECT key, h, fold,
                               (lag(fold) OVER (PARTITION BY key ORDER BY h) IS DISTINCT FROM fold)::integer AS begins
                          FROM (SELECT DISTINCT {key} AS key, {hashed} AS h, {usual} AS fold FROM {rows} AS s) r) c) d
         WHERE used < LEAST(n, {count})
         GROUP BY key, place * LEAST(n, {count}) / n
         ORDER BY key, first
        """,
            key=group_key.of(group_by, by_name),
            hashed=hashed(by_name),
            usual=usual(by_name),
            count=count,
            rows=rows.rows,
        )
    ):
        firsts.setdefault(row["key"], []).append((row["first"], row["usual"]))
    if not firsts:
        return usual
    limits = {}
    for key, its in firsts.items():
        numbers = spread([fold for _, fold in its], count)
        own = _limits({number - 1: first for number, (first, _) in zip(numbers, its)}, count)
        limits[key] = f"{{{', '.join(map(str, own))}}}"
    known = literal(json.dumps(limits, ensure_ascii=False))
    return lambda alias: sql(
        "COALESCE(1 + pg_catalog.width_bucket({hashed}, ({known}::pg_catalog.jsonb OPERATOR(pg_catalog.->>) {key})"
        "::bigint[]), {usual})",
        hashed=hashed(alias),
        known=known,
        key=group_key.of(group_by, alias),
        usual=usual(alias),
    )


def _limits(firsts: dict[int, int], count: int) -> list[int]:
    """The least hash of each fold after the first; STEPS for those after the last fold that has a row."""
    return [min((first for fold, first in firsts.items() if fold >= one), default=STEPS) for one in range(1, count)]


def _array(limits: Sequence[int]) -> Sql:
    return sql("{limits}::bigint[]", limits=number_array(limits))


def _require_rows(db: Database, rows: Relation, number: Sql, folds: Folds) -> None:
    sizes = {
        row["fold"]: row["rows"]
        for row in db.scan(
            sql("SELECT {number} AS fold, count(*) AS rows FROM {rows} AS s GROUP BY 1", number=number, rows=rows.rows)
        )
    }
    empty = [fold for fold in range(1, folds.count + 1) if not sizes.get(fold)]
    if empty:
        groups = f", which follows from {', '.join(one.name for one in folds.by)}," if folds.by else ""
        raise BadData(
            f"{counted(folds.count, 'fold')} are too many for {counted(sum(sizes.values()), 'row')}:"
            f" fold {empty[0]}{groups} would have no row.",
            hint="Choose fewer folds"
            + ("." if folds.by or folds.stratify else ", or stratify => true, which makes folds of the same size."),
        )
    db.told(f"{folds.count} folds with {min(sizes.values())} to {max(sizes.values())} rows")


def _tell_groups(db: Database, rows: Relation, number: Sql, group_by: tuple[Column, ...]) -> None:
    """Say how many groups cannot be validated because all their rows are in one fold; refuse it if none can."""
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS groups, COALESCE(sum((low = high)::integer), 0)::integer AS whole"
            " FROM (SELECT min(fold) AS low, max(fold) AS high"
            " FROM (SELECT {key} AS key, {number} AS fold FROM {rows} AS s) r GROUP BY key) g",
            key=group_key.of(group_by, by_name),
            number=number,
            rows=rows.rows,
        )
    )
    if found["whole"] == found["groups"]:
        raise BadData(
            "folds and group_by: no group has rows in two folds, so no model of a group could be validated.",
            hint="Leave folds out, or group by fewer columns. Rows with the same value in split_by, and windows with"
            " the same subject, are in one fold.",
        )
    if found["whole"]:
        db.notice(f"{counted(found['whole'], 'group')} with all rows in one fold: no model of them is validated")
