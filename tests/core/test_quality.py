"""How good a model is, beside what a person would say of every row."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.models import quality

CHANCE = random.Random(5)


def test_numbers() -> None:
    actual = [CHANCE.gauss(200, 30) for _ in range(500)]
    predicted = [value + CHANCE.gauss(0, 5) for value in actual]
    found = quality.of_numbers("rent", predicted, actual)
    errors = np.array(actual) - np.array(predicted)
    figures = dict(found.figures)
    assert figures["RMSE"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert figures["R²"] == pytest.approx(1 - np.mean(errors**2) / np.var(actual))
    assert found.simply == pytest.approx(np.std(actual))
    assert not found.is_no_better
    assert found.says == (
        f"RMSE {figures['RMSE']:.3g} (always the mean, {np.mean(actual):.3g}: {np.std(actual):.3g}),"
        f" R² {figures['R²']:.3f} on 500 rows"
    )
    assert quality.of_numbers("rent", [actual[0]] * 500, actual).is_no_better
    assert not quality.of_numbers("rent", [actual[0]] * 20, actual[:20]).is_no_better, "so few rows do not say it"


def test_a_number_that_never_varies_has_no_share_of_its_variance() -> None:
    found = quality.of_numbers("rent", [1.0, 2.0] * 20, [2.0] * 40)
    assert [name for name, _ in found.figures] == ["RMSE"]
    assert found.is_no_better


def test_two_classes() -> None:
    actual = [int(CHANCE.random() < 0.3) for _ in range(400)]
    scores = [round(min(1, max(0, CHANCE.gauss(0.35 + 0.2 * known, 0.2))), 2) for known in actual]  # with ties
    found = quality.of_classes("left", [[1 - one, one] for one in scores], actual, ["no", "yes"])
    pairs = [(a > b) + (a == b) / 2 for a, x in zip(scores, actual) if x for b, y in zip(scores, actual) if not y]
    assert dict(found.figures)["AUC"] == pytest.approx(math.fsum(pairs) / len(pairs))
    assert dict(found.figures)["accuracy"] == np.mean([(one > 0.5) == known for one, known in zip(scores, actual)])
    assert found.simple == "always 'no'" and found.simply == actual.count(0) / 400


def test_a_rare_class_that_is_never_predicted_but_comes_last_in_order() -> None:
    actual = [1 if row < 3 else 0 for row in range(100)]
    found = quality.of_classes(
        "left", [[1 - one, one] for one in (0.3 if a else 0.1 for a in actual)], actual, ["n", "y"]
    )
    assert dict(found.figures) == {"accuracy": 0.97, "AUC": 1.0} and not found.is_no_better


def test_labels_stay_on_one_line_and_are_short() -> None:
    found = quality.of_classes("kind", [[1.0, 0.0]], [0], ["a\nERROR: " + "b" * 1000, "c"])
    assert "\n" not in found.says and len(found.says) < 160


def test_several_classes_and_a_null() -> None:
    found = quality.of_classes("kind", [[0.6, 0.3, 0.1]] * 40, [0, 0, 0, 2] * 10, ["a", "b", None])
    assert found.figures == (("accuracy", 0.75),)
    assert found.is_no_better
    assert found.says == "accuracy 0.750 (always 'a': 0.750) on 40 rows"
    assert quality.of_classes("kind", [[0.1, 0.3, 0.6]], [2], ["a", "b", None]).simple == "always NULL"


def test_what_is_kept_has_all_targets() -> None:
    targets = ["left", "rent"]
    left = quality.of_classes("left", [[0.6, 0.4]] * 4, [0, 0, 0, 1], ["n", "y"])
    rent = quality.of_numbers("rent", [1.0, 2.0], [1.0, 3.0])
    both = json.loads(json.dumps(quality.document(None, [left, rent], targets)))
    assert quality.sentence_of(both) == f"left: {left.says}; rent: {rent.says}"
    assert [(one["target"], one["rows"], one["figures"]) for one in both["targets"]] == [
        ("left", 4, {"accuracy": 0.75, "AUC": 0.5}),
        ("rent", 2, {"RMSE": math.sqrt(0.5), "R²": 0.5}),
    ]
    again = quality.of_classes("left", [[0.4, 0.6]] * 4, [0, 0, 0, 1], ["n", "y"])
    assert quality.document(both, [again], targets)["says"] == f"left: {again.says}; rent: {rent.says}"
    assert quality.document(None, [left], ["left"])["says"] == left.says


@pytest.mark.parametrize("kept", [None, 3, [], {}, {"says": 3}, {"targets": "none"}, {"targets": [1, {"target": {}}]}])
def test_others_may_have_written_what_is_kept(kept: Any) -> None:
    found = quality.of_numbers("rent", [1.0, 2.0], [1.0, 3.0])
    assert quality.sentence_of(kept) is None
    assert quality.document(kept, [found], ["rent"])["says"] == found.says


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.0123"), (1234.5, "1,234"), (-98765.4, "-98,765"), (999.4, "999"), (999.7, "1,000"), (0, "0")],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert quality.short(value) == text
