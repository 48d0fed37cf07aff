"""Checks the requests of users to a run, as far as this needs no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument, UndefinedObject, WrongState
from ..records import dataclass
from .budget import Budget

# What can be done to a model -> the statuses in cerebro.leaderboard in which it can be done.
STOPPED, GONE_ON, CLONED = "stopped", "trained further", "cloned"
POSSIBLE = {
    STOPPED: ("waiting", "training"),
    GONE_ON: ("stopped",),
    CLONED: ("waiting", "training", "finished", "stopped", "failed"),
}
LONGEST_REASON = 10_000  # characters
MOST_NAMED = 10  # models in an error


@dataclass(frozen=True)
class Standing:
    """A model of a run, as the leaderboard shows it."""

    model: int
    key: int
    status: str
    parameters: str  # of its configuration, as a JSON text
    chosen: Mapping[str, Any] | None = None  # the point of the search space, if it is one

    def __str__(self) -> str:
        return f"model {self.model} (configuration {self.key})"


def meant(run: int, models: Sequence[Standing], key: int | None, model: int | None, done: str) -> Standing:
    """The one model that a person means, to which this can be done now."""
    hint = f"SELECT model, configuration, status FROM cerebro.leaderboard WHERE run = {run}; lists the models."
    if key is None and model is None:
        raise InvalidArgument(f"configuration and model are both NULL: which model of run {run} is meant?", hint=hint)
    found = [one for one in models if model is None or one.model == model]
    if not found:
        raise UndefinedObject(f"run {run} has no model {model}.", hint=hint)
    found = [one for one in found if key is None or one.key == key]
    if not found:
        what = f"configuration {key}" if model is None else f"model {model} of configuration {key}"
        raise UndefinedObject(f"run {run} has no {what}.", hint=hint)
    possible = [one for one in found if one.status in POSSIBLE[done]]
    if not possible:
        raise WrongState(
            f"{found[0]} of run {run} is {found[0].status}; only a model that is"
            f" {' or '.join(POSSIBLE[done])} can be {done}.",
            hint=hint,
        )
    if len(possible) > 1:
        numbers = ", ".join(str(one.model) for one in possible[:MOST_NAMED]) + (
            "" if len(possible) <= MOST_NAMED else ", …"
        )
        raise InvalidArgument(
            f"configuration {key} of run {run} has several models that can be {done}: {numbers}.",
            hint=f"Say which one is meant, for instance model => {possible[0].model}.",
        )
    return possible[0]


def checked_reason(reason: str | None) -> str:
    if reason is not None and len(reason) > LONGEST_REASON:
        raise InvalidArgument(f"reason has {len(reason)} characters; at most {LONGEST_REASON} are allowed.")
    return (reason or "").strip()


def checked_epochs(run: int, planned: int, epochs: int | None) -> int:
    """The new total number of epochs of a run."""
    if epochs is None or epochs <= planned:
        raise InvalidArgument(
            f"run {run} is planned for {planned} epochs; epochs cannot be {'NULL' if epochs is None else epochs}.",
            hint="epochs is the new total, and must be larger.",
        )
    return epochs


def checked_budget(given: object) -> dict[str, Any]:
    """The new budget of a run.  An empty one removes all limits."""
    try:
        return Budget.from_document(given).to_json()
    except ValueError as error:
        raise InvalidArgument(
            f"budget: {error}.", hint="{} removes all limits. cerebro.cancel(run) ends a run at once."
        ) from None
