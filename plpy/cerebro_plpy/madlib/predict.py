"""``madlib_keras_predict`` and ``madlib_keras_predict_byom``: a model's predictions for the rows of a table or view."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..serving import execution


@entry(called="madlib_keras_predict error")
def madlib_keras_predict(
    db: Database,
    model_table: str,
    test_table: str,
    id_col: str,
    independent_varname: str | None,
    output_table: str,
    pred_type: str | int | float | None,
    use_gpus: bool | None,
    mst_key: int | None,
) -> None:
    wanted = prediction_type(pred_type)
    test = relations.filled(db, test_table, argument="test_table")
    with execution.place_for(db, test, use_gpus) as predict:
        from ..serving import table_rows  # only now: the trainer starts meanwhile
        from ..serving.trained import read_model

        model = read_model(db, model_table, mst_key)
        output = relations.new(db, output_table)
        present = relations.columns(db, test)
        identity = table_rows.id_column(id_col, present, test)
        inputs = table_rows.inputs_of(db, model.layout, independent_varname, present, test)
        write = table_rows.predicted(db, predict, model, test, present, identity, inputs, wanted)
    write(output)


@entry(called="madlib_keras_predict_byom error")
def madlib_keras_predict_byom(
    db: Database,
    model_arch_table: str,
    model_id: int | None,
    test_table: str,
    id_col: str,
    independent_varname: str,
    output_table: str,
    pred_type: str | int | float | None,
    use_gpus: bool | None,
    class_values: list[Any] | None,
    normalizing_const: float | None,
    dependent_count: int | None,
) -> None:
    """As ``keras_predict``, with an architecture and weights that no fit has made: "bring your own model"."""
    wanted = prediction_type(pred_type)
    test = relations.filled(db, test_table, argument="test_table")
    with execution.place_for(db, test, use_gpus) as predict:
        from ..serving import table_rows  # only now: the trainer starts meanwhile
        from . import byom

        output = relations.new(db, output_table)
        present = relations.columns(db, test)
        identity = table_rows.id_column(id_col, present, test)
        columns = table_rows.input_columns(independent_varname, present, test)
        relations.require_readable(db, test, [identity, *columns])
        inputs = byom.inputs(db, test, columns, normalizing_const)
        model = byom.read_model(db, model_arch_table, model_id, inputs, class_values, dependent_count)
        write = table_rows.predicted(db, predict, model, test, present, identity, inputs, wanted)
    write(output)


def prediction_type(value: str | int | float | None) -> tuple[str, float]:
    """('prob' | 'response' | 'top' | 'above', number)"""
    if value is None:
        return "prob", 0
    if isinstance(value, str) and value.strip().lower() in ("prob", "response"):
        return value.strip().lower(), 0
    if isinstance(value, int) and value > 0:
        return "top", value
    if isinstance(value, float) and 0.0 <= value < 1.0:
        return "above", value
    raise InvalidArgument(
        f"Invalid value for pred_type param ({value}). Must be integer>0, double precision in the range"
        " [0.0,1.0), 'response' or 'prob'.",
    )
