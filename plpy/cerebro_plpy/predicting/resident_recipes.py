"""The recipe of a call of ``cerebro.predict``: what resident_predictor.py of another session needs for other rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cerebro_db.core import protocol
from cerebro_db.core.protocol import PredictMore
from cerebro_db.core.sql import literal, sql, sql_of_user, text_of

from ..database.relations import FIRST_OF_USERS, Relation
from ..definitions.references import ModelRef
from ..segment.keeping import Caller
from . import related_rows, resident_predictor

if TYPE_CHECKING:
    from ..models.model_cache import CachedModel
    from .query_reading import Reading

LONGEST = 1_000_000  # characters
ROWS = "the rows of the query"  # where they stand in the statement


def written(
    given: dict[str, Any], ref: ModelRef, known: CachedModel, source: Relation, reading: Reading, caller: Caller
) -> tuple[str, str]:
    """The key of the calls that it serves, and the recipe; empty: there is none.

    ``given``: the arguments of the call.  ``source``: its query, whose rows are read as ``reading`` says.
    """
    if not all(feature.type.is_built_in for one in reading.inputs for feature in one.preparation.features):
        return "", ""  # who may have made another type is looked at when a model is read
    marked = reading.query(replace(source, query=sql_of_user(ROWS)))
    parts = text_of(marked).split(f"({ROWS}\n)")
    if len(parts) != 2 or any(kind >= FIRST_OF_USERS for _, kind in source.described):
        return "", ""
    model, question = known.model.table.name, known.question
    if ref.is_reference:  # another version may have its name by then
        question = sql(
            "SELECT CASE WHEN cerebro_internal._registered({reference}) = {table} THEN ({question}) END",
            reference=literal(ref.given),
            table=literal(model.quoted),
            question=question,
        )
    mark = known.mark
    if reading.beside is not None:
        question, mark = related_rows.question(question, reading.beside), f"{mark}|{reading.mark}"
    text = json.dumps(
        {
            "hold": text_of(sql("SELECT 1 AS one FROM {table} LIMIT 0", table=model.sql)),
            "question": text_of(question),
            "mark": mark,
            "model": known.mark,
            "columns": source.described,
            **{name: getattr(caller, name) for name in resident_predictor.LIMITS},
            "sent": protocol.encode(PredictMore(rows=1, values=[], folders=[])),
            "query": parts,
            "keys": len(reading.keys),
            "filled": len(reading.filled),
            "news": len(reading.news),
            "chunk": reading.chunk,
            "outputs": reading.outputs,
        }
    )
    key = resident_predictor.key(caller.role, caller.database, caller.schemas, given)
    return (key, text) if len(text) <= LONGEST else ("", "")
