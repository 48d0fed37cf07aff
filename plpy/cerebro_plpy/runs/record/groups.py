"""What the log has of a model that trains on the rows of one group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.layout import DataSet


def group_on_record(source: DataSet, validation: DataSet | None, number: int, visits: Sequence[int]) -> dict[str, Any]:
    """The columns of cerebro.model that say on which rows a model trains, and on how many it is evaluated."""
    pieces = source.pieces[number]
    evaluated = validation.pieces.get(number, {}) if validation is not None else {}
    return {
        "visits": list(visits),
        "group_number": number,
        "group_value": label_of(source.groups[number - 1]),
        "group_rows": sum(pieces.values()),
        "validation_rows": sum(evaluated.values()) if validation is not None else None,
    }


def label_of(values: list[str | None]) -> str | None:
    """The values of a group as one text: of several columns, a JSON array."""
    return values[0] if len(values) == 1 else json.dumps(values, ensure_ascii=False)
