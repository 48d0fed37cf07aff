"""``cerebro.drift``: how far the rows of a query are from those that a model was trained on."""

from __future__ import annotations

from typing import Any

from cerebro_db.core import codec, documents
from cerebro_db.core.errors import BadData, InvalidArgument, WrongState
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing import drift
from cerebro_db.core.packing.drift import CATEGORY, Profile
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.packed_summary import Packing
from cerebro_db.core.sql import identifier, sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..definitions import references
from ..definitions.references import ModelRef
from ..packing.columns import profiles
from ..packing.columns.profiles import Binned
from ..packing.rows import inputs_by_name
from ..packing.rows.summary import parsed
from ..predicting import related_rows
from ..predicting.related_rows import Completed

NUMBERS = ("number", "boolean", "money", "interval", "date", "time")  # families whose values can be binned


@entry(called="cerebro.drift")
def drift_rows(
    db: Database, model_table: str | None, query: str | None, related: str | None = None
) -> list[dict[str, Any]]:
    """A row for each column, the most different one first."""
    query = relations.require_query(db, query)
    ref = references.model_ref(db, model_table)
    trained = _profiles(db, ref)
    whole = _completed(db, ref, relations.of_query(db, query), related)
    source, present = whole.source, whole.present
    binned = [Binned(present[one.column], one) for one in trained if one.column in present]
    for one in binned:
        _require_kind(one)
    counts = profiles.counted(db, source, binned)
    if not any(map(sum, counts)):
        raise InvalidArgument("the query returns no rows.", hint="They are compared with those of training.")
    found = [_compared(one.profile, rows) for one, rows in zip(binned, counts)]
    return sorted(found, key=lambda row: (-row["psi"], row["column_name"]))


def _compared(before: Profile, now: list[int]) -> dict[str, Any]:
    result = drift.between(before.rows, now)
    rows, rows_before = sum(now), sum(before.rows)
    largest = None
    if result.largest is not None:
        was, is_now = before.rows[result.largest] / max(1, rows_before), now[result.largest] / rows
        largest = f"{before.label(result.largest)}: {100 * is_now:.3g} % of the rows, {100 * was:.3g} % in training"
    return {
        "column_name": before.column,
        "is_target": before.is_target,
        "psi": result.psi,
        "psi_by_chance": drift.by_chance(before.rows, now),
        "jensen_shannon": result.jensen_shannon,
        "nulls": now[-1] / rows,
        "nulls_in_training": before.rows[-1] / max(1, rows_before),
        "rows": rows,
        "largest_change": largest,
    }


def _profiles(db: Database, ref: ModelRef) -> tuple[Profile, ...]:
    """Those that packing has kept, from the summary of a model table or of a packed table."""
    found = read_packing(db, ref)
    if found is None or not found.profiles:
        raise WrongState(
            f"'{ref.given}' does not say how the values of its columns were distributed.",
            hint="cerebro.pack() of this version keeps that, and so do cerebro.train(), search() and fit() when they"
            " pack a table. Train again.",
        )
    return found.profiles


def read_packing(db: Database, ref: ModelRef) -> Packing | None:
    """How the rows of a model table or a packed table were packed; None if its summary does not say it."""
    document = _of_summary(db, ref, "packing")
    if document is None:
        return None
    where = f"the packing of '{ref.given}'"
    return codec.read(Packing, documents.decoded(document, where), where)


def _of_summary(db: Database, ref: ModelRef, column: str) -> Any:
    table = relations.existing(db, ref.text, argument="model_table", companions=("_summary",))
    summary = relations.beside(db, table, "_summary")
    if summary is None or "layout" not in relations.columns(db, summary):
        raise WrongState(
            f"'{table.text}' is neither a model table nor a packed table.",
            hint="cerebro.train(), search() and fit() make model tables.",
        )
    if column not in relations.columns(db, summary):
        return None
    relations.require_columns(db, summary, [column])
    return db.value(sql("SELECT {column} FROM {summary}", column=identifier(column), summary=summary.sql))


def _completed(db: Database, ref: ModelRef, rows: tuple[Relation, dict[str, Column]], related: str | None) -> Completed:
    """The rows with the columns of related tables; the errors that predictions of these rows would have."""
    table, layout = layout_of(db, ref)
    found = related_rows.of(db, table, layout, *rows, related)
    inputs_by_name.found(layout, found.present, "the query")
    return found


def layout_of(db: Database, ref: ModelRef) -> tuple[Relation, Layout]:
    """A model table or a packed table, and its layout."""
    layout = parsed(db, _of_summary(db, ref, "layout"), ref.given)
    return relations.existing(db, ref.text, argument="model_table"), layout


def _require_kind(one: Binned) -> None:
    column = one.column
    if one.profile.kind != CATEGORY and deciding.family_of(column.type, column.category, column.element) not in NUMBERS:
        raise BadData(
            f"the column '{column.name}' of the query is of type {column.shown}; it was a {one.profile.kind}.",
            hint="Cast it in the query.",
        )
