"""The columns of tables that hold documents: models, architectures and selections.  Each has a type of the server's.

The owner of another type could give it a cast to text, which would run with the rights of whoever reads the column.
"""

from __future__ import annotations

from collections.abc import Mapping

from cerebro_db.core.errors import BadData
from cerebro_db.core.sql_types import INTEGERS, REALS, TEXTS

from ..database.relations import Column

Types = Mapping[str, tuple[str, ...]]

LISTS = tuple(f"{one}[]" for one in TEXTS)
DOCUMENTS = ("json", "jsonb", *TEXTS)
SHARED: Types = {
    **dict.fromkeys(("model_id", "start", "epoch"), INTEGERS),
    **dict.fromkeys(("compile_params", "fit_params", "direction"), TEXTS),
    "functions": LISTS,
    "objective_value": REALS,
    "payload": ("bytea",),
}
OF_MODELS: Types = {
    **SHARED,
    "configuration": INTEGERS,
    "weights": ("bytea",),
    "architecture": DOCUMENTS,
    "loss_name": TEXTS,
    "metric_names": LISTS,
    **dict.fromkeys(("validation_loss", "training_loss"), REALS),
}
# Model tables as MADlib has them, tables of architectures, and model selection tables.
OF_MADLIB: Types = {
    **SHARED,
    "mst_key": INTEGERS,
    **dict.fromkeys(("loss_type", "name", "model_arch_table"), TEXTS),
    "metrics_type": LISTS,
    **dict.fromkeys(("validation_loss_final", "training_loss_final"), REALS),
    "model_weights": ("bytea",),
    "model_arch": DOCUMENTS,
}


def require(present: Mapping[str, Column], table: str, types: Types = OF_MADLIB) -> None:
    """An error for a column of a name that we read, and of another type than it should have."""
    for name, known in types.items():
        if name in present and present[name].type not in known:
            raise BadData(
                f"column '{name}' of '{table}' is of type {present[name].shown}.",
                hint=f"It must be of one of the types: {', '.join(known)}.",
            )
