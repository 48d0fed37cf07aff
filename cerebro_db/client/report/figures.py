"""What the page about a model draws, from what is predicted for rows and what they have. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]
Interval = tuple[float, float]

LEAST_ROWS = 30  # of fewer, no interval is given
DEVIATIONS = 1.96  # of intervals that hold 95 % of the values
MOST_CLASSES = 15  # of a confusion matrix; the others are one class
MOST_POINTS = 200  # of a curve
MOST_ROWS_DRAWN = 1000
BINS = 10  # of probabilities
MOST_BARS = 31  # of residuals
LEAST = 1e-7  # probability, as in the log loss of cerebro.evaluate


# -- intervals -----------------------------------------------------------------------------------------------


def of_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """The ratio of two means over the same rows, and its standard error."""
    rows, whole = len(above), math.fsum(below)
    if not rows or not whole:
        return None
    value = math.fsum(above) / whole
    spread = math.fsum((one - value * other) ** 2 for one, other in zip(above, below))
    return value, math.sqrt(spread) / abs(whole)


def _around(value: float, error: float, low: float = -math.inf, high: float = math.inf) -> Interval:
    return max(low, value - DEVIATIONS * error), min(high, value + DEVIATIONS * error)


def share_interval(hits: int, rows: int) -> Interval:
    """Wilson's interval of a share, which is right for shares near 0 and 1, too."""
    share, square = hits / rows, DEVIATIONS**2
    middle = (share + square / (2 * rows)) / (1 + square / rows)
    half = DEVIATIONS / (1 + square / rows) * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def intervals_of_numbers(actual: Sequence[float], predicted: Sequence[float]) -> dict[str, Interval]:
    """By the names of the metrics of ``cerebro.evaluate``."""
    rows = len(actual)
    if rows < LEAST_ROWS:
        return {}
    errors = [known - value for known, value in zip(actual, predicted)]
    squares, sizes, ones = [one * one for one in errors], list(map(abs, errors)), [1.0] * rows
    mean = math.fsum(actual) / rows
    distances = [(known - mean) ** 2 for known in actual]
    found = {}
    if (mse := of_ratio(squares, ones)) is not None:
        found["mse"] = _around(*mse, low=0.0)
        found["rmse"] = (math.sqrt(found["mse"][0]), math.sqrt(found["mse"][1]))
    if (mae := of_ratio(sizes, ones)) is not None:
        found["mae"] = _around(*mae, low=0.0)
    if (unexplained := of_ratio(squares, distances)) is not None:
        low, high = _around(*unexplained, low=0.0)
        found["r2"] = (1 - high, 1 - low)
    return found


def intervals_of_classes(
    actual: Sequence[int], predicted: Sequence[int], known: Sequence[float], classes: int
) -> dict[str, Interval]:
    """``known``: the probability of the actual class of each row."""
    rows = len(actual)
    if rows < LEAST_ROWS:
        return {}
    right = [one == other for one, other in zip(actual, predicted)]
    found = {"accuracy": share_interval(sum(right), rows)}
    losses = [-math.log(max(one, LEAST)) for one in known]
    if (loss := of_ratio(losses, [1.0] * rows)) is not None:
        found["log_loss"] = _around(*loss, low=0.0)
    sizes, hits = Counter(actual), Counter(one for one, is_right in zip(actual, right) if is_right)
    recalls = {label: hits[label] / size for label, size in sizes.items()}
    variance = sum(recalls[label] * (1 - recalls[label]) / size for label, size in sizes.items())
    found["balanced_accuracy"] = _around(
        sum(recalls.values()) / len(sizes), math.sqrt(variance) / len(sizes), low=0.0, high=1.0
    )
    if classes == 2:
        above = [2.0 * (one == other == 1) for one, other in zip(actual, predicted)]
        below = [float((one == 1) + (other == 1)) for one, other in zip(actual, predicted)]
        if (f1 := of_ratio(above, below)) is not None:
            found["f1"] = _around(*f1, low=0.0, high=1.0)
        if len(sizes) == 2:
            found["auc"] = auc_interval([p if one else 1 - p for one, p in zip(actual, known)], actual)
    return found


def auc_interval(scores: Sequence[float], actual: Sequence[int]) -> Interval:
    """DeLong's interval of the area under the ROC curve."""
    ones = sorted(score for score, known in zip(scores, actual) if known == 1)
    others = sorted(score for score, known in zip(scores, actual) if known != 1)
    of_ones, of_others = _placed(ones, others), [1 - one for one in _placed(others, ones)]
    area = math.fsum(of_ones) / len(ones)
    return _around(area, math.sqrt(_variance(of_ones) / len(ones) + _variance(of_others) / len(others)), 0.0, 1.0)


def _placed(values: Sequence[float], among: Sequence[float]) -> list[float]:
    """For each of the ascending values, the share of the others that is below it; an equal one counts half."""
    found, below, upto = [], 0, 0
    for value in values:
        while below < len(among) and among[below] < value:
            below += 1
        upto = max(upto, below)
        while upto < len(among) and among[upto] <= value:
            upto += 1
        found.append((below + upto) / 2 / len(among))
    return found


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1)


# -- classes -------------------------------------------------------------------------------------------------


def confusion(labels: Sequence[str | None], actual: Sequence[int], predicted: Sequence[int]) -> Json:
    """How many rows of each class are predicted as each class. Of many classes, the frequent ones are told apart."""
    names = ["NULL" if label is None else label for label in labels]
    frequent = [place for place, _ in Counter(actual).most_common()]
    listed = frequent + [place for place in sorted(set(predicted)) if place not in set(frequent)]
    apart = sorted(listed if len(listed) <= MOST_CLASSES else listed[: MOST_CLASSES - 1])
    row_of = {place: row for row, place in enumerate(apart)}
    size = len(apart) + (len(listed) > len(apart))
    counts = [[0] * size for _ in range(size)]
    for one, other in zip(actual, predicted):
        counts[row_of.get(one, size - 1)][row_of.get(other, size - 1)] += 1
    others = [f"{len(listed) - len(apart)} other classes"] if size > len(apart) else []
    return {"labels": [names[place] for place in apart] + others, "counts": counts, "others": bool(others)}


def curves(scores: Sequence[float], actual: Sequence[int]) -> Json | None:
    """The ROC curve and the precision by recall of the class 1; None without rows of both classes."""
    ones = sum(actual)
    if not 0 < ones < len(actual):
        return None
    order = sorted(range(len(actual)), key=lambda row: -scores[row])
    roc, precision, hits = [(0.0, 0.0)], [], 0
    for place, row in enumerate(order):
        hits += actual[row]
        if place + 1 < len(order) and scores[order[place + 1]] == scores[row]:
            continue  # rows of one probability are taken together
        roc.append(((place + 1 - hits) / (len(actual) - ones), hits / ones))
        precision.append((hits / ones, hits / (place + 1)))
    return {"roc": _thinned(roc), "precision": _thinned(precision), "share": ones / len(actual)}


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    kept = [*points[::step], *([points[-1]] if (len(points) - 1) % step else [])]
    return [[round(x, 4), round(y, 4)] for x, y in kept]


def reliability(sure: Sequence[float], right: Sequence[bool]) -> list[list[float]]:
    """For each bin of the probability of the predicted class that has rows: its mean, how often it is right, rows."""
    bins: list[list[float]] = [[0.0, 0.0, 0.0] for _ in range(BINS)]
    for probability, is_right in zip(sure, right):
        one = bins[min(int(probability * BINS), BINS - 1)]
        one[0] += probability
        one[1] += is_right
        one[2] += 1
    return [[round(total / rows, 4), round(hits / rows, 4), rows] for total, hits, rows in bins if rows]


# -- numbers -------------------------------------------------------------------------------------------------


def scatter(actual: Sequence[float], predicted: Sequence[float]) -> list[list[float]]:
    """Actual and predicted values of some of the rows."""
    step = max(1, math.ceil(len(actual) / MOST_ROWS_DRAWN))
    return [[known, value] for known, value in list(zip(actual, predicted))[::step]]


def residuals(actual: Sequence[float], predicted: Sequence[float]) -> Json | None:
    """How many errors (actual - predicted) are how large. The largest hundredth at each end shares the last bar."""
    errors = sorted(known - value for known, value in zip(actual, predicted))
    if not errors:
        return None
    cut = len(errors) // 100
    low, high = errors[cut], errors[len(errors) - 1 - cut]
    bars = max(5, min(MOST_BARS, round(math.sqrt(len(errors)))))
    edges = [low + (high - low) * place / bars for place in range(bars + 1)] if high > low else [low, high]
    counts = [0] * (len(edges) - 1)
    for error in errors:
        counts[min(max(bisect_right(edges, error) - 1, 0), len(counts) - 1)] += 1
    return {"edges": edges, "counts": counts, "mean": math.fsum(errors) / len(errors),
            "median": errors[len(errors) // 2]}  # fmt: skip


def finite(*columns: Iterable[float]) -> list[list[Any]]:
    """The columns without the rows in which a number is infinite or none."""
    rows = [row for row in zip(*columns) if all(map(math.isfinite, row))]
    return [list(column) for column in zip(*rows)] if rows else [[] for _ in columns]
