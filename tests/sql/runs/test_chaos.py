"""A moment of tests/chaos.py.  ``make chaos`` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro_db.embedded.cluster import Cluster
from tests.chaos import SORTS, wreak
from tests.thorough import tries


@pytest.mark.needs_cluster
@pytest.mark.thorough  # tests/core/test_driver.py simulates these failures, test_recovery.py has a crash
def test_whatever_happens_the_models_are_the_same(cluster: Cluster, tmp_path: Path) -> None:
    told: list[str] = []
    events = tries(3)
    tally = wreak(cluster, tmp_path, events, seed=7, resume=False, say=told.append)
    assert sum(tally.events.values()) >= events and len(tally.expected) == sum(sort.models for sort in {*SORTS})
    assert tally.faults == 0, "\n".join(told)
