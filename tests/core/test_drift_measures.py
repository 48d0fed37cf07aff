"""How far counts in the same bins are from each other, and the profiles that packing keeps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core import codec
from cerebro_db.core.models import metrics
from cerebro_db.core.models.metrics import MAX, MIN
from cerebro_db.core.packing import drift
from cerebro_db.core.packing.distributions import Bin, Distribution
from cerebro_db.core.packing.drift import CATEGORY, DATE, NUMBER, Profile

COUNTS = st.integers(2, 12).flatmap(
    lambda bins: st.tuples(*[st.lists(st.integers(0, 10**9), min_size=bins, max_size=bins)] * 2)
)


@given(COUNTS)
def test_measures_are_finite_and_in_their_bounds(both: tuple[list[int], list[int]]) -> None:
    before, now = both
    found, other = drift.between(before, now), drift.between(now, before)
    assert found.psi >= -1e-12 and math.isfinite(found.psi) and 0 <= found.jensen_shannon <= 1
    assert found.psi == pytest.approx(other.psi) and found.jensen_shannon == pytest.approx(
        other.jensen_shannon, abs=1e-12
    )
    assert found.largest is None or 0 <= found.largest < len(before)
    assert drift.by_chance(before, now) >= 0


def test_known_values() -> None:
    same = drift.between([10, 20, 30], [10, 20, 30])
    assert (same.psi, same.jensen_shannon, same.largest) == (0.0, 0.0, None)
    apart = drift.between([1000, 0], [0, 1000])
    assert apart.jensen_shannon == 1.0 and apart.psi > 10
    some = drift.between([500, 500], [250, 750])
    assert some.psi == pytest.approx(0.25 * math.log(3), rel=0.01)  # (q - p) ln(q / p), twice


def test_a_repeated_value_has_a_bin_of_its_own() -> None:
    found = Distribution([Bin(70, 0.0, 0.0, 0.0, 0.0), *(Bin(1, n, 0.0, n, n) for n in range(1, 31))])
    profile = Profile("x", False, NUMBER, drift.edges_of(found))
    assert profile.edges[0] == 0.0 and profile.edges[1] < 1e-200
    assert [profile.label(place) for place in (0, 1, profile.bins - 1)] == ["below 0", "0", "NULL"]
    assert drift.edges_of(Distribution([])) == ()


def test_labels_for_people() -> None:
    dates = Profile("born", False, DATE, (0.0, 365.0))
    assert [dates.label(place) for place in range(4)] == [
        "below 1970-01-01", "1970-01-01 to 1971-01-01", "from 1971-01-01", "NULL",
    ]  # fmt: skip
    assert Profile("born", False, DATE, (1e9,)).label(1) == "from day 1e+09"
    cities = Profile("city", False, CATEGORY, values=("Ulm",))
    assert [cities.label(place) for place in range(3)] == ["'Ulm'", "other values", "NULL"]


@pytest.mark.parametrize(
    "profile",
    [
        Profile("x", True, NUMBER, (-1.5, 2.0), rows=(1, 2, 3, 4)),
        Profile("x", False, DATE, rows=(0, 7)),
        Profile("x", False, CATEGORY, values=("a", "b"), rows=(5, 6, 7, 8)),
    ],
)
def test_a_profile_is_read_as_it_was_written(profile: Profile) -> None:
    assert codec.read(Profile, codec.encode(profile), "it") == profile


@pytest.mark.parametrize(
    "direction, value, than, margin, better",
    [
        (MAX, 0.8, 0.7, 0.0, True), (MAX, 0.7, 0.7, 0.0, False), (MAX, 0.8, 0.7, 0.2, False),
        (MIN, 0.5, 1.0, 0.5, True), (MIN, 1.0, 0.5, 0.0, False), (MIN, math.nan, 1.0, 0.0, False),
        (MIN, 1.0, math.nan, 0.5, True), (MAX, math.nan, math.nan, 0.0, False), (MIN, 1.0, math.inf, 0.0, True),
    ],
)  # fmt: skip
def test_what_is_better(direction: str, value: float, than: float, margin: float, better: bool) -> None:
    assert metrics.is_better(direction, value, than, margin) is better
