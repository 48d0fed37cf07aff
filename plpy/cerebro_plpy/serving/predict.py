"""``madlib_keras_predict`` and ``madlib_keras_predict_byom``: a model's predictions for the rows of a table or view."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Callable

from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn
from cerebro_db.core.layout import Layout
from cerebro_db.core.names import Name, quote, split_list
from cerebro_db.core.protocol import BestClasses

from ..data import buffers, by_name, surprises, windowed
from ..data.preparation import SourceVariable
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from . import execution, trainers

if TYPE_CHECKING:
    from .trained import Model

PREDICT, BYOM = "madlib_keras_predict", "madlib_keras_predict_byom"


@entry
def keras_predict(
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
    wanted = prediction_type(pred_type, PREDICT)
    test = relations.filled(db, test_table, PREDICT, argument="test_table")
    with execution.place_for(db, test, use_gpus, PREDICT) as predict:
        from .trained import read_model  # only now: the trainer starts meanwhile

        model = read_model(db, model_table, mst_key, PREDICT)
        output = relations.new(db, output_table, PREDICT)
        present = relations.columns(db, test)
        identity = id_column(id_col, present, test, PREDICT)
        inputs = inputs_of(db, model.layout, independent_varname, present, test)
        write = predicted(db, predict, model, test, identity, inputs, wanted, PREDICT)
    write(output)


@entry
def keras_predict_byom(
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
    wanted = prediction_type(pred_type, BYOM)
    test = relations.filled(db, test_table, BYOM, argument="test_table")
    with execution.place_for(db, test, use_gpus, BYOM) as predict:
        from . import byom  # only now: the trainer starts meanwhile

        output = relations.new(db, output_table, BYOM)
        present = relations.columns(db, test)
        identity = id_column(id_col, present, test, BYOM)
        columns = input_columns(independent_varname, present, test, BYOM)
        inputs = byom.inputs(db, test, columns, normalizing_const, BYOM)
        model = byom.read_model(db, model_arch_table, model_id, inputs, class_values, dependent_count, BYOM)
        write = predicted(db, predict, model, test, identity, inputs, wanted, BYOM)
    write(output)


def predicted(
    db: Database,
    predict: execution.Predict,
    model: Model,
    test: Relation,
    identity: Column,
    inputs: list[SourceVariable],
    wanted: tuple[str, float],
    module: str,
) -> Callable[[Name], None]:
    """Predict the rows; the result writes the table that the user asked for."""
    # Only now: importing these takes a new session as long as its trainer takes to start.
    from . import predictions
    from .chunks import Source
    from .trained import class_values

    kind, number = wanted
    rows = lru_cache(maxsize=None)(partial(count, db, test, identity, inputs, module))
    if surprises.of(inputs):
        rows()  # it tells what training has not seen, and the segments do not
    table, key = test, quote(identity.name)
    if model.layout.windows is not None:
        rows()
        table, inputs = windowed.to_predict(db, test, model.layout.windows, inputs, key, module)
        key = windowed.KEY
    source = Source(table, key, inputs, rows, bytes_per_row(model.layout))
    outputs = model.layout.outputs
    values = all(variable.target == "real" for variable in outputs)
    labels = {variable.name: class_values(variable) for variable in outputs}
    ranks = {"response": 1, "top": int(number)}.get(kind)  # None: all
    best = None if values else BestClasses([len(classes) for classes in labels.values()], ranks)
    staged = predict(model, trainers.prediction_order(model, inputs, best), source)

    def write(output: Name) -> None:
        if values:
            predictions.write_values(db, staged, output, identity, outputs)
        else:
            above = number if kind == "above" else None
            predictions.write_classes(db, staged, output, identity, labels, ranks=kind != "response", above=above)
        db.execute(f"DROP TABLE {staged}")

    return write


def prediction_type(value: str | int | float | None, module: str) -> tuple[str, float]:
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
        f"{module}: Invalid value for pred_type param ({value}). Must be integer>0, double precision in the range"
        " [0.0,1.0), 'response' or 'prob'.",
    )


def id_column(text: str, present: dict[str, Column], test: Relation, module: str) -> Column:
    names = split_list(text, f"{module} error: id column")
    if len(names) != 1 or names[0] not in present:
        raise UndefinedColumn(
            f"{module}: invalid id column ('{text}') for test table ({test.text}).",
            hint=relations.has_columns(present),
        )
    return present[names[0]]


def inputs_of(
    db: Database, trained: Layout, named: str | None, present: dict[str, Column], test: Relation
) -> list[SourceVariable]:
    if by_name.matches(trained):
        by_name.require_all(trained, named, "independent_varname", PREDICT)
        return by_name.found(trained, present, f"'{test.text}'", PREDICT)
    from .inputs import as_trained

    return as_trained(db, trained, input_columns(named, present, test, PREDICT), PREDICT)


def input_columns(text: str | None, present: dict[str, Column], test: Relation, module: str) -> list[Column]:
    names = split_list(text, f"{module} error: independent_varname")
    for name in names:
        if name not in present:
            raise UndefinedColumn(
                f"{module}: invalid independent_varname ('{name}') for test table ({test.text}).",
                hint=relations.has_columns(present),
            )
    return [present[name] for name in names]


def count(db: Database, test: Relation, identity: Column, inputs: list[SourceVariable], module: str) -> int:
    """The number of rows; an error if one of them cannot be predicted."""
    names = [identity.name, *buffers.filled_columns(inputs)]
    nulls = " OR ".join(f"{quote(name)} IS NULL" for name in names)
    news = surprises.of(inputs)
    counted = ["count(*) AS rows", f"count(*) FILTER (WHERE {nulls}) AS nulls", *surprises.counts(news)]
    (found,) = db.scan(f"SELECT {', '.join(counted)} FROM {test.sql}")
    surprises.tell(db, f"'{test.text}'", news, found, module)
    if found["nulls"]:
        raise BadData(
            f"{module}: {found['nulls']} rows of '{test.text}' have a NULL in {', '.join(names)}.",
            hint="Leave them out with a view, or fill them in.",
        )
    return int(found["rows"])


def bytes_per_row(layout: Layout) -> int:
    """An estimate for all inputs and outputs of a row, with headers and id."""
    return sum(64 + 8 * variable.elements for variable in (*layout.inputs, *layout.outputs))
