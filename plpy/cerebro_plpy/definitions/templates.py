"""Architectures with parameters: which of a table have some, and rows for those with values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from cerebro_db.core.architecture import placeholders, reading
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.parameters.grids import Row, Templates
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database.access import Database
from ..database.relations import Relation
from . import architectures


@dataclass(frozen=True)
class Filled:
    """An architecture with values that the table does not have yet."""

    model_id: int
    values: str  # in words
    text: str


def of_table(db: Database, table: Relation, model_ids: Sequence[int]) -> Templates:
    """The architectures of these rows that have parameters."""
    found = db.rows(
        sql("SELECT model_id, model_arch::text AS arch FROM {table} WHERE model_id = ANY ($1)", table=table.sql),
        ("integer[]",),
        list(model_ids),
    )
    texts = {row["model_id"]: row["arch"] for row in found if row["arch"] is not None}
    parameters = {number: names for number, text in texts.items() if (names := reading.parameters(text)) is not None}
    if not parameters:
        return Templates({}, lambda model_id, values: model_id)
    decoded = {number: reading.decoded(texts[number]) for number in parameters}
    known: dict[str, Any] = {
        row["digest"]: row["model_id"]
        for row in db.rows(
            sql("SELECT model_id, pg_catalog.md5(model_arch::text) AS digest FROM {table}", table=table.sql)
        )
    }
    checked: dict[str, Any] = {}  # by values

    def named(model_id: int, values: dict[str, Any]) -> Any:
        """The model_id of the row that has this architecture, or what ``with_rows`` makes one of."""
        if model_id not in decoded:
            return model_id
        said = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(values.items()))
        if (key := f"{model_id}/{said}") not in checked:
            checked[key] = _filled(model_id, decoded[model_id], values, said, known)
        return checked[key]

    return Templates(parameters, named)


def _filled(
    model_id: int, template: dict[str, Any], values: dict[str, Any], said: str, known: dict[str, Any]
) -> int | Filled:
    """``known``: by the digest of its text, the model_id of an architecture, or what will become one."""
    try:
        filled = placeholders.filled(template, values)
        reading.architecture(filled)
    except CerebroError as error:
        error.message = f"model_id {model_id}, with {said}: {error.message}"
        raise
    text = json.dumps(filled)
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    found: int | Filled = known.setdefault(digest, Filled(model_id, said, text))
    return found


def with_rows(db: Database, table: Relation, rows: list[Row], say: Callable[[int], None]) -> list[Row]:
    """The rows of a model selection table, after each architecture with values has got a row of its own."""
    new = dict.fromkeys(row[0] for row in rows if isinstance(row[0], Filled))
    if not new:
        return rows
    architectures.require_columns(db, table)
    names = {
        row["model_id"]: row["name"] for row in db.rows(sql("SELECT model_id, name FROM {table}", table=table.sql))
    }
    ids = {}
    for one in new:
        own = names.get(one.model_id) or f"model_id {one.model_id}"
        ids[one] = architectures.added(db, table, one.text, None, f"{own} ({one.values})", None)
    say(len(ids))
    return [(ids.get(model_id, model_id), compiled, fit) for model_id, compiled, fit in rows]
