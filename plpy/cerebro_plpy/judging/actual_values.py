"""The value of the target in the rows of a query, as SQL that spells it as predictions do.

Unlike a validation table, the rows are not read before: a query may return other rows each time, and may take long.
"""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.packing.columns import IN_A_ZONE, need_a_zone
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.sql_types import SqlType

from ..database.access import Database
from ..database.relations import Column, Relation
from ..packing.rows.preparation import REALS

TEXT = sql("pg_catalog.text")
FLOAT = "double precision"
TEXTS = ("text", "character varying")
INTEGERS = ("smallint", "integer", "bigint")
# Equal values of these types have the same text, so that a cast spells them as the labels are spelled.
ONE_TEXT = (*TEXTS, "bpchar", "name", *INTEGERS, "boolean", "date", "uuid")


@dataclass(frozen=True)
class Actual:
    """Of a query with the rows as ``q``: the value in the target's type, its text, and a join that the text needs."""

    value: Sql
    text: Sql
    join: Sql = sql("")

    def rows(self, rows: Sql, selected: Sql) -> Sql:
        """The query of these rows, with another column or expression."""
        return sql("SELECT q.*, {selected} FROM {rows} AS q{join}", selected=selected, rows=rows, join=self.join)


def actual_of(db: Database, source: Relation, column: Column, variable: Variable) -> Actual:
    """An error if the column cannot be read in the type that the target had in training."""
    one_hot = variable.preparation if isinstance(variable.preparation, OneHot) else None
    kind = one_hot.type.name if one_hot is not None else FLOAT
    number = sql("q.{name}", name=identifier(column.name))
    if one_hot is None and column.type == "boolean":
        # As packing does; there is no cast from boolean to double precision.
        number = sql("{number}::integer", number=number)
    if kind in INTEGERS and column.type in REALS:
        kind = "numeric"  # a cast to integer would round 1.4 to the label 1
    value = sql("{number}::{kind}", number=number, kind=SqlType(kind).sql)
    _require_castable(db, source, column, value, kind)
    text = sql("({value})::{text}", value=value, text=TEXT)
    labels = [label for label in one_hot.labels if label is not None] if one_hot is not None else []
    if not labels or kind in ONE_TEXT and not (kind in TEXTS and _has_loose_collations(db)):
        return Actual(value, text)
    # Arrays of one element are compared as the element's type compares by default, whatever the search_path is: without
    # citext's schema in it, two values of citext = each other as texts. And they can be hashed, for many classes.
    listed = joined(", ", map(literal, labels))
    known = sql(
        "SELECT DISTINCT ON (v.value) v.value, v.label FROM (SELECT u.label, u.label::{kind} AS value, u.place"
        " FROM pg_catalog.unnest(ARRAY[{listed}]::{text}[]) WITH ORDINALITY AS u (label, place)) v"
        " ORDER BY v.value, v.place",
        kind=SqlType(kind).sql,
        listed=listed,
        text=TEXT,
    )
    join = sql(
        " LEFT JOIN ({known}) AS l ON ARRAY[{value}] OPERATOR(pg_catalog.=) ARRAY[l.value]", known=known, value=value
    )
    return Actual(value, sql("COALESCE(l.label, {text})", text=text), join)


def _has_loose_collations(db: Database) -> bool:
    """Whether different texts may be equal; hardly a database has such a collation."""
    return bool(db.value(sql("SELECT EXISTS (SELECT FROM pg_catalog.pg_collation WHERE NOT collisdeterministic)")))


def _require_castable(db: Database, source: Relation, column: Column, value: Sql, kind: str) -> None:
    """Reads the column if a value of its type may not be one of the other: predictions could not name the column."""
    if need_a_zone(column.type, kind):
        raise InvalidArgument(
            f"the column '{column.name}' of the query, of type {column.shown}, cannot be read as {kind}, the type of"
            " the target in training: it depends on the time zone.",
            hint=IN_A_ZONE,
        )
    widened = column.category == "N" and kind in REALS
    if column.type == kind or kind in TEXTS or widened:
        return
    try:
        db.scan(sql("SELECT pg_catalog.count({value}) AS n FROM {rows} AS q", value=value, rows=source.rows))
    except db.plpy.SPIError as error:
        if error.sqlstate[:2] not in ("22", "42"):
            raise
        raise InvalidArgument(
            f"the column '{column.name}' of the query, of type {column.shown}, cannot be read as {kind}, the "
            f"type of the target in training: {error}.",
            hint=f"Convert it in the query to what training had, or leave out the rows that have no {kind}.",
        ) from None
