"""``cerebro.architecture`` and ``cerebro.default_compile_params``: a model that fits a packed table."""

from __future__ import annotations

import json

from cerebro_db.core import documents
from cerebro_db.core.architecture import building
from cerebro_db.core.errors import InvalidArgument

from ..database.access import Database
from ..database.entry import entry
from .summary import read_layout


@entry
def architecture(db: Database, kind: str | None, packed_table: str | None, parameters: str | None) -> str:
    """The JSON of the architecture."""
    if kind not in building.PARAMETERS:
        shown = "NULL" if kind is None else documents.shown(kind)
        raise InvalidArgument(f"kind cannot be {shown}.", hint=f"Kinds: {', '.join(building.PARAMETERS)}.")
    given = documents.argument(parameters, "parameters")
    return json.dumps(building.architecture(kind, read_layout(db, packed_table), given, "parameters"))


@entry
def default_compile_params(db: Database, packed_table: str | None, optimizer: str | None) -> str:
    """The optimizer, the losses and the metrics, as a model selection table has them."""
    return building.compile_params(read_layout(db, packed_table), optimizer or building.OPTIMIZER)
