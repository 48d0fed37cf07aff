"""The scores of models after an epoch, by which search methods compare them: a smaller score is better."""

from __future__ import annotations

import math

from .history import History

WORST = math.inf  # of a model whose objective is not a finite number, or not known


def measured(history: History, model: int, epoch: int) -> bool:
    """Whether the objective was measured after this epoch; a run need not evaluate after every epoch."""
    return history.objective.name in history.values(model, epoch)


def at(history: History, model: int, epoch: int) -> float:
    """The score after an epoch, or after the last epoch before it that was measured."""
    for earlier in range(epoch, 0, -1):
        if measured(history, model, earlier):
            score = history.score(model, earlier)
            return WORST if score is None else score
    return WORST


def last(history: History, model: int) -> float:
    """The score after a model's last epoch."""
    return at(history, model, len(history.epochs(model)))


def best(history: History, model: int, epoch: int) -> float:
    """The best score up to an epoch."""
    known = [score for one in range(1, epoch + 1) if (score := history.score(model, one)) is not None]
    return min(known, default=WORST)


def shown(history: History, score: float) -> str:
    """``val_accuracy 0.91``: a score as the user knows it."""
    value = history.objective.score(score)  # negated twice is the value itself
    return f"no finite {history.objective.name}" if score == WORST else f"{history.objective.name} {value:.4g}"
