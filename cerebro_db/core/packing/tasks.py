"""What cerebro.make_task decides without the database: which cut-off times are for validation, and what is a sum.

A cut-off time is the ``as_of`` of examples.  The target of an example is made of the events from its cut-off time on,
up to ``until``.  Rows for training must know nothing of the time of the rows for validation, so their ``until`` is not
after the first cut-off time for validation.  Cut-off times between both are left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Optional

from ..records import dataclass

MADE = "cerebro.make_task: "  # how the comment of a task's target begins
MOST_CUT_OFFS = 10_000
MOST_DIGITS = 9

_SUM = re.compile(r"\s*(?:pg_catalog\s*\.\s*)?sum\s*(?=\()", re.IGNORECASE)
_FILTER = re.compile(r"\s*filter\s*(?=\()", re.IGNORECASE)
_DIFFICULT = re.compile(r"--|/\*|\$|\\")  # comments, and texts in other quotes: nobody needs them in a sum


@dataclass(frozen=True)
class CutOff:
    """A cut-off time: as SQL writes it, and in microseconds, by which cut-off times are compared."""

    as_of: str
    until: str  # the end of the horizon
    since: Optional[str]  # noqa: UP045  (only entities with an event from then on; None: all)
    at: int
    ends: int


@dataclass(frozen=True)
class Periods:
    """The cut-off times for training and for validation, and how many between them are left out."""

    training: Sequence[CutOff]
    validation: Sequence[CutOff]
    left_out: int

    @property
    def all(self) -> list[CutOff]:
        return [*self.training, *self.validation]


def divided(cut_offs: Sequence[CutOff], share: float) -> Periods | None:
    """The division whose share of cut-off times for validation is nearest to ``share``; None if there is none.

    ``cut_offs`` are in the order of time, with horizons of one length.
    """
    ends = [one.ends for one in cut_offs]
    best: tuple[float, int, int] | None = None
    for first in range(1, len(cut_offs)):
        training = min(first, bisect_right(ends, cut_offs[first].at))
        if training:
            validation = len(cut_offs) - first
            best = min(best or (2.0, 0, 0), (abs(validation / (validation + training) - share), training, first))
    if best is None:
        return None
    _, training, first = best
    return Periods(cut_offs[:training], cut_offs[first:], first - training)


def share_at(before: int, last: int, after: int) -> float:
    """The argument ``validation`` with which ``split_at`` takes the last rows for validation, and no others.

    ``before`` rows come first, then the ``last`` ones for training, which have one time, then those ``after`` it.
    """
    rows = before + last + after
    for digits in range(1, MOST_DIGITS):
        step = 10**digits
        share = (after * step // rows + 1) / step  # not on the edge, where rounding could take a row from its side
        if share * rows < after + last:
            return share
    return (after + last / 2) / rows


def is_sum(expression: str) -> bool:
    """Whether the whole expression is one call of sum, of which no rows have NULL, and everybody expects 0."""
    begin = _SUM.match(expression)
    if begin is None or _DIFFICULT.search(expression):
        return False
    end = _closed(expression, begin.end())
    condition = _FILTER.match(expression, end)
    if condition is not None:
        end = _closed(expression, condition.end())
    return not expression[end:].strip()


def _closed(text: str, start: int) -> int:
    """The place after the parenthesis that closes the one at ``start``, or the end of the text."""
    depth, quote = 0, ""
    for place in range(start, len(text)):
        one = text[place]
        if quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one in "()":
            depth += 1 if one == "(" else -1
            if not depth:
                return place + 1
    return len(text)
