"""The columns of the table that ``cerebro.predict_into`` makes: those of the rows, and those of the predictions.

The values of a row travel as texts: the id of the row is an array of them.  The table has them in their own types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.packing.quantiles import column_of
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import LONGEST, Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from ..database import relations, types
from ..database.access import Database
from ..database.relations import Column, Relation
from ..models.trained import class_labels
from . import forecast_time, keys_and_outputs, predictions

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BestClasses

    from ..models.calibrations import Applied
    from ..models.trained import TrainedModel

MOST_COLUMNS = 1600  # of a table
TEXT = sql("pg_catalog.text")


@dataclass(frozen=True)
class CarriedColumn:
    """A column with something of the row."""

    name: str
    value: Sql  # over the rows to predict
    type: Sql


@dataclass(frozen=True)
class PredictedColumn:
    """A column with something of an output, over the lines of ``predictions.write_rows``."""

    name: str
    value: Sql


@dataclass(frozen=True)
class RowsColumns:
    """What the table has of each row."""

    keys: tuple[str, ...]  # the columns of the key, which are never NULL
    distributed: str | None  # the column that distributes the rows
    read: tuple[str, ...]
    carried: tuple[CarriedColumn, ...]

    @property
    def identity(self) -> Sql:
        """The id of a row: the values of the columns, as text; NULL if a column of the key is NULL."""
        values = joined(", ", (sql("({value})::{text}", value=one.value, text=TEXT) for one in self.carried))
        whole = sql("(ARRAY[{values}]::{text}[])::{text}", values=values, text=TEXT)
        if not self.keys:
            return whole
        filled = joined(" AND ", (sql("{name} IS NOT NULL", name=identifier(name)) for name in self.keys))
        return sql("CASE WHEN {filled} THEN {whole} END", filled=filled, whole=whole)

    def bytes_per_row(self, db: Database, source: Relation) -> int:
        """The mean size of the first ids: rows that keep long texts travel in smaller chunks.  0: only keys travel."""
        if all(one.name in (*self.keys, forecast_time.NAME) for one in self.carried):
            return 0
        (found,) = db.scan(
            sql(
                "SELECT pg_catalog.avg(pg_catalog.octet_length({identity}))::bigint AS bytes"
                " FROM (SELECT {names} FROM {rows} AS s LIMIT {some}) s CROSS JOIN (SELECT 1 AS ahead) f",
                identity=self.identity,
                names=joined(", ", map(identifier, self.read)),
                rows=source.rows,
                some=keys_and_outputs.ROWS_OF_A_LOOK,
            )
        )
        return int(found["bytes"] or 0)


def of_rows(
    db: Database, model: TrainedModel, source: Relation, present: dict[str, Column], key: str | None, keep: str | None
) -> RowsColumns:
    """The key of the rows in its own columns, the columns to keep, and the time that a forecast is for."""
    named = f"'{source.text}'"
    kept, everything = _kept(db, keep, source, present), keep is not None and keep.strip() == keys_and_outputs.ALL
    keys: list[str] = []
    if key is not None or not everything:
        keys = keys_and_outputs.key_columns(db, key, present, model.layout, source, named)
    if not keys and keep is None:
        raise InvalidArgument(
            f"{named} has no column for the key: the model uses them, or they have NULLs or equal values.",
            hint="keep => '*' keeps all columns of the rows; key => 'column' names one.",
        )
    names = kept if everything else [*keys, *(one for one in kept if one not in keys)]
    carried = [_carried(db, present[name]) for name in names]
    windows = model.layout.windows
    time = None if windows is None else forecast_time.of(db, source, windows, present)
    if time is not None:
        carried.append(CarriedColumn(forecast_time.NAME, time.value, time.type))
        names = list(dict.fromkeys([*names, time.column]))
    hashed = [name for name in keys if SqlType(present[name].type).is_built_in]
    return RowsColumns(tuple(keys), hashed[0] if hashed else None, tuple(names), tuple(carried))


def _carried(db: Database, column: Column) -> CarriedColumn:
    """The column in its type; in text if casts of this type could call functions of a stranger (types.py)."""
    name = identifier(column.name)
    if types.may_use(db, SqlType(column.type)):
        return CarriedColumn(column.name, name, column.cast)
    spelled = sql("CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.concat({name}) END", name=name)
    return CarriedColumn(column.name, spelled, TEXT)


def _kept(db: Database, keep: str | None, source: Relation, present: dict[str, Column]) -> list[str]:
    if keep is None:
        return []
    if keep.strip() == keys_and_outputs.ALL:
        return [name for name, column in present.items() if column.readable]
    names = split_list(keep, "keep")
    for name in names:
        if name not in present:
            raise UndefinedColumn(f"keep: '{source.text}' has no column '{name}'.", hint=relations.has_columns(present))
    relations.require_readable(db, source, [present[name] for name in names])
    return names


# -- predictions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedTable:
    """The new table: its columns, and the classes that the trainer has to choose for them."""

    rows: RowsColumns
    predicted: tuple[PredictedColumn, ...]
    lines: predictions.Lines
    best: BestClasses | None

    def write(self, db: Database, staged: Sql, output: Name) -> None:
        carried = [
            sql("r.k[{place}]::{type} AS {name}", place=place, type=one.type, name=identifier(one.name))
            for place, one in enumerate(self.rows.carried, start=1)
        ]
        predicted = [sql("{value} AS {name}", value=one.value, name=identifier(one.name)) for one in self.predicted]
        predictions.write_rows(db, staged, output, [*carried, *predicted], self.lines, self.rows.distributed)


def of_outputs(
    layout: Layout, rows: RowsColumns, applied: Applied | None, top: int | None, probability_of: str | None
) -> PredictedTable:
    """The columns of the predictions beside those of the rows."""
    outputs, ranks = layout.outputs, keys_and_outputs.require_top(top)
    if ranks > 1 and len(outputs) > 1:
        raise Unsupported(
            f"top => {ranks}: the model has {len(outputs)} targets, and the table has one row for each row.",
            hint="cerebro.predict() returns a row for each class of each target.",
        )
    chosen = keys_and_outputs.classes_of(outputs, probability_of, ranks)
    best = keys_and_outputs.best_classes(outputs, None if probability_of is not None else ranks, applied)
    lines = keys_and_outputs.outputs_as_lines(outputs, applied)
    most = max((len(line["labels"]) for line in lines if line["labels"] is not None), default=1)
    found: list[PredictedColumn] = []
    for place, variable in enumerate(outputs):
        found += _of_output(place, variable, lines[place], chosen[place], several=len(outputs) > 1)
    if ranks > 1 and best is not None:
        found.append(PredictedColumn("rank", sql("r.rank")))
    predicted = tuple(PredictedColumn(_short(one.name), one.value) for one in found)
    _require_different(rows.carried, predicted)
    wide = [place for place, one in enumerate(chosen) if one]
    return PredictedTable(rows, predicted, predictions.Lines(lines, min(ranks, most), wide), best)


def _of_output(
    place: int, variable: Variable, line: dict[str, Any], chosen: Sequence[str | None], *, several: bool
) -> list[PredictedColumn]:
    """``chosen``: the classes whose probabilities have a column."""
    number = sql("r.{line}::double precision", line=identifier(f"n{place}_1"))
    predicted, prefix = f"predicted_{variable.name}", f"{variable.name}_" if several else ""
    if line["labels"] is None:
        found = [PredictedColumn(predicted, number)]
        if line["halves"] is not None:
            half = sql(
                "o{place}.halves[1 + pg_catalog.width_bucket({number}, o{place}.edges)]", place=place, number=number
            )
            found.append(PredictedColumn(f"{prefix}lower", sql("{number} - {half}", number=number, half=half)))
            found.append(PredictedColumn(f"{prefix}upper", sql("{number} + {half}", number=number, half=half)))

        def quantile(at: int) -> Sql:
            return sql("r.{line}::double precision", line=identifier(f"q{place}_{at}"))

        for name, at in zip(("lower", "upper"), line["pair"] or ()):
            found.append(PredictedColumn(f"{prefix}{name}", quantile(at)))
        for at, level in enumerate(variable.quantiles):
            found.append(PredictedColumn(f"{prefix}{column_of(level)}", quantile(at)))
        return found
    label = sql("o{place}.labels[1 + r.{line}::integer]", place=place, line=identifier(f"c{place}_1"))
    found = [
        PredictedColumn(predicted, sql("({label})::{type}", label=label, type=_type_of(variable).sql)),
        PredictedColumn(f"{prefix}probability", number),
    ]
    for one in chosen:
        value = sql("r.{all}[{at}]::double precision", all=identifier(f"p{place}"), at=line["labels"].index(one) + 1)
        found.append(PredictedColumn(f"{prefix}probability_{'null' if one is None else one}", value))
    return found


def _type_of(variable: Variable) -> SqlType:
    """That of the target, if each class has a label."""
    one_hot = variable.preparation
    known = isinstance(one_hot, OneHot) and len(one_hot.labels) == len(class_labels(variable))
    return one_hot.type if isinstance(one_hot, OneHot) and known else SqlType("text")


def _short(name: str) -> str:
    return name.encode()[:LONGEST].decode(errors="ignore")


def _require_different(carried: Sequence[CarriedColumn], predicted: Sequence[PredictedColumn]) -> None:
    """An error if a table cannot have these columns."""
    names = Counter([*(one.name for one in carried), *(one.name for one in predicted)])
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise InvalidArgument(
            f"the new table would have two columns '{twice[0]}'.",
            hint="keep => '…' lists the columns to keep. A view can give a column another name.",
        )
    if len(names) > MOST_COLUMNS:
        raise InvalidArgument(
            f"the new table would have {len(names)} columns, and a table cannot have more than {MOST_COLUMNS}.",
            hint="keep => '…' lists the columns to keep.",
        )
