"""The rows to predict, with the columns of related tables that a model reads.

The plan of a model names tables, and a name in a document opens nothing.  Those that are read are the ones that the
call names, or that the same role has named in the call of the run that trained the model: our log says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from cerebro_db.core.errors import BadData, InvalidArgument, WrongState
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, shown, sql

from .. import platform
from ..database import relations
from ..database.access import Cursor, Database, PlanCursor
from ..database.relations import Column, Relation

if TYPE_CHECKING:
    from ..packing.related.derivation import OpenedTables
    from ..packing.related.reading import RelatedRows
    from .query_reading import Reading


@dataclass(frozen=True)
class Completed:
    """The rows to predict with the columns of related tables, and their own columns alone."""

    source: Relation
    present: dict[str, Column]  # all columns
    rows: RelatedRows | None  # None: the model reads no related tables


def opened(db: Database, table: Relation, layout: Layout, given: str | None) -> OpenedTables | None:
    """The related tables of a model table or a packed table; None: it reads none.

    ``given``: the argument ``related`` of the call.
    """
    plan = layout.related
    if plan is None and given is None:
        return None
    # Only now: other models need nothing of it, and it takes a new session long.
    from cerebro_db.core.packing import related_tables

    from ..packing.related import reading
    from ..runs.record import own_runs

    named = related_tables.named(given)
    related_tables.require_known(named, plan)
    if plan is None:
        return None
    if layout.windows is not None:
        raise BadData(f"the layout of '{table.text}' has windows and related tables.")
    run = None
    if not named.keys() >= {step.path for step in plan.steps}:
        run = own_runs.of_trained(db, table, layout) or own_runs.of_packed(db, table, layout)
    tables: dict[str, Relation] = {}
    missing = []
    for step in plan.steps:
        if step.path in named:
            tables[step.path] = relations.existing(db, named[step.path], argument=f"related: {step.path}")
        elif run is not None and (own := run.related(db, step.path)) is not None:
            tables[step.path] = own
        else:
            missing.append(step.path)
    if missing:
        raise _missing(table, missing, run is not None)
    return reading.opened(db, plan, tables, f"'{table.text}'")


def _missing(table: Relation, paths: list[str], is_own: bool) -> WrongState:
    why = (
        "the run does not say which they are"
        if is_own
        else "no run of yours says which they are. Another role trained the model, or it was imported, its run was"
        " forgotten, or cerebro.pack made the table"
    )
    listed = ", ".join(f'"{path}": "TABLE"' for path in paths)
    return WrongState(
        f"'{table.text}' reads related tables, and the call has to name them: {why}.",
        hint=f"related => '{{{listed}}}'; docs/security.md says why.",
    )


def of(
    db: Database,
    table: Relation,
    layout: Layout,
    source: Relation,
    present: dict[str, Column],
    given: str | None,
    *,
    keys: Collection[str] | None = None,
) -> Completed:
    rows = rows_of(db, table, layout, source, present, given, keys=keys)
    return Completed(source, present, None) if rows is None else Completed(*rows.described(db, source), rows)


def has_them(layout: Layout, present: dict[str, Column]) -> bool:
    """Whether rows have the columns of related tables already, as ``cerebro.related_rows`` returns them."""
    if layout.related is None:
        return False
    needed = {name for variable in layout.inputs for name in variable.columns}.intersection(layout.related.names)
    return bool(needed) and needed <= present.keys()


def needed(
    db: Database, table: Relation, layout: Layout, present: dict[str, Column], given: str | None
) -> OpenedTables | None:
    """The related tables of a model; None: it reads none, or the rows have the columns of them already."""
    if not has_them(layout, present):
        return opened(db, table, layout, given)
    if given is not None:
        raise InvalidArgument("related: the rows have the columns of related tables already.", hint="Leave it out.")
    return None


def rows_of(
    db: Database,
    table: Relation,
    layout: Layout,
    source: Relation,
    present: dict[str, Column],
    given: str | None,
    *,
    keys: Collection[str] | None = None,
) -> RelatedRows | None:
    """What gives the rows the columns of related tables; None: the model reads none, or the rows have them already.

    ``keys``: of the rows' own columns, those that stay beside the inputs; None: all.
    """
    tables = needed(db, table, layout, present, given)
    if tables is None or layout.related is None:
        return None
    from ..packing.related.reading import RelatedRows

    inputs = {name for variable in layout.inputs for name in variable.columns}
    kept = None if keys is None else inputs | set(keys)
    return RelatedRows.of(db, layout.related, tables, source, present, kept)


def mark(db: Database, rows: RelatedRows | None) -> str | None:
    """Another text when a related table is another one, or has other columns."""
    if rows is None:
        return None
    from ..packing.related import reading

    found: str | None = db.value(reading.marks(rows.tables))
    return found


def question(before: Sql, rows: RelatedRows | None) -> Sql:
    """A statement with one value that changes with that of another statement, and with ``mark``."""
    if rows is None:
        return before
    from ..packing.related import reading

    return sql("SELECT pg_catalog.concat_ws('|', ({before}), ({mark}))", before=before, mark=reading.marks(rows.tables))


# -- few rows ------------------------------------------------------------------------------------------------

FEW = 50  # rows, as the planner expects


def are_few(db: Database, source: Relation) -> bool:
    (found,) = db.text(sql("EXPLAIN (FORMAT JSON) SELECT * FROM {rows} AS q", rows=source.rows))
    plan = found["QUERY PLAN"]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return bool(plan[0]["Plan"]["Plan Rows"] <= FEW)


def few(db: Database, source: Relation, reading: Reading) -> Cursor | PlanCursor:
    """A cursor over the chunks of few rows.  The statement over related tables takes longer to plan than to run."""
    if reading.plan is None:
        statement = reading.few
        if statement is None or not platform.of(db).runs_functions_in_session:
            return db.cursor(reading.query(source))
        reading.plan = db.kept_plan(statement, ("text",))
    return db.cursor_of_plan(reading.plan, shown(reading.passed(source.rows)))
