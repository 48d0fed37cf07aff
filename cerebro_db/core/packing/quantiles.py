"""Which quantiles of a target a model predicts, as a user lists them: ``[0.1, 0.5, 0.9]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument

MOST_QUANTILES = 99
FINEST = 1e-4  # the distance of a quantile from 0, 1 and the others


def quantiles_are_right(quantiles: Sequence[float]) -> bool:
    ends = [0.0, *quantiles, 1.0]
    return len(quantiles) <= MOST_QUANTILES and all(
        later - earlier >= FINEST * 0.999 for earlier, later in zip(ends, ends[1:])
    )


def read(given: Any, where: str) -> tuple[float, ...]:
    """The quantiles of an argument."""
    numbers = isinstance(given, list) and all(type(one) in (int, float) for one in given)
    if not numbers or not given or not quantiles_are_right(given):
        raise InvalidArgument(
            f"{where} cannot be {given!r}.",
            hint=f"It must be a list of 1 to {MOST_QUANTILES} rising numbers between 0 and 1, such as [0.1, 0.5, 0.9].",
        )
    return tuple(map(float, given))


def column_of(quantile: float) -> str:
    """The name of the column with a quantile: q10, q2_5."""
    return f"q{100 * quantile:.6g}".replace(".", "_")
