"""Rows that get the columns of a related plan after packing: those of a query, or of a table that is read once.

All that reads a model's rows comes here, so these columns have the same bits wherever they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Optional

from cerebro_db.core.errors import BadData, InvalidArgument, Unsupported
from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.packing.columns import IN_A_ZONE, family_of, need_a_zone
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.related import Related, RelatedStep
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.sql_types import DATES, WITH_ZONE
from cerebro_db.core.texts import counted

from ... import platform
from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from . import deriving, steps
from .derivation import Examples, OpenedTables

Opens = Callable[[Relation, Layout], Optional[OpenedTables]]  # of a packed table, the related tables that it reads
ROWS = Relation(0, "", "", "", False, "the rows")


def opens_none(table: Relation, layout: Layout) -> OpenedTables | None:
    if layout.related is not None:
        raise Unsupported(
            f"'{table.text}' reads related tables, which this function does not.", hint="cerebro.pack_like() does."
        )
    return None


def completed(db: Database, source: Relation, table: Relation, layout: Layout, opens: Opens) -> Relation:
    """A copy of the rows with the columns of related tables that a packed table has; else the rows themselves."""
    tables = opens(table, layout)
    if tables is None or layout.related is None:
        return source
    return RelatedRows.of(db, layout.related, tables, source, relations.columns(db, source)).copied(
        db, source, again=True
    )


def opened(db: Database, plan: Related, tables: Mapping[str, Relation], model: str) -> OpenedTables:
    """The tables of a plan, which the caller has chosen; an error unless they have its columns."""
    listed = relations.columns_of(db, *(tables[step.path] for step in plan.steps))
    for step, present in zip(plan.steps, listed):
        names = _needed(plan, step)
        _require_columns(step, names, tables[step.path], present, model)
        relations.require_readable(db, tables[step.path], [present[name] for name in names])
        if not step.many:
            _require_unique(db, step, tables[step.path])
    return OpenedTables(dict(tables), {step.path: present for step, present in zip(plan.steps, listed)})


def _require_unique(db: Database, step: RelatedStep, table: Relation) -> None:
    """An error if an example could refer to several rows, which would make several of it."""
    names = [name for _, name in step.on]
    if steps.is_unique(db, table, names):
        return
    listed = joined(", ", map(identifier, names))
    known = joined(" AND ", (sql("{name} IS NOT NULL", name=identifier(name)) for name in names))
    twice = sql(
        "SELECT 1 AS one FROM {rows} AS s WHERE {known} GROUP BY {names} HAVING count(*) > 1 LIMIT 1",
        rows=table.rows,
        known=known,
        names=listed,
    )
    if db.scan(twice):
        raise BadData(
            f"related: {step.path}: {table.text} has several rows with the same {', '.join(names)}, and a row refers to"
            " one of them.",
            hint="A view can keep one row of each.",
        )


def _needed(plan: Related, step: RelatedStep) -> list[str]:
    """The columns of a step's table that are read, as values, times, or keys of this step and of those after it."""
    keys = [name for _, name in step.on]
    keys += [before for one in plan.steps if one.parent == step.path for before, _ in one.on]
    time = [] if step.time is None else [step.time]
    return list(dict.fromkeys([*(one.name for one in step.columns), *keys, *time]))


def _require_columns(
    step: RelatedStep, names: list[str], table: Relation, present: Mapping[str, Column], model: str
) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise BadData(
            f"related: {step.path}: {table.text} does not have the column{'s' if len(missing) > 1 else ''}"
            f" {', '.join(missing)}, which {model} reads.",
            hint=relations.has_columns(dict(present)),
        )
    for one in step.columns:
        column = present[one.name]
        if need_a_zone(column.type, one.type.name):
            hint = IN_A_ZONE
        elif column.type != one.type.name and _family(column) != _family_of_type(one.type.name):
            hint = "A view can cast it."
        else:
            continue
        raise BadData(
            f"related: {step.path}: the column '{one.name}' of {table.text} is {column.shown} now, and was {one.type}"
            " in training.",
            hint=hint,
        )


@dataclass(frozen=True)
class RelatedRows:
    """A plan with its tables, and the source's own columns: what gives rows of these columns those of the plan."""

    plan: Related
    tables: OpenedTables
    present: Mapping[str, Column]
    kept: tuple[str, ...]  # the source's own columns that stay
    time: Column | None  # the time of the examples
    now: bool = False  # no column has it, so it is that of the statement

    @classmethod
    def of(
        cls,
        db: Database,
        plan: Related,
        tables: OpenedTables,
        source: Relation,
        present: Mapping[str, Column],
        kept: Collection[str] | None = None,
    ) -> RelatedRows:
        """``kept``: None: all that may be read.  An error unless the rows have the keys and a time of a right type."""
        for step in plan.steps:
            if not step.parent:
                _require_keys(step, source, present, tables)
        taken = [name for name in plan.names if name in present]
        if taken:
            raise InvalidArgument(
                f"{source.text} has a column '{taken[0]}', which is the name of a column of a related table.",
                hint="Leave it out: it is made anew.",
            )
        time, now = None, False
        if plan.as_of is not None:
            time = present.get(plan.as_of)
            if time is None:
                time, now = _as_of_now(db, plan, tables, source), True
            _require_time(plan, tables, time, source)
        own = [one.name for one in present.values() if one.readable and (kept is None or one.name in kept)]
        return cls(plan, tables, present, tuple(own), time, now)

    @property
    def passed(self) -> list[Column] | None:
        """The columns that are needed of the rows; None: a cast to the type of one of them could change it."""
        needed = {*self.kept, *(before for step in self.plan.steps if not step.parent for before, _ in step.on)}
        if self.time is not None and not self.now:
            needed.add(self.time.name)
        columns = [one for one in self.present.values() if one.name in needed]
        return None if any(one.vector for one in columns) else columns

    def query(self, rows: Sql, *, again: bool = False) -> Sql:
        """``rows``: what stands after FROM.  ``again``: as ``Examples.again``."""
        columns, names = dict(self.present), list(self.kept)
        time = known = None
        if self.time is not None:
            columns[self.time.name] = self.time
            time = sql("s.{name}", name=identifier(self.time.name))
            if self.now:
                rows = sql(
                    "(SELECT q.*, pg_catalog.statement_timestamp(){cast} AS {name} FROM {rows} AS q)",
                    cast=sql("::{kind}", kind=self.time.cast),
                    name=identifier(self.time.name),
                    rows=rows,
                )
                names.append(self.time.name)
            else:
                known = sql("cerebro_internal._known_time({time}, {name})", time=time, name=literal(self.time.name))
        examples = Examples(
            rows=rows, columns=columns, names=names, time=time, time_column=self.time, again=again, known=known
        )
        return deriving.query(self.plan, examples, self.tables)

    def rows_of(self, source: Relation) -> Relation:
        """The rows of a query with the columns of the plan, as a query."""
        return replace(source, query=self.query(source.rows), condition=None)

    def described(self, db: Database, source: Relation) -> tuple[Relation, dict[str, Column]]:
        """The same, with all columns."""
        return relations.described(db, replace(ROWS, query=self.query(source.rows), text=source.text))

    def copied(self, db: Database, source: Relation, *, again: bool) -> Relation:
        """A table with the rows and the columns of the plan; the caller drops it.  ``again``: as ``Examples.again``."""
        if again:
            self._require_known_times(db, source)
        copy = Name(STATE_SCHEMA, f"rows_{token()}")
        db.patiently(
            sql("CREATE UNLOGGED TABLE {copy} AS {query} {by}", copy=copy.sql,
                query=self.query(source.rows, again=again), by=platform.of(db).distributed_by(None))
        )  # fmt: skip
        made = relations.find(db, copy)
        assert made is not None
        return replace(made, text=source.text)

    def _require_known_times(self, db: Database, source: Relation) -> None:
        if self.time is None or self.now:
            return
        (found,) = db.scan(
            sql("SELECT count(*) AS rows FROM {rows} AS s WHERE {time} IS NULL", rows=source.rows,
                time=identifier(self.time.name))
        )  # fmt: skip
        if found["rows"]:
            raise BadData(
                f"the column '{self.time.name}' is NULL in {counted(found['rows'], 'row')} of {source.text}.",
                hint="It is not known which related rows were there then: leave these rows out, or fill them in.",
            )


def _require_keys(step: RelatedStep, source: Relation, present: Mapping[str, Column], tables: OpenedTables) -> None:
    table = tables.relations[step.path].text
    for name, other in step.on:
        if name not in present:
            raise BadData(
                f"{source.text} does not have the column '{name}', which leads to the rows of {table}.",
                hint="The model reads them, so its rows need this key; it may be NULL.",
            )
        here, there = present[name], tables.columns[step.path][other]
        alike = here.type == there.type or (here.category == there.category and here.category in "NS")
        if not alike or _family(here) is None:
            raise BadData(
                f"the column '{name}' of {source.text} is {here.shown}, and '{other}' of {table} is {there.shown}.",
                hint="They are compared with each other. Cast the column in the query.",
            )


def _as_of_now(db: Database, plan: Related, tables: OpenedTables, source: Relation) -> Column:
    """A column for the time of the statement, with the type that the tables have."""
    assert plan.as_of is not None
    types = [tables.columns[step.path][step.time].type for step in plan.steps if step.time is not None]
    if not all(one in DATES for one in types):
        raise BadData(
            f"{source.text} does not have the column '{plan.as_of}' with the time of each row.",
            hint="The model reads only related rows before it.",
        )
    db.told(
        f"{source.text} does not have the column '{plan.as_of}', so the related rows are read as of now",
        f"Add the time of each row as {plan.as_of} for predictions as of then.",
    )
    kind = types[0] if types else WITH_ZONE
    return Column(plan.as_of, kind, kind, "D", None)


def _require_time(plan: Related, tables: OpenedTables, time: Column, source: Relation) -> None:
    if any(one.since for one in plan.carried) and time.type not in DATES:
        raise BadData(f"the column '{time.name}' of {source.text} is {time.shown}, and was a date in training.")
    for step in plan.steps:
        if step.time is None:
            continue
        other = tables.columns[step.path][step.time]
        if _family(time) != _family(other) or need_a_zone(time.type, other.type):
            raise BadData(
                f"the column '{time.name}' of {source.text} is {time.shown}, and '{other.name}' of"
                f" {tables.relations[step.path].text} is {other.shown}.",
                hint=IN_A_ZONE if need_a_zone(time.type, other.type) else "They are compared with each other.",
            )


def _family(column: Column) -> str | None:
    return family_of(column.type, column.category, column.element)


def _family_of_type(name: str) -> str | None:
    """Of a type of a user's, that of texts: nothing else is read of it."""
    return family_of(name, "", None) or "text"


def marks(tables: OpenedTables) -> Sql:
    """A statement whose answer is another text when a table of these names, or its columns, are others."""
    names = joined(", ", (literal(one.name.quoted) for one in tables.relations.values()))
    return sql(
        "SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', u.place, c.oid, c.relkind, a.attname, a.attnum,"
        " a.atttypid), ',' ORDER BY u.place, a.attnum) AS mark"
        " FROM pg_catalog.unnest(ARRAY[{names}]::pg_catalog.text[]) WITH ORDINALITY AS u (name, place)"
        " JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(u.name)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped",
        names=names,
    )
