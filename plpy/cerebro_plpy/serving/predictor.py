"""``cerebro.create_predictor``: a SQL function that predicts one row from the values of its columns."""

from __future__ import annotations

from cerebro_db.core.errors import Unsupported
from cerebro_db.core.layout import Layout
from cerebro_db.core.names import Name
from cerebro_db.core.preparation import OneHot
from cerebro_db.core.sql import identifier, in_format, joined, literal, quoting, sql
from cerebro_db.core.sql_types import SqlType

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from .trained import read_model


@entry
def create_predictor(
    db: Database, model_table: str | None, function_name: str | None, configuration: int | None
) -> str:
    """Create the function; return how to call it."""
    model = read_model(db, model_table or "", configuration)
    if len(model.layout.outputs) != 1:
        raise Unsupported(
            f"the model has {len(model.layout.outputs)} targets; a function returns one.",
            hint="cerebro.predict() returns a row for each target.",
        )
    if model.layout.windows is not None:
        raise Unsupported(
            f"the model reads windows of {model.layout.windows.length} rows; a function predicts one row.",
            hint="cerebro.predict() takes a query that returns the rows.",
        )
    function = relations.qualified(db, Name.parse(function_name, "function_name"))
    arguments = _arguments(model.layout)
    most = int(db.value(sql("SELECT pg_catalog.current_setting('max_function_args')"))) - 1  # format() has one more
    if len(arguments) > most:
        raise Unsupported(
            f"the model has {len(arguments)} input columns; a function takes at most {most}.",
            hint="cerebro.predict() takes a query with any number of columns.",
        )
    (target,) = model.layout.outputs
    preparation = target.preparation
    if isinstance(preparation, OneHot):
        result, returned = preparation.type, sql("class::{type}", type=preparation.type.sql)
    else:
        result, returned = SqlType("double precision"), sql("value")
    # The values are constants of the query; format() writes NULL for NULL.
    columns = joined(
        ", ",
        (
            sql("%L::{kind} AS {column}", kind=in_format(kind.sql), column=in_format(identifier(column)))
            for column, kind in arguments
        ),
    )
    places = joined(", ", (sql("${place}", place=place) for place in range(1, len(arguments) + 1)))
    # A table of one model has no keys.
    chosen = sql(", configuration => {key}", key=model.key) if model.named.has_key else sql("")
    body = sql(
        "SELECT {returned} FROM cerebro.predict({table}, pg_catalog.format({query}, {places}){chosen})",
        returned=returned,
        table=quoting(model.table.sql),
        query=quoting(sql("SELECT {columns}", columns=columns)),
        places=places,
        chosen=chosen,
    )
    listed = joined(
        ", ", (sql("{column} {kind}", column=identifier(column), kind=kind.sql) for column, kind in arguments)
    )
    # The settings make texts of the values that are read as the very same values.
    db.execute(
        sql(
            "CREATE FUNCTION {function}({listed}) RETURNS {result} LANGUAGE sql SET extra_float_digits = 1"
            " SET datestyle = 'ISO' SET intervalstyle = 'postgres' AS {body}",
            function=function.sql,
            listed=listed,
            result=result.sql,
            body=quoting(body),
        )
    )
    signature = joined(", ", (kind.sql for _, kind in arguments))
    db.execute(
        sql(
            "COMMENT ON FUNCTION {function}({signature}) IS {text}",
            function=function.sql,
            signature=signature,
            text=literal(f"Predicts {target.name} with model {model.key} of {model.table.name}. Made by cerebro_db."),
        )
    )
    return f"{function}({', '.join(str(Name(None, column)) for column, _ in arguments)})"


def _arguments(trained: Layout) -> list[tuple[str, SqlType]]:
    """The input columns and their types, as in training where these are known."""
    found = []
    for variable in trained.inputs:
        features = variable.preparation.features
        array = SqlType("real[]" if variable.dtype == "float32" else "integer[]")
        for place, column in enumerate(variable.columns):
            plain = SqlType("double precision") if variable.elements == len(variable.columns) else array
            found.append((column, features[place].type if features else plain))
    return found
