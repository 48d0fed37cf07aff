"""Windows: a fixed number of consecutive rows of one subject, which a model reads as one row."""

from __future__ import annotations

from typing import Annotated, Any

from .. import codec
from ..codec import Identifier, Misfit, OneOf, Within, different
from ..records import dataclass
from .preparation import MOST_COLUMNS

TARGETS = ("last", "majority")
EXAMPLE = 'For instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.'
LONGEST = 1_000_000
COLUMNS = ("by", "order")


@dataclass(frozen=True)
class Windows:
    """How rows become windows.  The first window of a subject begins at its first row."""

    # The columns that name the subject; none: all rows belong to one.
    by: Annotated[tuple[Identifier, ...], Within(0, MOST_COLUMNS), different]
    order: Annotated[tuple[Identifier, ...], Within(1, MOST_COLUMNS), different]
    length: Annotated[int, Within(2, LONGEST)]
    step: Annotated[int, Within(1, LONGEST)]  # rows from the beginning of a window to that of the next
    target: Annotated[str, OneOf(*TARGETS)]  # whose: that of the last row, or the most frequent class
    # Rows from the last row of a window to the row whose target it has.
    horizon: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)

    def require_agreement(self) -> None:
        if self.horizon and self.target != TARGETS[0]:
            what = f'cannot be "{self.target}" with a horizon: it is that of one row after the window; leave it out'
            raise Misfit(what, "target")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.by, *self.order)


def wanted(document: Any, where: str) -> Windows:
    """The windows that a user's JSON asks for.  by and order are a column or a list of columns."""
    if isinstance(document, dict):
        document = {"by": [], "target": TARGETS[0], **{name: one for name, one in document.items() if one is not None}}
        # With a horizon, the newest window has to end at the newest row.
        document.setdefault("step", 1 if document.get("horizon") else document.get("length"))
        document.update((name, [document[name]]) for name in COLUMNS if isinstance(document.get(name), str))
    return codec.decode(Windows, document, where, hint=EXAMPLE)
