"""Seconds per batch of a model in one process without a database: whole, and in shards with and without reading ahead.

``python -m tests.bench.shards_alone FOLDER`` reads FOLDER/work.json and the rows beside it, and writes
FOLDER/result.json.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.nn.engines.base import open_engine
from cerebro_db.nn.rows.data import Dataset, Slab
from cerebro_db.nn.shards import plan
from cerebro_db.nn.shards.plan import Planner
from cerebro_db.nn.shards.program import ShardedProgram
from tests.bench.works import CROSS_ENTROPY
from tests.nn import configurations as c

BATCHES, SHARDS = 5, 8
WARM = 2  # batches that do not count: in the first ones TensorFlow traces its functions
Json = dict[str, Any]


def main(folder: Path) -> None:
    work = json.loads((folder / "work.json").read_text())
    one = work["configurations"][0]
    layout: Json = {
        "inputs": [c.column("x", work["shape"], "float32")],
        "outputs": [c.target("y", [work["classes"]])],
    }
    configuration = c.configuration(
        work["architectures"][0], CROSS_ENTROPY, "Adam", batch_size=one["batch_size"], learning_rate=1e-4
    )
    data = rows(layout, BATCHES * one["batch_size"], folder)
    engine: Any = open_engine("tensorflow", threads=1, deterministic=False)
    engine.warm_up()
    found = {"whole": seconds(engine.program(configuration, layout, 0), configuration, data, one["batch_size"])}
    plan.give_back_memory()  # as a trainer does that cuts models
    for name, ahead in (("ahead", True), ("not ahead", False)):
        program = ShardedProgram(
            engine,
            configuration,
            layout,
            0,
            functools.partial(Planner.into, number=SHARDS, ahead=ahead),
            batch_size=one["batch_size"],
            folder=str(folder),
            ahead=ahead,
        )
        found[name] = seconds(program, configuration, data, one["batch_size"])
        read, written = (each / BATCHES for each in program.traffic)
        found[name].update(shards=len(program.shards), read=read, written=written)
    (folder / "result.json").write_text(json.dumps(found))


def rows(layout: Json, count: int, folder: Path) -> Dataset:
    files = {}
    for name in ("x", "y"):
        values = np.load(folder / f"{name}.npy")
        files[name] = str(folder / f"{name}.rows")
        kind = "float32" if name == "x" else "int16"
        np.ascontiguousarray(np.resize(values, (count, *values.shape[1:])), kind).tofile(files[name])
    return Dataset(layout, count, files)


def seconds(program: Any, configuration: Json, data: Dataset, batch_size: int) -> Json:
    """The means of the batches, by the clock and of processors."""
    program.put_numbers(configuration)
    program.initialise(configuration, 1)
    program.start_metrics()
    began = spent = 0.0
    for number, start in enumerate(range(0, data.rows, batch_size)):
        if number == WARM:
            began, spent = time.monotonic(), time.process_time()
        program.train(Slab(data, None, start, start + batch_size), batch_size)
    counted = BATCHES - WARM
    return {"batch": (time.monotonic() - began) / counted, "cpu": (time.process_time() - spent) / counted}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
