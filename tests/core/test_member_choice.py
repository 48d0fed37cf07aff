"""The members of an ensemble: the best models, but not such as make the mean clearly worse."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator

import pytest

from cerebro_db.core.models.member_choice import (
    Comparison,
    OfOutput,
    batches_in_time,
    difference,
    joins,
    members,
)
from cerebro_plpy.judging.packed_rows import Batch
from cerebro_plpy.verbs import choosing_members
from cerebro_plpy.verbs.choosing_members import ValidationSample


def compared(output: OfOutput, models: list[int], others: list[int]) -> Comparison:
    return difference(output.losses_of(models), output.losses_of(others))


def noisy(of_classes: bool, seed: int, rows: int = 200, models: int = 4) -> OfOutput:
    """Models that err independently of each other."""
    chance = random.Random(seed)
    if of_classes:
        return OfOutput(True, [[chance.betavariate(4, 2) for _ in range(rows)] for _ in range(models)])
    return OfOutput(False, [[chance.gauss(0, 1) for _ in range(rows)] for _ in range(models)])


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_models_that_are_about_as_good_join_the_best_one_first(of_classes: bool, seed: int) -> None:
    output = noisy(of_classes, seed)
    chosen = members([output])
    alone = [output.loss([one]) for one in range(4)]
    assert len(chosen) >= (2 if of_classes else 4)
    assert alone[chosen[0]] == min(alone)
    assert output.loss(chosen) < min(alone)


@pytest.mark.parametrize("of_classes", [False, True])
def test_much_worse_models_are_left_out(of_classes: bool) -> None:
    rows = 200
    bad = [0.05] * rows if of_classes else [9.0, -7.0] * (rows // 2)
    good = noisy(of_classes, 1)
    assert set(members([OfOutput(of_classes, [*good.of_models, bad, bad, bad, bad])])) <= {0, 1, 2, 3}


def test_a_model_that_knows_everything_is_alone() -> None:
    assert members([OfOutput(False, [[0.5, 0.6] * 50, [0.0, 0.0] * 50])]) == [1]
    assert members([OfOutput(True, [[0.5, 0.9] * 50, [1.0, 1.0] * 50, [0.9, 0.99] * 50])]) == [1]


def test_a_mean_that_is_clearly_better_is_searched() -> None:
    """Errors of two models cancel out; those of the others do not."""
    apart = [[0.8, -0.8] * 100, [-0.8, 0.8] * 100]
    chance = random.Random(3)
    alike = [[chance.gauss(0.9, 0.1) for _ in range(200)] for _ in range(4)]
    output = OfOutput(False, [*alike, *apart])
    assert set(members([output])) == {4, 5}


def test_a_mean_that_is_a_little_better_is_not() -> None:
    """It is the best of many on these rows by chance."""
    output = OfOutput(False, [[0.5, 0.6] * 3, [0.0, 1.2] * 3])
    more, error = compared(output, [0, 1], [0])
    assert 0 < more < error and members([output]) == [0, 1]
    output = OfOutput(False, [[0.5, 0.6] * 300, [0.0, 1.2] * 300])
    more, error = compared(output, [0, 1], [0])
    assert 0 < error < more and members([output]) == [0]


def test_the_standard_error_is_that_of_the_paired_differences() -> None:
    output = OfOutput(False, [[0.0, 0.0, 0.0], [2.0, 4.0, 0.0]])  # their mean loses 1, 4 and 0 more
    more, error = compared(output, [0, 1], [0])
    assert more == pytest.approx(5 / 3)
    assert error == pytest.approx(statistics.stdev([1, 4, 0]) / math.sqrt(3))
    assert compared(OfOutput(False, [[1.0], [2.0]]), [0, 1], [0]) == (1.25, 0.0)


def test_losses_are_those_that_training_reports() -> None:
    classes, numbers = OfOutput(True, [[0.5, 0.25], [0.1, 0.0]]), OfOutput(False, [[1.0, 3.0], [0.0, 1.0]])
    assert classes.loss([0]) == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)
    assert classes.loss([1]) == pytest.approx(-(math.log(0.1) + math.log(1e-7)) / 2)
    assert classes.loss([0, 1]) == pytest.approx(-(math.log(0.3) + math.log(0.125)) / 2)
    assert numbers.loss([0, 1]) == pytest.approx((0.5**2 + 2**2) / 2)


def test_several_outputs_count_alike() -> None:
    """However large the numbers of one of them are."""
    large = OfOutput(False, [[1e6, 1e6], [1.01e6, 1.01e6]])
    small = OfOutput(True, [[0.1, 0.1], [0.9, 0.9]])
    assert members([large, small])[0] == members([small, large])[0] == 1


@pytest.mark.parametrize("of_classes", [False, True])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_models_that_predict_no_numbers_are_not_chosen(of_classes: bool, wrong: float) -> None:
    broken = [wrong, 0.5]
    assert members([OfOutput(of_classes, [broken, [0.5, 0.5], broken])]) == [1]
    assert members([OfOutput(of_classes, [broken, broken])]) == [0]
    several = [OfOutput(of_classes, [broken, broken]), OfOutput(of_classes, [[0.5, 0.5], [0.5, 0.5]])]
    assert members(several) == [0]


@pytest.mark.parametrize("of_classes", [False, True])
def test_the_most_members_are_chosen_with_few_steps(of_classes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session cannot be cancelled meanwhile."""
    computed = 0
    losses = OfOutput.losses

    def counted(self: OfOutput, sums: list[float], count: int) -> list[float]:
        nonlocal computed
        computed += 1
        return losses(self, sums, count)

    monkeypatch.setattr(OfOutput, "losses", counted)
    assert len(members([noisy(of_classes, 1, rows=50, models=100)])) > 1
    assert computed < 100 * 25


def test_without_predictions_the_mean_of_all_is_compared_first() -> None:
    assert list(choosing_members._means(range(1, 10), None)) == [list(range(1, 10)), [1, 2, 3, 4], [1, 2]]
    assert list(choosing_members._means([7], None)) == []


def test_large_rows_are_not_all_kept_in_memory() -> None:
    """Thousands of images would not fit into the memory of a session."""
    read = []

    def batches(rows: int, size: int) -> Iterator[Batch]:
        for _ in range(20):
            read.append(size)
            yield Batch(rows, [bytes(size), None], [])

    assert len(choosing_members._first(batches(12_500, 10))) == len(read) == 4
    assert sum(len(one.inputs[0] or b"") for one in choosing_members._first(batches(1, 20 << 20))) == 140 << 20


def test_few_rows_are_read_when_the_time_is_over() -> None:
    batches = (Batch(2000, [bytes(10)], []) for _ in range(20))
    assert len(choosing_members._first(batches, time.monotonic() - 1)) == 1


def test_the_best_two_predict_the_rows_and_others_as_long_as_there_is_time() -> None:
    assert [joins(number, last=0.5, left=-1.0) for number in range(4)] == [True, True, False, False]
    assert joins(7, last=9.0, left=None) and joins(7, last=0.5, left=0.5) and not joins(7, last=0.6, left=0.5)


@pytest.mark.parametrize(
    ("done", "each", "left", "members", "batches"),
    [
        (2, 0.1, 8.0, 8, 10),  # of 80 that fit into the time, and two that are done, each of eight members predicts ten
        (2, 0.1, 1.0, 8, 1),
        (2, 0.1, -5.0, 8, 1),
        (6, 0.1, 1.0, 2, 8),
        (2, 0.0, 1.0, 8, 125_000_000),
    ],
)
def test_all_members_have_time_for_the_rows(done: int, each: float, left: float, members: int, batches: int) -> None:
    assert batches_in_time(done, each, left, members) == batches


def test_rows_that_have_not_chosen_the_members_judge_them_too() -> None:
    first, more = choosing_members.CHOOSING_ROWS, 3 * choosing_members.CHOOSING_ROWS
    errors = [[1.0] * first + [0.1] * more, [-1.0] * first + [2.0] * more]
    (few,) = [
        choosing_members._of_sample(ValidationSample([OfOutput(False, [one[:first] for one in errors])], True), [7, 9])
    ]
    assert few.keys == [7, 9] and few.loss == 0.0
    all_rows = choosing_members._of_sample(ValidationSample([OfOutput(False, errors)], True), [7, 9])
    assert all_rows.keys == [7] and all_rows.loss == all_rows.alone == pytest.approx(0.2575)


def test_the_loss_of_a_part_of_the_rows_is_related_to_what_is_known_of_all() -> None:
    sample = ValidationSample([OfOutput(False, [[1.0, 1.0], [-0.5, -0.5]])], False)
    found = choosing_members._of_sample(sample, [7, 9], known=3.0)
    assert found.keys == [9, 7] and found.alone == 3.0 - 1.0 + 0.25 and found.loss == 3.0 - 1.0 + 0.0625
