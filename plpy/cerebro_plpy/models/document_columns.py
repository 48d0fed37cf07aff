"""The columns of tables that hold documents: models, architectures and selections.  Each has a type of the server's.

The owner of another type could give it a cast to text, which would run with the rights of whoever reads the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cerebro_db.core.errors import BadData
from cerebro_db.core.models.model_columns import OF_MST, Types
from cerebro_db.core.sql_types import SqlType

from ..database.relations import Column


def require(present: Mapping[str, Column], table: str, types: Types = OF_MST) -> None:
    """An error for a column of a name that we read, and of another type than it should have."""
    for name, known in types.items():
        if name in present and present[name].type not in known:
            raise BadData(
                f"column '{name}' of '{table}' is of type {present[name].shown}.",
                hint=f"It must be of one of the types: {', '.join(known)}.",
            )


def require_known_types(present: Mapping[str, Column], table: str, names: Iterable[str]) -> None:
    """An error if a column of these names has a type that is not the server's own."""
    for name in names:
        if name in present and SqlType(present[name].type).parts[0] is not None:
            raise BadData(
                f"column '{name}' of '{table}' is of type {present[name].shown}.",
                hint="It must be of a type that the server itself has.",
            )
