"""The driver of runs, its units, its queue of tasks and its log, over thousands of histories with faults.

They run on a server in memory (``server_in_memory.py``), which forgets nothing that it has committed.  Each history is
made of one number, and ``CEREBRO_HISTORIES=100000`` plays more of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import driver_mutants
import pytest
from driver_histories import DriverHistory, play

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # of a driver that is gone
HISTORIES = int(os.environ.get("CEREBRO_HISTORIES", "700"))
SHARES = 8


@pytest.mark.parametrize("share", range(SHARES))
def test_every_model_is_trained_as_it_would_be_alone(share: int) -> None:
    """Whatever happens on the way: sessions, trainers, rows, states and commits that are lost, kills and cancels.

    And whatever people ask for meanwhile: models stop, go on, and get copies that start from their last states.
    """
    counts = play(range(share, HISTORIES, SHARES))
    number = HISTORIES / SHARES  # all this did happen
    assert min(counts["files taken over"], counts["orders that share the session"]) > number
    assert min(counts["resident states"], counts["fused visits"], counts["states that are gone"]) > number / 4
    assert min(counts["crashes"], counts["Cancelled"], counts["sessions lost"], counts["trainers lost"]) > number / 8
    assert min(counts["decisions to add"], counts["decisions to stop"]) > number / 10
    assert counts["decisions to refuse"] > number / 10 and counts["decisions to go on"] > 0
    assert min(counts["orders of several groups"], counts["commits that nobody heard of"]) > number / 25


def test_a_history_is_made_of_its_number() -> None:
    def one(seed: int) -> tuple[list[str], Counter[str]]:
        history = DriverHistory(seed).play()
        return [str(row.get("state_sha256", row.get("event"))) for row in history.server.log["order"]], history.counts

    assert one(11) == one(11) != one(12)


@pytest.mark.parametrize("mutant", driver_mutants.MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mistake_is_found(mutant: driver_mutants.Mutant) -> None:
    """The histories are worth something: with any of these mistakes in the code, one of them goes wrong."""
    number = str(driver_mutants.MUTANTS.index(mutant))
    script = Path(driver_mutants.__file__)
    found = subprocess.run([sys.executable, script, number], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip().isdigit(), f"{driver_mutants.MOST_HISTORIES} histories did not find it"
