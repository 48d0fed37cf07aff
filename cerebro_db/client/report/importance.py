"""How much of the differences between the results of configurations one hyper-parameter explains."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence

FEWEST = 8  # configurations; fewer say nothing about single parameters
GROUPS = 4  # into which the values of a number are divided


def importance(values: Sequence[Hashable], results: Sequence[float]) -> float | None:
    """The share of the variance of the results' ranks that lies between groups of equal or similar values.

    0 means none, 1 means all. The share that groups have by chance is subtracted. Ranks, because one result that is
    far off would outweigh all others. None: there are too few configurations, or nothing differs.
    """
    if len(values) < FEWEST or len(set(results)) < 2:
        return None
    groups = defaultdict(list)
    for group, rank in zip(_groups(values), ranks(results)):
        groups[group].append(rank)
    if not 1 < len(groups) < len(values):
        return None
    everything = list(itertools.chain.from_iterable(groups.values()))
    within, whole = sum(map(_squares, groups.values())), _squares(everything)
    chance = (len(groups) - 1) * within / (len(values) - len(groups))
    return max(0.0, (whole - within - chance) / whole)


def trend(values: Sequence[object], results: Sequence[float]) -> float | None:
    """The rank correlation of a number with the results, from -1 to 1. None: the values are no numbers."""
    if len(values) < FEWEST or not all(is_number(value) for value in values):
        return None
    first, second = ranks(values), ranks(results)  # type: ignore[arg-type]
    if not _squares(first) or not _squares(second):
        return None
    middle = (len(values) + 1) / 2
    product = sum((one - middle) * (other - middle) for one, other in zip(first, second))
    return product / (_squares(first) * _squares(second)) ** 0.5


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in their order, from 1. Equal values share the mean of their places."""
    places = defaultdict(list)
    for place, value in enumerate(sorted(values), 1):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _groups(values: Sequence[Hashable]) -> list[Hashable]:
    """Numbers with many values are divided at their quantiles; all other values are groups of their own."""
    numbers = [value for value in values if is_number(value)]
    if len(set(numbers)) <= GROUPS:
        return list(values)
    ordered = sorted(numbers)  # type: ignore[type-var]
    bounds = [ordered[len(ordered) * part // GROUPS] for part in range(1, GROUPS)]
    return [
        ("from", sum(value >= bound for bound in bounds))  # type: ignore[operator]
        if is_number(value)
        else value
        for value in values
    ]


def _squares(numbers: Sequence[float]) -> float:
    mean = sum(numbers) / len(numbers)
    return sum((number - mean) ** 2 for number in numbers)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
