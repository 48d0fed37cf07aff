"""The values of metrics: numbers, or lists with a number per class (F1Score) or per threshold (FalsePositives)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Union

Value = Union[float, list[Any], None]
SMALLEST, LARGEST = 1e-100, 1e100  # other numbers than 0 that the log takes; its views compute with them


def loggable(value: float) -> float:
    """A loss as the log takes it: what is out of bounds is infinite, or 0."""
    if abs(value) > LARGEST:
        return math.copysign(math.inf, value)
    return 0.0 if abs(value) < SMALLEST else value


def number(value: Value) -> float | None:
    """A metric as one number: of a list the mean; None if it is not finite or there is nothing to take a mean of."""
    if isinstance(value, list):
        parts = [number(one) for one in value]
        if not parts or None in parts:
            return None
        value = math.fsum(part for part in parts if part is not None) / len(parts)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def first(metrics: Mapping[str, Value]) -> float | None:
    """The first metric as one number, which is what the views show; None if there is none."""
    found = number(next(iter(metrics.values()), None))
    found = None if found is None else loggable(found)
    return found if found is not None and math.isfinite(found) else None


def to_json(metrics: Mapping[str, Value]) -> str:
    """All metrics as they are, but JSON has no NaN: null stands for a number that is not finite."""
    return json.dumps({name: _recordable(value) for name, value in metrics.items()})


def _recordable(value: Value) -> Value:
    return [_recordable(one) for one in value] if isinstance(value, list) else number(value)
