"""The driver of runs, its units, its queue of tasks and its log, over thousands of histories with faults.

They run on a server in memory (``server_in_memory.py``), which forgets nothing that it has committed.  Each history is
made of one number.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import driver_mutants
import pytest
from driver_histories import DriverHistory, play

from cerebro_db.core.errors import CorruptState, TrainerFailed
from cerebro_db.core.protocol import (
    EvaluatedModel,
    MetricStates,
    OutgoingState,
    Trained,
    TrainedGroup,
    TrainedMember,
    TrainedVisit,
)
from cerebro_db.core.scheduling.plan import Evaluate, Train, Unit
from cerebro_plpy.runs.drive.driver import Driver
from cerebro_plpy.runs.units import visit
from cerebro_plpy.runs.units.unit import Result
from cerebro_plpy.sessions.failures import Refused
from cerebro_plpy.sessions.overlap import Task
from tests.thorough import tries

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # of a driver that is gone
HISTORIES = tries(140)
SHARES = 2


@pytest.mark.parametrize("share", range(SHARES))
def test_every_model_is_trained_as_it_would_be_alone(share: int) -> None:
    """Whatever happens on the way: sessions, trainers, rows, states and commits that are lost, kills and cancels.

    And whatever people ask for meanwhile: models stop, go on, and get copies that start from their last states.
    """
    counts = play(range(share, HISTORIES, SHARES))
    number = HISTORIES / SHARES  # all this did happen
    assert min(counts["files taken over"], counts["orders that share the session"]) > number
    assert min(counts["resident states"], counts["states that are gone"]) > number / 4
    assert min(counts["crashes"], counts["Cancelled"], counts["sessions lost"], counts["trainers lost"]) > number / 8
    assert min(counts["decisions to add"], counts["decisions to stop"]) > number / 10
    assert counts["decisions to refuse"] > number / 10 and counts["decisions to go on"] > 0
    assert min(counts["orders of several groups"], counts["commits that nobody heard of"]) > number / 40
    assert min(counts["chains of several visits"], counts["evaluations within chains"]) > number / 10
    assert counts["fused visits"] > number / 20 and counts["chains with states that are too large"] > 0


def test_units_that_did_not_begin_clear_no_segment_of_suspicion() -> None:
    """If the states of three models in a row are gone, the segment is to blame, though each order had another unit."""
    driving: Any = object.__new__(Driver)
    driving.decisions, driving.run = (
        SimpleNamespace(unit_seconds=0.0),
        SimpleNamespace(id=7, trainer_mb=None, why_whole=""),
    )
    worker: Any = SimpleNamespace(segment=2, resident={}, failing=set())

    def settled(model: int, *results: Result) -> None:
        units: list[Unit] = [Train(model, 1, 1, 2), Evaluate(model, 1, 1, 2, "validation", 0)]
        task = Task([units], time.monotonic(), may_compute=True)
        task.result = list(results)
        driving._settled(worker, task)

    gone = Result(error=Refused(CorruptState("the model's state is not there")))
    settled(1, gone, Result(cut=True))
    settled(2, gone, Result(cut=True))
    assert worker.failing == {1, 2}
    with pytest.raises(TrainerFailed, match="segment 2 fails whatever it trains: the model's state is not there"):
        settled(3, gone, Result(cut=True))


CHAIN: list[Unit] = [
    unit for hop in (1, 2) for unit in (Train(1, hop, hop, 0), Evaluate(1, hop, hop, 0, "validation", 0))
]  # fmt: skip


def made(*evaluations: int, finite: bool = True, size: int = 8) -> Trained:
    """The answer of a trainer that has made a visit for each number, and so many evaluations after it."""
    counted = MetricStates({"loss": [1.0, 1.0]})
    visits = [
        TrainedVisit(1, 1, 1.0 if finite else math.nan, {}, counted, finite, 0.1, [EvaluatedModel(1)] * count)
        for count in evaluations
    ]
    return Trained([TrainedGroup([TrainedMember(visits, OutgoingState(0, size, "x", 0, 8))], {"save": 0.1})])


@pytest.mark.parametrize(
    ("answer", "done", "stored"),
    [(made(1, 1), 4, 2), (made(1), 2, 0), (made(0, finite=False), 1, 0), (made(0, 1), 0, None), (made(1, 0), 3, 2),
     (made(1, 1, size=2 << 20), 0, None)],
)  # fmt: skip
def test_what_was_done_of_a_chain_ends_with_a_state(answer: Trained, done: int, stored: int | None) -> None:
    """A finite visit without its evaluation was not answered as ordered: nothing of it may go on record.

    A large state has tables of its own, which store the state after each hop.
    """
    found = visit.answered([CHAIN], answer)
    assert [one.unit for one in found.done] == CHAIN[:done]
    assert [place for place, one in enumerate(found.done) if one.last] == ([] if stored is None else [stored])
    failed = [unit for unit, result in found.results.items() if result.error is not None]
    assert failed == (CHAIN[:1] if stored is None else [])
    assert all(result.cut or unit in failed for unit, result in found.results.items())
    assert list(found.results) == CHAIN


def test_a_history_is_made_of_its_number() -> None:
    def one(seed: int) -> tuple[list[str], Counter[str]]:
        history = DriverHistory(seed).play()
        return [str(row.get("state_sha256", row.get("event"))) for row in history.server.log["order"]], history.counts

    assert one(11) == one(11) != one(12)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", driver_mutants.MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mistake_is_found(mutant: driver_mutants.Mutant) -> None:
    """The histories are worth something: with any of these mistakes in the code, one of them goes wrong."""
    number = str(driver_mutants.MUTANTS.index(mutant))
    script = Path(driver_mutants.__file__)
    found = subprocess.run([sys.executable, script, number], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip().isdigit(), f"{driver_mutants.MOST_HISTORIES} histories did not find it"
