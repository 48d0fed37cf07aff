"""A model that no fit has made: an architecture with weights of a table of architectures, and its class names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, WrongState
from cerebro_db.core.models.model_columns import MST
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Encoded, OneHot, Preparation, divided_by
from cerebro_db.core.sql import sql
from cerebro_db.core.sql_types import TEXT
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.relations import Column, Relation
from cerebro_plpy.models import document_columns
from cerebro_plpy.models.trained import ModelTables, TrainedModel
from cerebro_plpy.packing.rows import variables
from cerebro_plpy.packing.rows.preparation import SourceVariable, applied, find_shapes


def inputs(
    db: Database, test: Relation, columns: list[Column], normalizing_const: float | None
) -> list[SourceVariable]:
    """The inputs of the model, made of these columns."""
    if normalizing_const is not None and not 0 < normalizing_const < float("inf"):
        raise InvalidArgument(
            "Normalizing constant has to be greater than 0.",
            hint="Every input is divided by it: 255 for pixels, NULL to leave them as they are.",
        )
    prepared = divided_by(1.0 if normalizing_const is None else normalizing_const)
    found = [applied(name, own, prepared) for name, own in variables.grouped(columns, "independent_varname")]
    find_shapes(db, test, found)
    for variable in found:
        variable.dtype = "float32"  # as training would have packed it; its integers may be wider than they look
    return found


def read_model(
    db: Database,
    table: str | None,
    model_id: int | None,
    inputs: list[SourceVariable],
    class_values: list[Any] | None,
    dependent_count: int | None,
) -> TrainedModel:
    arch = relations.filled(db, table, argument="model_arch_table")
    relations.require_columns(db, arch, ["model_id", "model_arch", "model_weights"])
    document_columns.require(relations.columns(db, arch), arch.text)
    row = db.one(
        sql(
            "SELECT model_arch::text AS arch, model_weights IS NULL AS empty FROM {arch} WHERE model_id = $1",
            arch=arch.sql,
        ),
        ("integer",),
        model_id,
    )
    if row is None:
        raise UndefinedObject(
            "Invalid model architecture ID.",
            hint=f"SELECT model_id, name FROM {arch.name.quoted} lists them.",
        )
    if row["arch"] is None or row["empty"]:
        raise WrongState(
            "Model weights and architecture should not be NULL.",
            hint="load_keras_model(table, model_arch, model_weights) stores both.",
        )
    architecture = keras_json.architecture(row["arch"])
    layout = Layout(
        tuple(one.documented() for one in inputs), _outputs(architecture, class_values, dependent_count), 0, ()
    )
    assert model_id is not None
    return TrainedModel(
        tables=ModelTables(table=arch, info=None, summary=None, weights=None, groups=None),
        key=model_id,
        definition={"architecture": architecture},
        layout=layout,
        chunked=None,
        named=replace(MST, configuration="model_id"),
    )


def _outputs(architecture: dict[str, Any], class_values: list[Any] | None, count: int | None) -> tuple[Variable, ...]:
    widths = keras_json.widths(architecture)
    if count is not None and count > 1 and count != len(widths):
        raise InvalidArgument(f"dependent_count is {count}; the architecture has {len(widths)} outputs.")
    lists = _lists(class_values, len(widths))
    found = []
    for place, (width, labels) in enumerate(zip(widths, lists)):
        if width is None and labels is None:
            raise InvalidArgument("the architecture does not say how many classes it has.", hint="Give class_values.")
        if labels is not None and width is not None and (width, len(labels)) != (1, 2) and len(labels) != width:
            raise _mismatch()  # one unit can be the probability of the second of two classes
        preparation: Preparation = Encoded() if labels is None else OneHot(TEXT, tuple(labels))
        name = "dependent_var" if len(widths) == 1 else f"dependent_var_{place}"
        shape = (len(labels) if labels is not None else int(width or 0),)
        found.append(Variable(name, "int16", shape, (name,), preparation))
    return tuple(found)


def _lists(class_values: list[Any] | None, outputs: int) -> list[list[str | None] | None]:
    """The class values of each output; an array with one dimension is that of the only output."""
    if class_values is None:
        return [None] * outputs
    rows = class_values if class_values and isinstance(class_values[0], list) else [class_values]
    if len(rows) != outputs:
        raise _mismatch()
    found: list[list[str | None] | None] = []
    for row in rows:
        labels = list(row)
        while labels and labels[-1] is None:  # the rows of an array have the same length
            labels.pop()
        found.append(labels or None)
    return found


def _mismatch() -> InvalidArgument:
    return InvalidArgument(
        "The number of class values do not match the provided architecture.",
        hint="Give one value per class; for several outputs one row of values per output.",
    )
