"""Optuna: TPE with Hyperband pruning; processes share a study in a file.  Keras trains, one thread per process."""

from __future__ import annotations

import logging
import os
import sys
import time
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from tests.bench.rivals.common import Task, task
from tests.bench.rivals.search_trial import BATCHES, OPTIMIZERS, RATES, Epochs, noted, train


def study_in(given: Task, seed: int) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(given.folder / "scratch" / "study.log")))
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=given.epochs, reduction_factor=3)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return optuna.create_study(
        study_name="bench", storage=storage, direction="maximize", load_if_exists=True, sampler=sampler, pruner=pruner
    )


def work(folder: str, number: int, seed: int, ready: Queue[float]) -> None:
    import keras  # noqa: F401
    import optuna
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = Task(folder)
    data, study, epochs = given.arrays(), study_in(given, 1000 * seed + number), Epochs(given, os.getpid())
    ready.put(time.time())

    def objective(trial: optuna.Trial) -> float:
        epochs.begin()
        point = {
            "learning_rate": trial.suggest_float("learning_rate", *RATES, log=True),
            "batch_size": trial.suggest_categorical("batch_size", BATCHES),
            "optimizer": trial.suggest_categorical("optimizer", OPTIMIZERS),
        }
        last, pruned = 0.0, False

        def report(epoch: int, accuracy: float) -> bool:
            nonlocal last, pruned
            last = accuracy
            epochs.note(accuracy)
            trial.report(accuracy, epoch)
            pruned = trial.should_prune()
            return pruned

        train(given, data, point, report)
        if pruned:
            raise optuna.TrialPruned
        return last

    most = optuna.study.MaxTrialsCallback(len(given.configurations), states=None)
    study.optimize(objective, callbacks=[most])


def main() -> None:
    given, seed = task(), int(sys.argv[2])
    study_in(given, seed)
    context = get_context("spawn")
    ready: Queue[float] = context.Queue()
    processes = [
        context.Process(target=work, args=(str(Path(given.folder)), number, seed, ready))
        for number in range(given.processes)
    ]
    for process in processes:
        process.start()
    when = max(ready.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    given.done(when, [], epochs=noted(given))


if __name__ == "__main__":
    main()
