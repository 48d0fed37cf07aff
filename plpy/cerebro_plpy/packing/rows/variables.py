"""Which columns become which variable, and which preparation their types ask for.

| column                                      | as an input                              | as an output           |
|---------------------------------------------|------------------------------------------|------------------------|
| array of smallint, integer, boolean         | as_is or divided: uint8, int16 or int32  | encoded: int16         |
| array of bigint                             | as_is or divided: float32                | encoded: int16         |
| array of real, double precision, numeric    | as_is or divided: float32                | real: float32          |
| one number or boolean                       | with all others one variable, features   | (see below)            |
| real, double precision, numeric             |                                          | real: float32, [1]     |
| any other type that can be sorted           | –                                        | one_hot: int16         |
"""

from __future__ import annotations

from collections import Counter

from cerebro_db.core.errors import InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.names import check, split_list
from cerebro_db.core.packing.packed_summary import ENDINGS
from cerebro_db.core.packing.preparation import Encoded, OneHot, Preparation, Real
from cerebro_db.core.sql_types import SqlType

from ...database.relations import Column, Relation, has_columns
from .argument_names import ArgumentWords
from .preparation import NUMBERS, REALS, SMALL, SourceVariable

FEATURES = "features"
WEIGHT = "__weight__"  # the packed column with the weights of the rows
FOLD = "__fold__"  # the packed column with their folds


def pick(present: dict[str, Column], names: list[str], argument: str, source: Relation) -> list[Column]:
    """The columns of these names."""
    for name in names:
        if name not in present:
            raise UndefinedColumn(
                f"invalid {argument} ('{name}') for source table ({source.text}).",
                hint=has_columns(present),
            )
    return [present[name] for name in names]


def pick_one(present: dict[str, Column], text: str, argument: str, source: Relation) -> Column:
    """The column of this name; an error if the text names several."""
    names = split_list(text, f"{argument}")
    if len(names) > 1:
        raise InvalidArgument(
            f"{argument} must be one column, not {text}.",
            hint="A view can make one column of several, for instance with concat_ws().",
        )
    return pick(present, names, argument, source)[0]


def target_to_stratify(present: dict[str, Column], target: str | None, source: Relation) -> Column:
    """The target, of whose classes each side gets the same share; an error if there are several."""
    names = split_list(target, "target")
    if len(names) > 1:
        raise InvalidArgument(
            f"stratify needs a single target, not {len(names)}.",
            hint="Leave stratify out, or pack a table for each target.",
        )
    return pick(present, names, "target", source)[0]


def require_apart(inputs: list[Column], outputs: list[Column], words: ArgumentWords) -> None:
    """An output that is an input, too, would be predicted from itself."""
    for column in inputs:
        if column in outputs:
            raise InvalidArgument(
                f"the column '{column.name}' is in both {words.target} and {words.inputs}.",
                hint=f"Leave it out of {words.inputs}. If a model is to reproduce its input, a view of the source"
                " table can have the column twice, under two names.",
            )


def grouped(columns: list[Column], argument: str = "inputs") -> list[tuple[str, list[Column]]]:
    """The inputs that columns make: (name, columns).

    Each array is one input.  All plain numbers together are one more, at the place of the first of them.
    """
    groups: list[tuple[str, list[Column]]] = []
    plain: list[Column] = []
    for column in columns:
        if (column.element or column.type) not in NUMBERS:
            raise InvalidArgument(
                f"invalid {argument} ('{column.name}'): its type is {column.shown}.",
                hint="Inputs are numbers and arrays of numbers; a view can convert others.",
            )
        if column.element is not None:
            groups.append((column.name, [column]))
            continue
        if not plain:
            groups.append((FEATURES, plain))
        plain.append(column)
    return groups


def output_preparation(column: Column, numbers_are_labels: bool = False, argument: str = "target") -> Preparation:
    """What a column becomes as an output; a one_hot has no labels yet.

    ``numbers_are_labels``: then arrays of numbers are vectors of integers.
    """
    if numbers_are_labels and column.element in REALS:
        return Encoded()
    if numbers_are_labels and column.type in REALS:
        return OneHot(SqlType(column.type))
    if column.element in SMALL or column.element == "bigint":
        return Encoded()
    if column.element in REALS or column.type in REALS:
        return Real()
    if column.element is not None:
        raise Unsupported(
            f"invalid {argument} ('{column.name}'): its type is {column.shown}.",
            hint="Outputs are labels of any type that can be sorted, numbers, and arrays of numbers.",
        )
    return OneHot(SqlType(column.type))


def allow_null_labels(inputs: list[SourceVariable], outputs: list[SourceVariable]) -> None:
    """Inputs that ``cerebro.pack`` has not prepared are float32, and a label may be NULL."""
    for variable in inputs:
        if not variable.preparation.features:
            variable.dtype = "float32"
    for variable in outputs:
        variable.may_be_null = isinstance(variable.preparation, OneHot)


def check_names(inputs: list[SourceVariable], outputs: list[SourceVariable]) -> None:
    """All columns of the packed table and of its summary must have different names that are short enough."""
    names = ["__dist_key__", "buffer_id", *(one + end for one in (WEIGHT, FOLD) for end in ("", "_shape"))]
    names += [variable.name + ending for variable in inputs + outputs for ending in ("", "_shape")]
    for name, times in Counter(names).items():
        if times > 1:
            raise InvalidArgument(
                f"the packed table would have two columns '{name}'.",
                hint="A view of the source table can rename one.",
            )
    for variable in outputs:
        check(variable.name + max(ENDINGS, key=len))
