"""Explanations of functions that NumPy computes: exact where all coalitions are counted, else near."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import Explanation, InputElements, PredictionInput
from cerebro_db.nn.orders import explanations
from cerebro_db.nn.rows.data import Dataset

Function = Callable[[np.ndarray], np.ndarray]  # rows of numbers -> number, or probabilities of classes
ROWS, BACKGROUND = 3, 7


def arrays(values: np.ndarray) -> bytes:
    """As ``cerebro_internal._array_bytes`` gives the rows."""
    shape = values.shape[1:]
    header = struct.pack(f"={3 + 2 * len(shape)}i", len(shape), 0, 700, *shape, *[1] * len(shape))
    return b"".join(header + row.astype("f4").tobytes() for row in values)


def made_up(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype("f4").astype("f8")


def explained(
    function: Function, rows: np.ndarray, background: np.ndarray, columns: list[slice] | None = None, **more: Any
) -> np.ndarray:
    """``columns``: the places of each column; by default each number is one."""
    size = rows.shape[1]
    places = columns or [slice(place, place + 1) for place in range(size)]
    elements = [[InputElements("x", one.start, one.stop - one.start)] for one in places]
    inputs = [PredictionInput("x", "float32", [size])]
    layout = {"inputs": [{"name": "x", "dtype": "float32", "shape": [size]}], "outputs": []}
    values = [base64.b64encode(arrays(background)).decode()]
    dataset = Dataset(layout, len(rows), {"x": arrays(rows)}, packed=False)

    def outputs(some: Dataset) -> list[np.ndarray]:
        found = function(some.inputs[0].astype("f8"))
        return [found if found.ndim > 1 else found[:, None]]

    order = Explanation(elements, more.pop("classes", [None]), inputs, len(background), values, **more)
    (found,) = explanations.explain(order, dataset, outputs)
    return found


def shapley(function: Function, row: np.ndarray, background: np.ndarray, columns: list[slice]) -> list[float]:
    """By the definition, one coalition after the other."""

    def worth(coalition: tuple[int, ...]) -> float:
        mixed = background.copy()
        for one in coalition:
            mixed[:, columns[one]] = row[columns[one]]
        return float(function(mixed).mean())

    count = len(columns)
    found = []
    for column in range(count):
        others = [one for one in range(count) if one != column]
        found.append(
            sum(
                (worth((*coalition, column)) - worth(coalition)) / (count * math.comb(count - 1, size))
                for size in range(count)
                for coalition in combinations(others, size)
            )
        )
    return found


def tangled(values: np.ndarray) -> np.ndarray:
    """A number for which the columns need one another."""
    return values[:, 0] * values[:, 1] * values[:, 2] + np.tanh(values.sum(1)) + 100 * (values[:, 3] > 0)


def probabilities(values: np.ndarray) -> np.ndarray:
    """Two classes, far from any sum of the columns."""
    weights = np.random.default_rng(5).normal(size=(values.shape[1], 32)) / math.sqrt(values.shape[1])
    logit = np.tanh(0.3 * values @ weights) @ np.random.default_rng(6).normal(size=32)
    second = 1 / (1 + np.exp(-logit))
    return np.column_stack([1 - second, second])


@pytest.mark.parametrize("columns", [[slice(0, 1)], [slice(0, 2), slice(2, 5)], None], ids=["one", "wide", "each"])
def test_few_columns_have_their_shapley_values(columns: list[slice] | None) -> None:
    size = 5 if columns is None else columns[-1].stop
    rows, background = made_up(ROWS, size, 1), made_up(BACKGROUND, size, 2)
    places = columns or [slice(place, place + 1) for place in range(size)]

    def function(values: np.ndarray) -> np.ndarray:
        return tangled(np.pad(values, ((0, 0), (0, 5 - size))))

    found = explained(function, rows, background, places)
    np.testing.assert_allclose(found[:, 1], function(background).mean())
    np.testing.assert_allclose(found[:, 2], function(rows))
    for row, answer in zip(rows, found):
        np.testing.assert_allclose(answer[3:], shapley(function, row, background, places), atol=1e-9)


def entangled(values: np.ndarray) -> np.ndarray:
    """Two classes that follow from products of columns, and change quickly."""
    margin = values[:, 0] * values[:, 1] + values[:, 2] * values[:, 3] + values[:, 4] - np.sin(3 * values[:, 5])
    second = 1 / (1 + np.exp(-6 * margin - values[:, 6]))
    return np.column_stack([1 - second, second])


def scaled(values: np.ndarray) -> np.ndarray:
    return 1000 * probabilities(values)[:, 1]


@pytest.mark.parametrize(
    ("function", "background_rows", "ratio"),
    [(probabilities, 16, 10), (scaled, 16, 6), (entangled, 16, 4), (entangled, 40, 5)],
)
def test_ten_columns_of_many_rows_are_within_two_hundredths(
    function: Function, background_rows: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ratio``: so many times fewer outputs than those of all coalitions."""
    rows, background = made_up(40, 10, 3), made_up(background_rows, 10, 4)
    monkeypatch.setattr(explanations, "MOST_OUTPUTS", 1 << 40)
    exact = explained(function, rows, background)
    monkeypatch.setattr(explanations, "MOST_OUTPUTS", 1000)
    calls = [0]

    def counting(values: np.ndarray) -> np.ndarray:
        calls[0] += len(values)
        return function(values)

    found = explained(counting, rows, background)
    scale = 1.0 if exact[:, 2].max() <= 1 else float(function(background).std())
    assert np.abs(found - exact).max() < 0.02 * scale
    assert calls[0] < 40 * background_rows * 1022 / ratio
    np.testing.assert_allclose(found[:, 3:].sum(1), found[:, 2] - found[:, 1], atol=1e-9 * scale)


def test_sums_of_columns_are_exact_with_few_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "MOST_OUTPUTS", 1000)
    rows, background, weights = made_up(40, 10, 3), made_up(16, 10, 4), np.arange(10) / 10
    found = explained(lambda values: values @ weights, rows, background)
    np.testing.assert_allclose(found[:, 3:], (rows - background.mean(0)) * weights, atol=0.001)


def test_many_columns_add_up_are_repeated_and_are_near() -> None:
    rows, background = made_up(ROWS, 20, 3), made_up(BACKGROUND, 20, 4)

    def pairs(values: np.ndarray) -> np.ndarray:  # an order and the same backwards have its values exactly
        return values[:, 0] * values[:, 1] + values[:, 2:].sum(1)

    found, again = (explained(pairs, rows, background) for _ in range(2))
    np.testing.assert_allclose(found[:, 3:].sum(1), found[:, 2] - found[:, 1], atol=1e-9)
    np.testing.assert_array_equal(found, again)
    np.testing.assert_allclose(found[:, 5:], rows[:, 2:] - background[:, 2:].mean(0), atol=1e-9)
    products = (rows[:, None, :1] + background[None, :, :1]) * (rows[:, None, 1:2] - background[None, :, 1:2]) / 2
    np.testing.assert_allclose(found[:, 4], products.mean(1)[:, 0], atol=1e-9)


def test_the_class_is_the_named_one_or_that_of_each_row() -> None:
    rows, background = made_up(20, 3, 3), made_up(BACKGROUND, 3, 4)
    predicted = probabilities(rows).argmax(1)
    assert len(set(predicted)) == 2
    of_each, *named = (explained(probabilities, rows, background, classes=[one]) for one in (None, 0, 1))
    assert of_each[:, 0].tolist() == predicted.tolist()
    np.testing.assert_array_equal(of_each, np.where(predicted[:, None] == 0, *named))
    np.testing.assert_allclose(named[0][:, 3:], -named[1][:, 3:], atol=1e-9)


def test_the_rows_that_are_taken_are_spread_as_all_are() -> None:
    rows, background = made_up(ROWS, 4, 3), made_up(1000, 4, 4)
    found = explained(lambda values: values[:, 0], rows, background, most=16)
    assert found[0, 1] == pytest.approx(background[:, 0].mean(), abs=0.06)  # of 16 rows by chance: 0.25
    np.testing.assert_allclose(found[:, 3:].sum(1), found[:, 2] - found[:, 1], atol=1e-9)
