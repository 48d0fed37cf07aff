"""Models with frozen beginnings: what it saves to compute once what these give, with rows that arrive later, too.

The weights of the beginnings are those of a model that was trained on other classes (rivals/pretraining.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.contenders import OUTPUT, call, ours, python_with, script
from tests.bench.database import Database, write_task
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import FrozenWork, Rows
from tests.sql.lab import run


def prepare(database: Database, work: FrozenWork, folder: Path) -> None:
    """Train the beginning, and make the tables of the work and the files of its rivals."""
    write_task(folder, work, database.lab.dsn)
    python = python_with("keras")
    assert python is not None
    call([python, "-m", "tests.bench.rivals.pretraining", str(folder), work.pretraining], CUDA_VISIBLE_DEVICES="-1")
    weights = []
    for number in range(len(work.architectures)):
        with np.load(folder / f"weights{number}.npz") as found:
            weights.append(b"".join(np.ascontiguousarray(found[name], "<f4").tobytes() for name in found.files))
    database.work(work, weights)


def arriving(name: str, *, again: bool = False, **options: Any) -> Contender:
    """Rows that arrive in cycles; after each, all configurations are trained on all rows.

    ``again``: all rows are packed again in each cycle.
    """

    def contend(stage: Stage) -> Iterator[Measured]:
        work, database = stage.work, stage.database
        assert isinstance(work, FrozenWork)
        lab, table = database.lab, work.name.lower()
        rows, _ = work.data()
        each = min(work.arriving, work.rows // (2 * work.cycles))  # of fewer rows, too, half are there at first
        first = work.rows - work.cycles * each
        ends = [first + number * each for number in range(work.cycles + 1)]
        database.table("arrived_all", Rows(rows.x[:first], rows.y[:first]))
        for number, (start, end) in enumerate(zip(ends, ends[1:])):
            database.table(f"arrived_{number}", Rows(rows.x[start:end], rows.y[start:end]))
        pack = dict(segments=work.segments, seed=1, divide_by=work.scale)
        lab.pack("arrived_all", "arrived_packed", "y", "x", **pack)
        stage.settle()
        board: list[Any] = []
        with contextlib.closing(lab.connect()) as session, stage.meter() as meter:
            for number in range(work.cycles):
                if again:
                    run(session, f"INSERT INTO arrived_all SELECT * FROM arrived_{number}")
                    run(session, "DROP TABLE arrived_packed, arrived_packed_summary")
                    named = "divide_by => %s, segments => %s, seed => 1"
                    run(session, f"SELECT cerebro.pack_plain('arrived_all', 'arrived_packed', 'y', 'x', {named})",
                        work.scale, work.segments)  # fmt: skip
                else:
                    run(session, f"SELECT cerebro.append('arrived_packed', 'arrived_{number}')")
                fitted = lab.fit(
                    "arrived_packed", OUTPUT, f"{table}_mst", work.epochs, on=session,
                    validation_table=f"{table}_packed_validation", options={"seed": 1, **options},
                )  # fmt: skip
                board = lab("SELECT validation_loss, validation_metric FROM leaderboard WHERE run = %s", fitted)
                database.drop_models(OUTPUT)
        lab("DROP TABLE arrived_packed, arrived_packed_summary, arrived_all")
        for number in range(work.cycles):
            lab(f"DROP TABLE arrived_{number}")
        yield Measured(name, meter.taken, 0.0, [{"loss": loss, "accuracy": metric} for loss, metric in board])

    return contend


CONTENDERS: dict[str, Contender] = {
    "ours-none": ours("ours, none", reuse="none"),
    "ours-all": ours("ours, all", reuse="all"),
    "ours-auto": ours("ours, auto", reuse="auto"),
    "ours-jax-none": ours("ours, jax, none", engine="jax", reuse="none"),
    "ours-jax-all": ours("ours, jax, all", engine="jax", reuse="all"),
    "frozen-keras": script("(a) Keras", "frozen"),
    "frozen-tuned": script("(b) Keras, tuned", "frozen", "--tuned"),
    "by-hand": script("(c) Keras, features stored by hand", "frozen", "--by-hand"),
    "by-hand-tuned": script("(c) the same, tuned", "frozen", "--by-hand", "--tuned"),
}
ARRIVING: dict[str, Contender] = {
    "append-all": arriving("ours, added rows, all", reuse="all"),
    "append-auto": arriving("ours, added rows, auto", reuse="auto"),
    "append-none": arriving("ours, added rows, none", reuse="none"),
    "again-none": arriving("ours, packed again, none", again=True, reuse="none"),
}
