"""(d) Ray Tune with a trial for each configuration and group: each reads the rows of its group and calls model.fit.

A processor for each trial, and as many trials at once as there are segments. Actors are reused.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")

from tests.bench.rivals.common import Json, Task, task
from tests.bench.rivals.group_loops import pieces, prepared, whole


def trial(space: Json, folder: str) -> Json:
    configuration, piece = space["todo"]
    return prepared(Task(folder))(configuration, tuple(piece))


def main(given: Task, every: int) -> None:
    import ray
    from ray import tune

    ray.init(num_cpus=given.processes, include_dashboard=False, log_to_driver=False, logging_level="error")
    trainable: Any = tune.with_resources(tune.with_parameters(trial, folder=str(given.folder)), {"cpu": 1})

    def trained(todo: list[Any]) -> list[Json]:
        tuner = tune.Tuner(
            trainable,
            param_space={"todo": tune.grid_search(todo)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=True),
            run_config=tune.RunConfig(storage_path=str(given.folder / "scratch" / "ray"), verbose=0),
        )
        return [{"loss": one.metrics["loss"], "accuracy": one.metrics["accuracy"]} for one in tuner.fit()]

    ready = time.time()
    results = trained([[configuration, whole(given)] for configuration in given.configurations])
    began = time.time()
    results += trained(
        [[configuration, piece] for configuration in given.configurations for piece in pieces(given, every)]
    )
    ended = time.time()
    ray.shutdown()
    given.done(ready, results, with_groups=ended - began)


if __name__ == "__main__":
    main(task(), int(sys.argv[2]))
