"""``madlib_keras_predict`` and ``madlib_keras_predict_byom``: a model's predictions for the rows of a table or view."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.records import dataclass
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.models import trained
from cerebro_plpy.predicting import execution

from .entry import entry, new_table
from .tables.trained_models import read_model


@dataclass(frozen=True)
class PredictArguments:
    """The arguments of ``madlib_keras_predict``."""

    model_table: str
    test_table: str
    id_col: str
    independent_varname: str | None
    output_table: str
    pred_type: str | int | float | None
    use_gpus: bool | None
    mst_key: int | None


@dataclass(frozen=True)
class ByomArguments:
    """The arguments of ``madlib_keras_predict_byom``."""

    model_arch_table: str
    model_id: int | None
    test_table: str
    id_col: str
    independent_varname: str
    output_table: str
    pred_type: str | int | float | None
    use_gpus: bool | None
    class_values: list[Any] | None
    normalizing_const: float | None
    dependent_count: int | None


@entry(called="madlib_keras_predict error")
def madlib_keras_predict(db: Database, **arguments: Any) -> None:
    given = PredictArguments(**arguments)
    wanted = prediction_type(given.pred_type)
    test = relations.filled(db, given.test_table, argument="test_table")
    tables = trained.tables_of_name(db, given.model_table)
    with execution.place_for(db, test, given.use_gpus, memory_mb=tables.memory_mb(db)) as predict:
        from cerebro_plpy.predicting import table_rows  # only now: the trainer starts meanwhile

        model = read_model(db, tables, given.mst_key)
        output = new_table(db, given.output_table)
        present = relations.columns(db, test)
        identity = table_rows.id_column(given.id_col, present, test)
        inputs = table_rows.inputs_of(db, model.layout, given.independent_varname, present, test)
        rows = table_rows.rows_by_column(test, present, inputs, identity)
        write = table_rows.predicted(db, predict, model, rows, wanted)
    write(output)


@entry(called="madlib_keras_predict_byom error")
def madlib_keras_predict_byom(db: Database, **arguments: Any) -> None:
    """As ``keras_predict``, with an architecture and weights that no fit has made: "bring your own model"."""
    given = ByomArguments(**arguments)
    wanted = prediction_type(given.pred_type)
    test = relations.filled(db, given.test_table, argument="test_table")
    with execution.place_for(db, test, given.use_gpus) as predict:
        from cerebro_plpy.predicting import table_rows  # only now: the trainer starts meanwhile

        from . import byom

        present = relations.columns(db, test)
        identity = table_rows.id_column(given.id_col, present, test)
        columns = table_rows.input_columns(given.independent_varname, present, test)
        relations.require_readable(db, test, [identity, *columns])
        inputs = byom.inputs(db, test, columns, given.normalizing_const)
        model = byom.read_model(
            db, given.model_arch_table, given.model_id, inputs, given.class_values, given.dependent_count
        )
        output = new_table(db, given.output_table)  # MADlib looks at it last
        rows = table_rows.rows_by_column(test, present, inputs, identity)
        write = table_rows.predicted(db, predict, model, rows, wanted)
    write(output)


def prediction_type(value: str | int | float | None) -> tuple[str, float]:
    """('prob' | 'response' | 'top' | 'above', number)"""
    if value is None:
        return "prob", 0
    if isinstance(value, str) and value in ("prob", "response"):
        return value, 0
    if isinstance(value, int) and value > 0:
        return "top", value
    if isinstance(value, float) and 0.0 <= value < 1.0:
        return "above", value
    raise InvalidArgument(
        f"Invalid value for pred_type param ({value}). Must be integer>0, double precision in the range"
        " [0.0,1.0), 'response' or 'prob'.",
    )
