"""What all SQL of a related plan is made of: the examples, the joins of its steps, and the values of related rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cerebro_db.core.names import token
from cerebro_db.core.packing.related import (
    LAST,
    OF_NUMBERS,
    SHARE,
    Aggregate,
    Carried,
    ManyRows,
    Related,
    RelatedPlace,
    RelatedStep,
)
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ...database.relations import Column, Relation
from ..rows import feature_sql
from ..rows.preparation import hash_of_row
from . import formulas
from .formulas import Sums

MARK = token()  # no table has columns of these names
TIME = identifier(f"cerebro_time_{MARK}")
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


class Derivation:
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

    # -- the examples ----------------------------------------------------------------------------------------

    def base(self) -> Sql:
        """The examples, with what they have of rows that they refer to, the anchors k0 …, and their time t."""
        listed = [sql("s.{name}", name=identifier(name)) for name in self.examples.names]
        for one in self.plan.carried:
            listed.append(sql("{value} AS {name}", value=self._carried(one), name=identifier(one.name)))
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

    def _carried(self, one: Carried) -> Sql:
        value = self.value(one)
        if not one.since:
            return value
        assert self.examples.time is not None and self.examples.time_column is not None
        column, other = self.tables.column(one), self.examples.time_column
        earlier, later = formulas.moment(column, value), formulas.moment(other, self.examples.time)
        return formulas.between(column, earlier, later)

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
        if column.type != other.type or column.type in feature_sql.REALS:
            value, time = formulas.moment(column, value), formulas.moment(other, time)
        elif column.type in feature_sql.DATES:  # compared as they are, because an index may have them
            finite = sql("pg_catalog.isfinite({value}) AND pg_catalog.isfinite({time})", value=value, time=time)
            return sql("{value} < {time} AND {finite}", value=value, time=time, finite=finite)
        return sql("{value} < {time}", value=value, time=time)

    def value(self, place: RelatedPlace) -> Sql:
        """A column of a related row.  A date that is not before the example was not known then: it counts as NULL."""
        value = self.plain_value(place)
        if self.examples.time is None:
            return value
        time = self.examples.time if not self._many_before(place.path) else sql("e.{name}", name=TIME)
        return self.known(place, value, time)

    def plain_value(self, place: RelatedPlace) -> Sql:
        return sql("{alias}.{name}", alias=self.aliases[place.path], name=identifier(place.column))

    def place_of(self, one: ManyRows, each: Aggregate) -> int:
        """The place of the value that an aggregate is of among those of ``read``."""
        return list(self.read(one)).index(_of_value(each))

    def known(self, place: RelatedPlace, value: Sql, time: Sql) -> Sql:
        """A value, or NULL if it is a date that was not known at a time."""
        column, other = self.tables.column(place), self.examples.time_column
        if other is None or column.type not in feature_sql.DATES or other.type not in feature_sql.DATES:
            return value
        known = sql("{value} < {time}", value=feature_sql.number(column, value), time=feature_sql.number(other, time))
        return sql("CASE WHEN {known} THEN {value} END", known=known, value=value)

    def _many_before(self, path: str) -> bool:
        return any(step.many for step in self.plan.chain(path))

    # -- many rows -------------------------------------------------------------------------------------------

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

    def plain_keys_of(self, path: str) -> list[Sql]:
        """The same without the time."""
        return [_key(place) for place in self._keys(path)]

    time_name = TIME

    @property
    def _time(self) -> list[Sql]:
        return [TIME] if self.examples.time is not None else []

    def same(self, path: str, one: Sql, other: Sql) -> Sql:
        names = self.keys_of(path)
        return joined(
            " AND ", [sql("{one}.{name} = {other}.{name}", one=one, other=other, name=name) for name in names]
        )

    def joined_rows(self, path: str, examples: Sql, values: Sequence[Sql]) -> Sql:
        """The rows at the end of a path that examples have: their keys and time, the age, and v0, v1, …

        With a time, ``t`` is that of a row, in whole steps.
        """
        time = sql("e.{name}", name=TIME) if self.examples.time is not None else None
        listed = [sql("{age} AS age", age=self.age(path))]
        timed = self.timed(path)
        if timed is not None:
            moment = self.moment(timed)
            listed.append(sql("{steps} AS t", steps=formulas.in_steps(self.time_of(timed), moment)))
        listed += [sql("{value} AS v{place}", value=value, place=place) for place, value in enumerate(values)]
        return self.joined(path, examples, self.keys_of(path), listed, time)

    def joined(self, path: str, examples: Sql, keys: Sequence[Sql], listed: Sequence[Sql], time: Sql | None) -> Sql:
        """The rows at the end of a path, before a time of the example if there is one."""
        chain = self.plan.chain(path)
        start = next(place for place, step in enumerate(chain) if step.many)
        first = chain[start]
        places = {before: _key(self.anchors[first.parent, before]) for before, _ in first.on}
        on = self._on(first, lambda name: sql("e.{key}", key=places[name]), time)
        rows, alias = self.tables.relations[first.path].rows, self.aliases[first.path]
        joins = [sql(" JOIN {rows} AS {alias} ON {on}", rows=rows, alias=alias, on=on)]
        joins += [self._join(step, sql("e"), time, inner=True) for step in chain[start + 1 :]]
        joins += [self._join(step, sql("e"), time) for step in self.plan.inner(path)]
        # OFFSET: else the planner would write each expression into each aggregate, which would compute it anew.
        return sql(
            "SELECT {listed} FROM {examples} AS e{joins} OFFSET 0",
            listed=joined(", ", [*(sql("e.{name}", name=name) for name in keys), *listed]),
            examples=examples,
            joins=joined("", joins),
        )

    def timed(self, path: str) -> RelatedStep | None:
        """The last step of a path that has a time: it says how old a row is."""
        return next((step for step in reversed(self.plan.chain(path)) if step.many and step.time is not None), None)

    def time_of(self, step: RelatedStep) -> Column:
        assert step.time is not None
        return self.tables.columns[step.path][step.time]

    def fine_of(self, path: str) -> int:
        """In how many steps of a day or unit a trend has the time."""
        step = self.timed(path)
        return formulas.UNITS if step is None else formulas.fine_of(self.time_of(step))

    def moment(self, step: RelatedStep) -> Sql:
        """The time of a row, as times are compared."""
        column = self.time_of(step)
        value = sql("{alias}.{time}", alias=self.aliases[step.path], time=identifier(column.name))
        return formulas.moment(column, value)

    def now(self, time: Sql) -> Sql:
        """The time of an example, as times are compared."""
        assert self.examples.time_column is not None
        return formulas.moment(self.examples.time_column, time)

    def age(self, path: str) -> Sql:
        """How long before the example, or else before 0, a row was: days, or units of a number."""
        step = self.timed(path)
        if step is None:
            return sql("NULL::double precision")
        column = self.time_of(step)
        if self.examples.time is None:
            value = sql("{alias}.{time}", alias=self.aliases[step.path], time=identifier(column.name))
            return sql("- ({number})", number=feature_sql.number(column, value))
        return formulas.between(column, self.moment(step), self.now(sql("e.{name}", name=TIME)))

    def read(self, one: ManyRows, *, timeless: bool = False) -> dict[tuple[str, str, str], Sql]:
        """The values that the aggregates of a path are of, each once.  ``timeless``: whatever was known when."""
        measured = {(each.path, each.column): each for each in one.measures}
        values: dict[tuple[str, str, str], Sql] = {}
        for each in summed(one):
            if each.of is None:
                continue
            column = self.tables.column(each.of)
            value = self.plain_value(each.of) if timeless else self.value(each.of)
            if each.kind in OF_NUMBERS:
                value = formulas.steps(measured[each.of.path, each.of.column], column, value)
            elif each.kind == SHARE:
                value = feature_sql.text(column, value)
            else:
                value = sql("pg_catalog.hashtextextended({text}, 0)", text=feature_sql.text(column, value))
            values.setdefault(_of_value(each), value)
        return values

    def aggregates(self, one: ManyRows, sums: Sums) -> list[Sql]:
        """The aggregates but the last values, with their names."""
        measured = {(each.path, each.column): each for each in one.measures}
        places = {key: place for place, key in enumerate(self.read(one))}
        found = []
        for each in summed(one):
            place, measure = -1, None
            if each.of is not None:
                place = places[_of_value(each)]
                measure = measured.get((each.of.path, each.of.column))
            made = formulas.aggregate(each, place, measure, sums)
            found.append(sql("{made} AS {name}", made=made, name=identifier(each.name)))
        return found

    def order(self, one: ManyRows) -> Sql:
        """A number by which rows of one time are sorted: a hash of all that is read of the latest rows."""
        places = [each.of for each in last_values(one) if each.of is not None]
        places += () if one.latest is None else one.latest.prepared
        read = {(each.path, each.column): each for each in places}
        columns = [replace(self.tables.column(each), name=f"{number}") for number, each in enumerate(read.values())]
        aliases = {
            f"{number}": sql("{alias}.{name}", alias=self.aliases[each.path], name=identifier(each.column))
            for number, each in enumerate(read.values())
        }
        return hash_of_row(columns, lambda column: aliases[column.name]) if columns else sql("0")

    def last_value(self, each: Aggregate, value_of: Callable[[RelatedPlace], Sql]) -> Sql:
        assert each.of is not None
        value = value_of(each.of)
        return feature_sql.text(self.tables.column(each.of), value) if each.as_text else value

    def arrays(self, one: ManyRows, age: Sql, value_of: Callable[[RelatedPlace], Sql]) -> tuple[Sql, Sql]:
        """The numbers and the codes of a row."""
        latest = one.latest
        if latest is None:
            return sql("NULL::real[]"), sql("NULL::integer[]")
        numbers = [sql("1::real")]
        if latest.age is not None:
            numbers += feature_sql.floats(latest.age, AGE, age)
        for each in latest.of_numbers:
            numbers += feature_sql.floats(each.feature, self.tables.column(each), value_of(each))
        codes = [feature_sql.code(each.feature, self.tables.column(each), value_of(each)) for each in latest.of_codes]
        return (
            sql("ARRAY[{numbers}]::real[]", numbers=joined(", ", numbers)),
            sql("ARRAY[{codes}]::integer[]", codes=joined(", ", codes)),
        )


def _key(place: int) -> Sql:
    return identifier(f"cerebro_key_{place}_{MARK}")


def summed(one: ManyRows) -> list[Aggregate]:
    return [each for each in one.aggregates if each.kind != LAST]


def last_values(one: ManyRows) -> list[Aggregate]:
    return [each for each in one.aggregates if each.kind == LAST]


def _of_value(each: Aggregate) -> tuple[str, str, str]:
    assert each.of is not None
    form = "steps" if each.kind in OF_NUMBERS else each.kind
    return each.of.path, each.of.column, form
