"""The cost of a hop: what one more visit of each model takes, without the start, in all processes together.

A work is done with few epochs and with many, in one session that has done it once before.  The difference is that of
the visits alone: starting, evaluating and making the model tables take the same in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.bench import meter, report
from tests.bench.contenders import OUTPUT, script
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import Work
from tests.sql.lab import run, trainer_processes

FEW = 1  # epochs
KINDS = {"driver": "driver", "worker": "worker sessions", "trainer": "trainers", "others": "all others"}


def hopping(name: str, **options: Any) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        database, work = stage.database, stage.work
        with contextlib.closing(database.lab.connect()) as session:
            database.fit(work.but(epochs=FEW), session, OUTPUT, {"seed": 1, **options})
            database.drop_models(OUTPUT)
            ((driver,),) = run(session, "SELECT pg_backend_pid()")
            taken, spent = [], []
            for epochs in (FEW, work.epochs):
                before = processes(stage, driver)
                with stage.meter() as measured:
                    database.fit(work.but(epochs=epochs), session, OUTPUT, {"seed": 1, **options})
                after = processes(stage, driver)
                database.drop_models(OUTPUT)
                taken.append(measured.taken)
                spent.append({kind: after[kind] - before[kind] for kind in after})
        few, many = taken
        hops = visits(work)
        per_hop = {kind: 1000 * (spent[1][kind] - spent[0][kind]) / hops for kind in spent[0]}
        per_hop["cpu"] = 1000 * (many.cpu - few.cpu) / hops
        per_hop["wall"] = 1000 * (many.wall - few.wall) / hops
        per_hop["others"] = per_hop["cpu"] - sum(per_hop[kind] for kind in spent[0])
        yield Measured(name, many, 0.0, more={"hop": per_hop})

    return contend


def without_hops(stage: Stage) -> Iterator[Measured]:
    """Its visits are passes over as many rows as a segment has."""
    for one in script("without hops", "no_hops")(stage):
        per_hop = {name: 1000 * one.more[name] / visits(stage.work) for name in ("cpu", "wall")}
        yield Measured(one.contender, one.taken, one.start, more={"hop": per_hop})


def visits(work: Work) -> int:
    """How many more visits there are with the epochs of the work than with few."""
    return (work.epochs - FEW) * work.segments * len(work.configurations)


def processes(stage: Stage, driver: int) -> dict[str, float]:
    """The CPU seconds so far of each kind of process that stays from one call to the next."""
    workers = [pid for (pid,) in stage.database.lab("SELECT pid FROM pg_stat_activity WHERE application_name ~ %s",
                                                    "^cerebro_db (waiting|segment)")]  # fmt: skip
    trainers = [pid for pid, _ in trainer_processes(stage.database.cluster.home)]
    found = {"driver": [driver], "worker": workers, "trainer": trainers}
    return {kind: sum(map(meter.cpu, pids)) for kind, pids in found.items()}


CONTENDERS: dict[str, Contender] = {
    "ours": hopping("ours"),
    "ours-jax": hopping("ours, jax", engine="jax"),
    "without-hops": without_hops,
}


def table(repeats: report.Repeats) -> str:
    """A table of the milliseconds of a visit, and of what is more than without hops."""
    bare = [one.more["hop"] for one in report.of(repeats, "without hops") if "hop" in one.more]
    rows = []
    for name in report.contenders(repeats):
        mine = [one.more["hop"] for one in report.of(repeats, name) if "hop" in one.more]
        if not mine:
            continue
        row = [name, *(report.spread([hop[what] for hop in mine]) for what in ("cpu", "wall"))]
        row += [report.spread([hop[kind] for hop in mine]) if kind in mine[0] else "" for kind in KINDS]
        pairs = [(hop, other) for hop, other in zip(mine, bare)] if name != "without hops" else []
        for what in ("cpu", "wall"):  # The kernel counts the CPU of very short work as 0.
            ratios = [hop[what] / other[what] for hop, other in pairs if other[what] > 0]
            row.append(report.spread(ratios) if ratios else "")
        rows.append(row)
    head = ["a visit with its hop", "CPU ms", "wall ms", *(f"CPU ms: {kind}" for kind in KINDS.values())]
    return report.table([*head, "CPU / without hops", "wall / without hops"], rows) if rows else ""
