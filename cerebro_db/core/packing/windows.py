# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""Windows: a fixed number of consecutive rows of one subject, which a model reads as one row."""

from __future__ import annotations

from typing import Annotated, Any, Optional

from .. import codec
from ..codec import Identifier, Misfit, OneOf, Text, Within, different
from ..records import dataclass
from .preparation import MOST_COLUMNS

TARGETS = ("last", "majority", "each")
EXAMPLE = 'For instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.'
LONGEST = 1_000_000
COLUMNS = ("by", "order", "breaks")
RESTS = ("drop", "pad", "wrap")


@dataclass(frozen=True)
class Windows:
    """How rows become windows.  The first window of a subject begins at its first row."""

    # The columns that name the subject; none: all rows belong to one.
    by: Annotated[tuple[Identifier, ...], Within(0, MOST_COLUMNS), different]
    order: Annotated[tuple[Identifier, ...], Within(1, MOST_COLUMNS), different]
    length: Annotated[int, Within(2, LONGEST)]
    step: Annotated[int, Within(1, LONGEST)]  # rows from the beginning of a window to that of the next
    # Whose: that of the last row, the most frequent class, or one for each step of so many rows (``every``).
    target: Annotated[str, OneOf(*TARGETS)]
    # Rows from the last row of a window to the row whose target it has.
    horizon: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)
    every: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)  # rows of a step; 0: a window has one target
    gap: Optional[Text] = None  # the longest distance of two rows in the order that a window may have
    # Where one of these columns has another value, another window begins; rows where a boolean is true are in none.
    breaks: Annotated[tuple[Identifier, ...], Within(0, MOST_COLUMNS), different] = codec.omitted(())
    mean: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)  # of so many rows each is a row of a window; 0: of one
    rest: Annotated[str, OneOf(*RESTS)] = codec.omitted(RESTS[0])  # what becomes of rows after the last whole window

    def require_agreement(self) -> None:
        if self.horizon and self.target != TARGETS[0]:
            what = f'cannot be "{self.target}" with a horizon: it is that of one row after the window; leave it out'
            raise Misfit(what, "target")
        if self.every and self.target != "each":
            raise Misfit('needs "target": "each"', "every")
        if self.target == "each" and not (self.every and self.length % self.every == 0 and self.steps > 1):
            raise Misfit(f"has to divide the length {self.length} into at least two steps", "every")
        if self.mean and self.horizon:
            raise Misfit("cannot be used with a horizon: it counts rows of the source", "mean")
        if self.gap is not None and len(self.order) > 1:
            raise Misfit('needs an "order" of one column', "gap")
        if self.rest != RESTS[0] and not (self.every and self.step == self.length):
            raise Misfit(f'cannot be "{self.rest}" without "target": "each", or with "step"', "rest")

    @property
    def steps(self) -> int:
        """How many targets a window has, one for each step; 0: one for the whole window."""
        return self.length // self.every if self.every else 0

    @property
    def rows(self) -> int:
        """How many rows of the source a window has."""
        return self.length * (self.mean or 1)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that say which rows make a window, in which order."""
        return (*self.by, *self.order)

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that windows are made by."""
        return (*self.columns, *self.breaks)

    @property
    def may_break(self) -> bool:
        """Whether windows may begin anew within the rows of a subject."""
        return self.gap is not None or bool(self.breaks)


def wanted(document: Any, where: str) -> Windows:
    """The windows that a user's JSON asks for.  by and order are a column or a list of columns."""
    if isinstance(document, dict):
        document = {"by": [], "target": TARGETS[0], **{name: one for name, one in document.items() if one is not None}}
        # With a horizon, the newest window has to end at the newest row.
        document.setdefault("step", 1 if document.get("horizon") else document.get("length"))
        if document["target"] == "each":
            document.setdefault("every", 1)
        if isinstance(document.get("gap"), (int, float)) and not isinstance(document["gap"], bool):
            document["gap"] = str(document["gap"])
        document.update((name, [document[name]]) for name in COLUMNS if isinstance(document.get(name), str))
    return codec.decode(Windows, document, where, hint=EXAMPLE)
