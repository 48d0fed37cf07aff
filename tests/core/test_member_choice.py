"""The members of an ensemble: whose mean predicts best, and how often each counts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from cerebro_db.core.member_choice import OfOutput, counts
from cerebro_plpy.serving import joining
from cerebro_plpy.serving.packed_rows import Batch


def test_errors_that_cancel_out_are_chosen() -> None:
    errors = [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [0.9, 1.1, 1.2], [5.0, -5.0, 5.0]]
    output = OfOutput(False, errors)
    chosen = counts([output], 4)
    assert output.loss_of(chosen) < 0.01 and chosen[3] == 0 < chosen[1]


def test_a_model_that_knows_everything_is_alone() -> None:
    assert counts([OfOutput(False, [[0.5, 0.5], [0.0, 0.0]])], 4) == [0, 1]
    assert counts([OfOutput(True, [[0.5, 0.9], [1.0, 1.0], [0.9, 0.99]])], 4) == [0, 1, 0]


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_worse_than_the_best_and_nearly_as_good_as_any_mean(of_classes: bool, seed: int) -> None:
    chance = random.Random(seed)
    draw = chance.random if of_classes else lambda: chance.gauss(chance.choice((-0.3, 0.3)), 1)
    output = OfOutput(of_classes, [[draw() for _ in range(40)] for _ in range(5)])
    chosen = counts([output], 5)
    best = min(output.loss(one, 1) for one in output.of_models)
    any_mean = min(output.loss_of(some) for some in itertools.product(range(4), repeat=5) if any(some))
    assert output.loss_of(chosen) <= best
    assert output.loss_of(chosen) <= any_mean * 1.05
    assert sum(map(bool, counts([output], 2))) <= 2 and len(chosen) == 5


def test_losses_are_those_that_training_reports() -> None:
    classes, numbers = OfOutput(True, [[0.5, 0.25], [0.1, 0.0]]), OfOutput(False, [[1.0, 3.0], [0.0, 1.0]])
    assert classes.loss_of([1, 0]) == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)
    assert classes.loss_of([0, 2]) == pytest.approx(-(math.log(0.1) + math.log(1e-7)) / 2)
    assert classes.loss_of([1, 1]) == pytest.approx(-(math.log(0.3) + math.log(0.125)) / 2)
    assert numbers.loss_of([1, 1]) == pytest.approx((0.5**2 + 2**2) / 2)


def test_several_outputs_count_alike() -> None:
    """However large the numbers of one of them are."""
    large = OfOutput(False, [[1e6, 1e6], [1.01e6, 1.01e6]])
    small = OfOutput(True, [[0.1, 0.1], [0.9, 0.9]])
    assert counts([large, small], 1) == [0, counts([large, small], 1)[1]]


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_models_that_predict_no_numbers_are_not_chosen(of_classes: bool, wrong: float) -> None:
    broken = [wrong, 0.5]
    chosen = counts([OfOutput(of_classes, [broken, [0.5, 0.5], broken])], 3)
    assert [bool(times) for times in chosen] == [False, True, False]
    assert counts([OfOutput(of_classes, [broken, broken])], 3) == [1, 0]
    several = [OfOutput(of_classes, [broken, broken]), OfOutput(of_classes, [[0.5, 0.5], [0.5, 0.5]])]
    assert counts(several, 3) == [1, 0]


def test_large_rows_are_not_all_kept_in_memory() -> None:
    """Thousands of images would not fit into the memory of a session."""
    read = []

    def batches(rows: int, size: int) -> Iterator[Batch]:
        for _ in range(20):
            read.append(size)
            yield Batch(rows, [bytes(size), None], [])

    assert len(joining._first(batches(1000, 10))) == len(read) == 4
    assert sum(len(one.inputs[0] or b"") for one in joining._first(batches(1, 20 << 20))) == 140 << 20
