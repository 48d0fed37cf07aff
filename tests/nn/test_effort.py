"""What a trial measures: the time in which a trainer computes, not the time in which it waits for a processor."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.nn import clocks


@pytest.mark.parametrize(("gpu", "expected"), [(False, [2.0, 1.0]), (True, [10.0, 1.0])])
def test_what_others_take_of_a_processor_does_not_count(monkeypatch: Any, gpu: bool, expected: list[float]) -> None:
    """If several threads compute at the same time, that time counts once."""
    monkeypatch.setattr(clocks.time, "monotonic", iter([100.0, 110.0, 111.0]).__next__)
    monkeypatch.setattr(clocks.time, "process_time", iter([7.0, 9.0, 13.0]).__next__)
    effort = clocks.Effort(gpu)
    assert [effort.seconds(), effort.seconds()] == expected
