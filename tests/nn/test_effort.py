"""What a trial measures: what a trainer computes, not how long it waits for its turn."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.nn import orders


@pytest.mark.parametrize(("gpu", "expected"), [(False, [2.0, 1.0]), (True, [10.0, 1.0])])
def test_what_others_take_of_a_processor_does_not_count(monkeypatch: Any, gpu: bool, expected: list[float]) -> None:
    """Of several threads the time counts in which they compute side by side."""
    monkeypatch.setattr(orders.time, "monotonic", iter([100.0, 110.0, 111.0]).__next__)
    monkeypatch.setattr(orders.time, "process_time", iter([7.0, 9.0, 13.0]).__next__)
    effort = orders.Effort(gpu)
    assert [effort.seconds(), effort.seconds()] == expected
