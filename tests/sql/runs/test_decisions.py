"""Decisions of a search policy in a real run: models that stop, and models that begin from other models' states.

The decisions of a policy depend on when models complete their epochs. So chosen decisions are written into the log of a
finished run, and a replay of that run carries them out.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.lab import CROSS, Lab, flower_model
from tests.thorough import landing

EPOCHS, SEGMENTS = 3, 2
MB = 1 << 20


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=SEGMENTS)
    return lab


def decide(lab: Lab, run: int, model: int, epoch: int, decision: str, **more: Any) -> None:
    lab(
        "INSERT INTO decision (run, model, epoch, decision, reason, policy, detail)"
        " VALUES (%s, %s, %s, %s, %s, 'by hand', %s)",
        run, model, epoch, decision, more.get("reason"), json.dumps({"added": more.get("added", [])}),
    )  # fmt: skip


def copy_of(model: int, parent: int, parent_hop: int) -> dict[str, Any]:
    return {"model": model, "parent": parent, "parent_hop": parent_hop}


@pytest.mark.parametrize("units", landing([16, 15_000], 15_000))  # test_added_models.py has small ones
def test_models_begin_from_states_of_others(flowers: Lab, units: int) -> None:
    """Also if the states are so large that each is freed as soon as the next is committed."""
    name = f"of_{units}"
    arch = flowers.architecture(flower_model(units))
    flowers.selection(name, [(arch, f"optimizer='Adam(lr={rate})', {CROSS}", "batch_size=16") for rate in (0.01, 0.02)])
    options = {"deterministic": True, "seed": 5}
    first = flowers.fit("train", f"{name}_first", name, EPOCHS, options=options)
    decide(flowers, first, 1, 1, "add", added=[copy_of(3, parent=2, parent_hop=2), {"model": 4, "key": 1}])
    decide(flowers, first, 2, 1, "add", added=[copy_of(5, parent=4, parent_hop=0)])
    decide(flowers, first, 3, 1, "add", added=[copy_of(6, parent=3, parent_hop=2)])
    decide(flowers, first, 2, 2, "stop", reason="enough")
    run = flowers.fit("train", f"{name}_again", name, EPOCHS, options={"replay": first})
    status = dict(flowers("SELECT model, status FROM leaderboard WHERE run = %s", run))
    assert status == {model: "stopped" if model == 2 else "finished" for model in range(1, 7)}
    kept = "SELECT state_sha256 FROM hop WHERE run = %s AND model = %s AND hop = %s"
    begins = dict(flowers("SELECT model, (initial, initial_sha256, seed)::text FROM model WHERE run = %s", run))
    seeds = dict(flowers("SELECT model, seed FROM model WHERE run = %s", run))
    assert flowers.value(kept, run, 2, 2) in begins[3] and "full" in begins[3]
    assert flowers.value(kept, run, 3, 2) in begins[6]
    # Model 5 begins where model 4 began: with the same random weights, but another order of segments and rows.
    assert "random" in begins[5] and seeds[5] == seeds[4] != seeds[1]
    # The model table has one model for each configuration: the best.
    best = (
        "SELECT DISTINCT ON (configuration) configuration, training_loss FROM leaderboard"
        " WHERE run = %s ORDER BY configuration, rank"
    )
    assert flowers(f"SELECT mst_key, training_loss_final FROM {name}_again_info ORDER BY 1") == flowers(best, run)
    assert flowers.value(f"SELECT count(*) FROM {name}_again") == 2
    hops = dict(flowers("SELECT model, count(*) FROM hop WHERE run = %s GROUP BY 1", run))
    assert hops == {model: (2 if model == 2 else EPOCHS) * SEGMENTS for model in range(1, 7)}
    positions = "SELECT detail ->> 'position' FROM event WHERE run = %s AND event = 'built'"
    assert len({row for row in flowers(positions, run)}) == 6, "each model enters the ring at a place of its own"
    # The models that the decisions did not touch have the bits that they had without.
    assert flowers.states(run)[1] == flowers.states(first)[1]
    again = flowers.fit("train", f"{name}_third", name, EPOCHS, options={"replay": run})
    assert flowers.states(again) == flowers.states(run)
