"""``cerebro.architecture``: a model that fits a packed table."""

from __future__ import annotations

import json

from cerebro_db.core import documents
from cerebro_db.core.architecture import building
from cerebro_db.core.errors import InvalidArgument

from ..database.access import Database
from ..database.entry import entry
from .rows.summary import read_layout


@entry
def architecture(db: Database, kind: str | None, packed_table: str | None, parameters: str | None) -> str:
    """The JSON of the architecture."""
    if kind not in building.PARAMETERS:
        shown = "NULL" if kind is None else documents.shown(kind)
        raise InvalidArgument(f"kind cannot be {shown}.", hint=f"Kinds: {', '.join(building.PARAMETERS)}.")
    given = documents.argument(parameters, "parameters")
    return json.dumps(building.architecture(kind, read_layout(db, packed_table), given, "parameters"))
