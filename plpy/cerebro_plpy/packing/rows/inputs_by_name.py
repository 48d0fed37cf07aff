"""The inputs that a model was trained on, found in another table by the names of their columns."""

from __future__ import annotations

from cerebro_db.core.errors import BadData
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.columns import IN_A_ZONE, family_of, need_a_zone
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.preparation import Pixels
from cerebro_db.core.sql_types import BYTES

from ...database.relations import Column
from .preparation import SourceVariable, applied


def matches(trained: Layout) -> bool:
    """Whether columns were prepared one by one, or rows became windows; then their order is not the user's."""
    if trained.windows is not None:
        return True
    return any(one.preparation.features or isinstance(one.preparation, Pixels) for one in trained.inputs)


def require_all(trained: Layout, named: str | None, argument: str) -> None:
    """An error unless a list names the training columns, in any order.  NULL names them all."""
    if named is None:
        return
    names = split_list(named, f"{argument}")
    known = list(dict.fromkeys(name for variable in trained.inputs for name in variable.columns))
    if set(names) != set(known):
        raise BadData(
            f"{argument} names {', '.join(names)}, but the model was trained on {', '.join(known)}.",
            hint=f"{argument} => NULL uses the columns with these names.",
        )


def lacks(table: str, missing: list[str]) -> BadData:
    return BadData(
        f"{table} does not have the input{'s' if len(missing) > 1 else ''} {', '.join(missing)}.",
        hint="The model was trained with these columns. A view can add them, as NULL if they are not known.",
    )


def needed(trained: Layout, present: dict[str, Column]) -> list[Column]:
    """The columns that are read, of those that are there."""
    return [present[name] for name in _names(trained) if name in present]


def _names(trained: Layout) -> list[str]:
    names = [name for variable in trained.inputs for name in variable.columns]
    return list(dict.fromkeys([*names, *(trained.windows.read if trained.windows else ())]))


def found(trained: Layout, present: dict[str, Column], table: str) -> list[SourceVariable]:
    """The inputs, made of the columns of these names; an error if one is not there or has another type."""
    inputs_of_training = {name for variable in trained.inputs for name in variable.columns}
    missing = [name for name in _names(trained) if name not in present]
    if of_inputs := [name for name in missing if name in inputs_of_training]:
        raise lacks(table, of_inputs)
    if missing:
        raise BadData(
            f"{table} does not have the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of sequence.",
            hint="Add them: they say which rows make a window, in which order.",
        )
    changed, in_a_zone = [], False
    for variable in trained.inputs:
        for feature, name in zip(variable.preparation.features, variable.columns):
            column = present[name]
            zone = need_a_zone(column.type, feature.type.name)
            in_a_zone = in_a_zone or zone
            if zone or family_of(column.type, column.category, column.element) != feature.family:
                changed.append(f"{name} ({column.shown} now, {feature.type} in training)")
        first = present[variable.columns[0]]
        pixels = isinstance(variable.preparation, Pixels)
        family, wanted = family_of(first.type, first.category, first.element), "bytes" if pixels else "array"
        if not variable.preparation.features and family != wanted:
            in_training = BYTES if pixels else "an array of numbers"
            changed.append(f"{first.name} ({first.shown} now, {in_training} in training)")
    if changed:
        raise BadData(
            f"columns of {table} have a type that they did not have in training: {', '.join(changed)}.",
            hint=IN_A_ZONE if in_a_zone else "Cast them in a view.",
        )
    inputs = []
    for variable in trained.inputs:
        source = applied(variable.name, [present[name] for name in variable.columns], variable.preparation)
        source.shape = variable.shape[1:] if trained.windows else variable.shape
        source.later = variable.later
        source.dtype = variable.dtype if variable.preparation.features else source.dtype
        inputs.append(source)
    return inputs
