"""Rungs: after which epochs models wait for each other, and which of those that wait go on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import scores
from ..history import History

WAITS = "waits at rung"  # how the reason of a decision begins that a later one may take back
PASSES = "passes rung"  # and of one by which a model trains on without a wait; the view cerebro.leaderboard reads both


def epochs_of_rungs(first: float, reduction: float, epochs: int) -> tuple[int, ...]:
    """After which epochs there is a rung: first, first * reduction, …; none after the last epoch of the run.

    ``first`` need not be whole: each product is rounded, and not the first one alone.
    """
    found: list[int] = []
    exact = float(first)
    while round(exact) < epochs:
        found.append(max(round(exact), found[-1] + 1 if found else 1))
        exact *= reduction
    return tuple(one for one in found if one < epochs)


def expected_epochs(rungs: Sequence[int], reduction: float, epochs: int, done: int) -> float:
    """How many epochs a model trains on average that has done so many: of those at a rung, 1 / reduction go on."""
    ahead = [rung for rung in rungs if rung > done]
    ends = [*ahead, epochs]
    return ends[0] + sum((ends[place + 1] - ends[place]) / reduction ** (place + 1) for place in range(len(ahead)))


def waits(history: History, model: int) -> bool:
    """Whether a model was stopped at a rung, and for no other reason."""
    if not history.stopped(model) or history.failed(model):
        return False
    decision = history.decision(model, len(history.epochs(model)))
    return decision is not None and decision.reason.startswith(WAITS)


def released(
    history: History,
    models: Sequence[int],
    rungs: Sequence[int],
    reduction: float,
    *,
    full: bool,
    for_all: bool,
    asked: int | None = None,
    epoch: int = 0,
) -> list[int]:
    """The models that wait at a rung and are among its best 1 / reduction.

    ``for_all``: only of rungs that all models have reached that are left; then the best go on of those that came this
    far, failed or not.  Otherwise the best of those that have reached the rung so far.  ``full``: no more models will
    begin.  ``asked`` has reached ``epoch`` just now and counts as waiting.
    """
    found: list[int] = []
    epochs = {one: epoch if one == asked else len(history.epochs(one)) for one in models}
    ended = {one for one in models if one != asked and (history.stopped(one) or history.failed(one))}
    for place, rung in enumerate(rungs):
        complete = full and all(epochs[one] >= rung or one in ended for one in models)
        if for_all and not complete:
            break
        reached = {one: scores.at(history, one, rung) for one in models if epochs[one] >= rung}
        # Of n models, floor(n / reduction ** place) compete at a rung, however many a rung before has let go on.
        rivals = math.floor(len(models) / reduction**place + 1e-9) if for_all else len(reached)
        size = math.floor(rivals / reduction + 1e-9)
        if complete:
            size = max(1, size)
        best = sorted(reached, key=lambda one: (reached[one], one))[:size]
        found += [one for one in best if epochs[one] == rung and (one == asked or waits(history, one))]
    return sorted(found)
