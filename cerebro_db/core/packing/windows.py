"""Windows: a fixed number of consecutive rows of one subject, which a model reads as one row."""

from __future__ import annotations

from typing import Any

from ..codec import omitted
from ..documents import shown
from ..errors import InvalidArgument, InvalidName
from ..names import check
from ..records import dataclass
from .preparation import MOST_COLUMNS

TARGETS = ("last", "majority")
EXAMPLE = 'For instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.'
LONGEST = 1_000_000


@dataclass(frozen=True)
class Windows:
    """How rows become windows.  The first window of a subject begins at its first row."""

    by: tuple[str, ...]  # the columns that name the subject; none: all rows belong to one
    order: tuple[str, ...]
    length: int
    step: int  # rows from the beginning of a window to that of the next
    target: str  # whose: that of the last row, or the most frequent class
    horizon: int = omitted(0)  # rows from the last row of a window to the row whose target it has

    @classmethod
    def from_document(cls, document: Any) -> Windows:
        """ValueError if the document of a summary does not describe windows."""
        try:
            return wanted(document, "it")
        except InvalidArgument as error:
            raise ValueError(error.message) from None

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.by, *self.order)


def wanted(document: Any, where: str) -> Windows:
    """The windows that a user's JSON asks for.  by and order are a column or a list of columns."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"{where} must be a JSON object.", hint=EXAMPLE)
    known = ("by", "order", "length", "step", "target", "horizon")
    for name in document:
        if name not in known:
            raise InvalidArgument(f"{where} has no entry {shown(name)}.", hint=f"It has {', '.join(known)}.")
    length = _count(document.get("length"), "length", 2, where)
    target = document.get("target", TARGETS[0])
    if target not in TARGETS:
        raise InvalidArgument(f"{where}: target cannot be {shown(target)}.", hint=f"It is {' or '.join(TARGETS)}.")
    order = _names(document.get("order"), "order", where)
    if not order:
        raise InvalidArgument(f"{where} does not say the order of the rows.", hint=EXAMPLE)
    step, horizon = document.get("step"), document.get("horizon")
    horizon = 0 if horizon is None else _count(horizon, "horizon", 0, where)
    if horizon and target != TARGETS[0]:
        raise InvalidArgument(
            f"{where}: target cannot be {shown(target)} with a horizon.",
            hint="The target is that of one row, so many rows after the window. Leave target out.",
        )
    if step is None:
        step = 1 if horizon else length  # the newest window has to end at the newest row
    return Windows(
        by=_names(document.get("by"), "by", where),
        order=order,
        length=length,
        step=_count(step, "step", 1, where),
        target=target,
        horizon=horizon,
    )


def _names(value: Any, entry: str, where: str) -> tuple[str, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name for name in listed) or len(set(listed)) < len(listed):
        raise InvalidArgument(f"{where}: {entry} must be a column or a list of different columns.", hint=EXAMPLE)
    if len(listed) > MOST_COLUMNS:
        raise InvalidArgument(f"{where}: {entry} has more than {MOST_COLUMNS} columns.", hint=EXAMPLE)
    try:
        for name in listed:
            check(name)
    except InvalidName as error:
        raise InvalidArgument(f"{where}: {entry}: {error.message}.", hint=EXAMPLE) from None
    return tuple(listed)


def _count(value: Any, entry: str, least: int, where: str) -> int:
    if type(value) is not int or not least <= value <= LONGEST:
        raise InvalidArgument(
            f"{where}: {entry} cannot be {shown(value)}.", hint=f"It must be an integer from {least} to {LONGEST}."
        )
    return value
