"""The memory of trainers after a call: forks of a template share what a framework needs, other trainers do not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from statistics import mean
from typing import Any

from tests.bench import report
from tests.bench.contenders import OUTPUT
from tests.bench.database import Database
from tests.bench.meter import descendants, memory
from tests.bench.stage import Contender, Measured, Stage
from tests.sql.lab import trainer_processes

HEAD = ["", "MB of the trainers", "with the nursery and the template", "MB of the largest trainer"]


def trainers(name: str, keep_ready: int, **options: Any) -> Contender:
    """``keep_ready``: the setting; with 0 there are no templates."""

    def contend(stage: Stage) -> Iterator[Measured]:
        database = stage.database
        with kept_ready(database, keep_ready), contextlib.closing(database.lab.connect()) as session:
            database.forget_what_is_kept()
            with stage.meter() as meter:
                database.fit(stage.work, session, OUTPUT, {"seed": 1, **options})
            each = [memory([pid]) for pid, _ in trainer_processes(database.cluster.home)]
            (nursery,) = database.nurseries()
            whole = memory([nursery, *descendants(nursery)])
        database.drop_models(OUTPUT)
        yield Measured(name, meter.taken, 0.0, more={"trainers": each, "with_nursery": whole})

    return contend


@contextlib.contextmanager
def kept_ready(database: Database, seconds: int) -> Iterator[None]:
    """The setting ``keep_ready`` of install.json, for nurseries that start now."""
    (file,) = database.cluster.home.rglob("install.json")
    before = file.read_text()
    file.write_text(json.dumps({**json.loads(before), "keep_ready": seconds}))
    try:
        yield
    finally:
        file.write_text(before)
        database.forget_what_is_kept()


CONTENDERS: dict[str, Contender] = {
    "forks": trainers("ours", 1800),
    "forks-jax": trainers("ours, jax", 1800, engine="jax"),
    "interpreters": trainers("an interpreter for each trainer", 0),
    "interpreters-jax": trainers("an interpreter for each trainer, jax", 0, engine="jax"),
}


def table(repeats: report.Repeats) -> str:
    rows = []
    for name in report.contenders(repeats):
        mine = [one.more for one in report.of(repeats, name) if "trainers" in one.more]
        if mine:
            figures = [
                [sum(one["trainers"]) for one in mine],
                [one["with_nursery"] for one in mine],
                [max(one["trainers"]) for one in mine],
            ]
            rows.append([name, *(f"{mean(one) / 2**20:,.0f}" for one in figures)])
    return report.table(HEAD, rows) if rows else ""
