"""The columns that ``cerebro.propagate`` propagates, and the slices of them that are computed at a time.

All plain numbers are gathered into arrays, and long arrays are cut.  A slice fits into a row of a table as it is, where
an element of it is found at once; a longer array would be decompressed for each element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cerebro_db.core.errors import BadData, InvalidArgument, Unsupported
from cerebro_db.core.names import MOST_COLUMNS, split_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, check, identifier, joined, sql
from cerebro_db.core.sql_types import INTEGERS, REALS
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation

MOST_VALUES = 100  # of a slice
_NOT_FINITE = sql("('NaN', 'Infinity', '-Infinity')")


@dataclass(frozen=True)
class Slice:
    """Some plain numbers, or a part of one array: elements ``start`` to ``start + width - 1``."""

    columns: tuple[Column, ...]
    start: int
    width: int

    def values(self, row: Sql, hop: int) -> Sql:
        """The array of these values; ``row``: the alias of a table that has the columns of this hop."""
        names = [sql("{row}.{name}", row=row, name=identifier(name_at(one, hop))) for one in self.columns]
        if self.columns[0].element is None:
            return sql(
                "ARRAY[{values}]",
                values=joined(", ", (sql("{name}::double precision", name=name) for name in names)),
            )
        end = self.start + self.width - 1
        # What was propagated is an array, whatever the column itself is.
        array = self.columns[0].array(names[0]) if hop == 0 else names[0]
        return sql("({array})[{start}:{end}]::double precision[]", array=array, start=self.start, end=end)


def name_at(column: Column, hop: int) -> str:
    """The name of a column's values after a number of hops."""
    return column.name if hop == 0 else check(f"{column.name}_hop_{hop}")


def chosen(
    db: Database, source: Relation, present: dict[str, Column], key: str, columns: str | None, target: str | None
) -> list[Column]:
    """The columns to propagate.  By default all real numbers and arrays of numbers but the key and the target."""
    targets = split_list(target, "target") if target is not None else []
    relations.named(db, source, targets)
    if columns is None:
        found = [one for one in present.values() if _is_real(one) and one.name not in (key, *targets)]
        if not found:
            raise InvalidArgument(
                f"columns is NULL, and '{source.text}' has no real numbers and no arrays of numbers to propagate.",
                hint="Name the columns, for instance columns => 'age, income'. A view can convert others to numbers.",
            )
        return found
    named = relations.named(db, source, split_list(columns, "columns"))
    for one in named:
        if one.name in (key, *targets):
            what = "the key" if one.name == key else "a target"
            raise InvalidArgument(
                f"columns: '{one.name}' is {what}, which is not propagated.",
                hint="Leave it out: a propagated target would tell the model what to predict.",
            )
        if (one.element or one.type) not in (*INTEGERS, *REALS):
            raise Unsupported(
                f"columns: '{one.name}' has the type {one.shown}.",
                hint="Numbers and arrays of numbers can be propagated; a view can convert others.",
            )
    return named


def _is_real(column: Column) -> bool:
    # Plain integers are often classes or codes.
    return column.type in REALS or column.element in (*INTEGERS, *REALS)


def require_names(source: Relation, present: dict[str, Column], columns: Sequence[Column], hops: int) -> None:
    """An error unless the new columns have names and room beside those of the source."""
    made = [name_at(column, hop) for hop in range(1, hops + 1) for column in columns]
    for name in made:
        if name in present:
            raise InvalidArgument(
                f"the output table would have two columns '{name}'.",
                hint=f"A view of '{source.text}' can rename or leave out the one that is there.",
            )
    if len(present) + len(made) > MOST_COLUMNS:
        raise InvalidArgument(
            f"the output table would have {len(present) + len(made)} columns, and a table has at most {MOST_COLUMNS}.",
            hint="A view can gather columns into one array: ARRAY[x1, x2, x3] AS x.",
        )


def slices(db: Database, source: Relation, key: Column, columns: Sequence[Column]) -> list[Slice]:
    """The slices of all columns; an error for values that cannot be added up."""
    plain = [one for one in columns if one.element is None]
    _require_numbers(db, source, key, plain)
    found = [
        Slice(tuple(plain[start : start + MOST_VALUES]), 1, len(plain[start : start + MOST_VALUES]))
        for start in range(0, len(plain), MOST_VALUES)
    ]
    for column in columns:
        if column.element is not None:
            width = _width(db, source, key, column)
            found += [
                Slice((column,), start, min(MOST_VALUES, width + 1 - start))
                for start in range(1, width + 1, MOST_VALUES)
            ]
    return found


def places(sliced: Sequence[Slice], column: Column) -> Iterator[tuple[int, int]]:
    """The slices of a column, by number, with the place in them of a plain number."""
    for number, one in enumerate(sliced):
        if column in one.columns:
            yield number, one.columns.index(column) + 1


def _require_numbers(db: Database, source: Relation, key: Column, columns: Sequence[Column]) -> None:
    if not columns:
        return
    wrong = [
        sql(
            "(s.{name} IS NULL OR s.{name}::double precision IN {not_finite})",
            name=identifier(one.name),
            not_finite=_NOT_FINITE,
        )
        for one in columns
    ]
    counts = joined(
        ", ",
        (sql("count(*) FILTER (WHERE {one}) AS c{place}", one=one, place=place) for place, one in enumerate(wrong)),
    )
    (found,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=counts, rows=source.rows))
    for place, column in enumerate(columns):
        if rows := int(found[f"c{place}"]):
            _refuse(db, source, key, column, wrong[place], f"is NULL or not finite in {counted(rows, 'row')}")


def _width(db: Database, source: Relation, key: Column, column: Column) -> int:
    """The number of elements, which all rows have."""
    array = column.array(sql("s.{name}", name=identifier(column.name)))
    wrong = sql(
        "(COALESCE(pg_catalog.array_ndims({array}) <> 1 OR pg_catalog.array_lower({array}, 1) <> 1, true)"
        " OR pg_catalog.array_position({array}, NULL) IS NOT NULL"
        " OR {array}::double precision[] && ARRAY['NaN', 'Infinity', '-Infinity']::double precision[])",
        array=array,
    )
    (found,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE {wrong}) AS wrong, min(pg_catalog.cardinality({array})) AS least,"
            " max(pg_catalog.cardinality({array})) AS most FROM {rows} AS s",
            wrong=wrong,
            array=array,
            rows=source.rows,
        )
    )
    if found["wrong"]:
        rows = counted(int(found["wrong"]), "row")
        why = f"is NULL or empty, or has several dimensions, or an element that is NULL or not finite, in {rows}"
        _refuse(db, source, key, column, wrong, why)
    if found["least"] != found["most"]:
        raise BadData(
            f"columns: the arrays of '{column.name}' in '{source.text}' have {found['least']} to {found['most']}"
            " elements.",
            hint="All rows need arrays of one length.",
        )
    return int(found["most"])


def _refuse(db: Database, source: Relation, key: Column, column: Column, wrong: Sql, why: str) -> None:
    (example,) = db.scan(
        sql(
            "SELECT min(s.{key}::text) AS key FROM {rows} AS s WHERE {wrong}",
            key=identifier(key.name),
            rows=source.rows,
            wrong=wrong,
        )
    )
    raise BadData(
        f"columns: '{column.name}' of '{source.text}' {why}, for instance where {key.name} = {example['key']}.",
        hint="A view can say what such a value counts as, for instance COALESCE(x, 0) AS x.",
    )
