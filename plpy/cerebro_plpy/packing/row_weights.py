"""The weight of each row in training: the value of a column, a weight that balances the classes, or their product."""

from __future__ import annotations

import math
from dataclasses import replace

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.preparation import OneHot, Weight
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from .rows import variables
from .rows.preparation import NUMBERS, Alias, SourceVariable, label_text


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
        require_usable(db, rows, column, target.steps)
    columns = [column] if column is not None else []
    if not balanced:
        return of(columns, Weight(), target)
    label_type = target.preparation.label_type
    assert label_type is not None  # class weights need classes
    name = identifier(target.columns[0].name)
    if target.steps:
        counted = db.scan(
            sql("SELECT u.number, count(*) AS n FROM {rows} AS s CROSS JOIN LATERAL unnest(s.{name}) AS u (number)"
                " WHERE u.number >= 0 GROUP BY 1", rows=rows.rows, name=name)
        )  # fmt: skip
        of_class = {row["number"]: row["n"] for row in counted}
        found = sorted(label for label, number in target.spellings.items() if label is not None and number in of_class)
    else:
        label = label_text(name, label_type)
        counted = db.scan(
            sql("SELECT {label} AS label, count(*) AS n FROM {rows} AS s GROUP BY 1", label=label, rows=rows.rows)
        )
        of_class = {}
        for row in counted:
            number = target.spellings[row["label"]]
            of_class[number] = of_class.get(number, 0) + row["n"]
        found = sorted(row["label"] for row in counted)
    total = sum(of_class.values())
    factors = tuple(total / (len(of_class) * of_class[target.spellings[one]]) for one in found)
    return of([*columns, target.columns[0]], Weight(tuple(found), factors), target)


def of(columns: list[Column], preparation: Weight, target: SourceVariable) -> SourceVariable:
    found = SourceVariable(variables.WEIGHT, columns, preparation, preparation.dtype(False), (1,))
    return _of_steps(found, target) if target.steps else found


def equal(steps: int = 0) -> SourceVariable:
    """The weights of rows, or of the steps of windows, that nobody weighs: those for validation."""
    found = SourceVariable(variables.WEIGHT, [], Weight(), Weight().dtype(False), (1,))
    if not steps:
        return found
    ones = sql("pg_catalog.array_fill(1::real, ARRAY[{steps}, 1])", steps=steps)
    return replace(found, shape=(steps, 1), steps=steps, made=lambda alias: ones)


def _of_steps(weight: SourceVariable, target: SourceVariable) -> SourceVariable:
    """The weights of the steps of windows: their columns are arrays there (rows/steps.py)."""
    preparation, columns = weight.preparation, list(weight.columns)
    assert isinstance(preparation, Weight)
    of_labels = zip(preparation.labels, preparation.factors)
    factors = {target.spellings[label]: factor for label, factor in of_labels if label in target.spellings}
    listed = [factors.get(number, 1.0) for number in range(target.shape[-1])]
    of_rows = columns[: -1 if preparation.labels else None]

    def made(alias: Alias) -> Sql:
        parts = [sql("{array}", array=alias(column)) for column in of_rows]
        products = [sql("u.weight")] if of_rows else []
        names = ["weight"] if of_rows else []
        if preparation.labels:
            parts.append(sql("{array}", array=alias(columns[-1])))
            names.append("number")
            products.append(
                sql("COALESCE((ARRAY[{listed}]::double precision[])[1 + u.number], 0)", listed=joined(", ", listed))
            )
        return sql(
            "ARRAY(SELECT ARRAY[({product})::real] FROM ROWS FROM ({arrays}) WITH ORDINALITY AS u ({names}, place)"
            " ORDER BY u.place)",
            product=joined(" * ", products),
            arrays=joined(", ", (sql("pg_catalog.unnest({array})", array=one) for one in parts)),
            names=joined(", ", map(identifier, names)),
        )

    names = tuple(column.name for column in columns)
    arrays = [*(replace(one, type="double precision[]", element="double precision") for one in of_rows),
              *columns[len(of_rows):]]  # fmt: skip
    return replace(weight, columns=arrays, gathered=names, shape=(target.steps, 1), steps=target.steps, made=made)


def require_usable(db: Database, rows: Relation, column: Column, steps: int = 0) -> None:
    """``steps``: those of windows, whose column is an array."""
    name, each = identifier(column.name), sql("")
    if steps:
        name, each = sql("u.weight"), sql(" CROSS JOIN LATERAL unnest(s.{name}) AS u (weight)", name=name)
    (told,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE {name} IS NULL) AS nulls, min({name}) AS low, max({name}) AS high,"
            " count(*) AS rows FROM {rows} AS s{each}",
            name=sql("{name}::double precision", name=name),
            rows=rows.rows,
            each=each,
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
