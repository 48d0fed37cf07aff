"""What the columns of a row were, as far as their prepared values say: for people who look at a prediction.

Packed rows have the prepared values alone, as float32. So numbers have four digits here, and what a preparation leaves
out (a rare category, the words of a text) is said in words.
"""

from __future__ import annotations

import datetime
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

from .features import CategoryFeature, DateFeature, Feature, MeansFeature, NumberFeature, WordsFeature
from .layout import Layout, Variable
from .preparation import Pixels

Shown = Optional[str]  # None: NULL

MOST_SHOWN = 4  # numbers of an array
LEAST = 2.0**-22  # of a number, as a part of those it was packed with: the precision of float32
EPOCH = datetime.date(1970, 1, 1).toordinal()


def of_row(layout: Layout, row: Sequence[Sequence[float]]) -> list[tuple[str, Shown]]:
    """Each input column, and what it was; of a window, in its last row. ``row``: the packed values of each input."""
    found: list[tuple[str, Shown]] = []
    for variable, values in zip(layout.inputs, row):
        last = values if layout.windows is None else values[-(variable.elements // variable.shape[0]) :]
        found += _of_variable(variable, last)
    return list(dict(found).items())


def _of_variable(variable: Variable, values: Sequence[float]) -> list[tuple[str, Shown]]:
    features = variable.preparation.features
    if not features:
        return [(", ".join(variable.columns), _array(variable, values))]
    found, start = [], 0
    for column, feature in zip(variable.columns, features):
        if not isinstance(feature, MeansFeature):  # its column is a category, too
            found.append((column, _of_feature(feature, values[start : start + len(feature.names)])))
        start += len(feature.names)
    return found


def _array(variable: Variable, values: Sequence[float]) -> str:
    if isinstance(variable.preparation, Pixels):
        return f"image of {' x '.join(map(str, variable.shape))}"
    by = 1 / variable.preparation.factor(variable.dtype)
    listed = ", ".join(_number(value * by) for value in values[:MOST_SHOWN])
    if len(values) == 1:
        return listed
    return f"[{listed}{', …' if len(values) > MOST_SHOWN else ''}]"


def _of_feature(feature: Feature, values: Sequence[float]) -> Shown:
    if isinstance(feature, NumberFeature):
        return None if feature.missing and values[-1] > 0.5 else _number(number_of(feature, values[0]))
    if isinstance(feature, DateFeature):
        return _date(feature, values)
    if isinstance(feature, CategoryFeature):
        return _category(feature, int(values[0]))
    if isinstance(feature, WordsFeature):
        return f"text of {sum(1 for one in values if one)} words"
    return "?"


def number_of(feature: NumberFeature, value: float) -> float:
    """The number that became this value."""
    if feature.transform == "quantile":
        return _between(value, feature.scores, feature.knots)
    plain = value * feature.deviation + feature.mean
    if abs(plain) < LEAST * max(abs(feature.mean), feature.deviation):
        return 0.0  # all else is the rounding error of the packed value
    if feature.transform == "log":
        return math.copysign(math.expm1(min(abs(plain), 700.0)) * feature.unit, plain)
    return plain


def _between(value: float, scores: Sequence[float], knots: Sequence[float]) -> float:
    place = min(max(bisect_right(scores, value), 1), len(scores) - 1)
    low, high = scores[place - 1], scores[place]
    share = 0.0 if high == low else min(1.0, max(0.0, (value - low) / (high - low)))
    return knots[place - 1] + share * (knots[place] - knots[place - 1])


def _date(feature: DateFeature, values: Sequence[float]) -> Shown:
    named = dict(zip(feature.names, values))
    if named.get("missing", 0.0) > 0.5:
        return None
    if "days" not in named:
        return "a moment"
    day = round(named["days"] * feature.deviation + feature.mean) + EPOCH
    return datetime.date.fromordinal(day).isoformat() if 1 <= day <= datetime.date.max.toordinal() else "a day"


def _category(feature: CategoryFeature, code: int) -> Shown:
    if code == 0:
        return "NULL or unknown"
    if code <= len(feature.values):
        return feature.values[code - 1]
    return "a rare value" if feature.rare and code == len(feature.values) + 1 else "another value"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"
