"""The arguments of the three verbs cerebro.train, cerebro.search and cerebro.fit, in one value."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.arguments import FitArguments, TrainArguments
from cerebro_db.core.following import Step
from cerebro_db.core.options import GivenOptions, parsed
from cerebro_db.core.records import dataclass, field

TRAIN, SEARCH, FIT = "cerebro.train", "cerebro.search", "cerebro.fit"


@dataclass(frozen=True)
class Given(TrainArguments, FitArguments):
    """The arguments of one call; those that its verb does not have are those of a call without them."""

    verb: str = TRAIN
    options: GivenOptions = field(default_factory=dict)  # type: ignore[assignment]
    follows: tuple[Step, ...] | None = None  # what the caller does with the model tables; no argument


def of_call(verb: str, **arguments: Any) -> Given:
    return Given(verb=verb, **{**arguments, "options": parsed(arguments["options"])})
