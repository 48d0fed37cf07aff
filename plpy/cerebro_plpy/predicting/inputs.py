"""The columns that a user names for prediction, as the inputs that the model was trained on."""

from __future__ import annotations

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.layout import Layout

from ..database.access import Database
from ..database.relations import Column
from ..packing.rows import variables
from ..packing.rows.preparation import SourceVariable, applied


def as_trained(db: Database, trained: Layout, columns: list[Column]) -> list[SourceVariable]:
    """The model's inputs, made of these columns with the preparations of the layout.

    Columns that have the names of the training columns are matched by name.  Columns of which none has such a name are
    taken in their order.
    """
    known = [name for variable in trained.inputs for name in variable.columns]
    names = [column.name for column in columns]
    groups = variables.grouped(columns)
    if set(names) == set(known):
        by_name = {column.name: column for column in columns}
        in_order = variables.grouped([by_name[name] for name in known])
        if in_order != groups:
            db.notice(f"the columns were put into the order of the training data: {', '.join(known)}")
        groups = in_order
    elif set(names) & set(known):
        raise _mismatch(trained, names)
    if len(groups) != len(trained.inputs):
        raise _mismatch(trained, names)
    inputs = []
    for (_, own), variable in zip(groups, trained.inputs):
        if own[0].element is None and variable.elements != len(own):
            raise _mismatch(trained, names)
        source = applied(variable.name, own, variable.preparation)
        source.shape = variable.shape
        inputs.append(source)
    return inputs


def _mismatch(trained: Layout, names: list[str]) -> BadData:
    inputs = ", ".join(
        variable.name if variable.columns == (variable.name,) else f"{variable.name} ({', '.join(variable.columns)})"
        for variable in trained.inputs
    )
    return BadData(
        f"independent_varname names {', '.join(names)}, but the model was trained on the inputs {inputs}.",
        hint="Name the training columns, in any order; or, in their order, columns of which none has such a name.",
    )
