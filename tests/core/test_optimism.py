"""The optimism of choosing: what is estimated, compared with what is true in generated losses of rows."""

from __future__ import annotations

import random
from statistics import fmean, stdev

import pytest

from cerebro_db.core.models import optimism


def world(numbers: random.Random, models: int, rows: int, apart: float) -> tuple[list[list[float]], list[float]]:
    """The losses of the rows, a part of which all models share, and what each model's loss really is."""
    true = [1.0 + apart * numbers.random() for _ in range(models)]
    shared = [numbers.gauss(0.0, 1.0) for _ in range(rows)]
    return [[loss + both + numbers.gauss(0.0, 0.5) for both in shared] for loss in true], true


@pytest.mark.parametrize(("models", "apart"), [(2, 0.0), (8, 0.0), (8, 0.1), (24, 0.05)])
def test_on_average_the_estimate_is_what_choosing_adds(models: int, apart: float) -> None:
    numbers = random.Random(models)
    estimated, added = [], []
    for _ in range(60):
        losses, true = world(numbers, models, 100, apart)
        found = [fmean(one) for one in losses]
        best = min(range(models), key=found.__getitem__)
        error_of_all = fmean(found) - fmean(true)  # that of the rows, which no choice has made
        added.append(true[best] - (found[best] - error_of_all))
        expected = optimism.of_choosing(losses)
        assert expected is not None
        estimated.append(expected)
    noise = stdev(added) / len(added) ** 0.5
    # Draws around losses that differ by chance, too, choose a little more surely than the rows did.
    assert 0.6 * fmean(added) - 2 * noise <= fmean(estimated) <= fmean(added) + 2 * noise
    assert fmean(estimated) > 0.4 * fmean(added) > 0


def test_what_is_clear_adds_nothing() -> None:
    losses, _ = world(random.Random(1), 2, 100, 0.0)
    assert optimism.of_choosing([losses[0], [one + 5.0 for one in losses[1]]]) < 0.005
    assert optimism.of_choosing([losses[0], losses[0]]) == 0.0


@pytest.mark.parametrize("losses", [[], [[1.0, 2.0]], [[1.0, 2.0], [float("inf"), 1.0]]])
def test_where_there_is_nothing_to_say(losses: list[list[float]]) -> None:
    assert optimism.of_choosing(losses) is None
