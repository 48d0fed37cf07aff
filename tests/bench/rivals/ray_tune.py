"""(c) Ray Tune: the rows are exported from the database into a file, then each trial reads it and calls model.fit.

A processor for each trial, and as many trials at once as there are segments. Actors are reused, so a process imports
the framework once and not for each trial. The export is COPY into CSV, read by Arrow, kept as NumPy has it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")

import numpy as np
import psycopg2

from tests.bench.rivals.common import Json, Task, model_of, task


def export(given: Task, scratch: Path) -> None:
    from pyarrow import csv

    table = given.work["table"]
    with psycopg2.connect(given.work["dsn"]) as connection, connection.cursor() as cursor:
        for prefix, name in (("", table), ("validation_", f"{table}_validation")):
            path = scratch / f"{prefix}rows.csv"
            with open(path, "wb") as file:
                cursor.copy_expert(f"COPY (SELECT array_to_string(x, ',') || ',' || y FROM {name}) TO STDOUT", file)
            read = csv.read_csv(path, read_options=csv.ReadOptions(autogenerate_column_names=True))
            path.unlink()
            columns = np.column_stack([column.to_numpy() for column in read.columns]).astype("float32")
            x = columns[:, :-1].reshape(-1, *given.work["shape"]) / np.float32(given.work["scale"])
            np.save(scratch / f"{prefix}x.npy", x)
            np.save(
                scratch / f"{prefix}y.npy", np.eye(given.work["classes"], dtype="float32")[columns[:, -1].astype(int)]
            )


def trial(space: Json, folder: str) -> Json:
    import keras  # noqa: F401

    given, configuration = Task(folder), space["configuration"]
    data = {
        name: np.load(given.folder / "scratch" / f"{name}.npy") for name in ("x", "y", "validation_x", "validation_y")
    }
    began = time.time()
    model = model_of(given.work, configuration)
    model.fit(data["x"], data["y"], batch_size=configuration["batch_size"], epochs=given.epochs, verbose=0)
    loss, accuracy = model.evaluate(data["validation_x"], data["validation_y"], verbose=0)
    return {"loss": loss, "accuracy": accuracy, "began": began}


def main() -> None:
    given = task()
    scratch = given.folder / "scratch"
    export(given, scratch)
    import ray
    from ray import tune

    ray.init(num_cpus=given.processes, include_dashboard=False, log_to_driver=False, logging_level="error")
    trainable: Any = tune.with_resources(tune.with_parameters(trial, folder=str(given.folder)), {"cpu": 1})
    tuner = tune.Tuner(
        trainable,
        param_space={"configuration": tune.grid_search(given.configurations)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(scratch / "ray"), verbose=0),
    )
    results = tuner.fit()
    found = {str(one.config["configuration"]): one.metrics for one in results}
    ray.shutdown()
    measured = [found[str(configuration)] for configuration in given.configurations]
    began = sorted(one["began"] for one in measured)
    given.done(
        began[min(given.processes, len(began)) - 1],
        [{"loss": one["loss"], "accuracy": one["accuracy"]} for one in measured],
    )


if __name__ == "__main__":
    main()
