"""The SQL that gives rows the columns of a related plan (cerebro_db.core.packing.related).

Packing and predicting use the same statement.  A row of another table is read only if its time is before that of the
example, in each step.  Rows are joined, and not looked up one by one, so that the planner takes an index for a few
examples and one pass over a table for many.

Each sum is one of bigints, whatever the order of the rows, and each array has its rows in an order that their values
alone decide.  So the columns have the same bits for one row and for a million, and on PostgreSQL and Greenplum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cerebro_db.core.packing.related import COUNT, DIFFERENT, ManyRows, Related, RelatedPlace
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ..rows.preparation import hash_of_row
from . import by_example, by_rank
from .derivation import Derivation, Examples, OpenedTables, last_values, summed
from .latest_arrays import empty


def query(plan: Related, examples: Examples, tables: OpenedTables) -> Sql:
    """The examples with their own columns and those of the plan."""
    derivation = Derivation(plan, examples, tables)
    base = derivation.base()
    source = sql("({base})", base=base) if examples.again else sql("b")
    parts = list(_parts(derivation, source))
    listed = [sql("b.{name}", name=identifier(name)) for name in examples.names]
    listed += [sql("b.{name}", name=identifier(one.name)) for one in plan.carried]
    listed += [_completed(part.rows, name, place) for place, part in enumerate(parts) for name in part.names]
    joins = [
        sql(
            " LEFT JOIN ({made}) AS a{place} ON {same}",
            made=part.made,
            place=place,
            same=derivation.same(part.rows.path, sql("b"), sql("a{place}", place=place)),
        )
        for place, part in enumerate(parts)
    ]
    found = sql(
        "SELECT {listed} FROM {source} AS b{joins}",
        listed=joined(", ", listed),
        source=source,
        joins=joined("", joins),
    )
    # Read once on PostgreSQL, as several parts name it. Greenplum reads it again for each part: MATERIALIZED would make
    # it wait for ever for rows that no table has (SELECT 7 AS customer).
    return found if examples.again else sql("WITH b AS ({base}) {found}", base=base, found=found)


@dataclass(frozen=True)
class _Part:
    """A subquery that gives examples some columns of a plan."""

    rows: ManyRows
    names: list[str]
    made: Sql


def _parts(derivation: Derivation, source: Sql) -> Iterator[_Part]:
    for one in derivation.plan.rows:
        examples, sums, last = derivation.examples_of(one.path, source), summed(one), last_values(one)
        arrays = [] if one.latest is None else [one.latest.numbers, one.latest.codes]
        names = [*(each.name for each in last), *filter(None, arrays)]
        if one.crowded and derivation.examples.time is not None:
            every = [*(each.name for each in sums), *names]
            yield _Part(one, every, by_rank.rows(derivation, one, examples))
            continue
        if sums:
            yield _Part(one, [each.name for each in sums], by_example.aggregated(derivation, one, examples))
        if names:
            yield _Part(one, names, by_example.latest(derivation, one, examples))


def _completed(one: ManyRows, name: str, place: int) -> Sql:
    """A column of an example, also of one without related rows."""
    value = sql("a{place}.{name}", place=place, name=identifier(name))
    latest = one.latest
    kind = next((each.kind for each in one.aggregates if each.name == name), None)
    if kind in (COUNT, DIFFERENT, "sum"):
        value = sql("COALESCE({value}, 0::double precision)", value=value)
    elif latest is not None and name == latest.numbers:
        value = sql("COALESCE({value}, {empty})", value=value, empty=empty(latest.rows, latest.channels, sql("real")))
    elif latest is not None and name == latest.codes:
        nothing = empty(latest.rows, len(latest.sizes), sql("integer"))
        value = sql("COALESCE({value}, {empty})", value=value, empty=nothing)
    return sql("{value} AS {name}", value=value, name=identifier(name))


# -- what rows are like --------------------------------------------------------------------------------------


def some_rows(
    plan: Related, examples: Examples, tables: OpenedTables, path: str, places: Sequence[RelatedPlace], most: int
) -> Sql:
    """Of each example so many of the rows at the end of a path, by chance: the columns of ``places`` as v0, v1, …

    ``age`` is how long before the example a row was, ``m`` how many rows the example has.
    """
    derivation = Derivation(plan, examples, tables)
    source = derivation.examples_of(path, sql("({base})", base=derivation.base()))
    columns = [replace(tables.column(place), name=f"v{number}") for number, place in enumerate(places)]
    hashed = hash_of_row(columns, lambda column: identifier(column.name)) if columns else sql("0")
    return sql(
        "SELECT * FROM (SELECT r.*, count(*) OVER (PARTITION BY {keys}) AS m,"
        " row_number() OVER (PARTITION BY {keys} ORDER BY {hashed}, age) AS n FROM ({rows}) r) q WHERE n <= {most}",
        keys=joined(", ", derivation.keys_of(path)),
        hashed=hashed,
        rows=derivation.joined_rows(path, source, [derivation.value(place) for place in places]),
        most=most,
    )


def rows_read(plan: Related, examples: Examples, tables: OpenedTables, path: str) -> Sql:
    """How many rows all examples have at the end of a path, whatever their times: each counts once for each example."""
    derivation = Derivation(replace(plan, as_of=None), replace(examples, time=None, time_column=None), tables)
    names = joined(", ", derivation.keys_of(path))
    each = sql(
        "(SELECT {names}, count(*) AS examples FROM ({base}) AS b GROUP BY {names})",
        names=names,
        base=derivation.base(),
    )
    rows = derivation.joined_rows(path, each, [sql("e.examples")])
    return sql("SELECT COALESCE(sum(v0), 0)::bigint AS rows FROM ({rows}) r", rows=rows)


def keys(plan: Related, examples: Examples, path: str) -> Sql:
    """The columns of ``some_rows`` that tell examples apart."""
    return joined(", ", Derivation(plan, examples, OpenedTables({}, {})).keys_of(path))
