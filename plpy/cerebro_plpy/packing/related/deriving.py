"""The SQL that gives rows the columns of a related plan (cerebro_db.core.packing.related).

Packing and predicting use the same statement.  A row of another table is read only if its time is before that of the
example, in each step.  Rows are joined, and not looked up one by one, so that the planner takes an index for a few
examples and one pass over a table for many.

Each sum is one of bigints, whatever the order of the rows, and each array has its rows in an order that their values
alone decide.  So the columns have the same bits for one row and for a million, and on PostgreSQL and Greenplum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cerebro_db.core.packing.related import (
    COUNT,
    DIFFERENT,
    FARTHEST_STEP,
    LAST,
    OF_NUMBERS,
    SHARE,
    SINCE_FIRST,
    SINCE_LAST,
    Aggregate,
    ManyRows,
    Related,
    RelatedMeasure,
    RelatedPlace,
    RelatedStep,
)
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from ...database.relations import Column, Relation
from ..rows import feature_sql
from ..rows.preparation import hash_of_row

AGES = 1 << 31  # steps of a trend
AGE = Column("age", "double precision", "double precision", "N", None)


@dataclass(frozen=True)
class OpenedTables:
    """The related tables as they are at hand, by the paths of a plan."""

    relations: Mapping[str, Relation]
    columns: Mapping[str, dict[str, Column]]

    def column(self, place: RelatedPlace) -> Column:
        return self.columns[place.path][place.column]


@dataclass(frozen=True)
class Examples:
    """The rows that get columns.  ``names``: their own columns that stay.  ``time``: SQL of their time, over s."""

    rows: Sql  # what stands after FROM
    columns: Mapping[str, Column]
    names: Sequence[str]
    time: Sql | None = None
    time_column: Column | None = None
    # Whether the rows are cheap to read, so that each part of the statement reads them again and may do it in parallel.
    again: bool = False
    known: Sql | None = None  # the time, or an error where it is NULL


def query(plan: Related, examples: Examples, tables: OpenedTables) -> Sql:
    """The examples with their own columns and those of the plan."""
    return _Derivation(plan, examples, tables).query()


def some_rows(
    plan: Related, examples: Examples, tables: OpenedTables, path: str, places: Sequence[RelatedPlace], most: int
) -> Sql:
    """Of each example so many of the latest rows at the end of a path: the columns of ``places`` as v0, v1, …

    ``age`` is how long before the example a row was, ``n`` its number among those of the example, from 1.
    """
    derivation = _Derivation(plan, examples, tables)
    source = derivation.examples_of(path, sql("({base})", base=derivation.base()))
    columns = [replace(tables.column(place), name=f"v{number}") for number, place in enumerate(places)]
    hashed = hash_of_row(columns, lambda column: identifier(column.name)) if columns else sql("0")
    return sql(
        "SELECT * FROM (SELECT r.*, row_number() OVER (PARTITION BY {keys} ORDER BY age, {hashed}) AS n"
        " FROM ({rows}) r) q WHERE n <= {most}",
        keys=joined(", ", derivation.keys_of(path)),
        hashed=hashed,
        rows=derivation.joined_rows(path, source, [derivation.value(place) for place in places]),
        most=most,
    )


def rows_read(plan: Related, examples: Examples, tables: OpenedTables, path: str) -> Sql:
    """How many rows all examples have at the end of a path, whatever their times: each counts once for each example."""
    derivation = _Derivation(replace(plan, as_of=None), replace(examples, time=None, time_column=None), tables)
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
    return joined(", ", _Derivation(plan, examples, OpenedTables({}, {})).keys_of(path))


@dataclass(frozen=True)
class _Part:
    """A subquery that gives examples some columns of a plan."""

    rows: ManyRows
    names: list[str]
    made: Sql


class _Derivation:
    def __init__(self, plan: Related, examples: Examples, tables: OpenedTables) -> None:
        self.plan, self.examples, self.tables = plan, examples, tables
        self.own_steps = [step for step in plan.steps if not any(one.many for one in plan.chain(step.path))]
        self.aliases = {step.path: sql("r{place}", place=place) for place, step in enumerate(plan.steps)}
        # The columns of examples and of rows that they refer to, from which steps to many rows begin.
        self.anchors: dict[tuple[str, str], int] = {}
        for step in plan.steps:
            if step.many and not any(one.many for one in plan.chain(step.path)[:-1]):
                for before, _ in step.on:
                    self.anchors.setdefault((step.parent, before), len(self.anchors))

    def query(self) -> Sql:
        base = self.base()
        source = sql("({base})", base=base) if self.examples.again else sql("b")
        parts = list(self._parts(source))
        listed = [sql("b.{name}", name=identifier(name)) for name in self.examples.names]
        listed += [sql("b.{name}", name=identifier(one.name)) for one in self.plan.carried]
        listed += [self._completed(part.rows, name, place) for place, part in enumerate(parts) for name in part.names]
        joins = [
            sql(
                " LEFT JOIN ({made}) AS a{place} ON {same}",
                made=part.made,
                place=place,
                same=self._same(part.rows.path, sql("b"), sql("a{place}", place=place)),
            )
            for place, part in enumerate(parts)
        ]
        found = sql(
            "SELECT {listed} FROM {source} AS b{joins}",
            listed=joined(", ", listed),
            source=source,
            joins=joined("", joins),
        )
        return found if self.examples.again else sql("WITH b AS MATERIALIZED ({base}) {found}", base=base, found=found)

    # -- the examples ----------------------------------------------------------------------------------------

    def base(self) -> Sql:
        """The examples, with what they have of rows that they refer to, the anchors k0 …, and their time t."""
        listed = [sql("s.{name}", name=identifier(name)) for name in self.examples.names]
        for one in self.plan.carried:
            listed.append(sql("{value} AS {name}", value=self.value(one), name=identifier(one.name)))
        for (path, column), place in self.anchors.items():
            alias = sql("s") if not path else self.aliases[path]
            listed.append(sql("{alias}.{column} AS {key}", alias=alias, column=identifier(column), key=_key(place)))
        if self.examples.time is not None:
            listed.append(sql("{time} AS {name}", time=self.examples.known or self.examples.time, name=TIME))
        return sql(
            "SELECT {listed} FROM {rows} AS s{joins}",
            listed=joined(", ", listed),
            rows=self.examples.rows,
            joins=joined("", [self._join(step, sql("s"), self.examples.time) for step in self.own_steps]),
        )

    def _join(self, step: RelatedStep, first: Sql, time: Sql | None, *, inner: bool = False) -> Sql:
        """The join of one step; ``first``: the alias of what has no path."""
        before = first if not step.parent else self.aliases[step.parent]
        return sql(
            " {kind} JOIN {rows} AS {alias} ON {same}",
            kind=sql("INNER") if inner else sql("LEFT"),
            rows=self.tables.relations[step.path].rows,
            alias=self.aliases[step.path],
            same=self._on(step, lambda name: sql("{before}.{name}", before=before, name=identifier(name)), time),
        )

    def _on(self, step: RelatedStep, before: Callable[[str], Sql], time: Sql | None) -> Sql:
        alias = self.aliases[step.path]
        conditions = [
            sql("{alias}.{column} = {before}", alias=alias, column=identifier(column), before=before(name))
            for name, column in step.on
        ]
        if step.time is not None and time is not None:
            conditions.append(self._is_before(step, time))
        return joined(" AND ", conditions)

    def _is_before(self, step: RelatedStep, time: Sql) -> Sql:
        assert step.time is not None and self.examples.time_column is not None
        column, other = self.tables.columns[step.path][step.time], self.examples.time_column
        value = sql("{alias}.{time}", alias=self.aliases[step.path], time=identifier(step.time))
        if column.type == other.type:
            return sql("{value} < {time}", value=value, time=time)
        return sql("{value} < {time}", value=feature_sql.number(column, value), time=feature_sql.number(other, time))

    def value(self, place: RelatedPlace) -> Sql:
        """A column of a related row.  A date that is not before the example was not known then: it counts as NULL."""
        column = self.tables.column(place)
        value = sql("{alias}.{name}", alias=self.aliases[place.path], name=identifier(place.column))
        other = self.examples.time_column
        if self.examples.time is None or other is None or column.type not in feature_sql.DATES:
            return value
        if other.type not in feature_sql.DATES:
            return value
        time = self.examples.time if not self._many_before(place.path) else sql("e.{name}", name=TIME)
        known = sql("{value} < {time}", value=feature_sql.number(column, value), time=feature_sql.number(other, time))
        return sql("CASE WHEN {known} THEN {value} END", known=known, value=value)

    def _many_before(self, path: str) -> bool:
        return any(step.many for step in self.plan.chain(path))

    # -- many rows -------------------------------------------------------------------------------------------

    def _parts(self, source: Sql) -> Iterator[_Part]:
        for one in self.plan.rows:
            examples, summed, last = self.examples_of(one.path, source), _summed(one), _last(one)
            if summed:
                yield _Part(one, [each.name for each in summed], self._aggregated(one, examples))
            if one.latest is not None or last:
                arrays = [] if one.latest is None else [one.latest.numbers, one.latest.codes]
                names = [*(each.name for each in last), *filter(None, arrays)]
                yield _Part(one, names, self._latest(one, examples))

    def _keys(self, path: str) -> list[int]:
        first = next(step for step in self.plan.chain(path) if step.many)
        return [self.anchors[first.parent, before] for before, _ in first.on]

    def examples_of(self, path: str, source: Sql) -> Sql:
        """What tells examples apart for a path: several examples may have the same rows."""
        names = self.keys_of(path)
        return sql("(SELECT DISTINCT {names} FROM {source} AS b)", names=joined(", ", names), source=source)

    def keys_of(self, path: str) -> list[Sql]:
        """The columns that tell examples apart."""
        return [*map(_key, self._keys(path)), *self._time]

    @property
    def _time(self) -> list[Sql]:
        return [TIME] if self.examples.time is not None else []

    def _same(self, path: str, one: Sql, other: Sql) -> Sql:
        names = self.keys_of(path)
        return joined(
            " AND ", [sql("{one}.{name} = {other}.{name}", one=one, other=other, name=name) for name in names]
        )

    def joined_rows(self, path: str, examples: Sql, values: Sequence[Sql]) -> Sql:
        """The rows at the end of a path: the keys and the time of the example, the age, and v0, v1, …"""
        chain = self.plan.chain(path)
        start = next(place for place, step in enumerate(chain) if step.many)
        first, time = chain[start], sql("e.{name}", name=TIME) if self.examples.time is not None else None
        keys = {before: _key(self.anchors[first.parent, before]) for before, _ in first.on}
        on = self._on(first, lambda name: sql("e.{key}", key=keys[name]), time)
        rows, alias = self.tables.relations[first.path].rows, self.aliases[first.path]
        joins = [sql(" JOIN {rows} AS {alias} ON {on}", rows=rows, alias=alias, on=on)]
        joins += [self._join(step, sql("e"), time, inner=True) for step in chain[start + 1 :]]
        joins += [self._join(step, sql("e"), time) for step in self.plan.inner(path)]
        keys_and_time = [sql("e.{name}", name=name) for name in self.keys_of(path)]
        listed = [*keys_and_time, sql("{age} AS age", age=self._age(path))]
        listed += [sql("{value} AS v{place}", value=value, place=place) for place, value in enumerate(values)]
        # OFFSET: else the planner would write each expression into each aggregate, which would compute it anew.
        return sql(
            "SELECT {listed} FROM {examples} AS e{joins} OFFSET 0",
            listed=joined(", ", listed),
            examples=examples,
            joins=joined("", joins),
        )

    def _timed(self, path: str) -> RelatedStep | None:
        """The last step of a path that has a time: it says how old a row is."""
        return next((step for step in reversed(self.plan.chain(path)) if step.many and step.time is not None), None)

    def _age(self, path: str) -> Sql:
        """How long before the example, or else before 0, a row was: days, or units of a number."""
        step = self._timed(path)
        if step is None or step.time is None:
            return sql("NULL::double precision")
        column = self.tables.columns[step.path][step.time]
        value = sql("{alias}.{time}", alias=self.aliases[step.path], time=identifier(step.time))
        other = self.examples.time_column
        if self.examples.time is None or other is None:
            return sql("- ({number})", number=feature_sql.number(column, value))
        now = feature_sql.number(other, sql("e.{name}", name=TIME))
        return sql("({now}) - ({number})", now=now, number=feature_sql.number(column, value))

    def _aggregated(self, one: ManyRows, examples: Sql) -> Sql:
        """One pass over the rows of a path: all aggregates but the last values."""
        wanted = _summed(one)
        measured = {(each.path, each.column): each for each in one.measures}
        values: dict[tuple[str, str, str], Sql] = {}
        for each in wanted:
            if each.of is None:
                continue
            column, value = self.tables.column(each.of), self.value(each.of)
            if each.kind in OF_NUMBERS:
                value = _steps(measured[each.of.path, each.of.column], column, value)
            elif each.kind == SHARE:
                value = feature_sql.text(column, value)
            else:
                value = sql("pg_catalog.hashtextextended({text}, 0)", text=feature_sql.text(column, value))
            values.setdefault(_of_value(each), value)
        places = {key: sql("v{place}", place=place) for place, key in enumerate(values)}
        found = [
            sql(
                "{made} AS {name}",
                made=_aggregate(each, None if each.of is None else places[_of_value(each)], measured),
                name=identifier(each.name),
            )
            for each in wanted
        ]
        keys = self.keys_of(one.path)
        return sql(
            "SELECT {keys}, {found} FROM ({rows}) r GROUP BY {keys}",
            keys=joined(", ", keys),
            found=joined(", ", found),
            rows=self.joined_rows(one.path, examples, list(values.values())),
        )

    def _latest(self, one: ManyRows, examples: Sql) -> Sql:
        """The latest rows of a path, and the last values."""
        last, latest = _last(one), one.latest
        numbers, codes = self._arrays(one)
        values = [numbers, codes, *map(self._last_value, last)]
        keys = self.keys_of(one.path)
        lasts = [
            feature_sql.text(self.tables.column(each.of), sql("v{place}", place=place))
            if not each.as_text
            else sql("v{place}", place=place)
            for place, each in enumerate(last, 2)
            if each.of is not None
        ]
        placed = sql(
            "SELECT r.*, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS n FROM ({rows}) r",
            keys=joined(", ", keys),
            order=joined(", ", [sql("age"), sql("v0"), sql("v1"), *lasts]),
            rows=self.joined_rows(one.path, examples, values),
        )
        found = [
            sql("(pg_catalog.array_agg(v{place}) FILTER (WHERE n = 1))[1] AS {name}",
                place=place, name=identifier(each.name))
            for place, each in enumerate(last, 2)
        ]  # fmt: skip
        if latest is not None:
            found.append(sql("{array} AS {name}", array=_filled(0, latest.rows, latest.channels, sql("real")),
                             name=identifier(latest.numbers)))  # fmt: skip
            if latest.codes is not None:
                found.append(sql("{array} AS {name}", array=_filled(1, latest.rows, len(latest.sizes), sql("integer")),
                                 name=identifier(latest.codes)))  # fmt: skip
        return sql(
            "SELECT {keys}, {found} FROM ({placed}) q WHERE n <= {most} GROUP BY {keys}",
            keys=joined(", ", keys),
            found=joined(", ", found),
            placed=placed,
            most=1 if latest is None else latest.rows,
        )

    def _last_value(self, each: Aggregate) -> Sql:
        assert each.of is not None
        value = self.value(each.of)
        return feature_sql.text(self.tables.column(each.of), value) if each.as_text else value

    def _arrays(self, one: ManyRows) -> tuple[Sql, Sql]:
        """The numbers and the codes of a row."""
        latest = one.latest
        if latest is None:
            return sql("NULL::real[]"), sql("NULL::integer[]")
        numbers = [sql("1::real")]
        if latest.age is not None:
            numbers += feature_sql.floats(latest.age, AGE, self._age(one.path))
        for each in latest.of_numbers:
            numbers += feature_sql.floats(each.feature, self.tables.column(each), self.value(each))
        codes = [feature_sql.code(each.feature, self.tables.column(each), self.value(each)) for each in latest.of_codes]
        return (
            sql("ARRAY[{numbers}]::real[]", numbers=joined(", ", numbers)),
            sql("ARRAY[{codes}]::integer[]", codes=joined(", ", codes)),
        )

    def _completed(self, one: ManyRows, name: str, place: int) -> Sql:
        """A column of an example, also of one without related rows."""
        value = sql("a{place}.{name}", place=place, name=identifier(name))
        latest = one.latest
        kind = next((each.kind for each in one.aggregates if each.name == name), None)
        if kind in (COUNT, DIFFERENT, "sum"):
            value = sql("COALESCE({value}, 0::double precision)", value=value)
        elif latest is not None and name == latest.numbers:
            value = sql(
                "COALESCE({value}, {empty})", value=value, empty=_empty(latest.rows, latest.channels, sql("real"))
            )
        elif latest is not None and name == latest.codes:
            empty = _empty(latest.rows, len(latest.sizes), sql("integer"))
            value = sql("COALESCE({value}, {empty})", value=value, empty=empty)
        return sql("{value} AS {name}", value=value, name=identifier(name))


TIME = identifier("cerebro_time")


def _key(place: int) -> Sql:
    return sql("cerebro_key_{place}", place=place)


def _summed(one: ManyRows) -> list[Aggregate]:
    return [each for each in one.aggregates if each.kind != LAST]


def _last(one: ManyRows) -> list[Aggregate]:
    return [each for each in one.aggregates if each.kind == LAST]


def _of_value(each: Aggregate) -> tuple[str, str, str]:
    assert each.of is not None
    form = "steps" if each.kind in OF_NUMBERS else each.kind
    return each.of.path, each.of.column, form


# -- aggregates ----------------------------------------------------------------------------------------------


def _steps(measure: RelatedMeasure, column: Column, value: Sql) -> Sql:
    """A number in whole steps from the origin; NULL stays NULL, and so do NaN and infinity."""
    number = feature_sql.number(column, value)
    known = sql("{value} IS NOT NULL", value=value)
    if column.type in feature_sql.REALS:
        known = sql("{known} AND {number} NOT IN {not_finite}", known=known, number=number,
                    not_finite=feature_sql.NOT_FINITE)  # fmt: skip
    return sql(
        "CASE WHEN {known} THEN"
        " LEAST(GREATEST(pg_catalog.round(({number} - {origin}) / {step}), {low}), {high})::bigint END",
        known=known,
        number=number,
        origin=measure.origin,
        step=measure.step,
        low=-FARTHEST_STEP,
        high=FARTHEST_STEP,
    )


def _aggregate(each: Aggregate, value: Sql | None, measured: Mapping[tuple[str, str], RelatedMeasure]) -> Sql:
    chosen = sql("") if each.within is None else sql(" FILTER (WHERE age <= {within})", within=each.within)
    if each.kind == COUNT:
        return sql("(count(*){chosen})::double precision", chosen=chosen)
    if each.kind in (SINCE_LAST, SINCE_FIRST):
        return sql("{least}(age)", least=sql("min") if each.kind == SINCE_LAST else sql("max"))
    assert value is not None and each.of is not None
    if each.kind == DIFFERENT:
        return sql("(count(DISTINCT {value}){chosen})::double precision", value=value, chosen=chosen)
    if each.kind == SHARE:
        assert each.value is not None
        condition = sql("{value} = {one}", value=value, one=literal(each.value))
        if each.within is not None:
            condition = sql("{condition} AND age <= {within}", condition=condition, within=each.within)
        return sql(
            "count(*) FILTER (WHERE {condition})::double precision / NULLIF(count(*){chosen}, 0)",
            condition=condition,
            chosen=chosen,
        )
    return _of_steps(each, measured[each.of.path, each.of.column], value, chosen)


def _of_steps(each: Aggregate, measure: RelatedMeasure, value: Sql, chosen: Sql) -> Sql:
    """What sums of whole steps say of a number, in its own unit."""
    count = sql("count({value}){chosen}", value=value, chosen=chosen)
    total = sql("sum({value}){chosen}", value=value, chosen=chosen)
    origin, step = measure.origin, measure.step
    if each.kind == "sum":
        return sql("{origin} * {count} + {step} * {total}::double precision",
                   origin=origin, count=count, step=step, total=total)  # fmt: skip
    if each.kind == "mean":
        return sql("{origin} + {step} * ({total}::double precision / NULLIF({count}, 0))",
                   origin=origin, step=step, total=total, count=count)  # fmt: skip
    if each.kind in ("least", "largest"):
        function = sql("min") if each.kind == "least" else sql("max")
        return sql("{origin} + {step} * ({function}({value}){chosen})::double precision",
                   origin=origin, step=step, function=function, value=value, chosen=chosen)  # fmt: skip
    squares = sql("sum({value} * {value}){chosen}", value=value, chosen=chosen)
    if each.kind == "spread":
        return sql(
            "{step} * pg_catalog.sqrt(({count} * {squares} - {total} * {total})::double precision)"
            " / NULLIF({count}, 0)",
            step=step,
            count=count,
            squares=squares,
            total=total,
        )
    # The slope of the number over the age, in steps of the same size for all: with the sign of time.
    known = sql("CASE WHEN {value} IS NOT NULL THEN LEAST(age * {fine}, {most})::bigint END",
                value=value, fine=FINE, most=AGES - 1)  # fmt: skip
    ages, both = (
        sql("sum({known}){chosen}", known=known, chosen=chosen),
        sql("sum({known} * {value}){chosen}", known=known, value=value, chosen=chosen),
    )
    of_ages = sql("sum({known} * {known}){chosen}", known=known, chosen=chosen)
    return sql(
        "{factor} * ({count} * {both} - {ages} * {total})::double precision"
        " / NULLIF(({count} * {of_ages} - {ages} * {ages})::double precision, 0)",
        factor=-step * FINE,
        count=count,
        both=both,
        ages=ages,
        total=total,
        of_ages=of_ages,
    )


FINE = 1440  # steps of a day in a trend


# -- the latest rows -----------------------------------------------------------------------------------------


def _filled(place: int, rows: int, width: int, element: Sql) -> Sql:
    """The arrays of the latest rows as one, with zeros where there are fewer."""
    return sql(
        "(pg_catalog.array_cat(pg_catalog.array_agg(v{place} ORDER BY n), {empty}))[1:{rows}][1:{width}]",
        place=place,
        empty=_empty(rows, width, element),
        rows=rows,
        width=width,
    )


def _empty(rows: int, width: int, element: Sql) -> Sql:
    return sql("pg_catalog.array_fill(0::{element}, ARRAY[{rows}, {width}])", element=element, rows=rows, width=width)
