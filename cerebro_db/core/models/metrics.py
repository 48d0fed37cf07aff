"""The values of metrics: numbers, or lists with a number per class (F1Score) or per threshold (FalsePositives).

A value follows from what its metric has counted.  The counts of several parts add up; their values do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

Value = Union[float, list[Any], None]
Means = Mapping[str, Sequence[float]]  # of metrics that are means over rows: total and count, by name

LOSS = "loss"
LEAST_PROBABILITY = 1e-7  # smaller ones count as this one in a cross-entropy, as in Keras
MIN, MAX = "min", "max"  # whether small or large values of a metric are better
# All metrics of a configuration may count in this many numbers, which travel with every visit and stay in the log: a
# confusion matrix of 512 classes, or the thresholds of 300 AUCs.
MOST_NUMBERS = 1 << 18

MOST_ON_RECORD = 20_000  # numbers of all metrics of one row of the log, which the view cerebro.metrics shows one by one

SMALLEST, LARGEST = 1e-100, 1e100  # other numbers than 0 that the log takes; its views compute with them


def is_better(direction: str, value: float, than: float, margin: float) -> bool:
    """Whether a value is better by the margin, or at all if that is 0.  Any number is better than NaN."""
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    gain = value - than if direction == MAX else than - value
    return gain >= margin if margin else gain > 0


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


def first(metrics: Mapping[str, Value]) -> tuple[str | None, float | None]:
    """The name of the first metric and its value as one number, which is what the views show; None if there is none."""
    name = next(iter(metrics), None)
    found = None if name is None else number(metrics[name])
    found = None if found is None else loggable(found)
    return name, found if found is not None and math.isfinite(found) else None


def to_json(metrics: Mapping[str, Value]) -> str:
    """All metrics as they are, but JSON has no NaN: null stands for a number that is not finite.

    A list that is too long for the log is recorded by its mean.
    """
    longest = MOST_ON_RECORD // max(1, sum(isinstance(value, list) for value in metrics.values()))
    return json.dumps(
        {name: number(value) if _length(value) > longest else _recordable(value) for name, value in metrics.items()}
    )


def _length(value: Value) -> int:
    return sum(map(_length, value)) if isinstance(value, list) else 1


def _recordable(value: Value) -> Value:
    return [_recordable(one) for one in value] if isinstance(value, list) else number(value)


def mean(total: float, count: float) -> float:
    """As Keras: the mean of nothing is 0."""
    return total / count if count else 0.0


def loss(means: Means) -> float:
    return mean(*means[LOSS]) if LOSS in means else math.nan


def merged_means(parts: Iterable[Means]) -> dict[str, list[float]]:
    """Total and count over several parts."""
    totals: dict[str, list[float]] = {}
    for means in parts:
        for name, (total, count) in means.items():
            so_far = totals.setdefault(name, [0.0, 0.0])
            so_far[0] += total
            so_far[1] += count
    return totals


def of_means(means: Means) -> dict[str, Value]:
    """The values of metrics that are means, without the loss."""
    return {name: mean(*counted) for name, counted in means.items() if name != LOSS}
