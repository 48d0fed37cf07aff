"""What else tells whether persons sit: a cut-point rule, and trees that see one window at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.bench.persons import STEP, Recording

MINUTE = 60 // STEP  # steps


def by_minute(one: Recording, limit: float) -> np.ndarray:
    """Whether each step is in a minute with less activity than the limit."""
    return np.repeat(activity(one) < limit, MINUTE)[: len(steps(one)[0])]


def best_limit(persons: Sequence[Recording]) -> float:
    """The one with the best balanced accuracy of these persons' steps."""
    found = np.concatenate([np.repeat(activity(one), MINUTE)[: len(steps(one)[0])] for one in persons])
    sits = np.concatenate([steps(one)[1] for one in persons])
    limits = np.quantile(found, np.linspace(0.02, 0.98, 97))
    return float(max(limits, key=lambda one: (found < one)[sits].mean() + (found >= one)[~sits].mean()))


def activity(one: Recording) -> np.ndarray:
    """Of each minute, how much the length of the vector differs from second to second."""
    length = np.linalg.norm(one.axes[one.worn], axis=1)
    changes = np.abs(np.diff(length, prepend=length[:1]))
    whole = -(-len(changes) // 60) * 60
    return np.pad(changes, (0, whole - len(changes)), mode="edge").reshape(-1, 60).sum(axis=1)


def steps(one: Recording) -> tuple[np.ndarray, np.ndarray]:
    """The axes and the posture of each step."""
    return one.axes[one.worn].reshape(-1, STEP, 3), 2 * one.sits[one.worn].reshape(-1, STEP).sum(axis=1) >= STEP


def features(one: Recording) -> np.ndarray:
    axes, _ = steps(one)
    return np.hstack([axes.mean(1), axes.std(1), axes.min(1), axes.max(1)])


def trees(persons: Sequence[Recording]) -> Callable[[Recording], np.ndarray]:
    """Gradient-boosted trees on means, deviations and extremes of each step."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = np.vstack([features(one) for one in persons]), np.concatenate([steps(one)[1] for one in persons])
    model = HistGradientBoostingClassifier(max_iter=300, early_stopping=True, random_state=1).fit(x, y)
    return lambda one: model.predict_proba(features(one))[:, 1]


def smoothed(scores: np.ndarray, count: int) -> np.ndarray:
    return np.convolve(scores, np.ones(count) / count, "same")
