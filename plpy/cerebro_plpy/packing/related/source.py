"""The rows of a source with the columns of related tables: a copy of them, from which they are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.columns import family_of
from cerebro_db.core.packing.related import Related
from cerebro_db.core.packing.related_argument import EXAMPLE, wanted
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, sql
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from .. import checked_arguments
from . import planning, steps
from .derivation import Examples, OpenedTables
from .planning import Decided
from .reading import RelatedRows
from .steps import StepsOrigin


@dataclass(frozen=True)
class ReadBeside:
    """A related plan, and the tables that it reads in this call."""

    plan: Related
    tables: OpenedTables
    # The columns of the source's own key by which related rows are found: they tell one entity from another, and say
    # nothing about the others.
    entity: tuple[Column, ...] = ()

    def of(self, db: Database, source: Relation) -> Relation:
        """The rows of a table with the columns of the plan, as a copy, which the caller drops."""
        rows = RelatedRows.of(db, self.plan, self.tables, source, relations.columns(db, source))
        made = rows.copied(db, source, again=True)
        found = relations.columns(db, made)
        return replace(source, condition=None, copy=made.name, more=tuple(found[name] for name in self.plan.names))


def asked_for(db: Database, source: Relation, given: PackArguments) -> ReadBeside | None:
    """What is read beside a source, as the arguments say; None: nothing."""
    asked = wanted(given.related)
    present = relations.columns(db, source)
    if asked is None:
        if given.as_of is not None:
            raise InvalidArgument("as_of needs related.", hint=EXAMPLE)
        return None
    if given.sequence is not None:
        raise InvalidArgument(
            "related and sequence cannot be used together.",
            hint="The rows of a window would each need related rows. Name the table of the windows in related instead.",
        )
    as_of = _as_of(db, source, present, given.as_of)
    origin = StepsOrigin(source, present, as_of, split_list(given.target, "target"))
    reached = steps.reached(db, origin, asked)
    if not reached:
        raise BadData(
            f"no table is related to {source.text} by a foreign key"
            + (", with a column that has the time of its rows." if as_of is not None else "."),
            hint=EXAMPLE,
        )
    hashed = checked_arguments.hash_of_rows(db, source)

    def some(most: int) -> Examples:
        rows = sql(
            "(SELECT * FROM {rows} AS q ORDER BY {hashed} LIMIT {most})", rows=source.rows, hashed=hashed, most=most
        )
        return planning.examples_of(rows, present, as_of, again=True)

    every = planning.examples_of(source.rows, present, as_of, again=True)
    decided = planning.planned(db, origin, every, some, reached)
    plan = decided.plan
    if not plan.steps:
        raise BadData("related: no table is left to read.", hint="The notices above say why.")
    _require_free(plan, present, source)
    _tell(db, decided)
    key = set(relations.unique_key(db, source))
    entity = {name for step in plan.steps if not step.parent for name, _ in step.on} & key
    return ReadBeside(plan, steps.opened(reached), tuple(present[name] for name in present if name in entity))


def _as_of(db: Database, source: Relation, present: Mapping[str, Column], name: str | None) -> Column | None:
    if name is None:
        return None
    names = split_list(name, "as_of")
    if len(names) != 1:
        raise InvalidArgument(f"as_of must be one column, not {name}.")
    if names[0] not in present:
        raise UndefinedColumn(
            f"as_of: {source.text} has no column '{names[0]}'.", hint=relations.has_columns(dict(present))
        )
    column = present[names[0]]
    relations.require_readable(db, source, [column])
    if family_of(column.type, column.category, column.element) not in ("date", "number"):
        raise InvalidArgument(
            f"as_of cannot be '{column.name}' of type {column.shown}.", hint="Take a date or a number."
        )
    (found,) = db.scan(
        sql("SELECT count(*) AS rows FROM {rows} AS s WHERE {name} IS NULL", rows=source.rows,
            name=identifier(column.name))
    )  # fmt: skip
    if found["rows"]:
        raise BadData(
            f"as_of: '{column.name}' is NULL in {counted(found['rows'], 'row')} of {source.text}.",
            hint="Leave these rows out with a view: what was known at their time is not known.",
        )
    return column


def _require_free(plan: Related, present: Mapping[str, Column], source: Relation) -> None:
    for name in plan.names:
        if name in present:
            raise InvalidArgument(
                f"{source.text} has a column '{name}', which is the name of a column of a related table.",
                hint="A view can rename it.",
            )


# Microseconds for each related row: to join it, to add it to an aggregate, to sort it among the latest.
JOINED, ADDED, SORTED = 2.0, 0.05, 5.0


def _tell(db: Database, decided: Decided) -> None:
    """What is read."""
    plan = decided.plan
    if plan.carried:
        paths = dict.fromkeys(one.path for one in plan.carried)
        db.told(f"related: {counted(len(plan.carried), 'column')} of {', '.join(paths)}")
    for one in plan.rows:
        what, possible = counted(len(one.aggregates), "aggregate"), decided.possible[one.path]
        if possible > len(one.aggregates):
            what = f"{len(one.aggregates)} of {possible} possible aggregates"
        if one.latest is not None:
            what += f" and the latest {counted(one.latest.rows, 'row')}"
        db.told(f"related: of {one.path}, {what}")
    seconds = 0.0
    for step in plan.steps:
        on = " and ".join(f"{here} = {there}" for here, there in step.on)
        time = f", before {plan.as_of} by {step.time}" if step.time and plan.as_of else ""
        found = next((one for one in plan.rows if one.path == step.path), None)
        rows = ""
        if found is not None and found.crowded:
            rows = ", by their ranks in the order of time"
        elif found is not None:
            read = decided.rows[step.path]
            seconds += read * (JOINED + ADDED * len(found.aggregates) + SORTED * (found.latest is not None)) / 1e6
            rows = f"; the examples read at most {read:,} rows"
        db.detail(f"related: {step.path} is {step.table.for_people}, where {on}{time}{rows}")
    db.detail(f"related: about {max(1.0, seconds):.0f} s to read it")
