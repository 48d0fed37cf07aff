"""What a validation table must have in common with its training table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing import layout
from cerebro_db.core.packing.buffer_format import INTEGERS
from cerebro_db.core.packing.preparation import Encoded, OneHot, Real

from ..database.relations import Column
from .rows import variables
from .rows.argument_names import ArgumentWords
from .rows.preparation import NUMBERS, SourceVariable, applied
from .rows.summary import Training


def require_same_number(
    training: Training, inputs: Sequence[Any], outputs: Sequence[Any], words: ArgumentWords
) -> None:
    for argument, here, there in (
        (words.inputs, inputs, training.layout.inputs),
        (words.target, outputs, training.layout.outputs),
    ):
        if len(here) != len(there):
            raise InvalidArgument(
                f"{argument} makes {len(here)} variables; table {training.text} has {len(there)}.",
                hint=f"There they are: {', '.join(variable.name for variable in there)}.",
            )


def input_as_trained(name: str, columns: list[Column], trained: layout.Variable) -> SourceVariable:
    """These columns with the preparation of the training table's variable; integers are at least as wide."""
    variable = applied(name, columns, trained.preparation)
    if variable.dtype in INTEGERS and trained.dtype in INTEGERS:
        variable.dtype = trained.dtype
    return variable


def output_as_trained(
    column: Column, trained: layout.Variable, numbers_are_labels: bool = False, argument: str = "target"
) -> SourceVariable:
    """Labels are compared in the training column's type, numbers become float32; vectors must be of the same kind.

    ``numbers_are_labels``: where the training table has labels, a column may also have vectors of as many classes.
    """
    preparation = trained.preparation
    if numbers_are_labels and isinstance(preparation, OneHot) and column.element in NUMBERS:
        return applied(column.name, [column], Encoded())
    fits = (isinstance(preparation, OneHot) and column.element is None) or (
        isinstance(preparation, Real) and (column.element or column.type) in NUMBERS
    )
    if not fits and variables.output_preparation(column, numbers_are_labels, argument).kind != preparation.kind:
        raise InvalidArgument(
            f"column '{column.name}' of type {column.shown} does not fit "
            f"the training table's '{trained.name}' ({trained.target}).",
            hint="Cast it to the type of the training data, in a view if need be.",
        )
    return replace(applied(column.name, [column], preparation), quantiles=trained.quantiles)


def require_same_shapes(
    found: Sequence[SourceVariable], trained_on: Sequence[layout.Variable | SourceVariable], table: str
) -> None:
    for variable, trained in zip(found, trained_on):
        if variable.shape != trained.shape:
            raise BadData(
                f"column '{variable.name}' has shape {list(variable.shape)}; "
                f"'{trained.name}' of table {table} has {list(trained.shape)}.",
                hint="Training and validation data need the same shapes.",
            )
