"""What a run says of its time at its end: where it went, and what twice the budget would probably bring."""

from __future__ import annotations

from collections.abc import Sequence

from ..texts import counted
from .objective import Objective

LEAST_EPOCHS = 8  # on record: a curve of fewer says nothing
MOST_SHARE = 0.5  # of the gain of one doubling, that the next one is expected to bring
LEAST_GAIN = 0.001  # of the value, in half of the time: less than that is nothing, however many rows measured it

Curve = Sequence[tuple[float, float]]  # seconds since the run began, and the objective of an epoch that ended then


def outlook(curve: Curve, seconds: float, objective: Objective, rows: int) -> str:
    """A sentence about twice the time; empty if the curve is too short for one.  ``rows``: that measured the objective.

    The gain of the best value from half of the time to its end is compared with the gain from a quarter to the half:
    each doubling of the time is expected to bring this much less than the doubling before, and at most half as much.
    The last part of a curve is steeper than it would be in a longer run, because there the best models are finished.
    """
    if len(curve) < LEAST_EPOCHS:
        return ""
    quarter, half, end = (best_until(curve, seconds * share, objective) for share in (0.25, 0.5, 1.0))
    if half is None or end is None:
        return ""
    gain = objective_score(objective, half) - objective_score(objective, end)
    # The loss of a row spreads about as wide as its mean, so this is the standard error.
    if gain <= max(LEAST_GAIN, rows**-0.5) * abs(end):
        return (
            f"The second half of the time brought no better {objective.name} as far as {counted(rows, 'row')} can show;"
            " twice the budget would probably bring little"
        )
    before = None if quarter is None else objective_score(objective, quarter) - objective_score(objective, half)
    share = MOST_SHARE if before is None or before <= 0 else min(MOST_SHARE, gain / before)
    expected = within_bounds(objective_score(objective, objective_score(objective, end) - gain * share), end)
    return (
        f"{objective.name} went from {half:.4g} to {end:.4g} in the second half of the time; twice the budget would"
        f" probably bring it to about {expected:.4g}"
    )


def within_bounds(expected: float, end: float) -> float:
    """At most half of the way to zero, or to one: losses are positive, and most metrics are at most 1."""
    if 0 < end <= 1:
        return min(max(expected, end / 2), (1 + end) / 2 if expected > end else end)
    return max(expected, end / 2) if end > 0 else expected


def best_until(curve: Curve, seconds: float, objective: Objective) -> float | None:
    """The best value of the epochs that had ended by then."""
    scores = [objective_score(objective, value) for at, value in curve if at <= seconds]
    return objective_score(objective, min(scores)) if scores else None


def objective_score(objective: Objective, value: float) -> float:
    """The score of a value, and the value of a score: both are the same number, or its negative."""
    score = objective.score(value)
    assert score is not None
    return score


def where_it_went(preparing: float, starting: float, training: float, finishing: float, share: float | None) -> str:
    """A sentence; of seconds.  ``share``: of the training, which the best model got, with those it is a copy of."""
    of_best = "" if share is None else f", {share:.0%} of it the best model"
    parts = [
        f"{seconds:.0f} s {what}"
        for seconds, what in (
            (preparing, "preparing the rows"),
            (starting, "starting and building until the first visit ended"),
            (training, f"training{of_best}"),
            (
                finishing,
                "evaluating the last models and making the tables"
                + ("" if share is not None else ", the ensemble and the calibration"),
            ),
        )
        if seconds >= 0.5
    ]
    return f"where the {preparing + starting + training + finishing:.0f} s went: {', '.join(parts)}"
