"""Models that are cut into shards, against models that are in memory as a whole.

A process without a database measures the batches (shards_alone.py).  Runs through SQL measure the whole: one model with
and without a limit of memory, and four models at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import psycopg2

from tests.bench import report
from tests.bench.contenders import OUTPUT, call
from tests.bench.database import Database
from tests.bench.stage import Contender, Measured, Skipped, Stage
from tests.bench.works import MEMORY_MB, Work
from tests.sql.memory import Peaks

STATE = 1 << 30  # bytes
ON_DISK = 6  # times a model's state: two versions of its rows, the log, the trainer's file, the weights of its table
IN_MEMORY = 5 * STATE  # of a whole model: the state, gradients, what is sent, and what the operating system keeps
HEAD = ["", "s per batch", "CPU s per batch", "times whole", "shards", "trainer MB", "read MB per batch",
        "written MB per batch", "makespan s", "busy"]  # fmt: skip
WHOLE = "trainer alone, whole"


def alone(stage: Stage) -> Iterator[Measured]:
    """A process without a database: the three ways to compute the same batches, one after the other."""
    require(stage, 1)
    result = stage.folder / "result.json"
    result.unlink(missing_ok=True)
    with stage.meter() as meter:
        try:
            call([sys.executable, "-m", "tests.bench.shards_alone", str(stage.folder)], CUDA_VISIBLE_DEVICES="-1")
        except RuntimeError as error:
            raise Skipped(f"the trainer alone: {error}") from None
    for name, found in json.loads(result.read_text()).items():
        yield Measured(f"trainer alone, {name}", meter.taken, 0.0, more={"shards": found})


def through_sql(name: str, models: int | None, shard: str = "auto") -> Contender:
    """So many of the work's models in one run; None: all of them.  Those that are cut have a limit of memory."""

    def contend(stage: Stage) -> Iterator[Measured]:
        work, database = stage.work, stage.database
        configurations = work.configurations[:models]
        options = {"seed": 1, "shard": shard, **({} if shard == "never" else {"memory_mb": MEMORY_MB[work.name]})}
        if models is None and len(configurations) == 1:
            raise Skipped(f"{name}: the work has one model")
        require(stage, len(configurations))
        database.forget_what_is_kept()
        database.lab(
            f"DROP TABLE IF EXISTS {OUTPUT}, {OUTPUT}_info, {OUTPUT}_summary, {OUTPUT}_weights"
        )  # of a failure
        chosen = selection(database, work, len(configurations))
        table = work.name.lower()
        with (
            contextlib.closing(database.lab.connect()) as session,
            stage.meter() as meter,
            Peaks(database.lab) as peaks,
        ):
            began = time.time()
            try:
                run = database.lab.fit(f"{table}_packed", OUTPUT, chosen, work.epochs, on=session, options=options)
            except psycopg2.Error as error:
                raise Skipped(f"{name}: {error}") from None
            ended = time.time()
        fitted = database.fitted(run, OUTPUT, began, ended)
        training = (
            "SELECT sum(seconds_training), sum(rows)::float8 FROM hop_timeline WHERE run = %s AND activity = 'train'"
        )
        ((seconds, rows),) = database.lab(training, run)
        cut = "SELECT max((detail ->> 'shards')::int) FROM event WHERE run = %s AND event = 'built'"
        shards = {
            "batch": seconds * configurations[0].batch_size / rows,
            "shards": database.lab.value(cut, run) or 1,
            "trainer": peaks.of("trainer"),
            "makespan": meter.taken.wall - fitted.start - fitted.end,
            "models": len(configurations),
        }
        database.drop_models(OUTPUT)
        database.lab(f"DROP TABLE IF EXISTS {OUTPUT}_weights")
        yield Measured(
            name, meter.taken, fitted.start, more={"shards": shards, "profile": fitted.profile, "end": fitted.end}
        )

    return contend


def selection(database: Database, work: Work, count: int) -> str:
    """The model selection table with the first so many configurations of the work."""
    name = f"{work.name.lower()}_{count}"
    if not database.lab.value("SELECT to_regclass(%s) IS NOT NULL", f"{name}_mst"):
        database.selection(work.but(name=name, configurations=work.configurations[:count]))
    return f"{name}_mst"


def require(stage: Stage, models: int) -> None:
    """Skip what the machine has no room for."""
    free = shutil.disk_usage(stage.database.cluster.data).free
    if free < ON_DISK * models * STATE:
        raise Skipped(f"{models} models need {ON_DISK * models} GB of disk, and {free >> 30} GB are free")
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        memory = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    if memory < IN_MEMORY:
        raise Skipped(f"{IN_MEMORY >> 30} GB of memory are needed, and {memory >> 30} GB are free")


CONTENDERS: dict[str, Contender] = {
    "alone": alone,
    "whole": through_sql("ours, whole", 1, shard="never"),
    "cut": through_sql("ours, cut", 1),
    "four": through_sql("ours, four models, cut", None),
}


def table(repeats: report.Repeats) -> str:
    rows = []
    for name in report.contenders(repeats):
        mine = [one for one in report.of(repeats, name) if "shards" in one.more]
        if not mine:
            continue
        found = [one.more["shards"] for one in mine]
        whole = WHOLE if name.startswith("trainer alone") else "ours, whole"
        pairs = [
            one.more["shards"]["batch"] / its.more["shards"]["batch"]
            for repeat in repeats
            for one in repeat
            for its in repeat
            if one.contender == name and its.contender == whole
        ]
        busy = [100 * report.busy(one) for one in mine if "profile" in one.more]
        rows.append([
            name,
            report.spread([one["batch"] for one in found]),
            _of(found, "cpu"),
            report.spread(pairs) if pairs and name != whole else "",
            str(max(one.get("shards", 1) for one in found)),
            _of(found, "trainer", 1 << 20, 0),
            _of(found, "read", 1 << 20, 0),
            _of(found, "written", 1 << 20, 0),
            _of(found, "makespan", digits=1),
            report.spread(busy, " %", 0) if busy else "",
        ])  # fmt: skip
    return "\n\n".join(filter(None, [report.table(HEAD, rows) if rows else "", _at_once(repeats)]))


def _at_once(repeats: report.Repeats) -> str:
    """How long four models take at once compared with one after the other."""
    shares = [
        many.more["shards"]["makespan"] / (many.more["shards"]["models"] * one.more["shards"]["makespan"])
        for repeat in repeats
        for many in repeat
        for one in repeat
        if many.more.get("shards", {}).get("models", 1) > 1 and one.contender == "ours, cut"
    ]
    if not shares:
        return ""
    return f"Four models at once take {median(shares):.2f} of the time of four models one after the other."


def _of(found: list[dict[str, Any]], what: str, unit: float = 1, digits: int = 2) -> str:
    values = [one[what] / unit for one in found if what in one]
    return report.spread(values, digits=digits) if values else ""
