"""Values as JSON, as PostgreSQL writes them: times in ISO 8601, and as texts the numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from ..orm import View


def as_json(value: Any) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    """Characters that a terminal would obey are written as JSON escapes them."""
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, View):
        return _plain(value.as_dict())
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
