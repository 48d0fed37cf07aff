"""(d) Optuna: a study in a file that as many processes share, each trying the next configuration; Keras as in (a)."""

from __future__ import annotations

import logging
import time
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from tests.bench.rivals.common import Task, task
from tests.bench.rivals.keras_queue import prepare


def study_in(folder: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / "scratch" / "study.log")))
    return optuna.create_study(study_name="bench", storage=storage, direction="minimize", load_if_exists=True)


def work(folder: str, ready: Queue[float]) -> None:
    import optuna
    from optuna.trial import TrialState

    given, study = Task(folder), study_in(Path(folder))
    train = prepare(given)
    ready.put(time.time())

    def objective(trial: optuna.Trial) -> float:
        number = trial.suggest_int("configuration", 0, len(given.configurations) - 1)
        result = train(given.configurations[number])
        trial.set_user_attr("accuracy", result["accuracy"])
        return result["loss"]

    while study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
        study.optimize(objective, n_trials=1)


def main() -> None:
    given = task()
    study = study_in(given.folder)
    for number in range(len(given.configurations)):
        study.enqueue_trial({"configuration": number})
    context = get_context("spawn")
    ready: Queue[float] = context.Queue()
    processes = [context.Process(target=work, args=(str(given.folder), ready)) for _ in range(given.processes)]
    for process in processes:
        process.start()
    when = max(ready.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    # The last one may have been begun by two at once: one of each is a result.
    found = {trial.params["configuration"]: trial for trial in study.get_trials() if trial.value is not None}
    given.done(
        when,
        [
            {"loss": found[number].value, "accuracy": found[number].user_attrs["accuracy"]}
            for number in range(len(given.configurations))
        ],
    )


if __name__ == "__main__":
    main()
