# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""Windows: a fixed number of consecutive rows of one subject, which a model reads as one row."""

from __future__ import annotations

from typing import Annotated, Any, Optional

from .. import codec
from ..codec import Identifier, Misfit, OneOf, Text, Within, different
from ..errors import InvalidArgument
from ..records import dataclass
from . import quantiles
from .preparation import MOST_COLUMNS

TARGETS = ("last", "majority", "each")
EXAMPLE = 'For instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.'
LONGEST = 1_000_000
COLUMNS = ("by", "order", "breaks", "known")
RESTS = ("drop", "pad", "wrap")
QUANTILES = "quantiles"
MOST_AHEAD = 1000  # later rows that a window has the targets of


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
    # The nearest of the later rows whose targets a window has, one for each row up to the horizon; 0: it has one.
    nearest: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)
    # Rows of a season, such as 7 of days: the target is near what it was one season before.  0: there is none.
    season: Annotated[int, Within(0, LONGEST)] = codec.omitted(0)
    # Columns of the later rows that are known before them, as a holiday is: inputs, up to the horizon.
    known: Annotated[tuple[Identifier, ...], Within(0, MOST_COLUMNS), different] = codec.omitted(())
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
        if self.nearest and not self.nearest < self.horizon <= self.nearest + MOST_AHEAD:
            raise Misfit(f"has to be two numbers, for instance [1, 24], with at most {MOST_AHEAD} rows", "horizon")
        if self.known and not self.steps <= self.length * bool(self.horizon):
            raise Misfit("needs a horizon, and a length of as many rows at least as are forecast", "known")
        if self.season and not self.season <= self.length * bool(self.horizon):
            raise Misfit("needs a horizon, and a length of as many rows at least", "season")
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
        """How many targets a window has, one for each step or later row; 0: one for the whole window."""
        if self.nearest:
            return self.horizon - self.nearest + 1
        return self.length // self.every if self.every else 0

    @property
    def before(self) -> list[int]:
        """Of each target, the place in the window of the row one season before, or of the last such row."""
        ahead = range(self.nearest or self.horizon, self.horizon + 1)
        return [self.length - self.season + (rows - 1) % self.season for rows in ahead] if self.season else []

    @property
    def rows(self) -> int:
        """How many rows of the source a window has."""
        return self.length * (self.mean or 1)

    @property
    def reach(self) -> int:
        """How many rows after the last one a window needs besides the target."""
        return self.horizon if self.known else 0

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
        given = {name: one for name, one in document.items() if one is not None and name != QUANTILES}
        document = {"by": [], "target": TARGETS[0], **given}
        # With a horizon, the newest window has to end at the newest row.
        document.setdefault("step", 1 if document.get("horizon") else document.get("length"))
        if isinstance(document.get("horizon"), list):
            document.update(_span(document["horizon"], where))
        if document["target"] == "each":
            document.setdefault("every", 1)
        if isinstance(document.get("gap"), (int, float)) and not isinstance(document["gap"], bool):
            document["gap"] = str(document["gap"])
        document.update((name, [document[name]]) for name in COLUMNS if isinstance(document.get(name), str))
    return codec.decode(Windows, document, where, hint=EXAMPLE)


def quantiles_of(document: Any, where: str) -> tuple[float, ...]:
    """The quantiles of the target that the same JSON asks for; none: its mean is predicted."""
    given = document.get(QUANTILES) if isinstance(document, dict) else None
    return () if given is None else quantiles.read(given, f"{where}: {QUANTILES}")


def _span(horizon: list[Any], where: str) -> dict[str, int]:
    """The nearest and the farthest of the later rows."""
    if len(horizon) != 2 or not all(type(one) is int and one > 0 for one in horizon) or horizon[0] > horizon[1]:
        raise InvalidArgument(
            f"{where}: horizon has to be a number of rows, or the nearest and the farthest one, not {horizon}.",
            hint="[1, 24] forecasts each of the next 24 rows.",
        )
    nearest, farthest = horizon
    return {"horizon": farthest, **({"nearest": nearest} if nearest < farthest else {})}
