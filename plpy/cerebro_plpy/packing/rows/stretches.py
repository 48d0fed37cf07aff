"""Where the rows of a subject break: at a gap in their order, and where a column changes.  No window has a break."""

from __future__ import annotations

from collections.abc import Mapping

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.packing.columns import family_of
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from ...database.access import Database
from ...database.relations import Column

TIMES = ("date", "time")  # families
EXAMPLE = 'For instance "gap": "15 seconds" for times, and "gap": 1 for numbers.'


@dataclass(frozen=True)
class Breaks:
    """Of a row, over the window ``o`` of its subject's rows in their order."""

    before: Sql  # whether another stretch begins with it
    left_out: Sql  # whether it is in no window


NONE = Breaks(sql("false"), sql("false"))


def of(db: Database, windows: Windows, present: Mapping[str, Column]) -> Breaks:
    """An error if the gap does not fit the order.  ``present``: the columns of the rows."""
    if not windows.may_break:
        return NONE
    names = [identifier(name) for name in windows.breaks]
    before = [sql("{name} IS DISTINCT FROM lag({name}) OVER o", name=name) for name in names]
    if windows.gap is not None:
        before.append(_after_gap(db, present[windows.order[0]], windows.gap))
    flags = [name for name in windows.breaks if present[name].type == "boolean"]
    left_out = joined(" OR ", [sql("false"), *(sql("{name} IS TRUE", name=identifier(name)) for name in flags)])
    return Breaks(sql("({before})", before=joined(" OR ", before)), sql("({left_out})", left_out=left_out))


def _after_gap(db: Database, column: Column, gap: str) -> Sql:
    family, kind, name = family_of(column.type, column.category, column.element), sql("numeric"), column.name
    value = sql("{name}::numeric", name=identifier(name))
    if family in TIMES:
        kind, value = sql("interval"), identifier(name)
        if column.type == "date":
            value = sql("{value}::timestamp without time zone", value=value)
    elif family != "number":
        raise InvalidArgument(
            f"gap needs an order by time or by numbers, and '{name}' is of type {column.shown}.",
            hint='"breaks" names a column whose changes break windows.',
        )
    longest = sql("{gap}::{kind}", gap=literal(gap), kind=kind)
    try:
        (found,) = db.scan(sql("SELECT {longest} > {none}::{kind} AS fits", longest=longest, kind=kind,
                               none=literal("0")))  # fmt: skip
    except db.plpy.SPIError as error:
        if error.sqlstate[:2] != "22":
            raise
        found = {"fits": False}
    if not found["fits"]:
        what = "a time span" if family in TIMES else "a number"
        raise InvalidArgument(f"gap has to be {what} above 0, as the order '{name}' needs, not {gap!r}.", hint=EXAMPLE)
    return sql("{value} - lag({value}) OVER o > {longest}", value=value, longest=longest)
