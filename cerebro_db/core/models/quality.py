"""How good a model is, in the figures of its task, beside an answer that is the same for every row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ..records import dataclass
from ..texts import counted, harmless, short, shortened

RMSE, AUC = "RMSE", "AUC"
GOOD_ORDER = 0.6  # of AUC; by chance it is 0.5
LEAST_ROWS = 30  # of fewer, chance decides which is better
LONGEST_LABEL = 60  # characters
MOST_SAID = 10  # targets in a sentence
LONGEST_SENTENCE = 4000  # characters


@dataclass(frozen=True)
class Quality:
    """Of one target, on rows that trained no model."""

    target: str
    rows: int
    figures: tuple[tuple[str, float], ...]  # name and value; the first one is compared
    simple: str  # an answer that is the same for every row
    simply: float  # the first figure of this answer
    higher_is_better: bool

    @property
    def is_no_better(self) -> bool:
        """Whether so many rows say that the model is no better than the simple answer.

        A model of a rare class may be good though it hardly ever predicts that class: then its order says so.
        """
        value = self.figures[0][1]
        better = value > self.simply if self.higher_is_better else value < self.simply
        return self.rows >= LEAST_ROWS and not better and dict(self.figures).get(AUC, 0.5) < GOOD_ORDER

    @property
    def says(self) -> str:
        (name, value), *others = self.figures
        compared = f"{name} {_shown(name, value)} ({self.simple}: {_shown(name, self.simply)})"
        figures = [compared, *(f"{name} {_shown(name, value)}" for name, value in others)]
        return f"{', '.join(figures)} on {counted(self.rows, 'row')}"

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target, "says": self.says, "rows": self.rows, "figures": dict(self.figures),
                "simple": self.simple, "simply": self.simply}  # fmt: skip


def sentence_of(kept: Any) -> str | None:
    """The sentence of such a document; None if it is none."""
    says = kept.get("says") if isinstance(kept, dict) else None
    return shortened(says, LONGEST_SENTENCE) if isinstance(says, str) else None


def document(known: Any, found: Sequence[Quality], targets: Collection[str]) -> dict[str, Any]:
    """What is kept with a model: how good it is for each of its targets, and all of it in a sentence.

    ``known``: what was kept before, whose other targets stay.
    """
    before = known.get("targets") if isinstance(known, dict) else None
    listed = before if isinstance(before, list) else []
    # Others may have written it: a target may be of any type.
    by_target = {one["target"]: one for one in listed if isinstance(one, dict) and one.get("target") in [*targets]}
    by_target.update((one.target, one.to_json()) for one in found)
    several = len(targets) > 1
    says = [f"{name}: {one.get('says')}" if several else str(one.get("says")) for name, one in by_target.items()]
    return {"says": "; ".join(says[:MOST_SAID]), "targets": list(by_target.values())}


def _shown(name: str, value: float) -> str:
    return short(value) if name == RMSE else f"{value:.3f}"


def of_numbers(target: str, predicted: Sequence[float], actual: Sequence[float]) -> Quality:
    """RMSE and R², beside the mean of these rows."""
    rows = len(actual)
    mean = math.fsum(actual) / rows
    error = math.fsum((value - guess) ** 2 for value, guess in zip(actual, predicted)) / rows
    spread = math.fsum((value - mean) ** 2 for value in actual) / rows
    figures = [(RMSE, math.sqrt(error))]
    if spread > 0:
        figures.append(("R²", 1 - error / spread))
    return Quality(
        target=target,
        rows=rows,
        figures=tuple(figures),
        simple=f"always the mean, {short(mean)}",
        simply=math.sqrt(spread),
        higher_is_better=False,
    )


def of_classes(
    target: str, probabilities: Sequence[Sequence[float]], actual: Sequence[int], labels: Sequence[str | None]
) -> Quality:
    """The accuracy, and of two classes the AUC of the second one, beside the most frequent class of these rows."""
    rows = len(actual)
    hits = sum(max(range(len(its)), key=its.__getitem__) == known for its, known in zip(probabilities, actual))
    usual, count = Counter(actual).most_common(1)[0]
    figures = [("accuracy", hits / rows)]
    if len(labels) == 2 and count < rows:
        figures.append((AUC, auc([its[1] for its in probabilities], actual)))
    label = labels[usual]
    return Quality(
        target=target,
        rows=rows,
        figures=tuple(figures),
        simple="always NULL" if label is None else f"always '{harmless(label, longest=LONGEST_LABEL)}'",
        simply=count / rows,
        higher_is_better=True,
    )


def auc(scores: Sequence[float], actual: Sequence[int]) -> float:
    """The share of correctly ordered pairs of a row of the class 1 and another row; a tie counts half."""
    by_score: dict[float, list[int]] = {}
    for score, known in zip(scores, actual):
        by_score.setdefault(score, [0, 0])[known == 1] += 1
    below = ordered = 0.0
    for score in sorted(by_score):
        others, ones = by_score[score]
        ordered += ones * (below + others / 2)
        below += others
    ones_in_all = sum(ones for _, ones in by_score.values())
    return ordered / (below * ones_in_all)
