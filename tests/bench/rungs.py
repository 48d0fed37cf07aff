"""Decisions within an epoch: does the order of the configurations after 1 / S of an epoch agree with the final one?

``S`` is the number of segments.  One contender trains each configuration to its end, one after the other.  The other
lets ASHA decide after 1 / S of an epoch, and three and nine times as many rows, with the option visit_rows.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Sequence

from tests.bench import report
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import CROSS_ENTROPY, Work
from tests.sql.lab import Json, run

ALONE, EARLY = "one after another", "rungs within an epoch"
OUTPUT = "rungs_models"
HEAD = ["", "rank correlation", "best, of the final ranking", "its final rank", "decided s", "end s", "best loss"]


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


def fit(stage: Stage, configurations: Sequence[Json], epochs: int, every: int, options: Json) -> int:
    table = stage.work.name.lower()
    with contextlib.closing(stage.database.lab.connect()) as session:
        ((number,),) = run(
            session,
            "SELECT cerebro.fit(%s, %s, %s, epochs => %s, evaluate_every => %s, validation_table => %s, options => %s)",
            f"{table}_packed", OUTPUT, json.dumps(configurations), epochs, every, f"{table}_packed_validation",
            json.dumps({"seed": 1, **options}),
        )  # fmt: skip
    return int(number)


def one_after_another(stage: Stage) -> Iterator[Measured]:
    work, losses = stage.work, []
    with stage.meter() as meter:
        for one in listed(work):
            number = fit(stage, [one], work.epochs, work.epochs, {})
            losses += ended(stage, number, work.epochs)
            stage.database.drop_models(OUTPUT)
    yield Measured(ALONE, meter.taken, 0.0, more={"final": losses})


def within_an_epoch(stage: Stage) -> Iterator[Measured]:
    work = stage.work
    short = work.segments  # epochs in a pass
    options = {
        "visit_rows": math.ceil(work.rows / work.segments / short),
        "method": {"name": "asha", "min_epochs": 1},
        "objective": "val_loss",
        "keep": "best",
    }
    began = time.time()
    with stage.meter() as meter:
        number = fit(stage, listed(work), work.epochs * short, 1, options)
    lab = stage.database.lab
    (decided,) = lab(
        "SELECT extract(epoch FROM max(finished_at))::float8 FROM hop_timeline WHERE run = %s AND epoch = 1", number
    )[0]
    ranked = lab("SELECT configuration, objective_value FROM leaderboard WHERE run = %s ORDER BY rank", number)
    yield Measured(
        EARLY, meter.taken, 0.0,
        more={"first": ended(stage, number, 1), "decided": decided - began, "best": list(ranked[0])},
    )  # fmt: skip
    stage.database.drop_models(OUTPUT)


def ended(stage: Stage, number: int, epoch: int) -> list[float | None]:
    """The validation loss of each configuration after an epoch."""
    found = stage.database.lab(
        "SELECT validation_loss FROM learning_curve WHERE run = %s AND epoch = %s ORDER BY configuration",
        number, epoch,
    )  # fmt: skip
    return [loss for (loss,) in found]


CONTENDERS: dict[str, Contender] = {"one-after-another": one_after_another, "rungs": within_an_epoch}


# -- figures ---------------------------------------------------------------------------------------------------


def figures(repeats: report.Repeats) -> list[Json]:
    """What each repeat says that has both contenders."""
    found = []
    for repeat in repeats:
        named = {one.contender: one for one in repeat}
        if not {ALONE, EARLY} <= named.keys():
            continue
        alone, early = named[ALONE], named[EARLY]
        final, first = alone.more["final"], early.more["first"]
        (best, loss), order = early.more["best"], ranks(final)
        leader = min(range(len(first)), key=lambda place: (ranks(first)[place], place))
        found.append(
            {
                "correlation": correlation(first, final),
                "leader": int(order[leader]),
                "best": int(order[best - 1]),
                "decided": early.more["decided"],
                "end": early.taken.wall,
                "alone": alone.taken.wall,
                "loss": loss,
                "least": min(value for value in final if value is not None),
            }
        )
    return found


def table(repeats: report.Repeats) -> str:
    rows: list[list[str]] = []
    for one in figures(repeats):
        rows.append([ALONE, "", "", "", "", f"{one['alone']:.1f}", f"{one['least']:.4f}"])
        rows.append(
            [
                EARLY, f"{one['correlation']:.2f}", f"{one['leader']}", f"{one['best']}",
                f"{one['decided']:.1f} ({one['alone'] / one['decided']:.1f} times sooner)",
                f"{one['end']:.1f} ({one['alone'] / one['end']:.1f} times sooner)", f"{one['loss']:.4f}",
            ]
        )  # fmt: skip
    return report.table(HEAD, rows) if rows else ""


def ranks(values: Sequence[float | None]) -> list[float]:
    """The place of each value, from 1; equal values have the mean of their places, and a missing one is the last."""
    known = [math.inf if value is None or not math.isfinite(value) else value for value in values]
    return [1 + sum(other < one for other in known) + (sum(other == one for other in known) - 1) / 2 for one in known]


def correlation(some: Sequence[float | None], others: Sequence[float | None]) -> float:
    """Spearman's: that of the ranks."""
    one, other = ranks(some), ranks(others)
    mean = (len(one) + 1) / 2
    products = sum((a - mean) * (b - mean) for a, b in zip(one, other, strict=True))
    return products / math.sqrt(sum((a - mean) ** 2 for a in one) * sum((b - mean) ** 2 for b in other))
