"""Which columns become which variable of a packed table, and in what type.

| column                                      | as an input                       | as an output             |
|---------------------------------------------|-----------------------------------|--------------------------|
| array of smallint, integer, boolean         | uint8, int16 or int32, as needed  | ``encoded``, int16       |
| array of bigint                             | float32                           | ``encoded``, int16       |
| array of real, double precision, numeric    | float32                           | ``real``, float32        |
| one number or boolean                       | all such columns: one ``features``| see below                |
| real, double precision, numeric             |                                   | ``real``, float32, [1]   |
| anything else that can be sorted            | –                                 | ``class``, one-hot int16 |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.names import check, quote

from .db import Database
from .tables import Column, Relation, has_columns

SMALL = ("smallint", "integer", "boolean")
REALS = ("real", "double precision", "numeric")
NUMBERS = (*SMALL, "bigint", *REALS)
FEATURES = "features"


@dataclass
class Variable:
    """One input or output of a packed table.  ``kind`` is None for inputs."""

    name: str
    columns: list[Column]
    kind: str | None = None
    dtype: str = "float32"
    factor: float = 1.0  # multiplied when packed
    scale: float = 1.0  # divided by when read
    shape: tuple[int, ...] = ()
    label_type: str = "text"
    labels: list[str] = field(default_factory=list)  # in the type's order
    indices: dict[str, int] = field(default_factory=dict)  # every spelling of a label -> its class

    def expression(self, alias: Callable[[Column], str]) -> str:
        """What is read per row: the array's bytes, or the label's text."""
        if self.kind == "class":
            return label_text(alias(self.columns[0]), self.label_type)
        return f"cerebro._array_bytes({self.array(alias)})"

    def array(self, alias: Callable[[Column], str]) -> str:
        """All numbers of a row, as an array of one type."""
        element = "real" if self.dtype == "float32" else "integer"
        if len(self.columns) == 1 and self.columns[0].element:
            return f"{alias(self.columns[0])}::{element}[]"
        return f"ARRAY[{', '.join(_number(alias(column), column, element) for column in self.columns)}]"

    def hash(self, alias: Callable[[Column], str], seed: str) -> str:
        """A number of 64 bits made of a row's values and of another number."""
        if self.kind == "class":
            return f"pg_catalog.hashtextextended({label_text(alias(self.columns[0]), self.label_type)}, {seed})"
        if len(self.columns) == 1 and self.columns[0].element:
            return f"pg_catalog.hash_array_extended({alias(self.columns[0])}, {seed})"
        parts = [_number(alias(column), column, "double precision") for column in self.columns]
        return f"pg_catalog.hash_array_extended(ARRAY[{', '.join(parts)}], {seed})"

    def encoder(self) -> packing.ArrayEncoder | packing.ClassEncoder:
        if self.kind == "class":
            return packing.ClassEncoder(self.indices, self.shape[0])
        return packing.ArrayEncoder(self.shape, self.dtype, self.factor)

    @property
    def bytes_per_row(self) -> int:
        return packing.ITEM_BYTES[self.dtype] * packing.elements(self.shape)

    @property
    def wire_bytes_per_row(self) -> int:
        return 100 if self.kind == "class" else 20 + 4 * packing.elements(self.shape)

    def describe(self) -> dict[str, Any]:
        """Its part of the layout."""
        columns = [column.name for column in self.columns]
        shown: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        if self.kind is None:
            shown["scale"] = self.scale
        else:
            shown["kind"] = self.kind
        return shown if columns == [self.name] else {**shown, "columns": columns}


def label_text(value: str, label_type: str) -> str:
    """A label as text, compared byte by byte whatever the column's collation."""
    return f'({value}::{label_type})::text COLLATE "C"'


def _number(value: str, column: Column, element: str) -> str:
    return f"{value}::integer::{element}" if column.type == "boolean" else f"{value}::{element}"


def pick(present: dict[str, Column], names: list[str], argument: str, source: Relation, module: str) -> list[Column]:
    for name in names:
        if name not in present:
            raise UndefinedColumn(
                f"{module} error: invalid {argument} ('{name}') for source table ({source.text}).",
                hint=has_columns(present),
            )
    return [present[name] for name in names]


def inputs(columns: list[Column], constant: float, module: str) -> list[Variable]:
    """One variable per array; all plain numbers together make one more, where the first of them stands."""
    variables: list[Variable] = []
    scalars: list[Column] = []
    for column in columns:
        if (column.element or column.type) not in NUMBERS:
            raise InvalidArgument(
                f"{module} error: invalid independent_varname ('{column.name}'): its type is {column.shown}.",
                hint="Inputs are numbers and arrays of numbers; a view can convert others.",
            )
        if column.element is None:
            scalars.append(column)
            if len(scalars) > 1:
                continue
        variables.append(Variable(column.name if column.element else FEATURES, [column]))
    for variable in variables:
        if variable.columns[0].element is None:
            variable.columns = scalars
        set_input_type(variable, constant)
    return variables


def set_input_type(variable: Variable, constant: float) -> None:
    """Small integers stay what they are and are scaled when read; all else is normalised when packed."""
    if all((column.element or column.type) in SMALL for column in variable.columns):
        variable.dtype, variable.scale, variable.factor = packing.INTEGERS[0], constant, 1.0
    else:
        variable.dtype, variable.scale, variable.factor = "float32", 1.0, packing.float32(1.0 / constant)


def output(column: Column, module: str) -> Variable:
    if column.element in SMALL or column.element == "bigint":
        return Variable(column.name, [column], kind="encoded", dtype="int16")
    if column.element in REALS or column.type in REALS:
        return Variable(column.name, [column], kind="real")
    if column.element is not None:
        raise Unsupported(
            f"{module} error: invalid dependent_varname ('{column.name}'): its type is {column.shown}.",
            hint="Outputs are labels of any type that can be sorted, numbers, and arrays of numbers.",
        )
    return Variable(column.name, [column], kind="class", dtype="int16", label_type=column.type)


def check_names(ins: list[Variable], outs: list[Variable], module: str) -> None:
    """All columns of the packed table and of its summary must be different and short enough."""
    names = ["__dist_key__", "buffer_id"]
    names += [variable.name + ending for variable in ins + outs for ending in ("", "_shape")]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(
                f"{module} error: the packed table would have two columns '{name}'.",
                hint="A view of the source table can rename one.",
            )
    for variable in outs:
        check(variable.name + "_class_values")


def find_shapes(db: Database, source: Relation, variables: list[Variable], module: str) -> None:
    """The shape of every array, from some row."""
    arrays = [variable for variable in variables if variable.columns[0].element]
    for variable in variables:
        if variable not in arrays and variable.kind != "class":
            variable.shape = (len(variable.columns),)
    if not arrays:
        return
    sent = [f"cerebro._array_bytes({quote(variable.columns[0].name)})" for variable in arrays]
    picked = ", ".join(f"pg_catalog.encode({value}, 'hex') AS v{index}" for index, value in enumerate(sent))
    (row,) = db.scan(f"SELECT {picked} FROM {source.sql} LIMIT 1")
    for index, variable in enumerate(arrays):
        variable.shape = packing.shape_of(bytes.fromhex(row[f"v{index}"]))
        if not variable.shape:
            raise BadData(
                f"{module} error: column '{variable.name}' of table {source.text} has empty arrays.",
                hint=f"WHERE pg_catalog.cardinality({quote(variable.name)}) = 0 finds them.",
            )


def find_classes(db: Database, source: Relation, variable: Variable, declared: int | None, module: str) -> None:
    """The sorted labels of a column, and the class of each way to spell one."""
    column = quote(variable.columns[0].name)
    try:
        rows = db.scan(
            f"""
            SELECT label, pg_catalog.dense_rank() OVER (ORDER BY sample) - 1 AS class
            FROM (SELECT DISTINCT {label_text(column, variable.label_type)} AS label, {column} AS sample
                  FROM {source.sql}) AS labels
            ORDER BY class, label LIMIT {packing.MOST_CLASSES + 1}
            """
        )
    except db.plpy.SPIError as error:
        if not db.is_error(error, "42883"):
            raise
        raise InvalidArgument(
            f"{module} error: invalid dependent_varname ('{variable.name}'): "
            f"labels of type {variable.label_type} cannot be sorted.",
            hint="A view can convert them to text.",
        ) from None
    variable.indices = {row["label"]: row["class"] for row in rows}
    firsts = {row["class"]: row["label"] for row in reversed(rows)}
    variable.labels = [firsts[index] for index in sorted(firsts)]
    levels = len(variable.labels)
    if levels > packing.MOST_CLASSES:
        raise BadData(
            f"{module} error: column '{variable.name}' has more than {packing.MOST_CLASSES} different values.",
            hint="For regression convert it to real; a key is no label.",
        )
    if declared is not None and declared < levels:
        raise InvalidArgument(
            f"{module}: Invalid num_classes value specified. It must be equal to or greater than "
            f"distinct class values found in table ({levels}).",
            hint="num_classes has one element per dependent variable; NULL counts the values found.",
        )
    if declared is not None and declared > packing.MOST_CLASSES:
        raise InvalidArgument(
            f"{module} error: num_classes says {declared}; a variable has at most {packing.MOST_CLASSES} classes.",
            hint="num_classes has one element per dependent variable; NULL counts the values found.",
        )
    variable.shape = (declared or levels,)


def match_classes(
    db: Database, source: Relation, variable: Variable, levels: list[str], module: str
) -> tuple[dict[str, int], list[str]]:
    """The class of each label of a column among those levels, and the labels that are none of them."""
    column, kind = quote(variable.columns[0].name), variable.label_type
    try:
        rows = db.scan(
            f"""
            SELECT label, pg_catalog.array_position($1::text[]::{kind}[], sample) - 1 AS class
            FROM (SELECT DISTINCT {label_text(column, kind)} AS label, {column}::{kind} AS sample
                  FROM {source.sql}) AS labels
            ORDER BY sample, label LIMIT {packing.MOST_CLASSES + 1}
            """,
            levels,
        )
    except db.plpy.SPIError as error:
        if error.sqlstate[:2] not in ("22", "42"):
            raise
        raise InvalidArgument(
            f"{module} error: column '{variable.name}' of type {variable.columns[0].shown} cannot be read as {kind}, "
            f"the type of the training labels: {error}.",
            hint="Cast it in a view of the source table.",
        ) from None
    return (
        {row["label"]: row["class"] for row in rows if row["class"] is not None},
        [row["label"] for row in rows if row["class"] is None],
    )


def show_labels(labels: list[str], number: bool) -> str:
    """As MADlib shows them, a Python list; a long one is cut."""
    shown = [label if number else repr(label) for label in labels[:50]]
    return "[" + ", ".join(shown) + (", …" if len(labels) > 50 else "") + "]"


def unusable(db: Database, source: Relation, variable: Variable, wrong: packing.Unusable, module: str) -> BadData:
    """The error for a value that cannot be packed, with how many rows are like it and how to find them."""
    problem = {
        "shape": f"has arrays of different shapes: {list(variable.shape)} and {list(wrong.shape)}",
        "null": "has arrays with NULL elements",
        "finite": "has values that are NaN or infinite",
    }[wrong.what]
    conditions = [_condition(variable, column, wrong.what) for column in variable.columns]
    where = " OR ".join(conditions)
    (found,) = db.scan(f"SELECT count(*) FILTER (WHERE {where}) AS bad, count(*) AS rows FROM {source.sql}")
    return BadData(
        f"{module} error: {of_columns(variable)} of table {source.text} {problem}.",
        detail=f"{found['bad']} of {found['rows']} rows "
        + (f"do not have shape {list(variable.shape)}." if wrong.what == "shape" else "do."),
        hint=f"Find them with: SELECT * FROM {source.sql} WHERE {where}",
    )


def of_columns(variable: Variable) -> str:
    """As the user knows them: one column, or those that make up the one input of plain numbers."""
    names = [column.name for column in variable.columns]
    if len(names) == 1:
        return f"column '{names[0]}'"
    return f"one of the columns {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"


def _condition(variable: Variable, column: Column, what: str) -> str:
    name = quote(column.name)
    if what == "shape":
        lengths = [f"array_length({name}, {place + 1}) <> {size}" for place, size in enumerate(variable.shape)]
        return " OR ".join([f"array_ndims({name}) IS DISTINCT FROM {len(variable.shape)}", *lengths])
    values = f"unnest({name}) AS e" if column.element else f"(VALUES ({name})) AS v(e)"
    test = "e IS NULL" if what == "null" else "e::text IN ('NaN', 'Infinity', '-Infinity')"
    return f"EXISTS (SELECT FROM {values} WHERE {test})"
