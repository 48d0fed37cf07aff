"""What ``cerebro.predict`` and ``cerebro.predict_into`` have in common: inputs, key and form of the answers."""

from __future__ import annotations

import json

from cerebro_db.core.errors import InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.layout import Layout, Variable
from cerebro_db.core.names import split_list
from cerebro_db.core.protocol import BestClasses
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.texts import or_null

from ..data import by_name
from ..data.preparation import SourceVariable
from ..database import relations
from ..database.access import Database
from ..database.relations import Column
from .inputs import as_trained
from .trained import class_values


def require_top(top: int | None) -> int:
    """How many classes of each row are returned."""
    if top is not None and top < 1:
        raise InvalidArgument(f"top cannot be {or_null(top)}.", hint="1 returns the most probable class of each row.")
    return top or 1


def inputs_of(db: Database, trained: Layout, present: dict[str, Column], rows: str) -> list[SourceVariable]:
    """The model's inputs, found by their names.  ``rows``: what an error calls the rows."""
    if by_name.matches(trained):
        return by_name.found(trained, present, rows)
    known = [name for variable in trained.inputs for name in variable.columns]
    if missing := [name for name in known if name not in present]:
        raise by_name.lacks(rows, missing)
    return as_trained(db, trained, [present[name] for name in known])


def key_columns(key: str | None, present: dict[str, Column], trained: Layout, rows: str) -> list[str]:
    """The columns of a row's key: the named one, or else the first readable column that the model does not use.

    A window has the key of its last row; without another column, its place.  Empty: the rows have no other column.
    """
    if key is not None:
        (name, *more) = split_list(key, "key")
        if more or name not in present:
            raise UndefinedColumn(f"key must be one column of {rows}, not {key}.", hint=relations.has_columns(present))
        return [name]
    used = {name for variable in (*trained.inputs, *trained.outputs) for name in variable.columns}
    place = trained.windows.columns if trained.windows else ()
    others = [name for name, one in present.items() if one.readable and name not in used and name not in place]
    return others[:1] or list(place)


def key_of(columns: list[str]) -> Sql:
    """The key of a row, as text."""
    if len(columns) == 1:
        return sql("{name}::text", name=identifier(columns[0]))
    return sql("concat_ws(', ', {columns})", columns=joined(", ", map(identifier, columns)))


def best_classes(outputs: tuple[Variable, ...], ranks: int) -> BestClasses | None:
    """None: the outputs are numbers."""
    if any(is_number(variable) and variable.elements > 1 for variable in outputs):
        raise Unsupported(
            "the model predicts arrays.",
            hint="madlib.madlib_keras_predict() writes a table of such predictions (docs/madlib.md).",
        )
    if all(map(is_number, outputs)):
        return None
    return BestClasses([None if is_number(one) else len(class_values(one)) for one in outputs], ranks)


def outputs_as_json(outputs: tuple[Variable, ...]) -> str:
    """The outputs as the SQL reads them: their places, names and labels; no labels: a number."""
    return json.dumps(
        [
            {"output": place, "name": variable.name, "labels": None if is_number(variable) else class_values(variable)}
            for place, variable in enumerate(outputs)
        ]
    )


def is_number(variable: Variable) -> bool:
    return variable.target == "real"
