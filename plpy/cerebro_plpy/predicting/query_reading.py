"""How the rows of a query are read for a model: what is decided once for all queries with the same columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from cerebro_db.core.errors import BadData
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql

from ..database.relations import Relation
from ..packing.rows import unseen_values
from ..packing.rows.preparation import SourceVariable

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BestClasses

    from ..packing.rows.unseen_values import Surprise
    from .trainers import PredictionOrder


@dataclass
class Reading:
    """How the rows of a query with certain columns are read for a model, and what is made of its answers."""

    keys: list[str]  # the names of what may be the key of a row
    inputs: list[SourceVariable]
    best: BestClasses | None
    outputs: str
    chunk: int  # rows; a chunk with fewer is the last one
    query: Callable[[Relation], Sql]  # over the rows of the caller's query
    filled: list[str]  # what must not be NULL, in the words of an error
    news: list[Surprise]  # what is looked for in the rows
    order: PredictionOrder | None = None

    def require_sound(self, chunk: dict[str, Any], ids: list[str | None], source: str) -> None:
        """An error if a row of a chunk cannot be predicted."""
        nulls = {name: chunk[f"n{place}"] for place, name in enumerate(self.filled)}
        for name, rows in {"the key": ids.count(None), **nulls}.items():
            if rows:
                raise BadData(
                    f"{rows} rows have a NULL in {name}.", hint="Leave them out of the query, or fill them in."
                )
        unseen_values.require_none(self.news, chunk, source)
