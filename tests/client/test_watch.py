"""The time that is left, as the terminal shows it."""

from __future__ import annotations

import pytest

from cerebro_db.client.orm import RunProgress
from cerebro_db.client.watch import STARTING, line


@pytest.mark.parametrize(
    ("hops", "left", "shown", "hidden"),
    [(0, None, STARTING, "left"), (3, None, "estimating the time left", STARTING), (3, 90.0, "left", "estimating")],
)
def test_no_estimate_is_said_to_be_none(hops: int, left: float | None, shown: str, hidden: str) -> None:
    progress = RunProgress(
        run=1, status="running", percent=2.0, hops_done=hops, hops_total=50, seconds_left=left, best_loss=None,
        configurations_failed=0, rows_per_second=None,
    )  # fmt: skip
    assert shown in line(progress).plain and hidden not in line(progress).plain
