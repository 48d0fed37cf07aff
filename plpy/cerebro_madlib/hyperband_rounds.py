"""The rounds of a Hyperband search, as MADlib counts them."""

from __future__ import annotations

from typing import NamedTuple

from cerebro_db.core.errors import InvalidArgument


class Round(NamedTuple):
    """Round ``i`` of bracket ``s`` trains ``n_i`` configurations for ``r_i`` iterations."""

    s: int
    i: int
    n_i: int
    r_i: int


def schedule(r: int | None, eta: int | None, skip_last: int | None) -> list[Round]:
    """All rounds, the bracket with the most configurations first.

    ``r`` is the most iterations that a configuration gets. Of ``eta`` configurations, one stays in the next round.
    ``skip_last`` leaves out so many rounds at the end of every bracket.
    """
    if eta is None or eta < 2:
        raise InvalidArgument(f"eta is {_shown(eta)}; it must be greater than 1.")
    if r is None or r < eta:
        raise InvalidArgument(f"R is {_shown(r)}; it must be at least eta ({eta}).")
    brackets = 1
    while eta**brackets <= r:
        brackets += 1
    if skip_last is None or not 0 <= skip_last < brackets:
        raise InvalidArgument(
            f"skip_last is {_shown(skip_last)}; it must be at least 0 and less than {brackets},"
            f" the number of rounds of the longest bracket."
        )
    found = []
    for s in reversed(range(brackets)):
        configurations = brackets // (s + 1) * eta**s
        found += [Round(s, i, configurations // eta**i, round(r * eta**i / eta**s)) for i in range(s + 1 - skip_last)]
    return found


def _shown(value: int | None) -> str:
    return "NULL" if value is None else str(value)
