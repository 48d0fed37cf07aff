# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The argument ``related``: which tables the user wants read beside the source, and how they are reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Optional

from .. import codec, documents
from ..codec import Identifier, Text, Within
from ..errors import InvalidArgument
from ..names import LONGEST, split_list
from ..records import dataclass, field
from .related import DEEPEST, MOST_LATEST, MOST_OF_STEP, MOST_STEPS, SEPARATOR, labels_of, parent_of

AUTO = "auto"
USUAL_DEPTH = 2
EXAMPLE = """For instance 'auto', or '{"orders": {"time": "ordered_at"}, "orders.items": {"unchanging": true}}'."""
LONGEST_LIST = MOST_OF_STEP * (LONGEST + 4)


@dataclass(frozen=True)
class WantedStep:
    """What the user says about one related table; None: nothing."""

    table: Optional[Text] = None
    on: Any = None  # a text, or an object
    time: Optional[Identifier] = None
    unchanging: bool = False
    columns: Optional[Annotated[Text, Within(0, LONGEST_LIST)]] = None  # empty: none, it only leads to other tables
    latest: Optional[Annotated[int, Within(0, MOST_LATEST)]] = None

    def require_agreement(self) -> None:
        if self.unchanging and self.time is not None:
            raise codec.Misfit("cannot have both: rows with a time change", "unchanging")

    def pairs(self, where: str) -> list[tuple[str | None, str]] | None:
        """Each column of this table, and that of the table before it if the user names one; None: nothing is said."""
        if self.on is None:
            return None
        if isinstance(self.on, str):
            return [(None, name) for name in split_list(self.on, where)]
        if not isinstance(self.on, dict) or not self.on or not all(isinstance(one, str) for one in self.on.values()):
            raise InvalidArgument(
                f"{where} must be a text or an object of texts.",
                hint='For instance "customer_id", or {"id": "customer_id"}: the column before, and that of the table.',
            )
        codec.read(dict[str, Identifier], self.on, where)
        return list(self.on.items())


@dataclass(frozen=True)
class WantedRelated:
    """The argument.  ``depth``: how far declared foreign keys are followed; 0: only the steps that it names count."""

    depth: int
    steps: Mapping[str, WantedStep] = field(default_factory=dict)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """An argument on record, with these tables by path: those that it names itself are a stranger's choice.

    What it does not name is found by declared foreign keys of the source.
    """
    asked = wanted(text)
    if asked is None or asked.depth:
        return text
    missing = [path for path in asked.steps if path not in tables]
    if missing:
        raise KeyError(missing[0])
    document = documents.argument(text, "related", EXAMPLE)
    return json.dumps({path: {**(document.get(path) or {}), "table": tables[path]} for path in asked.steps})


def wanted(text: str | None) -> WantedRelated | None:
    if text is None:
        return None
    if text.strip().lower() == AUTO:
        return WantedRelated(USUAL_DEPTH)
    document = documents.argument(text, "related", EXAMPLE)
    if not isinstance(document, dict) or not document:
        raise InvalidArgument("related must be 'auto' or a JSON object that is not empty.", hint=EXAMPLE)
    if len(document) > MOST_STEPS:
        raise InvalidArgument(f"related has {len(document)} tables; the limit is {MOST_STEPS}.")
    steps: dict[str, WantedStep] = {}
    for path, entry in document.items():
        labels = labels_of(path)
        if not all(label.strip() for label in labels) or len(labels) > DEEPEST:
            raise InvalidArgument(
                f"related: {documents.shown(path)} is no path of 1 to {DEEPEST} labels, joined by dots.", hint=EXAMPLE
            )
        if isinstance(entry, dict):
            entry = {name: one for name, one in entry.items() if one is not None}
        steps[path] = codec.decode(WantedStep, entry, f"related: {path}", hint=EXAMPLE)
    for path in list(steps):
        while (path := parent_of(path)) and path not in steps:
            steps[path] = WantedStep()
    return WantedRelated(0, dict(sorted(steps.items(), key=lambda one: one[0].count(SEPARATOR))))
