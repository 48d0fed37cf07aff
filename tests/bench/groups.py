"""A model for each group of rows: one call of ours, compared with loops and pools that train one group after the other.

The rivals have the rows in memory, sorted by group, and know where each group begins.  All contenders train the same
models: one for each configuration and group, and one for each configuration on all rows.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench import database, report
from tests.bench.contenders import OUTPUT, script
from tests.bench.database import Database
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import GroupedWork
from tests.sql.lab import run

COLUMN = "shop"  # tells the groups apart


# -- the rows -----------------------------------------------------------------------------------------------------


def make_tables(served: Database, work: GroupedWork) -> None:
    """The rows with the number of their group, packed by group, and the model selection."""
    name = work.name
    for ending, rows in zip(("", "_validation"), work.data()):
        served.table(f"{name}{ending}", rows)
        served.lab(f"ALTER TABLE {name}{ending} ADD COLUMN {COLUMN} integer, ADD PRIMARY KEY (id)")
        served.lab(f"UPDATE {name}{ending} SET {COLUMN} = width_bucket(id, %s)", work.starts(len(rows.y)))
        served.lab(f"VACUUM ANALYZE {name}{ending}")
    served.lab(
        "SELECT cerebro.pack(%s, %s, 'y', inputs => 'x', group_by => %s, validation_table => %s, segments => %s,"
        " seed => 1)",
        name, f"{name}_packed", COLUMN, f"{name}_validation", work.segments,
    )  # fmt: skip
    served.selection(work)


def write_task(folder: Path, work: GroupedWork, dsn: str) -> None:
    """As for other works, with the first row of each group."""
    database.write_task(folder, work, dsn)
    path = folder / "work.json"
    told = json.loads(path.read_text())
    path.write_text(
        json.dumps({**told, "starts": work.starts(work.rows), "validation_starts": work.starts(work.validation_rows)})
    )


# -- the contenders -------------------------------------------------------------------------------------------------


def ours(name: str, **options: Any) -> Contender:
    """The first call of a new session, and a second call in the same session."""

    def contend(stage: Stage) -> Iterator[Measured]:
        stage.database.forget_what_is_kept()
        with contextlib.closing(stage.database.lab.connect()) as session:
            for call in (name, f"{name}, second call"):
                yield _fit(stage, session, call, options)

    return contend


def _fit(stage: Stage, session: Any, name: str, options: dict[str, Any]) -> Measured:
    lab, work = stage.database.lab, stage.work
    with stage.meter() as meter:
        began = time.time()
        ((number,),) = run(
            session, "SELECT cerebro.fit(%s, %s, %s, epochs => %s, options => %s)",
            f"{work.name}_packed", OUTPUT, f"{work.name}_mst", work.epochs, json.dumps({"seed": 1, **options}),
        )  # fmt: skip
    first = lab.value("SELECT extract(epoch FROM min(started_at))::float8 FROM hop_timeline WHERE run = %s", number)
    board = lab("SELECT validation_loss, validation_metric FROM leaderboard WHERE run = %s", number)
    results = [{"loss": loss, "accuracy": accuracy} for loss, accuracy in board if loss is not None]
    profile = stage.database.profile(number)
    stage.database.drop_models(OUTPUT)
    lab(f"DROP TABLE {OUTPUT}_groups")
    lab("SELECT forget(%s)", number)
    trained = {"models": len(board), "epochs": work.epochs}
    return Measured(name, meter.taken, first - began, results, {"profile": profile, "end": 0.0, "groups": trained})


def rival(name: str, module: str, *arguments: str, sampled: bool = False, needs: str | None = None) -> Contender:
    """``sampled``: it trains some of the groups only, if they are many, and its time with groups is multiplied."""

    def contend(stage: Stage) -> Iterator[Measured]:
        work = stage.work
        assert isinstance(work, GroupedWork)
        every = work.sampled if sampled else 1
        for one in script(name, module, str(every), *arguments, needs=needs)(stage):
            with_groups = one.more.pop("with_groups")  # seconds
            share, more = with_groups / one.taken.wall, (every - 1) * with_groups
            taken = replace(one.taken, wall=one.taken.wall + more, cpu=one.taken.cpu * (1 + share * (every - 1)))
            models = len(work.configurations) * (1 + len(work.starts(work.rows)))
            yield replace(one, taken=taken, more={"groups": {"models": models, "epochs": work.epochs, "every": every}})

    return contend


CONTENDERS: dict[str, Contender] = {
    "ours": ours("ours"),
    "ours-jax": ours("ours, jax", engine="jax"),
    "group-keras": rival("(a) Keras, a loop", "group_loops", "keras", sampled=True),
    "group-bare": rival("(b) bare loop, traced once", "group_loops", "bare"),
    "group-pool": rival("(c) Keras, two processes", "group_loops", "pool", sampled=True),
    "group-ray": rival("(d) Ray Tune, a trial per group", "ray_groups", sampled=True, needs="ray"),
}


def table(repeats: report.Repeats) -> str:
    """What each model and epoch takes, and the ratios to our first call."""
    names = [name for name in report.contenders(repeats) if any("groups" in o.more for o in report.of(repeats, name))]
    if not names:
        return ""
    rows = []
    for name in names:
        mine = report.of(repeats, name)
        epochs = mine[0].more["groups"]["models"] * mine[0].more["groups"]["epochs"]
        every = mine[0].more["groups"].get("every", 1)
        times = report.times(repeats, names[0], name)
        rows.append(
            [
                name + (f" (1 of {every} groups)" if every > 1 else ""),
                report.spread([one.taken.wall for one in mine], digits=1),
                report.spread([one.taken.cpu for one in mine], digits=1),
                report.spread([1000 * one.taken.cpu / epochs for one in mine]),
                *("1" if name == names[0] else report.spread(times[what]) for what in ("wall", "CPU")),
            ]
        )
    head = ["", "wall s", "CPU s", "CPU ms per model and epoch", f"wall / {names[0]}", f"CPU / {names[0]}"]
    return report.table(head, rows)
