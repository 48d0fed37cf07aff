"""Many small models in one run: what their states cost compared with training them, and what the run leaves.

The states' share is that of the run's own times (``cerebro.run_time``).  The same visits without a database and without
hops are the plain training that the run is compared with.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from tests.bench import hops, report
from tests.bench.contenders import OUTPUT
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import Work
from tests.sql.lab import run

MORE_CALLS, OF_MODELS = 20, 4  # further calls in the session, which are to leave it as large as it was
HEAD = ["", "wall s", "states s", "training s", "states / training", "tables of states", "forget s", "descriptors"]


def many(name: str, **options: Any) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        database, work = stage.database, stage.work
        few = work.but(name=f"{work.name}_few", configurations=work.configurations[:OF_MODELS], epochs=1)
        database.lab(f"DROP TABLE IF EXISTS {few.name}_mst, {few.name}_mst_summary, {few.name}_arch")
        database.selection(few)
        with contextlib.closing(database.lab.connect()) as session:
            ((driver,),) = run(session, "SELECT pg_backend_pid()")
            with stage.meter() as measured:
                number = _fit(stage, session, work, options)
            profile, tables = database.profile(number), _tables(stage)
            began = time.monotonic()
            run(session, "SELECT cerebro.forget(%s)", number)
            forget = time.monotonic() - began
            first = descriptors(driver)
            for _ in range(MORE_CALLS):
                run(session, "SELECT cerebro.forget(%s)", _fit(stage, session, few, options))
            more = {
                "states": profile["state load"] + profile["state emit"],
                "training": profile["training"],
                "tables": tables,
                "forget": forget,
                "descriptors": [first, descriptors(driver)],
            }
        yield Measured(name, measured.taken, 0.0, more={"many": more})

    return contend


def _fit(stage: Stage, session: Any, work: Work, options: dict[str, Any]) -> int:
    """The number of a run on the rows of the stage's work."""
    number = stage.database.lab.fit(
        f"{stage.work.name}_packed", OUTPUT, f"{work.name}_mst", work.epochs, on=session, options={"seed": 1, **options}
    )
    stage.database.drop_models(OUTPUT)
    return number


def _tables(stage: Stage) -> int:
    """The state tables in the catalog; there is no other run."""
    return stage.database.lab.value(
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
    )


def descriptors(pid: int) -> int:
    """The files that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


CONTENDERS: dict[str, Contender] = {
    "ours": many("ours"),
    "ours-jax": many("ours, jax", engine="jax"),
    "without-hops": hops.without_hops,
}


def table(repeats: report.Repeats) -> str:
    """What the states cost, and what a run leaves."""
    rows = []
    for name in report.contenders(repeats):
        mine = [one for one in report.of(repeats, name) if "many" in one.more]
        if mine:
            found = [one.more["many"] for one in mine]
            rows.append(
                [
                    name,
                    report.spread([one.taken.wall for one in mine]),
                    *(report.spread([one[what] for one in found]) for what in ("states", "training")),
                    report.spread([one["states"] / one["training"] for one in found]),
                    str(max(one["tables"] for one in found)),
                    report.spread([one["forget"] for one in found]),
                    ", ".join(" → ".join(map(str, one["descriptors"])) for one in found),
                ]
            )
    return report.table(HEAD, rows) if rows else ""
