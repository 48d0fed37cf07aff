"""After hundreds of hops or many fits, a session and its trainer have no more memory or files than after the first."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.sql.lab import CROSS, Lab, flower_model, run
from tests.sql.memory import Watch, compiled, status

CONFIGURATIONS, EPOCHS = 10, 52
MB = 1 << 20
WARM, FEW = 20, 120  # The memory between these hops is the reference.


@pytest.mark.same_machine
@pytest.mark.thorough  # only hundreds of hops prove it
def test_five_hundred_hops_in_one_session(lab: Lab) -> None:
    lab.iris(segments=1)
    arch = lab.architecture(flower_model())
    rates = [0.001 * (n + 1) for n in range(CONFIGURATIONS)]
    lab.selection("mst", [(arch, compiled("Adam", rate), "batch_size=64, epochs=1") for rate in rates])
    with Watch(lab, every=0.1) as watch:

        def by_the_log(cursor: Any) -> dict[str, int]:
            """The processes come from the log, because on Greenplum the worker is not the process of the session."""
            cursor.execute("SELECT count(*), max(worker_pid), max(trainer_pid) FROM cerebro.hop WHERE run > %s", [last])
            hops, worker, trainer = cursor.fetchone()
            memory = {"worker": worker, "trainer": trainer}
            return {"hops": hops} | {whose: status(pid, "RssAnon") for whose, pid in memory.items() if pid}

        last = lab.value("SELECT COALESCE(max(run), 0) FROM run")
        watch.question = by_the_log
        run = lab.fit("train", "many", "mst", EPOCHS, options={"deterministic": True})
    assert lab.value("SELECT count(*) FROM hop WHERE run = %s", run) == CONFIGURATIONS * EPOCHS
    assert lab.value("SELECT count(DISTINCT (worker_pid, trainer_pid)) FROM hop WHERE run = %s", run) == 1
    samples = [
        {"session": max(one["backends"]), **one["answer"]}
        for one in watch.samples
        if one["answer"]["hops"] >= WARM and one["backends"] and one["answer"]["worker"] and one["answer"]["trainer"]
    ]
    early = [one for one in samples if one["hops"] < FEW]
    later = [one for one in samples if one["hops"] >= FEW]
    assert early and later[-1]["hops"] > 450, json.dumps(samples[:1] + samples[-1:])
    for whose in ("session", "worker", "trainer"):
        first, most = (max(one[whose] for one in some) for some in (early, later))
        # For a small process, 5 percent is less than the growth of the server's caches, so 1 MB is allowed.
        # On Greenplum they grew by 1.2 MB in one step.
        caches = 2 * MB if lab.greenplum else MB
        grown = f"{whose}: {first >> 10} kB in the first {FEW} hops, then {most >> 10} kB"
        assert most < max(1.05 * first, first + caches), grown


FITS, FIRST = 24, 12


def open_files(pid: int) -> list[str]:
    """What a process has open, without the files of relations.

    PostgreSQL keeps the files of tables open that a session has used, as many as max_files_per_process allows, and
    closes the one that was used longest ago when it needs another.
    """
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}").removesuffix(" (deleted)")
            if not re.search(r"/(base|global|pg_tblspc|pg_wal)/", target):
                found.append(re.sub(r"\d+", "N", target))
    return sorted(found)


@pytest.mark.needs_cluster
@pytest.mark.thorough  # only many fits prove it
def test_many_fits_in_one_session(lab: Lab) -> None:
    """The session that calls the fits keeps nothing of each but PostgreSQL's own caches of the catalog."""
    lab("DROP TABLE IF EXISTS flowers, garden, train, train_summary, val, val_summary")
    lab.iris(segments=1)
    arch = lab.architecture(flower_model(), table="arch_of_fits")
    lab.selection("fits", [(arch, f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=64, epochs=1")], "arch_of_fits")
    caches = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"
    with closing(lab.connect()) as session:
        pid = session.info.backend_pid
        known = run(session, "SELECT to_regclass('pg_catalog.pg_backend_memory_contexts') IS NOT NULL")[0][0]
        seen: list[tuple[int, list[str]]] = []
        for number in range(FITS):
            lab.fit("train", f"fit_{number}", "fits", 1, on=session)
            own = int(run(session, caches)[0][0]) if known else 0
            seen.append((status(pid, "RssAnon") - own, open_files(pid)))
    assert seen[-1][1] == seen[FIRST][1]
    if known:
        first, last = (max(memory for memory, _ in part) for part in (seen[:FIRST], seen[FIRST:]))
        assert last < first + 2 * MB, [memory >> 10 for memory, _ in seen]
