"""The columns of tables that hold documents: models, architectures and selections.  Each has a type of the server's.

The owner of another type could give it a cast to text, which would run with the rights of whoever reads the column.
"""

from __future__ import annotations

from collections.abc import Mapping

from cerebro_db.core.errors import BadData
from cerebro_db.core.sql_types import INTEGERS, REALS, TEXTS

from ..database.relations import Column

LISTS = tuple(f"{one}[]" for one in TEXTS)
TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mst_key", "model_id", "start", "epoch"), INTEGERS),
    **dict.fromkeys(("compile_params", "fit_params", "loss_type", "direction", "name", "model_arch_table"), TEXTS),
    **dict.fromkeys(("metrics_type", "functions"), LISTS),
    **dict.fromkeys(("objective_value", "validation_loss_final", "training_loss_final"), REALS),
    **dict.fromkeys(("model_weights", "payload"), ("bytea",)),
    "model_arch": ("json", "jsonb", *TEXTS),
}


def require(present: Mapping[str, Column], table: str) -> None:
    """An error for a column of a name that we read, and of another type than it should have."""
    for name, types in TYPES.items():
        if name in present and present[name].type not in types:
            raise BadData(
                f"column '{name}' of '{table}' is of type {present[name].shown}.",
                hint=f"It must be of one of the types: {', '.join(types)}.",
            )
