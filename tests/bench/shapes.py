"""The plan of a run compared with all shapes that options can fix: threads, engine, and gradients instead of hopping.

Each contender makes the same call twice, in sessions of their own: the first one finds no measurements, the second one
those of the first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.bench import report
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import CROSS_ENTROPY, Work
from tests.sql.lab import Json, run

OUTPUT = "shapes_models"
PLANNED = "the plan"
HEAD = ["", "first call s", "with measurements s", "training s", "expected s", "threads", "of the best"]


def listed(work: Work) -> list[Json]:
    """The configurations as cerebro.fit takes them."""
    return [
        {
            "architecture": work.architectures[one.model],
            "optimizer": one.optimizer,
            "learning_rate": one.learning_rate,
            "batch_size": one.batch_size,
            "loss": CROSS_ENTROPY,
            "metrics": ["accuracy"],
            "passes": 1,
        }
        for one in work.configurations
    ]


def shape(name: str, **options: Any) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        stage.database.forget_what_is_kept()
        first = fitted(stage, options)
        stage.settle()
        again = fitted(stage, options)
        yield Measured(name, again.taken, 0.0, more={"first": first.taken.wall, **again.more})

    return contend


def fitted(stage: Stage, options: Json) -> Measured:
    work, lab, table = stage.work, stage.database.lab, stage.work.name.lower()
    with contextlib.closing(lab.connect()) as session, stage.meter() as meter:
        ((number,),) = run(
            session,
            "SELECT cerebro.fit(%s, %s, %s, epochs => %s, evaluate_every => 1, validation_table => %s, options => %s)",
            f"{table}_packed", OUTPUT, json.dumps(listed(work)), work.epochs, f"{table}_packed_validation",
            json.dumps({"seed": 1, **options}),
        )  # fmt: skip
    ((threads, seconds, took),) = lab("SELECT threads, seconds, took FROM cerebro.plan(%s) WHERE selected", number)
    stage.database.drop_models(OUTPUT)
    return Measured("", meter.taken, 0.0, more={"threads": threads, "expected": seconds, "took": took})


CONTENDERS: dict[str, Contender] = {
    "plan": shape(PLANNED),
    "threads-1": shape("threads 1", threads=1),
    "threads-2": shape("threads 2", threads=2),
    "auto": shape("engine auto", engine="auto"),
    "jax-1": shape("engine jax, threads 1", engine="jax", threads=1),
    "jax-2": shape("engine jax, threads 2", engine="jax", threads=2),
    "gradients": shape("gradients", parallel="gradients"),
}


def table(repeats: report.Repeats) -> str:
    """The median of the repeats; the ratio is taken within a repeat, to the fastest contender that hops."""
    names = list(dict.fromkeys(one.contender for repeat in repeats for one in repeat if "took" in one.more))
    if not names:
        return ""
    rows = []
    for name in names:
        mine = [(one, repeat) for repeat in repeats for one in repeat if one.contender == name]
        ratios = [
            one.more["took"] / min(other.more["took"] for other in repeat if other.contender != "gradients")
            for one, repeat in mine
        ]
        some = [one for one, _ in mine]
        expected = [one.more["expected"] for one in some if one.more["expected"] is not None]
        rows.append(
            [
                name,
                f"{median([one.more['first'] for one in some]):.1f}",
                f"{median([one.taken.wall for one in some]):.1f}",
                f"{median([one.more['took'] for one in some]):.2f}",
                f"{median(expected):.2f}" if expected else "",
                str(some[-1].more["threads"]),
                f"{median(ratios):.2f}",
            ]
        )
    return report.table(HEAD, rows)
