"""The recipe of a call of ``cerebro.predict``: what resident_predictor.py of another session needs for other rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cerebro_db.core import protocol
from cerebro_db.core.protocol import PredictMore
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import literal, sql, sql_of_user, text_of

from ..database.access import Database
from ..database.relations import FIRST_OF_USERS, Relation
from ..definitions.references import ModelRef
from ..segment.keeping import Limits
from . import resident_predictor

if TYPE_CHECKING:
    from ..models.model_cache import CachedModel
    from .query_reading import Reading

LONGEST = 1_000_000  # characters
ROWS = "the rows of the query"  # where they stand in the statement


@dataclass(frozen=True)
class RowRecipe:
    """What the recipe of a call is made of."""

    given: dict[str, Any]  # the arguments
    ref: ModelRef
    known: CachedModel  # the model
    source: Relation  # the query
    reading: Reading  # how its rows are read

    def written(self, db: Database, role: int, database: int, limits: Limits) -> tuple[str, str]:
        """The key of the calls that it serves, and the recipe; empty: there is none."""
        described = db.columns_of(sql("SELECT * FROM {rows} AS q LIMIT 0", rows=self.source.rows))
        if not self._has_types_of_the_server(db):  # who may have made another type is looked at when a model is read
            return "", ""
        marked = self.reading.query(replace(self.source, query=sql_of_user(ROWS)))
        parts = text_of(marked).split(f"({ROWS}\n)")
        if len(parts) != 2 or any(kind >= FIRST_OF_USERS for _, kind in described):
            return "", ""
        model, reading = self.known.model.table.name, self.reading
        question = self.known.question
        if self.ref.is_reference:  # another version may have its name by then
            question = sql(
                "SELECT CASE WHEN cerebro._registered({reference}) = {table} THEN ({question}) END",
                reference=literal(self.ref.given),
                table=literal(model.quoted),
                question=question,
            )
        text = json.dumps(
            {
                "hold": text_of(sql("SELECT 1 AS one FROM {table} LIMIT 0", table=model.sql)),
                "question": text_of(question),
                "mark": self.known.mark,
                "columns": described,
                **limits,
                "sent": protocol.encode(PredictMore(rows=1, values=[], folders=[])),
                "query": parts,
                "keys": len(reading.keys),
                "filled": len(reading.filled),
                "news": len(reading.news),
                "chunk": reading.chunk,
                "outputs": reading.outputs,
            }
        )
        schemas = db.value(sql("SELECT pg_catalog.array_to_json(pg_catalog.current_schemas(false))::pg_catalog.text"))
        return (resident_predictor.key(role, database, schemas, self.given), text) if len(text) <= LONGEST else ("", "")

    def _has_types_of_the_server(self, db: Database) -> bool:
        """Whether all casts in the preparation are to types that the server's own installation has made."""
        kinds = {feature.type.name for one in self.reading.inputs for feature in one.preparation.features}
        oids = sql("SELECT COALESCE(bool_and(pg_catalog.to_regtype(k)::oid < $2::oid), true) FROM unnest($1::text[]) k")
        return bool(db.value(oids, ("text[]", "bigint"), sorted(kinds), FIRST_OF_USERS))
