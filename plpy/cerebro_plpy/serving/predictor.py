"""``cerebro.create_predictor``: a SQL function that predicts one row from the values of its columns."""

from __future__ import annotations

from cerebro_db.core.errors import Unsupported
from cerebro_db.core.layout import Layout
from cerebro_db.core.names import Name, literal, quote
from cerebro_db.core.preparation import OneHot

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from .trained import read_model

MODULE = "cerebro.create_predictor"


@entry
def create_predictor(db: Database, model_text: str | None, name: str | None, mst_key: int | None) -> str:
    """Create the function; return how to call it."""
    model = read_model(db, model_text or "", mst_key, MODULE, best=True)
    if len(model.layout.outputs) != 1:
        raise Unsupported(
            f"{MODULE}: the model has {len(model.layout.outputs)} targets; a function returns one.",
            hint="cerebro.predict() returns a row for each target.",
        )
    if model.layout.windows is not None:
        raise Unsupported(
            f"{MODULE}: the model reads windows of {model.layout.windows.length} rows; a function predicts one row.",
            hint="cerebro.predict() takes a query that returns the rows.",
        )
    function = relations.qualified(db, Name.parse(name, f"{MODULE}: name"), MODULE)
    arguments = _arguments(model.layout)
    most = int(db.value("SELECT pg_catalog.current_setting('max_function_args')")) - 1  # format() has one more
    if len(arguments) > most:
        raise Unsupported(
            f"{MODULE}: the model has {len(arguments)} input columns; a function takes at most {most}.",
            hint="cerebro.predict() takes a query with any number of columns.",
        )
    (target,) = model.layout.outputs
    preparation = target.preparation
    if isinstance(preparation, OneHot):
        result, returned = preparation.type, f"class::{preparation.type}"
    else:
        result, returned = "double precision", "value"
    # The values are constants of the query; format() writes NULL for NULL.
    columns = ", ".join(f"%L::{kind} AS {quote(column).replace('%', '%%')}" for column, kind in arguments)
    places = ", ".join(f"${place}" for place in range(1, len(arguments) + 1))
    chosen = f", mst_key => {model.key}" if model.key_column == "mst_key" else ""  # a table of one model has no keys
    body = (
        f"SELECT {returned} FROM cerebro.predict({literal(model.table.sql)},"
        f" pg_catalog.format({literal('SELECT ' + columns)}, {places}){chosen})"
    )
    listed = ", ".join(f"{quote(column)} {kind}" for column, kind in arguments)
    # The settings make texts of the values that are read as the very same values.
    db.execute(
        f"CREATE FUNCTION {function.sql}({listed}) RETURNS {result} LANGUAGE sql SET extra_float_digits = 1"
        f" SET datestyle = 'ISO' SET intervalstyle = 'postgres' AS {literal(body)}"
    )
    types = ", ".join(kind for _, kind in arguments)
    db.execute(
        f"COMMENT ON FUNCTION {function.sql}({types}) IS"
        f" {literal(f'Predicts {target.name} with model {model.key} of {model.table.name}. Made by cerebro_db.')}"
    )
    return f"{function}({', '.join(str(Name(None, column)) for column, _ in arguments)})"


def _arguments(trained: Layout) -> list[tuple[str, str]]:
    """The input columns and their types, as in training where these are known."""
    found = []
    for variable in trained.inputs:
        features = variable.preparation.features
        array = "real[]" if variable.dtype == "float32" else "integer[]"
        for place, column in enumerate(variable.columns):
            plain = "double precision" if variable.elements == len(variable.columns) else array
            found.append((column, features[place].type if features else plain))
    return found
