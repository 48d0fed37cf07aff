"""Hundreds of hops in one worker session take no more memory than the first few."""

from __future__ import annotations

import json
from typing import Any

from tests.sql.lab import Lab, flower_model
from tests.sql.memory import Watch, compiled

CONFIGURATIONS, EPOCHS, WARM = 10, 52, 20


def test_five_hundred_hops_in_one_session(lab: Lab) -> None:
    lab.iris(segments=1)
    arch = lab.architecture(flower_model())
    rates = [0.001 * (n + 1) for n in range(CONFIGURATIONS)]
    lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=64, epochs=1") for rate in rates])
    with Watch(lab, every=0.05) as watch:

        def hops(cursor: Any) -> int:
            cursor.execute("SELECT count(*) FROM cerebro.hop")
            return cursor.fetchone()[0] - before

        before = lab.value("SELECT count(*) FROM hop")
        watch.question = hops
        run = lab.fit("train", "many", "mst", EPOCHS, options={"deterministic": True})
    assert lab.value("SELECT count(*) FROM hop WHERE run = %s", run) == CONFIGURATIONS * EPOCHS
    assert lab.value("SELECT count(DISTINCT (worker_pid, trainer_pid)) FROM hop WHERE run = %s", run) == 1
    samples = [one for one in watch.samples if one["answer"] >= WARM and one["backends"] and one["trainers"]]
    assert samples[0]["answer"] < 2 * WARM + 40 and samples[-1]["answer"] > 500, json.dumps(samples[:1] + samples[-1:])
    for whose in ("backends", "trainers"):
        first, most = max(samples[0][whose]), max(max(one[whose]) for one in samples[1:])
        assert most < 1.05 * first, f"{whose}: {first >> 10} kB after {samples[0]['answer']} hops, then {most >> 10} kB"
