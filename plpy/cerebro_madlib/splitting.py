"""MADlib's ``train_test_split``: draws the rows of a training table and of a test table."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.names import split_list, token
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database

from .entry import entry, new_table

ENDINGS = ("_train", "_test")


@dataclass(frozen=True)
class SplitArguments:
    """The arguments of ``train_test_split``."""

    source_table: str | None
    output_table: str | None
    train_proportion: float | None
    test_proportion: float | None
    grouping_cols: str | None
    target_cols: str | None
    with_replacement: bool | None
    separate_output_tables: bool | None


@entry(called="train_test_split error")
def train_test_split(db: Database, **arguments: Any) -> None:
    given = SplitArguments(**arguments)
    source = relations.filled(db, given.source_table)
    train, test = _proportions(given.train_proportion, given.test_proportion, bool(given.with_replacement))
    output = new_table(db, given.output_table, ENDINGS if given.separate_output_tables else ())
    present = list(relations.columns(db, source))
    targets = present if (given.target_cols or "*").strip() == "*" else split_list(given.target_cols, "target_cols")
    groups = split_list(given.grouping_cols, "grouping_cols") if (given.grouping_cols or "").strip() else []
    relations.require_columns(db, source, targets + groups)

    # As in MADlib, the columns of the groups come first, wherever target_cols has them.
    columns = joined(", ", map(identifier, dict.fromkeys(groups + targets)))
    by = joined(", ", map(identifier, groups))
    draw = _with_replacement if given.with_replacement else _without_replacement
    drawn = draw(source.sql, columns, by, train, test)
    if not given.separate_output_tables:
        db.patiently(
            sql(
                "CREATE TABLE {output} AS SELECT {columns}, __split AS split FROM ({drawn}) drawn",
                output=output.sql,
                columns=columns,
                drawn=drawn,
            )
        )
        return
    # One draw for both tables, so that without replacement no row is in both.
    table = identifier(f"cerebro_split_{token()}")
    db.patiently(sql("CREATE TEMPORARY TABLE {table} AS {drawn}", table=table, drawn=drawn))
    staged = sql("pg_temp.{table}", table=table)
    for ending, split in zip(ENDINGS, (1, 0)):
        name = output.suffixed(ending).sql
        db.patiently(
            sql(
                "CREATE TABLE {name} AS SELECT {columns} FROM {staged} WHERE __split = {split}",
                name=name,
                columns=columns,
                staged=staged,
                split=split,
            )
        )
    db.execute(sql("DROP TABLE {staged}", staged=staged))


def _proportions(train: float | None, test: float | None, with_replacement: bool) -> tuple[float, float]:
    if train is None or not 0.0 < train < 1.0:
        raise InvalidArgument(f"train_proportion is {'NULL' if train is None else train}; it must be between 0 and 1.")
    if test is None:
        return train, 1.0 - train
    if not 0.0 < test < 1.0 or (train + test > 1.0 + 1e-9 and not with_replacement):
        raise InvalidArgument(
            f"test_proportion is {test}; it must be between 0 and 1, and with train_proportion ({train}) at most 1.",
            hint="NULL takes all rows that are not in the training table.",
        )
    return train, test


def _numbered(source: Sql, columns: Sql, by: Sql) -> Sql:
    """The rows with their group, their random place in it, and the number of its rows."""
    partition = sql("PARTITION BY {by}", by=by) if by else sql("")
    group = sql("dense_rank() OVER (ORDER BY {by})", by=by) if by else sql("1::bigint")
    return sql(
        "SELECT {columns}, {group} AS __group, row_number() OVER ({partition} ORDER BY random()) AS __row,"
        " count(*) OVER ({partition}) AS __rows FROM {source}",
        columns=columns,
        group=group,
        partition=partition,
        source=source,
    )


def _amount(of: Sql, share: float, by: Sql) -> Sql:
    """A share of a number of rows, as MADlib rounds it: up for groups, to the nearest number for a whole table."""
    if by:
        return sql("ceil({of} * {share}::numeric - 1e-9)", of=of, share=share)
    return sql("round({of} * {share}::numeric)", of=of, share=share)


def _without_replacement(source: Sql, columns: Sql, by: Sql, train: float, test: float) -> Sql:
    """Rows are drawn for both tables; a share of them is for the test table, and the others for training."""
    both = min(1.0, train + test)
    total = _amount(sql("__rows"), both, by)
    return sql(
        "SELECT {columns}, (__row > {tested})::integer AS __split FROM ({numbered}) numbered WHERE __row <= {total}",
        columns=columns,
        tested=_amount(total, test / (train + test), by),
        numbered=_numbered(source, columns, by),
        total=total,
    )


def _with_replacement(source: Sql, columns: Sql, by: Sql, train: float, test: float) -> Sql:
    """Each draw is from all rows, so that a row may be in both tables, and several times in one."""
    total = sql("round(__rows * {both}::numeric)", both=train + test)
    return sql(
        "WITH numbered AS ({numbered}), draws AS ("
        "SELECT __group, 1 + floor(random() * __rows)::bigint AS __row, (__place > {tested})::integer AS __split"
        " FROM (SELECT __group, __rows, generate_series(1, {total}::bigint) AS __place"
        " FROM (SELECT DISTINCT __group, __rows FROM numbered) g) d)"
        " SELECT {columns}, __split FROM numbered JOIN draws USING (__group, __row)",
        numbered=_numbered(source, columns, by),
        tested=_amount(total, test / (train + test), by),
        total=total,
        columns=columns,
    )
