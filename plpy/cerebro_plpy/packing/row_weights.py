"""The weight of each row in training: the value of a column, a weight that balances the classes, or their product."""

from __future__ import annotations

import math

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.preparation import OneHot, Weight
from cerebro_db.core.sql import identifier, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from .rows import variables
from .rows.preparation import NUMBERS, SourceVariable, label_text


def column_of(text: str | None, present: dict[str, Column], source: Relation, target: str | None) -> Column | None:
    """The column of the argument weights."""
    if text is None:
        return None
    columns = variables.pick(present, split_list(text, "weights"), "weights", source)
    if len(columns) > 1 or columns[0].type not in NUMBERS or columns[0].type == "boolean":
        raise InvalidArgument(
            f"weights cannot be {text}{'' if len(columns) > 1 else f' of type {columns[0].shown}'}.",
            hint="Name one column of numbers.",
        )
    if columns[0].name in split_list(target, "target"):
        raise InvalidArgument(f"weights cannot be the target '{columns[0].name}'.", hint="Name another column.")
    return columns[0]


def require_possible(class_weight: str | None, outputs: list[SourceVariable], weighted: bool) -> None:
    if class_weight not in (None, "balanced"):
        raise InvalidArgument(
            f"class_weight cannot be {class_weight!r}.",
            hint="'balanced' gives all classes the same weight. Other weights are fit parameters, for"
            " instance class_weight={0: 1, 1: 5}.",
        )
    if (class_weight or weighted) and len(outputs) > 1:
        raise InvalidArgument(
            f"{'class_weight' if class_weight else 'weights'} needs a single target, not {len(outputs)}.",
            hint="Pack a table for each target.",
        )
    if class_weight and not isinstance(outputs[0].preparation, OneHot):
        raise InvalidArgument(
            f"class_weight needs classes, and the target '{outputs[0].name}' is a number.",
            hint="weights names a column with the weight of each row.",
        )


def found(
    db: Database, rows: Relation, column: Column | None, balanced: bool, target: SourceVariable
) -> SourceVariable | None:
    """The variable of the weights; None if there are none.  The rows are those for training."""
    if column is None and not balanced:
        return None
    if column is not None:
        require_usable(db, rows, column)
    columns = [column] if column is not None else []
    if not balanced:
        return of(columns, Weight())
    label_type = target.preparation.label_type
    assert label_type is not None  # class weights need classes
    label = label_text(identifier(target.columns[0].name), label_type)
    counted = db.scan(
        sql("SELECT {label} AS label, count(*) AS n FROM {rows} AS s GROUP BY 1", label=label, rows=rows.rows)
    )
    of_class: dict[int, int] = {}
    for row in counted:
        number = target.spellings[row["label"]]
        of_class[number] = of_class.get(number, 0) + row["n"]
    total = sum(of_class.values())
    labels = sorted(row["label"] for row in counted)
    factors = tuple(total / (len(of_class) * of_class[target.spellings[one]]) for one in labels)
    return of([*columns, target.columns[0]], Weight(tuple(labels), factors))


def of(columns: list[Column], preparation: Weight) -> SourceVariable:
    return SourceVariable(variables.WEIGHT, columns, preparation, preparation.dtype(False), (1,))


def equal() -> SourceVariable:
    """The weights of rows that nobody weighs: those for validation."""
    return of([], Weight())


def require_usable(db: Database, rows: Relation, column: Column) -> None:
    name = sql("{name}::double precision", name=identifier(column.name))
    (told,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE {name} IS NULL) AS nulls, min({name}) AS low, max({name}) AS high,"
            " count(*) AS rows FROM {rows} AS s",
            name=name,
            rows=rows.rows,
        )
    )
    if told["nulls"]:
        raise BadData(
            f"the column '{column.name}' of weights is NULL in {told['nulls']} of {told['rows']} rows.",
            hint="A view can fill it: COALESCE(…, 1).",
        )
    low, high = float(told["low"]), float(told["high"])
    if not (low >= 0 and math.isfinite(high) and 0 < high < 1e30):
        raise BadData(
            f"the weights in '{column.name}' are from {low:g} to {high:g}.",
            hint="Weights are numbers of at least 0, and not all of them 0.",
        )
