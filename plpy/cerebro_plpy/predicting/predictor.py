"""``cerebro.create_predictor``: a SQL function that predicts one row, or one window, from the values of its columns."""

from __future__ import annotations

import json

from cerebro_db.core.errors import DependentObjects, DuplicateFunction, InvalidArgument, Unsupported
from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.preparation import OneHot, Pixels
from cerebro_db.core.packing.related import Related
from cerebro_db.core.sql import Sql, identifier, in_format, joined, literal, quoting, sql
from cerebro_db.core.sql_types import BYTES, DATES, SqlType

from .. import platform
from ..database import relations, types
from ..database.access import Database
from ..database.entry import entry
from ..definitions.references import ModelRef, model_ref
from ..models import calibrations
from ..models.model_cache import read_model
from ..models.trained import TrainedModel
from ..packing.related.derivation import OpenedTables
from . import by_group, related_rows

OURS = "Made by cerebro_db."  # how the comment of each such function ends
NUMBER = identifier("__cerebro_number")  # of a row of a window
CHANGED = "42P13"  # CREATE OR REPLACE cannot change what a function returns, nor the names of its arguments

Arguments = list[tuple[str, SqlType]]


@entry
def create_predictor(
    db: Database,
    model_table: str | None,
    function_name: str | None,
    configuration: int | None,
    replace: bool | None,
    thresholds: bool | None = False,
    *,
    related: str | None = None,
) -> str:
    """Create the function; return how to call it."""
    ref = model_ref(db, model_table)
    if configuration is not None and ref.is_reference:
        raise InvalidArgument(
            f"'{ref.given}' names one model, so there is no configuration to choose.", hint="Leave it out."
        )
    model = read_model(db, ref, configuration)
    wanted = calibrations.Wanted.of(None, None, thresholds)
    if model.grouped is not None:
        by_group.require_plain(wanted, model_table)
    calibrations.applied(db, model, wanted)  # an error if none are kept
    if model.layout.windows is not None and model.layout.windows.may_break:
        raise Unsupported(
            "the rows of a function's window have no time, so it cannot tell where the model's windows break.",
            hint="cerebro.predict() predicts the rows of a query.",
        )
    if model.layout.windows is not None and model.layout.windows.known:
        raise Unsupported(
            "the model reads columns of later rows, which a function's window does not have.",
            hint="cerebro.predict() predicts the rows of a query.",
        )
    if model.layout.steps:
        raise Unsupported(
            "the model predicts each step of a window; a function returns one value.",
            hint="cerebro.predict() returns a row for each step.",
        )
    if len(model.layout.outputs) != 1:
        raise Unsupported(
            f"the model has {len(model.layout.outputs)} targets; a function returns one.",
            hint="cerebro.predict() returns a row for each target.",
        )
    function = relations.qualified(db, Name.parse(function_name, "function_name"))
    of_group = [(one.name, one.type) for one in model.grouped.columns] if model.grouped is not None else []
    tables = related_rows.opened(db, model.table, model.layout, related)
    inputs = _inputs(model.layout, {name for name, _ in of_group})
    arguments = of_group + inputs
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
    places = [sql("${place}", place=place) for place in range(1, len(arguments) + 1)]
    # Without a number it stays the best model when the table is replaced.  A table of one model has no numbers.
    pinned = configuration is not None and model.named.has_key
    body = sql(
        "{begin}SELECT {returned} FROM cerebro.predict({table}, pg_catalog.format({query}, {places}){chosen}{decided}"
        "{related}){where}",
        begin=platform.of(db).begin_call(str(function), _for_all_rows(model, ref, pinned, bool(thresholds))),
        returned=returned,
        table=literal(ref.given) if ref.is_reference else quoting(model.table.sql),
        query=quoting(_rows(model.layout, of_group, inputs, now=None if tables is None else model.layout.related)),
        places=joined(", ", places),
        chosen=sql(", configuration => {key}", key=model.key) if pinned else sql(""),
        decided=sql(", thresholds => true") if thresholds else sql(""),
        related=_tables(tables),
        where=_of_one_window(model.layout, places[len(of_group) :]),
    )
    # A column that a call leaves out is NULL. What tells the groups apart, and a window's rows, cannot be left out.
    optional = len(inputs) if model.layout.windows is None else 0
    _make(db, function, arguments, result, body, replace=bool(replace), optional=optional)
    db.execute(
        sql(
            "COMMENT ON FUNCTION {function} IS {text}",
            function=_signature(function, arguments),
            text=literal(_comment(model, target.name, _which(model, ref, pinned))),
        )
    )
    return f"{function}({', '.join(str(Name(None, column)) for column, _ in arguments)})"


def _inputs(trained: Layout, given: set[str]) -> Arguments:
    """The input columns and their types, as in training where these are known.  Of a window, arrays of its rows.

    ``given``: columns that are arguments already.
    """
    found: list[tuple[str, SqlType]] = []
    for variable in trained.inputs:
        features = variable.preparation.features
        pixels = isinstance(variable.preparation, Pixels)
        array = SqlType(BYTES if pixels else "real[]" if variable.dtype == "float32" else "integer[]")
        if trained.windows is not None and not features and not pixels:
            raise Unsupported(
                f"the input '{variable.name}' is an array in each row of a window, which no argument can hold.",
                hint="cerebro.predict() takes a query that returns the rows.",
            )
        for place, column in enumerate(variable.columns):
            if trained.related is not None and column in trained.related.names:
                continue
            single = variable.elements == len(variable.columns) and not pixels
            plain = SqlType("double precision") if single else array
            kind = features[place].type if features else plain
            if column not in given and column not in (name for name, _ in found):
                found.append((column, kind if trained.windows is None else kind.array))
    if trained.related is not None:
        known = {*given, *(name for name, _ in found)}
        found += [(name, kind) for name, kind in _keys_and_time(trained.related).items() if name not in known]
    if trained.windows is not None and not found:
        raise Unsupported(
            "the model reads only columns that tell the groups apart, so no argument could have the rows of a window.",
            hint="cerebro.predict() takes a query that returns the rows.",
        )
    return found


def _keys_and_time(plan: Related) -> dict[str, SqlType]:
    """The columns of a row that lead to related tables, and its time, with the types that the tables have."""
    found: dict[str, SqlType] = {}
    for step in plan.steps:
        types = {one.name: one.type for one in step.columns}
        if not step.parent:
            found.update({name: types[other] for name, other in step.on if name not in found})
        if plan.as_of is not None and step.time is not None:
            found.setdefault(plan.as_of, types[step.time])
    return found


def _tables(tables: OpenedTables | None) -> Sql:
    """The argument with the tables that the creator has chosen."""
    if tables is None:
        return sql("")
    named = {path: table.name.quoted for path, table in tables.relations.items()}
    return sql(", related => {named}", named=literal(json.dumps(named)))


def _rows(trained: Layout, of_group: Arguments, inputs: Arguments, now: Related | None = None) -> Sql:
    """The query of the row, or of the rows of the window, as a format for the values; format() writes NULL for NULL.

    ``now``: the plan whose time is now where it is NULL.
    """
    if trained.windows is None:
        listed = [_or_now(one) if now is not None and one[0] == now.as_of and one[1].name in DATES else _named(one)
                  for one in (*of_group, *inputs)]  # fmt: skip
        return sql("SELECT {named}", named=joined(", ", listed))
    values = [sql("%L::{kind}", kind=in_format(kind.sql)) for _, kind in inputs]
    columns = [in_format(identifier(column)) for column, _ in inputs]
    given = {column for column, _ in [*of_group, *inputs]}
    # All rows belong to one subject, and have the order of the arrays.
    places = [
        *map(_named, of_group),
        *(sql("1 AS {name}", name=in_format(identifier(name))) for name in trained.windows.by if name not in given),
        *(
            sql("{number} AS {name}", number=NUMBER, name=in_format(identifier(name)))
            for name in trained.windows.order
            if name not in given
        ),
    ]
    return sql(
        "SELECT {selected} FROM ROWS FROM ({values}) WITH ORDINALITY AS u ({names}, {number})",
        selected=joined(", ", [*columns, *places]),
        values=joined(", ", (sql("pg_catalog.unnest({value})", value=value) for value in values)),
        names=joined(", ", columns),
        number=NUMBER,
    )


def _named(argument: tuple[str, SqlType]) -> Sql:
    name, kind = argument
    return sql("%L::{kind} AS {name}", kind=in_format(kind.sql), name=in_format(identifier(name)))


def _or_now(argument: tuple[str, SqlType]) -> Sql:
    name, kind = argument
    return sql(
        "COALESCE(%L::{kind}, pg_catalog.statement_timestamp()::{kind}) AS {name}",
        kind=in_format(kind.sql),
        name=in_format(identifier(name)),
    )


def _of_one_window(trained: Layout, places: list[Sql]) -> Sql:
    """A condition that raises an error unless each array has the rows of one window."""
    if trained.windows is None:
        return sql("")
    sizes = joined(", ", (sql("pg_catalog.cardinality({place})", place=place) for place in places))
    return sql(" WHERE cerebro._require_window({length}, ARRAY[{sizes}])", length=trained.windows.rows, sizes=sizes)


def _for_all_rows(model: TrainedModel, ref: ModelRef, pinned: bool, thresholds: bool) -> str:
    """What the user of a predictor does instead of calling it for each row."""
    table = ref.given if ref.is_reference else str(model.table.name)
    doubled = table.replace("'", "''")
    chosen = f", configuration => {model.key}" if pinned else ""
    decided = ", thresholds => true" if thresholds else ""
    return (
        f"Predict all rows with one query, for instance SELECT * FROM cerebro.predict('{doubled}',"
        f" 'SELECT * FROM my_rows', key => 'id'{chosen}{decided})."
    )


def _which(model: TrainedModel, ref: ModelRef, pinned: bool) -> str:
    if ref.is_reference:
        return f"the registered model {ref.given}"
    which = f"configuration {model.key}" if pinned else "the best model"
    return f"{which} of {model.table.name}{'' if model.grouped is None else ' for the group of the row'}"


def _comment(model: TrainedModel, target: str, which: str) -> str:
    windows, each = model.layout.windows, "Each argument" if model.grouped is None else "Each array"
    rows = "" if windows is None else f" {each} has the values of {windows.rows} rows, in their order."
    return f"Predicts {target} with {which}.{rows} {OURS}"


# -- the function itself -------------------------------------------------------------------------------------


def _signature(function: Name, arguments: Arguments) -> Sql:
    return sql("{function}({types})", function=function.sql, types=joined(", ", (kind.sql for _, kind in arguments)))


def _make(
    db: Database, function: Name, arguments: Arguments, result: SqlType, body: Sql, *, replace: bool, optional: int
) -> None:
    """Create the function.  ``replace``: in the place of the one of that name which this function has made before.

    ``optional``: so many of the last arguments are NULL by default.
    """
    needed = len(arguments) - optional
    listed = [
        sql(
            "{name} {kind}{default}",
            name=identifier(name),
            kind=kind.sql,
            default=sql(" DEFAULT NULL") if place >= needed else sql(""),
        )
        for place, (name, kind) in enumerate(arguments)
    ]
    before = _made_before(db, function)
    kinds = [kind.name for _, kind in arguments]
    if replace:
        for others in before:
            if others != kinds:
                _drop(db, function, others)
    # The settings make texts of the values that are read as the very same values.
    statement = sql(
        "CREATE {instead}FUNCTION {function}({listed}) RETURNS {result} LANGUAGE sql SET extra_float_digits = 1"
        " SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS {body}",
        instead=sql("OR REPLACE ") if replace and kinds in before else sql(""),
        function=function.sql,
        listed=joined(", ", listed),
        result=result.sql,
        body=quoting(body),
    )
    try:
        db.execute(statement)
    except db.plpy.SPIError as error:
        if db.is_error(error, DuplicateFunction.sqlstate):
            raise DuplicateFunction(
                f"{error}.",
                hint="replace => true replaces it."
                if kinds in before
                else "cerebro.create_predictor has not made it. Choose another name.",
            ) from None
        if not db.is_error(error, CHANGED):
            raise
        _drop(db, function, kinds)
        db.execute(statement)


def _made_before(db: Database, function: Name) -> list[list[str]]:
    """The functions of this name that ``create_predictor`` has made, each by the types of its arguments."""
    rows = db.rows(
        sql(
            "SELECT ARRAY(SELECT {written} FROM pg_catalog.unnest(p.proargtypes) WITH ORDINALITY AS a (oid, place)"
            " JOIN pg_catalog.pg_type t ON t.oid = a.oid ORDER BY a.place)::text[] AS kinds"
            " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname = $1 AND p.proname = $2"
            " AND pg_catalog.right(pg_catalog.obj_description(p.oid, 'pg_proc'), pg_catalog.length($3)) = $3",
            written=types.written(identifier("t")),
        ),
        ("text", "text", "text"),
        function.schema,
        function.table,
        OURS,
    )
    return [row["kinds"] for row in rows]


def _drop(db: Database, function: Name, kinds: list[str]) -> None:
    listed = joined(", ", (SqlType(kind).sql for kind in kinds))
    try:
        db.execute(sql("DROP FUNCTION {function}({listed})", function=function.sql, listed=listed))
    except db.plpy.SPIError as error:
        if not db.is_error(error, DependentObjects.sqlstate):
            raise
        raise DependentObjects(
            f"the function '{function}' stays, because other objects depend on it and the new one has other arguments"
            " or another result.",
            hint="Choose another name.",
        ) from None
