# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""What is kept of a model's errors on rows that did not train it: quantiles, a temperature, and weights of classes.

- Of the quantiles of a number, shifts with which so many values lie below each as it says.
- Of a number, the quantiles of the errors give an interval around each prediction (split conformal prediction).
- Of a class, one temperature makes the probabilities as large as the classes are frequent: those of a row are raised to
  the power 1 / temperature and divided by their sum, which leaves their order as it is.
- Of a class, weights decide which class a row gets: the one with the largest product of probability and weight.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Optional, Union

from .. import codec
from ..codec import Identifier, Misfit, Number, Within
from ..documents import LARGEST_NUMBER, LARGEST_WHOLE
from ..errors import BadData, InvalidArgument, WrongState
from ..packing.preparation import MOST_COLUMNS
from ..packing.quantiles import MOST_QUANTILES
from ..records import dataclass
from .metrics import LEAST_PROBABILITY as LEAST

Json = dict[str, Any]
Probabilities = Sequence[Sequence[float]]  # of each row, those of all classes
Summary = tuple[str, Union[float, None], Union[float, None]]  # what is measured, before, and after

LOWEST, HIGHEST = 0.05, 20.0  # temperatures
ENOUGH = 1e-6  # change of a temperature, as a part of it
MOST_STEPS = 60
MOST_SCORES = 1000  # quantiles that are kept
ROWS_OF_A_BIN = 100
LEAST_TO_SCALE = 4 * ROWS_OF_A_BIN  # rows: half of them say how large errors are for which predictions
MOST_BINS = 20
LEAST_SCALE = 1e-3  # of a bin, as a part of the mean error
MOST_CLASSES = 20  # weights are sought for so many classes
HEAVIEST = 1e6  # the largest weight; the least is its inverse
ROUNDS = 3  # over the weights of more than two classes
ECE_BINS = 10
PARTS = 5  # of the rows: the temperature of all others is tried on each
# Rows, and of them those whose most probable class is wrong, without which no gain is sure: where all are right, the
# log loss falls with every step towards certainty, until a row that is wrong costs more than all have gained.
LEAST_TO_GAIN, LEAST_WRONG = 100, 10
LEAST_GAIN = 0.001  # as a part of the log loss; a smaller one changes nothing that anyone can see

F1, BALANCED_ACCURACY = "f1", "balanced_accuracy"
MEASURES = (F1, BALANCED_ACCURACY)


# -- numbers -----------------------------------------------------------------------------------------------


Rows = Annotated[int, Within(1, LARGEST_WHOLE)]
Positive = Annotated[float, Within(0.0, LARGEST_NUMBER)]


def _ascending(values: tuple[float, ...]) -> None:
    if list(values) != sorted(values):
        raise Misfit("has to be in ascending order")


@dataclass(frozen=True)
class Errors:
    """The errors of a number.  A score is an error divided by the scale of its prediction."""

    rows: Rows  # that gave scores
    # Ascending; of more than MOST_SCORES rows, those at even distances, the largest included.
    scores: Annotated[tuple[Positive, ...], Within(0, MOST_SCORES), _ascending]
    edges: Annotated[tuple[Number, ...], Within(0, MOST_BINS), _ascending]  # of bins of the predicted value
    scales: Annotated[tuple[Positive, ...], Within(0, MOST_BINS + 1)]  # of each bin: one more than edges

    def half_widths(self, level: float) -> tuple[float, ...]:
        """Of each bin, half the width of the intervals that hold at least this part of all values.

        Among the scores of n rows, that of a new row has each of the n + 1 places with the same probability.  So it is
        at most the k-th score with a probability of k / (n + 1) or more.
        """
        place = math.ceil((self.rows + 1) * level - 1e-9)
        if place > self.rows:
            raise WrongState(
                f"intervals with coverage {level:g} need the errors of at least {rows_needed(level)} rows, and"
                f" {self.rows} are known.",
                hint="Choose a lower coverage, or give cerebro.calibrate() a query with more rows.",
            )
        score = self.scores[math.ceil(place * len(self.scores) / self.rows) - 1]
        return tuple(score * scale for scale in self.scales)

    def half_width(self, predicted: float, level: float) -> float:
        return self.half_widths(level)[bisect_right(self.edges, predicted)]

    kind: ClassVar[str] = "number"

    def tag(self) -> Json:
        return {"kind": self.kind}

    def require_agreement(self) -> None:
        if len(self.scores) != min(self.rows, MOST_SCORES):
            raise Misfit(f"has to have a score for each of the rows, at most {MOST_SCORES}", "scores")
        if len(self.scales) != len(self.edges) + 1:
            raise Misfit("has to have a number for each bin", "scales")


def rows_needed(level: float) -> int:
    """The fewest rows whose errors give an interval of this level."""
    return math.ceil(level / (1 - level) - 1e-9)


def errors_of(predicted: Sequence[float], actual: Sequence[float]) -> Errors:
    """The errors of so many predictions.

    Half of many rows say how large errors are for small and for large predictions; the scores are those of the other
    half, because an interval holds what it promises only if its scale does not depend on the errors that are ranked.
    """
    order = list(range(len(predicted)))
    random.Random(0).shuffle(order)
    edges: list[float] = []
    scales = [1.0]
    if len(order) >= LEAST_TO_SCALE:
        half, order = order[: len(order) // 2], order[len(order) // 2 :]
        edges, scales = _scales([(predicted[row], abs(actual[row] - predicted[row])) for row in half])
    scores = sorted(abs(actual[row] - predicted[row]) / scales[bisect_right(edges, predicted[row])] for row in order)
    rows = len(scores)
    if rows > MOST_SCORES:
        scores = [scores[math.ceil(place * rows / MOST_SCORES) - 1] for place in range(1, MOST_SCORES + 1)]
    return Errors(rows, tuple(scores), tuple(edges), tuple(scales))


def _scales(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The edges of bins of the prediction, and the mean error in each, from predictions with their errors."""
    pairs.sort()
    mean = sum(error for _, error in pairs) / len(pairs)
    bins = max(1, min(MOST_BINS, len(pairs) // ROWS_OF_A_BIN))
    edges = sorted({pairs[len(pairs) * place // bins][0] for place in range(1, bins)})
    sums, counts = [0.0] * (len(edges) + 1), [0] * (len(edges) + 1)
    for value, error in pairs:
        place = bisect_right(edges, value)
        sums[place] += error
        counts[place] += 1
    least = LEAST_SCALE * mean or 1.0  # no errors at all: any scale will do
    return edges, [max(least, total / count) if count else max(least, mean) for total, count in zip(sums, counts)]


# -- quantiles ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shifts:
    """What is added to the quantiles of a number: of each, a part of the distance of the lowest and the highest one.

    The numbers of a forecast far ahead, or of a large series, have a large distance, and large errors.
    """

    rows: Rows
    shifts: Annotated[tuple[Number, ...], Within(1, MOST_QUANTILES)]

    kind: ClassVar[str] = "quantiles"

    def tag(self) -> Json:
        return {"kind": self.kind}


def shifts_of(levels: Sequence[float], predicted: Sequence[Sequence[float]], actual: Sequence[float]) -> Shifts:
    """The shifts with which so many values lie between two quantiles as they say (conformal prediction).

    Two levels as far from one half have the same shift, one downwards, and the median has none: the errors of forecasts
    that follow each other are alike, so that a few seasons' mean error says little about the next ones.  A level alone
    has a shift with which so many values lie below it.
    """
    rows = [(its, truth, distance) for its, truth in zip(predicted, actual) if (distance := distance_of(its)) > 0]
    shifts = [0.0] * len(levels)
    for place, level in enumerate(levels):
        other = next((at for at, one in enumerate(levels) if abs(one + level - 1) < 1e-9), None)
        if not rows or other == place:
            continue
        if other is None:
            sign = -1 if level < 0.5 else 1
            scores = [sign * (truth - its[place]) / distance for its, truth, distance in rows]
            shifts[place] = sign * _score_of(scores, max(level, 1 - level))
        elif place < other:
            outside = [max(its[place] - truth, truth - its[other]) / distance for its, truth, distance in rows]
            shifts[other] = _score_of(outside, levels[other] - level)
            shifts[place] = -shifts[other]
    return Shifts(max(1, len(actual)), tuple(shifts))


def _score_of(scores: list[float], share: float) -> float:
    """What at least so many scores do not exceed: of n and a new one, it has each of n + 1 places equally likely."""
    at = math.ceil((len(scores) + 1) * share - 1e-9)
    return sorted(scores)[min(max(at, 1), len(scores)) - 1]


def distance_of(quantiles: Sequence[float]) -> float:
    """The unit of shifts: 1 if there is one quantile."""
    return quantiles[-1] - quantiles[0] if len(quantiles) > 1 else 1.0


def shifted(quantiles: Sequence[float], shifts: Sequence[float]) -> list[float]:
    distance = distance_of(quantiles)
    return sorted(one + shift * distance for one, shift in zip(quantiles, shifts))


def pinball(levels: Sequence[float], predicted: Sequence[Sequence[float]], actual: Sequence[float]) -> float:
    """Twice the mean pinball loss, as nn/models/pinball.py has it."""
    losses = (
        max(level * (truth - one), (level - 1) * (truth - one))
        for its, truth in zip(predicted, actual)
        for level, one in zip(levels, its)
    )
    return 2 * math.fsum(losses) / (len(actual) * len(levels))


def of_quantiles(
    levels: Sequence[float], predicted: Sequence[Sequence[float]], actual: Sequence[float]
) -> tuple[Shifts, list[Summary]]:
    """The calibration of quantiles, and the loss and the part of all values between two of them on these rows."""
    found = shifts_of(levels, predicted, actual)
    after = [shifted(its, found.shifts) for its in predicted]
    told: list[Summary] = [
        ("rows", None, float(len(actual))),
        ("pinball", pinball(levels, predicted, actual), pinball(levels, after, actual)),
    ]
    for low in range(len(levels) // 2):
        high = len(levels) - 1 - low
        held = (
            sum(its[low] <= truth <= its[high] for its, truth in zip(rows, actual)) / len(actual)
            for rows in (predicted, after)
        )
        told.append((f"coverage {levels[high] - levels[low]:g}", next(held), next(held)))
    return found, told


# -- probabilities -------------------------------------------------------------------------------------------


def temperature_of(probabilities: Probabilities, actual: Sequence[int], begin: float = 1.0) -> float:
    """The temperature with the lowest log loss.  ``begin``: where the search begins.

    The log loss is convex in 1 / temperature.  Newton's method finds where its derivative is 0; a step that leaves the
    known bounds becomes a bisection.
    """
    rows = [[math.log(max(one, LEAST)) for one in row] for row in probabilities]
    low, high = 1 / HIGHEST, 1 / LOWEST
    inverse = 1 / begin
    for _ in range(MOST_STEPS):
        slope, curve = _slope(rows, actual, inverse)
        if slope < 0:
            low = inverse
        else:
            high = inverse
        step = inverse - slope / curve if curve > 0 else low
        if not low < step < high:
            step = math.sqrt(low * high)
        if abs(step - inverse) <= ENOUGH * inverse:
            break
        inverse = step
    return 1 / inverse


def _slope(rows: list[list[float]], actual: Sequence[int], inverse: float) -> tuple[float, float]:
    """The first and the second derivative of the log loss, from the logarithms of the probabilities."""
    slope = curve = 0.0
    for row, own in zip(rows, actual):
        largest = max(row)
        weights = [math.exp(inverse * (one - largest)) for one in row]
        total = sum(weights)
        mean = sum(map(float.__mul__, weights, row)) / total
        slope += mean - row[own]
        curve += sum(weight * (one - mean) ** 2 for weight, one in zip(weights, row)) / total
    return slope, curve


def tempered(row: Sequence[float], temperature: float) -> list[float]:
    """The probabilities of a row with this temperature."""
    if temperature == 1.0:
        return list(row)
    logarithms = [math.log(max(one, LEAST)) / temperature for one in row]
    largest = max(logarithms)
    powers = [math.exp(one - largest) for one in logarithms]
    total = sum(powers)
    return [one / total for one in powers]


def log_loss(probabilities: Probabilities, actual: Sequence[int]) -> float:
    return -sum(math.log(max(row[own], LEAST)) for row, own in zip(probabilities, actual)) / len(actual)


def loss_without_cheating(
    probabilities: Probabilities, actual: Sequence[int], temperature: float
) -> tuple[float, float]:
    """The log loss if each row had the temperature of rows without it, and how much of it that is less than before.

    The second is 0 unless it is sure: more than its own standard error, of enough rows and enough wrong ones.
    ``temperature``: that of all rows.
    """
    rows = len(actual)
    order = list(range(rows))
    random.Random(0).shuffle(order)
    gains = [0.0] * rows
    for part in range(PARTS):
        others = [row for place, row in enumerate(order) if place % PARTS != part]
        if not others:
            continue
        found = temperature_of([probabilities[row] for row in others], [actual[row] for row in others], temperature)
        for row in order[part::PARTS]:
            own = actual[row]
            gains[row] = math.log(
                max(tempered(probabilities[row], found)[own], LEAST) / max(probabilities[row][own], LEAST)
            )
    before, gain = log_loss(probabilities, actual), math.fsum(gains) / rows
    error = math.sqrt(math.fsum((one - gain) ** 2 for one in gains)) / rows
    part_of_loss = gain / before if before > 0 else 0.0
    wrong = sum(row[own] < max(row) for row, own in zip(probabilities, actual))
    is_sure = gain > error and part_of_loss >= LEAST_GAIN and rows >= LEAST_TO_GAIN and wrong >= LEAST_WRONG
    return before - gain, part_of_loss if is_sure else 0.0


def calibration_error(probabilities: Probabilities, actual: Sequence[int]) -> float:
    """The expected calibration error: how far the largest probability of a row is from how often its class is right."""
    sums = [0.0] * ECE_BINS
    for row, own in zip(probabilities, actual):
        largest = max(row)
        sums[min(int(largest * ECE_BINS), ECE_BINS - 1)] += largest - (row.index(largest) == own)
    return sum(map(abs, sums)) / len(actual)


# -- decisions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classes:
    """How the probabilities of a target are corrected, and how its class is decided.  In the order of its classes."""

    rows: Rows
    temperature: Annotated[float, Within(LOWEST / 2, HIGHEST * 2)]
    weights: Optional[tuple[Annotated[float, Within(1 / HEAVIEST, HEAVIEST)], ...]]  # None: too many for a search
    # The part of the log loss that the temperature takes from new rows; 0: it is not used unless a call wants it.
    gain: Annotated[float, Within(0.0, 1.0)] = codec.omitted(0.0)

    kind: ClassVar[str] = "class"

    def tag(self) -> Json:
        return {"kind": self.kind}

    def threshold(self, place: int) -> float | None:
        """Of one of two classes: from which probability on it is decided for."""
        if self.weights is None or len(self.weights) != 2:
            return None
        return self.weights[1 - place] / (self.weights[0] + self.weights[1])


def decided(row: Sequence[float], weights: Sequence[float]) -> int:
    products = list(map(float.__mul__, row, weights))
    return products.index(max(products))


def weights_of(probabilities: Probabilities, actual: Sequence[int], classes: int, measure: str) -> tuple[float, ...]:
    """The weights with which the measure is largest: the mean of F1, or of the recall, over the classes of the rows.

    One weight after the other is chosen, given the others; the first one stays 1.
    """
    weights = [1.0] * classes
    present = set(actual)
    for _ in range(1 if classes == 2 else ROUNDS):
        before = list(weights)
        for place in range(1, classes):
            if place in present:
                weights[place] = _weight(probabilities, actual, weights, place, measure)
        if weights == before:
            break
    largest = max(weights)
    return tuple(max(weight / largest, 1 / HEAVIEST) for weight in weights)


def _weight(
    probabilities: Probabilities, actual: Sequence[int], weights: Sequence[float], place: int, measure: str
) -> float:
    """The best weight of one class.  Each row turns to this class when the weight exceeds a ratio of the row's own."""
    turns = []
    tally = Tally(len(weights), actual, measure)
    for row, own in zip(probabilities, actual):
        products = list(map(float.__mul__, row, weights))
        products[place] = -1.0
        other = max(products)
        tally.add(products.index(other), own)
        turns.append((other / max(row[place], LEAST), products.index(other), own))
    turns.sort()
    best, chosen = -1.0, weights[place]
    for number, (ratio, other, own) in enumerate(turns):
        tally.move(other, place, own)
        following = turns[number + 1][0] if number + 1 < len(turns) else ratio * 4
        if following <= ratio * (1 + 1e-9):
            continue
        weight = min(max(math.sqrt(max(ratio, 1 / HEAVIEST) * following), 1 / HEAVIEST), HEAVIEST)
        value = tally.value
        # Of equally good ones, that which changes the fewest decisions.
        if value > best + 1e-12 or value > best - 1e-12 and abs(math.log(weight)) < abs(math.log(chosen)):
            best, chosen = max(best, value), weight
    return chosen


class Tally:
    """Counts of decisions, and the measure of them."""

    def __init__(self, classes: int, actual: Sequence[int], measure: str) -> None:
        self._measure = measure
        self._rows, self._decided, self._right = [0] * classes, [0] * classes, [0] * classes
        for own in actual:
            self._rows[own] += 1
        self._present = sum(1 for count in self._rows if count)
        self._values = [0.0] * classes

    def add(self, place: int, own: int, count: int = 1) -> None:
        """A row of the class ``own`` is decided for the class at ``place``."""
        self._decided[place] += count
        self._right[place] += count * (place == own)
        rows = self._rows[place]
        if rows:
            whole = rows if self._measure == BALANCED_ACCURACY else (rows + self._decided[place]) / 2
            self._values[place] = self._right[place] / whole

    def move(self, before: int, after: int, own: int) -> None:
        self.add(before, own, -1)
        self.add(after, own)

    @property
    def value(self) -> float:
        return sum(self._values) / self._present


def measured(probabilities: Probabilities, actual: Sequence[int], weights: Sequence[float], measure: str) -> float:
    """The measure of the decisions with these weights."""
    tally = Tally(len(weights), actual, measure)
    for row, own in zip(probabilities, actual):
        tally.add(decided(row, weights), own)
    return tally.value


def costs(given: Any, labels: Sequence[str | None], where: str) -> tuple[float, ...]:
    """The weights from what a user says it costs to miss a row of each class; a class without a cost has 1."""
    known = [label for label in labels if label is not None]
    if not isinstance(given, dict) or not given:
        raise InvalidArgument(
            f"{where} must be {' or '.join(MEASURES)}, or a JSON object with the costs of classes.",
            hint="For instance '{\"bad\": 10}': to miss a row of this class costs as much as ten other mistakes.",
        )
    for name, cost in given.items():
        if name not in known:
            raise InvalidArgument(f"{where}: there is no class '{name}'.", hint=f"Classes: {', '.join(known[:20])}.")
        if type(cost) not in (int, float) or not 1 / HEAVIEST <= cost <= HEAVIEST:
            raise InvalidArgument(
                f"{where}: the cost of '{name}' must be a number from {1 / HEAVIEST:g} to {HEAVIEST:g}.",
            )
    return tuple(1.0 if label is None else float(given.get(label, 1.0)) for label in labels)


# -- the document ----------------------------------------------------------------------------------------------

Calibration = Mapping[str, Union[Errors, Shifts, Classes]]  # by target


@dataclass(frozen=True)
class _Document:
    targets: Annotated[tuple[Mapping[str, Any], ...], Within(0, MOST_COLUMNS)]


def to_json(kept: Calibration) -> Json:
    return {"targets": [{"name": name, **codec.encode_fields(one)} for name, one in kept.items()]}


def read(document: Any, classes: Mapping[str, int | None], where: str) -> Calibration:
    """The calibration in a document that a user may have written.  ``classes``: of each target; None: a number."""
    hint = "SELECT cerebro.calibrate('…'); makes it anew."
    found: dict[str, Errors | Shifts | Classes] = {}
    for place, target in enumerate(codec.decode(_Document, document, where, BadData, hint).targets):
        its = f"{where}: targets[{place}]"
        name = codec.read(Identifier, target.get("name"), f"{its}: name", hint)
        if name not in classes or name in found:
            raise BadData(f"{its}: name has to be a target of the model, and each only once.", hint=hint)
        kind: type[Any] = Errors if classes[name] is None else Classes
        if kind is Errors and target.get("kind") == Shifts.kind:
            kind = Shifts
        if target.get("kind") != kind.kind:
            raise BadData(f"{its}: kind does not fit the target '{name}'.", hint=hint)
        parameters = {key: value for key, value in target.items() if key not in ("name", "kind")}
        one: Errors | Shifts | Classes = codec.decode(kind, parameters, its, BadData, hint)
        if isinstance(one, Classes) and one.weights is not None and len(one.weights) != classes[name]:
            raise BadData(f"{its}: weights has to have a number for each of the {classes[name]} classes.", hint=hint)
        found[name] = one
    return found


Weigh = Callable[[Probabilities, Sequence[int]], tuple[float, ...]]  # finds the weights of classes


def of_classes(
    probabilities: Probabilities,
    actual: Sequence[int],
    labels: Sequence[str | None],
    weigh: Weigh | None,
) -> tuple[Classes, list[Summary]]:
    """The calibration of a class, and what it changes on these rows.  ``weigh``: how weights are found."""
    temperature = temperature_of(probabilities, actual)
    after = [tempered(row, temperature) for row in probabilities]
    plain = [1.0] * len(labels)
    weights = None if weigh is None else weigh(after, actual)
    elsewhere, gain = loss_without_cheating(probabilities, actual, temperature)
    found = Classes(len(actual), temperature, weights, gain)
    told: list[Summary] = [
        ("rows", None, float(len(actual))),
        ("temperature", 1.0, temperature),
        ("log_loss", log_loss(probabilities, actual), log_loss(after, actual)),
        ("log_loss cross-validated", log_loss(probabilities, actual), elsewhere),
        ("ece", calibration_error(probabilities, actual), calibration_error(after, actual)),
    ]
    if weights is not None:
        for measure, name in ((F1, "mean f1"), (BALANCED_ACCURACY, "balanced_accuracy")):
            values = (measured(after, actual, one, measure) for one in (plain, weights))
            told.append((name, next(values), next(values)))
        if len(labels) == 2:
            rare = min((0, 1), key=lambda place: sum(1 for own in actual if own == place))
            told.append((f"threshold of {labels[rare]}", 0.5, found.threshold(rare)))
        else:
            told += [(f"weight of {label}", 1.0, weight) for label, weight in zip(labels, weights)]
    return found, told


LEVELS = (0.5, 0.8, 0.9, 0.95)


def of_numbers(predicted: Sequence[float], actual: Sequence[float]) -> tuple[Errors, list[Summary]]:
    """The calibration of a number, and the mean width of its intervals on these rows."""
    found = errors_of(predicted, actual)
    told: list[Summary] = [("rows", None, float(found.rows))]
    for level in LEVELS:
        if rows_needed(level) <= found.rows:
            widths = found.half_widths(level)
            total = sum(2 * widths[bisect_right(found.edges, one)] for one in predicted)
            told.append((f"interval_width {level:g}", None, total / len(predicted)))
    return found, told
