"""How the rows of a packed table were divided into those for training and those for validation, or into folds.

Packing records it, so that rows that arrive later are divided by the same rule and the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..documents import Fields
from ..records import dataclass
from .preparation import MOST_COLUMNS

MOST_STRATA = 1000
LARGEST_HASH = 1 << 30
LONGEST_TEXT = 1_000_000  # characters of a moment or of a class


@dataclass(frozen=True)
class Division:
    """A row is for validation if its hash is below ``limit``, or if it is later than ``moment``.

    ``limits``: instead of ``limit``, the highest hash of each class that is for validation.  With none of the three,
    the hash says in which fold a row is.
    """

    columns: tuple[str, ...] = ()  # whose values are hashed
    limit: int | None = None
    at: str | None = None  # the column that is compared with ``moment``
    moment: str | None = None
    stratify: str | None = None  # the column with the class
    limits: Mapping[str, int] | None = None

    @property
    def names(self) -> list[str]:
        """All columns that a row needs to be divided."""
        return list(dict.fromkeys(name for name in (*self.columns, self.at, self.stratify) if name is not None))

    @property
    def is_of_folds(self) -> bool:
        return self.limit is None and self.moment is None and self.limits is None

    def to_json(self) -> dict[str, Any]:
        found = {
            "columns": list(self.columns) or None,
            "limit": self.limit,
            "at": self.at,
            "moment": self.moment,
            "stratify": self.stratify,
            "limits": None if self.limits is None else dict(self.limits),
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def read(cls, fields: Fields) -> Division:
        limits = None
        if fields.has("limits"):
            listed = fields.object("limits", f"{fields.where}: limits")
            limits = {label: listed.whole(label, 0, LARGEST_HASH) for label in listed.document}
            if not 1 <= len(limits) <= MOST_STRATA:
                raise fields.wrong(f"must have 1 to {MOST_STRATA} classes", "limits")
        found = cls(
            fields.identifiers("columns", 1, MOST_COLUMNS) if fields.has("columns") else (),
            fields.whole("limit", 0, LARGEST_HASH) if fields.has("limit") else None,
            fields.identifier("at") if fields.has("at") else None,
            fields.text("moment", LONGEST_TEXT) if fields.has("moment") else None,
            fields.identifier("stratify") if fields.has("stratify") else None,
            limits,
        )
        fields.done()
        if (
            (found.at is None) != (found.moment is None)
            or (found.stratify is None) != (limits is None)
            or bool(found.columns) == (found.at is not None)
            or sum(one is not None for one in (found.limit, found.at, limits)) > 1
        ):
            raise fields.wrong("contradicts itself")
        return found
