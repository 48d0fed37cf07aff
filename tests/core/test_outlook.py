"""What a run says at its end: what twice the time would bring, by the curve of its best values."""

from __future__ import annotations

import pytest

from cerebro_db.core.search.objective import Objective
from cerebro_db.core.search.outlook import best_until, outlook, where_it_went

LOSS = Objective("val_loss", "min")
ACCURACY = Objective("val_accuracy", "max")
ROWS = 10_000


def curve(values: list[float], seconds: float = 80.0) -> list[tuple[float, float]]:
    return [((place + 1) * seconds / len(values), value) for place, value in enumerate(values)]


def test_each_doubling_is_expected_to_bring_this_much_less() -> None:
    """0.8 after a quarter, 0.6 after a half, 0.5 at the end: the next doubling brings half of 0.1."""
    told = outlook(curve([1.0, 0.8, 0.7, 0.6, 0.55, 0.52, 0.51, 0.5]), 80, LOSS, ROWS)
    assert "val_loss went from 0.6 to 0.5 in the second half" in told and "to about 0.45" in told


def test_a_larger_value_can_be_better() -> None:
    told = outlook(curve([0.5, 0.6, 0.65, 0.7, 0.71, 0.72, 0.73, 0.75]), 80, ACCURACY, ROWS)
    assert "val_accuracy went from 0.7 to 0.75" in told and "to about 0.775" in told


def test_at_most_half_is_expected_of_what_the_last_doubling_has_brought() -> None:
    """The best models get smaller learning rates at the end, which makes the last part steeper"""
    told = outlook(curve([1.0, 1.0, 0.99, 0.99, 0.9, 0.8, 0.7, 0.6]), 80, LOSS, ROWS)
    assert "from 0.99 to 0.6" in told and "to about 0.405" in told


@pytest.mark.parametrize("later", [[0.5, 0.5, 0.5, 0.5], [0.6, 0.7, 0.49999, 0.9]])
def test_a_curve_that_is_flat_promises_nothing(later: list[float]) -> None:
    assert "would probably bring little" in outlook(curve([1.0, 0.8, 0.6, 0.5, *later]), 80, LOSS, ROWS)


def test_a_gain_that_so_few_rows_cannot_show_promises_nothing() -> None:
    """The standard error of the loss of 20 rows is about a fifth of it."""
    values = [1.0, 0.8, 0.7, 0.6, 0.55, 0.52, 0.51, 0.5]
    assert "would probably bring little" in outlook(curve(values), 80, LOSS, 20)
    assert "went from 0.6 to 0.5" in outlook(curve(values), 80, LOSS, 3000)


def test_a_short_curve_says_nothing() -> None:
    assert outlook(curve([1.0, 0.5, 0.4]), 80, LOSS, ROWS) == ""
    assert outlook([], 80, LOSS, ROWS) == ""
    late = [(70 + place, 1 / (place + 1)) for place in range(10)]  # no epoch had ended after half of the time
    assert outlook(late, 80, LOSS, ROWS) == ""


def test_the_best_until_a_moment() -> None:
    assert best_until([(1, 0.5), (2, 0.9), (3, 0.1)], 2, LOSS) == 0.5
    assert best_until([(1, 0.5), (2, 0.9), (3, 0.1)], 2, ACCURACY) == 0.9
    assert best_until([(1, 0.5)], 0.5, LOSS) is None


def test_where_the_time_went() -> None:
    told = where_it_went(8.0, 5.2, 44.6, 0.3, 0.384)
    assert told == (
        "where the 58 s went: 8 s preparing the rows, 5 s starting and building until the first visit ended,"
        " 45 s training, 38% of it the best model"
    )
