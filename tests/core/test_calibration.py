"""Split conformal intervals, temperatures and weights of classes: against definitions and brute force."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from cerebro_db.core import codec
from cerebro_db.core.errors import BadData, InvalidArgument, WrongState
from cerebro_db.core.models import calibration
from cerebro_db.core.models.calibration import Classes, Errors
from tests.thorough import tries

Rows = list[list[float]]


def drawn(seed: int, rows: int, classes: int, sharpness: float) -> tuple[Rows, list[int]]:
    """Probabilities of a model that is too sure by this factor, and classes drawn from the true ones."""
    numbers = np.random.default_rng(seed)
    logits = numbers.normal(0, 1.5, (rows, classes))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    actual = [int(numbers.choice(classes, p=one)) for one in true]
    said = np.exp(sharpness * logits)
    return (said / said.sum(1, keepdims=True)).tolist(), actual


# -- intervals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [50, 399, 400, 3000])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_coverage_is_that_of_the_finite_sample(rows: int, coverage: float) -> None:
    """The mean over many samples lies from the coverage to 1 / (n + 1) above it, as the theory says."""
    numbers = random.Random(rows)
    seeds, new = 120, 100
    covered = 0
    for _ in range(seeds):

        def pair() -> tuple[float, float]:
            predicted = numbers.uniform(0, 10)
            return predicted, predicted + predicted * numbers.gauss(0, 1) * numbers.choice((1, 1, 4))

        known = [pair() for _ in range(rows)]
        kept = calibration.errors_of([one for one, _ in known], [one for _, one in known])
        covered += sum(
            abs(actual - one) <= kept.half_width(one, coverage) for one, actual in (pair() for _ in range(new))
        )
    scores = rows if rows < calibration.LEAST_TO_SCALE else rows - rows // 2
    share = covered / (seeds * new)
    noise = 4 * math.sqrt(coverage * (1 - coverage) / seeds * (1 / new + 1 / scores))
    assert coverage - noise <= share <= coverage + 1 / (scores + 1) + 1 / calibration.MOST_SCORES + noise


def test_intervals_are_wider_where_errors_are_larger() -> None:
    numbers = random.Random(3)
    predicted = [numbers.uniform(0, 10) for _ in range(4000)]
    kept = calibration.errors_of(predicted, [one + one * numbers.gauss(0, 1) for one in predicted])
    assert kept.half_width(9, 0.9) == pytest.approx(9 * 1.645, rel=0.3)
    assert kept.half_width(1, 0.9) < 0.25 * kept.half_width(9, 0.9)
    even = calibration.errors_of(predicted, [one + numbers.gauss(0, 1) for one in predicted])
    assert even.half_width(9, 0.9) == pytest.approx(even.half_width(1, 0.9), rel=0.35)


def test_the_rank_is_exact_for_few_rows() -> None:
    kept = calibration.errors_of([0.0] * 9, [float(one) for one in range(1, 10)])
    assert [kept.half_width(0, level) for level in (0.1, 0.11, 0.5, 0.9)] == [1, 2, 5, 9]
    with pytest.raises(WrongState, match="intervals with coverage 0.91 need the errors of at least 11 rows, and 9"):
        kept.half_widths(0.91)
    assert calibration.rows_needed(0.9) == 9 and calibration.rows_needed(0.99) == 99


@given(st.integers(1001, 5000), st.floats(0.01, 0.999))
def test_quantiles_of_many_rows_are_never_too_small(rows: int, level: float) -> None:
    numbers = random.Random(rows)
    scores = sorted(numbers.random() for _ in range(rows))
    kept = [scores[math.ceil(place * rows / calibration.MOST_SCORES) - 1] for place in range(1, 1001)]
    found = Errors(rows, tuple(kept), (), (1.0,)).half_widths(level)[0]
    exact = math.ceil((rows + 1) * level) - 1
    assert scores[exact] <= found <= scores[min(rows - 1, exact + rows // 1000 + 1)]


def test_predictions_without_errors_have_intervals() -> None:
    kept = calibration.errors_of([1.0] * 1000, [1.0] * 1000)
    assert kept.half_width(1.0, 0.9) == 0 and kept.edges in ((), (1.0,))


# -- quantiles of forecasts ------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.sampled_from([(0.05, 0.5, 0.95), (0.1, 0.3, 0.5, 0.7, 0.9), (0.25, 0.75)]))
def test_calibrated_intervals_hold_what_they_promise_and_the_median_stays(rows: int, levels: tuple[float, ...]) -> None:
    numbers = random.Random(rows)
    predicted = [[numbers.gauss(0, 1) + level * 0.5 for level in levels] for _ in range(rows)]
    predicted = [sorted(its) for its in predicted]
    actual = [numbers.gauss(2, 3) for _ in range(rows)]
    shifts = calibration.shifts_of(levels, predicted, actual).shifts
    for low, high in zip(range(len(levels) // 2), reversed(range(len(levels)))):
        assert shifts[low] == -shifts[high]
        apart = [(its, calibration.distance_of(its), truth) for its, truth in zip(predicted, actual)]
        held = sum(
            its[low] + shifts[low] * distance - 1e-9 <= truth <= its[high] + shifts[high] * distance + 1e-9
            for its, distance, truth in apart
        )
        assert held >= min(rows, math.ceil((rows + 1) * (levels[high] - levels[low]) - 1e-9))
    if 0.5 in levels:
        assert shifts[levels.index(0.5)] == 0, "a few seasons' mean error says little about the next ones"


@pytest.mark.parametrize("level", [0.1, 0.9])
def test_a_quantile_that_is_alone_has_so_many_values_below_it(level: float) -> None:
    numbers = random.Random(4)
    actual = [numbers.gauss(0, 1) for _ in range(999)]
    (shift,) = calibration.shifts_of([level], [[0.0]] * len(actual), actual).shifts
    assert sum(one <= shift for one in actual) == pytest.approx(level * 1000, abs=1)


def test_no_errors_and_no_distance_shift_nothing() -> None:
    assert calibration.shifts_of([0.1, 0.9], [[1.0, 1.0]] * 5, [2.0] * 5).shifts == (0.0, 0.0)
    assert calibration.pinball([0.5], [[1.0], [2.0]], [2.0, 2.0]) == 0.5


# -- probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sharpness", "classes"), [(2.0, 2), (2.0, 5), (0.5, 3)])
def test_the_temperature_has_the_lowest_log_loss(sharpness: float, classes: int) -> None:
    probabilities, actual = drawn(1, 3000, classes, sharpness)
    found = calibration.temperature_of(probabilities, actual)
    assert found == pytest.approx(sharpness, rel=0.12)
    losses = {
        factor: calibration.log_loss([calibration.tempered(row, found * factor) for row in probabilities], actual)
        for factor in (0.98, 1.0, 1.02)
    }
    assert min(losses, key=losses.__getitem__) == 1.0
    after = [calibration.tempered(row, found) for row in probabilities]
    assert losses[1.0] == pytest.approx(metrics.log_loss(actual, after, labels=range(classes)))
    assert [np.argsort(row).tolist() for row in after] == [np.argsort(row).tolist() for row in probabilities]
    assert calibration.calibration_error(after, actual) < calibration.calibration_error(probabilities, actual)


def test_extreme_rows_give_a_temperature_within_bounds() -> None:
    always = [[1.0, 0.0]] * 50 + [[0.0, 1.0]] * 50
    right, wrong = [0] * 50 + [1] * 50, [1] * 50 + [0] * 50
    for actual in (right, wrong):
        found = calibration.temperature_of(always, actual)
        assert calibration.LOWEST * 0.99 <= found <= calibration.HIGHEST * 1.01
        codec.decode(Classes, {"rows": 9, "temperature": found, "weights": None}, "it")


@pytest.mark.parametrize(("sharpness", "helps"), [(1.6, True), (0.6, True), (1.0, False)])
def test_the_gain_is_that_of_rows_that_the_temperature_does_not_know(sharpness: float, helps: bool) -> None:
    found, told = [], []
    for seed in range(20):
        probabilities, actual = drawn(seed, 400, 3, sharpness)
        more, actual_of_more = drawn(seed + 1000, 4000, 3, sharpness)
        kept, lines = calibration.of_classes(probabilities, actual, ["a", "b", "c"], None)
        before, elsewhere = {name: rest for name, *rest in lines}["log_loss cross-validated"]
        found.append(kept.gain)
        after = calibration.log_loss([calibration.tempered(row, kept.temperature) for row in more], actual_of_more)
        told.append((1 - elsewhere / before, 1 - after / calibration.log_loss(more, actual_of_more)))
    promised, true = np.mean(told, axis=0)
    assert promised == pytest.approx(true, abs=0.01), "the gain is that of new rows"
    assert sum(one > 0 for one in found) >= 19 if helps else sum(one > 0 for one in found) <= 4


@pytest.mark.parametrize(("rows", "wrong"), [(60, 20), (400, 0), (400, 9)])
def test_few_rows_and_few_mistakes_have_no_sure_gain(rows: int, wrong: int) -> None:
    actual = [0] * rows
    probabilities = [[0.1, 0.9] if row < wrong else [0.7, 0.3] for row in range(rows)]
    temperature = calibration.temperature_of(probabilities, actual)
    elsewhere, gain = calibration.loss_without_cheating(probabilities, actual, temperature)
    assert elsewhere < 0.97 * calibration.log_loss(probabilities, actual), "it looks like a gain"
    assert gain == 0.0


def test_one_row_has_no_gain() -> None:
    assert calibration.loss_without_cheating([[0.4, 0.6]], [1], 0.05)[1] == 0.0
    assert calibration.loss_without_cheating([[0.0, 1.0]] * 3, [1] * 3, 1.0) == (0.0, 0.0)


# -- decisions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", calibration.MEASURES)
@pytest.mark.parametrize("seed", range(tries(2)))
def test_two_classes_get_the_best_threshold_there_is(measure: str, seed: int) -> None:
    numbers = random.Random(seed)
    likely = [numbers.betavariate(1, 9) for _ in range(300)]
    actual = [int(numbers.random() < one) for one in likely]
    probabilities = [[1 - one, one] for one in likely]
    weights = calibration.weights_of(probabilities, actual, 2, measure)
    threshold = Classes(300, 1.0, weights).threshold(1)
    assert threshold is not None and 0 < threshold < 1

    def value(cut: float) -> float:
        decided = [int(one >= cut) for one in likely]
        if measure == calibration.F1:
            return float(metrics.f1_score(actual, decided, average="macro", zero_division=0))
        return float(metrics.balanced_accuracy_score(actual, decided))

    best = max(value(cut) for cut in likely)
    assert value(threshold) == pytest.approx(best)
    assert calibration.measured(probabilities, actual, weights, measure) == pytest.approx(best)


@pytest.mark.parametrize("measure", calibration.MEASURES)
def test_more_classes_are_decided_better(measure: str) -> None:
    numbers = np.random.default_rng(5)
    likely = numbers.dirichlet([8, 1, 0.5, 0.2], 2000)
    actual = [int(numbers.choice(4, p=one)) for one in likely]
    weights = calibration.weights_of(likely.tolist(), actual, 4, measure)
    decided = (likely * weights).argmax(1)

    def value(decided: np.ndarray) -> float:
        if measure == calibration.F1:
            return float(metrics.f1_score(actual, decided, average="macro"))
        return float(metrics.balanced_accuracy_score(actual, decided))

    assert value(decided) > value(likely.argmax(1)) + 0.02
    assert calibration.measured(likely.tolist(), actual, weights, measure) == pytest.approx(value(decided))


def test_costs_are_weights() -> None:
    labels = ["bad", "good", None]
    assert calibration.costs({"bad": 9}, labels, "thresholds") == (9, 1, 1)
    assert Classes(1, 1.0, (9.0, 1.0)).threshold(0) == pytest.approx(0.1)
    for wrong in ({"bad": 0}, {"bad": True}, {"bad": "9"}, {"bad": 1e99}, {"ugly": 1}, {}, [], "best"):
        with pytest.raises(InvalidArgument, match="thresholds"):
            calibration.costs(wrong, labels, "thresholds")


# -- the document ------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(2, 2500), st.integers(2, 4))
def test_a_document_is_read_as_it_was_written(rows: int, classes: int) -> None:
    numbers = random.Random(rows)
    predicted = [numbers.gauss(0, 1) for _ in range(rows)]
    kept = {
        "n": calibration.errors_of(predicted, [numbers.gauss(0, 1) for _ in predicted]),
        "c": Classes(rows, 1.5, tuple(numbers.random() + 0.1 for _ in range(classes)), rows % 3 / 10),
    }
    text = json.dumps(calibration.to_json(kept))
    assert calibration.read(json.loads(text), {"n": None, "c": classes}, "it") == kept


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"scores": [2.0, 1.0]}, "ascending"),
        ({"scores": [1.0]}, "a score for each"),
        ({"scores": [float("inf"), 1.0]}, "has to be from 0.0 to"),
        ({"scales": []}, "each bin"),
        ({"scales": [-1.0]}, "from 0.0 to"),
        ({"rows": 0}, "rows"),
        ({"more": 1}, "has no field"),
        ({"kind": "class"}, "does not fit"),
    ],
)
def test_a_wrong_document_is_refused(changed: dict[str, object], says: str) -> None:
    document = {"name": "n", **codec.encode(calibration.errors_of([1.0, 2.0], [1.5, 2.0]))}
    assert calibration.read({"targets": [document]}, {"n": None}, "it")
    with pytest.raises(BadData, match=says):
        calibration.read({"targets": [{**document, **changed}]}, {"n": None}, "it")
