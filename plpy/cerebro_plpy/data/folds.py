"""The folds of ``cerebro.pack``: the rows of each fold are the validation rows of one model of a configuration.

The fold of a row follows from the hash that also chooses the rows for validation, so it stays when rows are added.  Of
groups and of classes, each fold has the same number; there, rows that are added can move the limits between folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.preparation import MOST_FOLDS, Fold
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, joined, literal, number_array, sql
from cerebro_db.core.texts import counted
from cerebro_db.core.windows import Windows

from ..database.access import Database
from ..database.relations import Column, Relation
from . import splits, variables, windowed
from .pack_arguments import PackArguments
from .preparation import Alias, SourceVariable
from .splits import STEPS, by_name


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


def found(db: Database, rows: Relation, folds: Folds, key: Sequence[Column], windows: Windows | None) -> SourceVariable:
    """The variable of the folds.  Each fold has a row."""
    columns = [*(folds.by or key)] if windows is None else [windowed.GROUP]
    hashed_columns = tuple(columns)

    def hashed(alias: Alias) -> Sql:
        return splits.hash_of(hashed_columns, alias) if windows is None else alias(windowed.GROUP)

    def by_hash(alias: Alias) -> Sql:
        return sql("(1 + {hashed} * {count} / {steps})::integer", hashed=hashed(alias), count=folds.count, steps=STEPS)

    number: Callable[[Alias], Sql] = by_hash
    if folds.stratify is not None:
        number = _of_each_class(db, rows, folds.stratify, folds.count, hashed)
        columns += [] if folds.stratify in columns else [folds.stratify]
    elif folds.by:
        number = _of_groups(db, rows, folds.count, hashed)
    _require_rows(db, rows, number(by_name), folds)
    fold, names = Fold(folds.count), tuple(one.name for one in folds.by) if windows is not None else ()
    return SourceVariable(
        variables.FOLD, columns, fold, fold.dtype(True), (1,), may_be_null=True, gathered=names, made=number
    )


def _of_groups(db: Database, rows: Relation, count: int, hashed: Callable[[Alias], Sql]) -> Callable[[Alias], Sql]:
    """The SQL of the fold: each fold has the same number of groups, in the order of the hashes.

    Groups are often few, so the hash alone would leave folds empty.
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
    limits = _limits({row["fold"]: row["first"] for row in found}, count)
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
            sql("WHEN {label} THEN {limits}", label=literal(name), limits=_limits(one, count))
            for name, one in sorted(firsts.items())
        ),
    )
    return lambda alias: sql(
        "(1 + pg_catalog.width_bucket({hashed}, CASE {stratum} {cases} END))",
        hashed=hashed(alias),
        stratum=splits.stratum(column, alias),
        cases=cases,
    )


def _limits(firsts: dict[int, int], count: int) -> Sql:
    """The least hash of each fold after the first, as an array; STEPS for those after the last fold that has a row."""
    limits = [min((first for fold, first in firsts.items() if fold >= one), default=STEPS) for one in range(1, count)]
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
    db.notice(f"{folds.count} folds with {min(sizes.values())} to {max(sizes.values())} rows")
