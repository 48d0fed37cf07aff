"""The dimensions of a search space: what one parameter may be.

A dimension turns a uniform random number in [0, 1) into a value, and a value into its neighbours.
"""

from __future__ import annotations

import abc
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ...parameters.grid_dimensions import between, whole_between
from ...records import dataclass, field

MOST_VALUES = 10_000  # of one dimension in a grid


@dataclass(frozen=True)
class Condition:
    """Another dimension, and those of its values with which a dimension is part of a point."""

    dimension: str
    values: tuple[Any, ...]
    _known: frozenset[Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(map(identity, self.values)))

    def holds(self, point: Mapping[str, Any]) -> bool:
        """False also if the other dimension is not part of the point."""
        return self.dimension in point and identity(point[self.dimension]) in self._known


@dataclass(frozen=True)
class Dimension(abc.ABC):
    """One parameter of a space."""

    name: str  # in points; no two dimensions of a space have the same
    path: str  # its place in the JSON of the space
    conditions: tuple[Condition, ...]

    @abc.abstractmethod
    def value(self, uniform: float) -> Any:
        """The value that belongs to a uniform random number in [0, 1)."""

    @abc.abstractmethod
    def has(self, value: Any) -> bool:
        """Whether the dimension has the value."""

    def key(self, value: Any) -> float:
        """Equal for values that are the same JSON."""
        return float(value)

    @abc.abstractmethod
    def values(self) -> Sequence[Any] | None:
        """All values, for a grid; None if there are too many."""

    @abc.abstractmethod
    def changed(self, value: Any, chance: random.Random) -> Any:
        """Another value, as a mutation chooses it; the same if there is no other."""

    def perturbed(self, value: Any, factor: float) -> Any:
        """The value times a factor, or its neighbour in that direction; the same if that is not possible."""
        return value

    def described(self) -> dict[str, Any]:
        """The dimension as JSON, for the process that suggests points; ``of_description`` makes it of that again."""
        conditions = [[one.dimension, list(one.values)] for one in self.conditions]
        return {"name": self.name, "path": self.path, "conditions": conditions}

    @abc.abstractmethod
    def probes(self) -> Sequence[Any]:
        """The values with which a space is tried out before a run."""


@dataclass(frozen=True)
class Choice(Dimension):
    """One of several options.  In a point stands the option itself or, if it is a list or an object, its label."""

    labels: tuple[Any, ...]
    _places: Mapping[Any, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {identity(label): place for place, label in enumerate(self.labels)})

    def value(self, uniform: float) -> Any:
        return self.labels[int(uniform * len(self.labels))]

    def index(self, value: Any) -> int:
        return self._places[identity(value)]

    def key(self, value: Any) -> float:
        return self.index(value)

    def has(self, value: Any) -> bool:
        return identity(value) in self._places

    def values(self) -> Sequence[Any]:
        return self.labels

    def changed(self, value: Any, chance: random.Random) -> Any:
        place = self._places.get(identity(value))
        others = self.labels if place is None else self.labels[:place] + self.labels[place + 1 :]
        return others[int(chance.random() * len(others))] if others else value

    @property
    def numeric(self) -> bool:
        return all(isinstance(label, (int, float)) and not isinstance(label, bool) for label in self.labels)

    def perturbed(self, value: Any, factor: float) -> Any:
        """The next smaller or larger number."""
        if not self.numeric:
            return value
        ordered = sorted(self.labels)
        place = next(index for index, label in enumerate(ordered) if same(label, value))
        return ordered[min(len(ordered) - 1, max(0, place + (1 if factor > 1 else -1)))]

    def described(self) -> dict[str, Any]:
        return {**super().described(), "labels": list(self.labels)}

    def probes(self) -> Sequence[Any]:
        return self.labels


@dataclass(frozen=True)
class Number(Dimension):
    """A number between two bounds, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    step: float | None = None  # only the numbers low, low + step, low + 2 * step, …
    points: int | None = None  # how many values a grid takes

    def value(self, uniform: float) -> Any:
        if self.step is None:
            if self.whole:
                return whole_between(int(self.low), int(self.high), uniform, self.log)
            return between(self.low, self.high, uniform, self.log)
        if not self.log:
            return self._nth(whole_between(0, self.steps, uniform, log=False))
        return self.nearest(between(self.low, self.high, uniform, log=True))

    @property
    def steps(self) -> int:
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step + 1e-9)

    def _nth(self, number: int) -> Any:
        assert self.step is not None
        value = min(self.high, self.low + number * self.step)
        return int(value) if self.whole else float(f"{value:.12g}")  # 0.3 and not 0.30000000000000004

    def nearest(self, value: float) -> Any:
        """The nearest number that the dimension has."""
        value = min(self.high, max(self.low, value))
        if self.step is not None:
            return self._nth(min(self.steps, round((value - self.low) / self.step)))
        return round(value) if self.whole else float(value)

    def has(self, value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and math.isclose(self.nearest(value), value, rel_tol=1e-9)

    def values(self) -> Sequence[Any] | None:
        if self.points is not None:
            shares = [index / max(1, self.points - 1) for index in range(self.points)]
            spread = (self.nearest(between(self.low, self.high, share, self.log)) for share in shares)
            return list(dict.fromkeys(spread))
        if self.step is not None:
            return [self._nth(number) for number in range(self.steps + 1)] if self.steps < MOST_VALUES else None
        if self.whole and self.high - self.low < MOST_VALUES:
            return list(range(int(self.low), int(self.high) + 1))
        return None

    def changed(self, value: Any, chance: random.Random) -> Any:
        """A number nearby: a fifth of the whole range away, on average."""
        share = self._share(value)
        for _ in range(10):
            moved = self.nearest(between(self.low, self.high, min(1.0, max(0.0, chance.gauss(share, 0.2))), self.log))
            if moved != value:
                return moved
        return value

    def _share(self, value: float) -> float:
        """Where between the bounds a value is, from 0 to 1."""
        low, high, value = (math.log(one) if self.log else one for one in (self.low, self.high, value))
        return (value - low) / (high - low) if high > low else 0.0

    def perturbed(self, value: Any, factor: float) -> Any:
        moved = self.nearest(value * factor)
        if moved != value or not (self.whole or self.step):
            return moved
        step = self.step or 1
        return self.nearest(value + (step if factor > 1 else -step))

    def described(self) -> dict[str, Any]:
        return {
            **super().described(),
            "low": self.low,
            "high": self.high,
            "log": self.log,
            "whole": self.whole,
            "step": self.step,
        }

    def probes(self) -> Sequence[Any]:
        return [self.nearest(self.low), self.nearest(self.high)]


def of_description(given: Mapping[str, Any]) -> Dimension:
    conditions = tuple(Condition(name, tuple(values)) for name, values in given["conditions"])
    own = {key: value for key, value in given.items() if key not in ("name", "path", "conditions", "labels")}
    if "labels" in given:
        return Choice(given["name"], given["path"], conditions, tuple(given["labels"]))
    return Number(given["name"], given["path"], conditions, **own)


def identity(value: Any) -> Any:
    """Equal for values that are the same JSON; the log gives 1e38 back as a whole number, and true is no number."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return value
    return (json.dumps(value, sort_keys=True),)


def same(one: Any, other: Any) -> bool:
    return bool(identity(one) == identity(other))
