"""Simulated models that are larger than a device: what reading ahead gains, and that the schedule's rules serve."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from large_models import (
    DEVICES,
    EXPONENTS,
    SECONDS,
    LargeModel,
    LeastLeftFirst,
    lower_bound,
    one_model_over_all,
    over_its_own_bound,
    shards_in_visits,
    shards_of_several_models,
    tasks,
    zipf,
)

from cerebro_db.core.scheduling.ring import derived_seed


def drawn(exponent: float, seconds: float, seeds: int = 5) -> list[Sequence[LargeModel]]:
    return [zipf(exponent, seconds)(random.Random(derived_seed(seed, exponent, seconds))) for seed in range(seeds)]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("seconds", SECONDS)
def test_no_way_is_faster_than_the_bound_and_reading_ahead_pays(exponent: float, seconds: float) -> None:
    for one in drawn(exponent, seconds, seeds=2):
        bound, ahead = lower_bound(one), shards_in_visits(one)
        for took in (ahead, shards_of_several_models(one), tasks(one), one_model_over_all(one)):
            assert took >= bound * (1 - 1e-9)
        assert ahead < 0.95 * shards_in_visits(one, read_ahead=False)
        assert ahead < one_model_over_all(one)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("seconds", SECONDS)
def test_the_model_with_most_work_left_goes_first(exponent: float, seconds: float) -> None:
    """The rule that holds for all models serves those that are cut, too."""
    taken = drawn(exponent, seconds)
    ours = [over_its_own_bound(one) for one in taken]
    others = [over_its_own_bound(one, LeastLeftFirst) for one in taken]
    assert max(ours) <= 1.15
    assert sum(ours) <= 1.001 * sum(others)


def test_what_a_minibatch_takes() -> None:
    """4 GB of weights need 16 GB: two shards, or four with reading ahead.  Computing again takes a third more."""
    quick, slow, small = LargeModel(4.0, 0.001), LargeModel(4.0, 1000.0), LargeModel(2.0, 5.0)
    assert (quick.shards(1), quick.shards(2), small.shards(2)) == (2, 4, 1)
    assert slow.batch_seconds(read_ahead=True) == pytest.approx(1000 * (4 - 1 / 4) / 3)
    assert small.batch_seconds(read_ahead=True) == small.batch_seconds(read_ahead=False) == 5.0
    # If computing costs nothing, the link decides. The first step forward waits until the last state is stored.
    assert quick.batch_seconds(read_ahead=True) == pytest.approx((3 + 1 + 5 * 3) / 12, rel=0.01)
    assert quick.batch_seconds(read_ahead=False) == pytest.approx((2 + 12 + 12) / 12, rel=0.01)


def test_equal_models_that_fit_keep_all_devices_busy() -> None:
    fitting = [LargeModel(1.0, 10.0)] * 2 * DEVICES
    assert shards_in_visits(fitting) == pytest.approx(lower_bound(fitting), rel=0.01)
    assert tasks(fitting) == pytest.approx(lower_bound(fitting), rel=0.01)
    assert one_model_over_all(fitting) == pytest.approx(DEVICES * lower_bound(fitting))
