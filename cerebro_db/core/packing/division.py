# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""How the rows of a packed table were divided into those for training and those for validation, or into folds.

Packing records it, so that rows that arrive later are divided by the same rule and the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Optional

from ..codec import Identifier, Misfit, Text, Within, different, omitted
from ..records import dataclass
from .preparation import MOST_COLUMNS

MOST_STRATA = 1000
LARGEST_HASH = 1 << 30
LONGEST_TEXT = 1_000_000  # characters of a moment or of a class


Hash = Annotated[int, Within(0, LARGEST_HASH)]


@dataclass(frozen=True)
class Division:
    """A row is for validation if its hash is below ``limit``, or if it is later than ``moment``.

    ``limits``: instead of ``limit``, the highest hash of each class that is for validation.  With none of the three,
    the hash says in which fold a row is.
    """

    # Those whose values are hashed.
    columns: Annotated[tuple[Identifier, ...], Within(1, MOST_COLUMNS), different] = omitted(())
    limit: Optional[Hash] = None
    at: Optional[Identifier] = None  # the column that is compared with ``moment``
    moment: Optional[Annotated[Text, Within(0, LONGEST_TEXT)]] = None
    stratify: Optional[Identifier] = None  # the column with the class
    limits: Optional[Annotated[Mapping[str, Hash], Within(1, MOST_STRATA)]] = None

    @property
    def names(self) -> list[str]:
        """All columns that a row needs to be divided."""
        return list(dict.fromkeys(name for name in (*self.columns, self.at, self.stratify) if name is not None))

    @property
    def is_of_folds(self) -> bool:
        return self.limit is None and self.moment is None and self.limits is None

    def require_agreement(self) -> None:
        if (
            (self.at is None) != (self.moment is None)
            or (self.stratify is None) != (self.limits is None)
            or bool(self.columns) == (self.at is not None)
            or sum(one is not None for one in (self.limit, self.at, self.limits)) > 1
        ):
            raise Misfit("contradicts itself")
