"""Ray Tune: random points under ASHA, as many trials at once as there are segments; actors are reused."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")

from tests.bench.rivals.common import Json, Task, task
from tests.bench.rivals.search_trial import BATCHES, OPTIMIZERS, RATES, Epochs, noted, train


def trial(point: Json, folder: str) -> None:
    import keras  # noqa: F401
    import tensorflow as tf
    from ray import tune

    if not tf.config.threading.get_intra_op_parallelism_threads():
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    given = Task(folder)
    (given.folder / "scratch" / f"ready-{os.getpid()}").touch()
    epochs = Epochs(given, os.getpid())

    def report(epoch: int, accuracy: float) -> bool:
        epochs.note(accuracy)
        tune.report({"accuracy": accuracy, "epoch": epoch})
        return False  # Tune ends the trial

    train(given, given.arrays(), point, report)


def main() -> None:
    given, seed = task(), int(sys.argv[2])
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    ray.init(num_cpus=given.processes, include_dashboard=False, log_to_driver=False, logging_level="error")
    trainable: Any = tune.with_resources(tune.with_parameters(trial, folder=str(given.folder)), {"cpu": 1})
    tuner = tune.Tuner(
        trainable,
        param_space={
            "learning_rate": tune.loguniform(*RATES),
            "batch_size": tune.choice(BATCHES),
            "optimizer": tune.choice(OPTIMIZERS),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=len(given.configurations),
            scheduler=ASHAScheduler(time_attr="epoch", max_t=given.epochs, grace_period=1, reduction_factor=3),
            search_alg=BasicVariantGenerator(random_state=seed),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=str(given.folder / "scratch" / "ray"), verbose=0),
    )
    tuner.fit()
    ray.shutdown()
    ready = [path.stat().st_mtime for path in (given.folder / "scratch").glob("ready-*")]
    given.done(max(ready, default=time.time()), [], epochs=noted(given))


if __name__ == "__main__":
    main()
