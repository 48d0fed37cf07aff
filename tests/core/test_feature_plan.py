"""What the features of frozen layers are expected to cost and to save."""

from __future__ import annotations

import pytest

from cerebro_db.core.protocol.answers import FeaturesUsed
from cerebro_db.core.trainers.frozen_feature_plan import FeaturePlan, FeatureUse, WantedFeatures, plan

SLOW = WantedFeatures(rows=1000, row_bytes=1000, row_seconds=1e-3, visited=8000)  # 8 s; 1 s if computed once
FAST = WantedFeatures(rows=1000, row_bytes=1000, row_seconds=1e-7, visited=8000)  # reading takes longer


def test_what_is_saved() -> None:
    found = plan([SLOW], 10**9, all_pay=False)
    assert found.bytes == 10**6 and found.without == pytest.approx(8)
    assert found.computing == pytest.approx(1) and found.saved == pytest.approx(7 - 0.007)


def test_what_does_not_pay_is_kept_only_if_all_are() -> None:
    assert plan([FAST], 10**9, all_pay=False).bytes == 0
    assert plan([FAST], 10**9, all_pay=True).bytes == 10**6
    assert plan([], 10**9, all_pay=True) == FeaturePlan(0, 0.0, 0.0, 0.0)


def test_the_limit_takes_those_that_save_most() -> None:
    slower = WantedFeatures(rows=1000, row_bytes=1000, row_seconds=2e-3, visited=8000)
    found = plan([SLOW, slower], 10**6, all_pay=False)
    assert found.bytes == 10**6 and found.computing == pytest.approx(8 + 2)
    found = plan([SLOW, slower], 10**6 - 1, all_pay=False)
    assert (found.bytes, found.saved) == (0, 0) and found.computing == found.without == pytest.approx(24)


def test_what_they_did() -> None:
    used = FeatureUse()
    assert not used.any
    for segment, one in ((0, None), (0, FeaturesUsed(5, 1.0, 0.0)), (1, FeaturesUsed(7, 1.0, 2.0)),
                         (0, FeaturesUsed(3, 0.0, 2.0))):  # fmt: skip
        used.add(segment, one)
    assert used.any and used.to_json(None) == {"bytes": 12, "computing": 2.0, "saved": 4.0}
    assert used.to_json(FeaturePlan(1, 2.0, 3.0, 4.0))["expected"] == {
        "bytes": 1, "computing": 2.0, "saved": 3.0, "without": 4.0,
    }  # fmt: skip
