# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""Chooses the members of an ensemble by what the models predict of the rows for validation.

All models join, or all but the worst ones.  The exception is a mean of some of them that predicts these rows better by
more than a standard error; a forward search finds it.  A smaller advantage is no reason to leave models out: the search
fits these rows by chance, too, and a mean of more models predicts other rows better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Optional

from .. import codec
from ..codec import Text, Whole, Within
from ..records import dataclass
from .metrics import LEAST_PROBABILITY

MOST_SEARCHED = 20  # members of a searched mean; more change it little
MOST_MEMBERS = 100
LEAST_MEMBERS = 2  # that are compared, however short the time is
USUAL_MEMBERS = 8  # the default of the SQL function
Comparison = tuple[float, float]  # what a mean loses more than another, and the standard error of that


@dataclass(frozen=True)
class MemberConfiguration:
    """What a member of an ensemble was trained with; a table ``_info`` has it, and ``cerebro.retrain`` reads it."""

    architecture: Optional[Text]  # a name; None: its layers are those of the ensemble's architecture
    parameters: Mapping[str, Any]  # flat
    epoch: Optional[Whole]  # after which its state is the best


Members = Annotated[list[MemberConfiguration], Within(1, MOST_MEMBERS)]


def read_members(document: Any, where: str) -> list[MemberConfiguration]:
    """The members; none without a document."""
    return [] if document is None else codec.read(Members, document, where)


@dataclass(frozen=True)
class OfOutput:
    """What the models predict of one output: a list for each model, with a number for each row.

    Of a class, it is the probability of the row's own class; of a number, the error.  The mean of models has the mean
    of their probabilities, and the mean of their errors.
    """

    of_classes: bool
    of_models: Sequence[Sequence[float]]

    def first(self, rows: int) -> OfOutput:
        """The same of so many rows."""
        return OfOutput(self.of_classes, [one[:rows] for one in self.of_models])

    def sums(self, models: Iterable[int]) -> list[float]:
        """Of each row, the sum over the models."""
        return list(map(sum, zip(*(self.of_models[model] for model in models))))

    def losses(self, sums: Iterable[float], count: int) -> list[float]:
        """Of each row, the loss of the mean of ``count`` models; infinite where the mean is no number."""
        means = (one / count for one in sums)
        if self.of_classes:
            return [-math.log(max(one, LEAST_PROBABILITY)) if math.isfinite(one) else math.inf for one in means]
        return [one * one if math.isfinite(one) else math.inf for one in means]

    def losses_of(self, models: Sequence[int]) -> list[float]:
        return self.losses(self.sums(models), len(models))

    def loss(self, models: Sequence[int]) -> float:
        """The loss of the mean of these models over all rows."""
        return mean(self.losses_of(models))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def members(outputs: Sequence[OfOutput]) -> list[int]:
    """The models of which the ensemble is the mean, the best one first; the first alone if none predicts numbers."""
    alone = [[one.loss([model]) for model in range(len(one.of_models))] for one in outputs]
    # Each of several outputs counts alike, however large its numbers are.
    units = [least if 0 < (least := min(its)) < math.inf else 1.0 for its in alone]
    losses = [sum(one / unit for one, unit in zip(its, units)) for its in zip(*alone)]
    ranked = [model for loss, model in sorted(zip(losses, range(len(losses)))) if math.isfinite(loss)]
    if not ranked:
        return [0]
    searched = _searched(outputs, units, ranked)
    return ranked[: _as_good(outputs, units, ranked, searched)] or searched


def _searched(outputs: Sequence[OfOutput], units: Sequence[float], ranked: Sequence[int]) -> list[int]:
    """The best mean of a forward search: each step adds the model with which the mean is best."""

    def loss(sums: Sequence[Sequence[float]], count: int) -> float:
        return math.fsum(mean(one.losses(its, count)) / unit for one, its, unit in zip(outputs, sums, units))

    added = [ranked[0]]
    sums: Sequence[Sequence[float]] = [one.sums(added) for one in outputs]
    best, least = list(added), loss(sums, 1)
    for count in range(2, min(len(ranked), MOST_SEARCHED) + 1):
        further = {model: _plus(outputs, sums, model) for model in ranked if model not in added}
        reached, model = min((loss(its, count), model) for model, its in further.items())
        added.append(model)
        sums = further[model]
        if reached < least:
            best, least = list(added), reached
    return best


def _plus(outputs: Sequence[OfOutput], sums: Sequence[Sequence[float]], model: int) -> list[list[float]]:
    return [[a + b for a, b in zip(its, one.of_models[model])] for one, its in zip(outputs, sums)]


def _as_good(
    outputs: Sequence[OfOutput], units: Sequence[float], ranked: Sequence[int], searched: Sequence[int]
) -> int:
    """How many of the best models have a mean that is not worse than the searched one by more than a standard error.

    The largest number from two on; 0: none.
    """
    found = 0
    best = [one.losses_of(searched) for one in outputs]
    sums: Sequence[Sequence[float]] = [one.sums(ranked[:1]) for one in outputs]
    for count, model in enumerate(ranked[1:], 2):
        sums = _plus(outputs, sums, model)
        compared = [difference(one.losses(its, count), of_best) for one, its, of_best in zip(outputs, sums, best)]
        worse = math.fsum(more / unit for (more, _), unit in zip(compared, units))
        if worse <= math.hypot(*(error / unit for (_, error), unit in zip(compared, units))):
            found = count
    return found


def difference(losses: Sequence[float], others: Sequence[float]) -> Comparison:
    """The mean of the differences of the rows, and its standard error."""
    differences = [one - other for one, other in zip(losses, others)]
    more = mean(differences)
    spread = math.fsum((one - more) ** 2 for one in differences) / max(1, len(differences) - 1)
    return more, math.sqrt(spread / len(differences))


# -- when time is short --------------------------------------------------------------------------------------


def joins(number: int, last: float, left: float | None) -> bool:
    """Whether one more model predicts the rows: the best two always do.

    ``number``: how many have.  ``last``: the seconds that the last one took.  ``left``: seconds; None: no limit.
    """
    return number < LEAST_MEMBERS or left is None or last <= left


def batches_in_time(done: int, each: float, left: float, members: int) -> int:
    """How many batches of rows all members have time to predict, of which one has predicted ``done``; at least 1."""
    return max(1, int((left / max(each, 1e-9) + done) / members))
