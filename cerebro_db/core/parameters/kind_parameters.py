"""The parameters that a kind of architecture can have: each is an amount between two bounds, or one of some words."""

from __future__ import annotations

from typing import Any, Union

from ..records import dataclass


@dataclass(frozen=True)
class Amount:
    """A number; one with a fraction if its default has one."""

    default: float
    lowest: float
    highest: float

    def has(self, value: Any) -> bool:
        types = (int, float) if isinstance(self.default, float) else (int,)
        return type(value) in types and self.lowest <= value <= self.highest

    @property
    def told(self) -> str:
        what = "a number" if isinstance(self.default, float) else "an integer"
        return f"{what} from {self.lowest} to {self.highest}"


@dataclass(frozen=True)
class Keyword:
    """One of a closed list of words."""

    default: str
    every: tuple[str, ...]

    def has(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.every

    @property
    def told(self) -> str:
        return " or ".join(self.every)


Parameter = Union[Amount, Keyword]
