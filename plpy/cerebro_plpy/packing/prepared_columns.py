"""``cerebro.prepared_columns``: what the columns of a packed table became."""

from __future__ import annotations

import json
from typing import Any

from cerebro_db.core import codec

from ..database.access import Database
from ..database.entry import entry
from .rows.summary import read_layout

NOT_SHOWN = ("family", "vocabulary")  # a vocabulary has hundreds of kilobytes, and its size is in "ids"


@entry
def prepared_columns(db: Database, packed_table: str | None) -> list[dict[str, Any]]:
    """A row for each column of a packed table's or a model's summary."""
    found = []
    layout = read_layout(db, packed_table)
    for variable in (*layout.inputs, *layout.outputs):
        if variable.later:
            continue  # the columns are prepared as those of another input
        start = 1
        for number, column in enumerate(variable.columns):
            document = codec.encode(variable.preparation)
            features = variable.preparation.features
            width = len(features[number].names) if features else variable.elements // len(variable.columns)
            if features:
                document = document["features"][number]
            what = document.pop("prepared_as", None) or document.pop("kind")
            found.append(
                {
                    "variable": variable.name,
                    "is_target": variable.target is not None,
                    "column_name": column,
                    "column_type": document.pop("type", None),
                    "prepared_as": what,
                    "start": start,
                    "width": width,
                    "parameters": json.dumps({name: one for name, one in document.items() if name not in NOT_SHOWN}),
                }
            )
            start += width
    return found
