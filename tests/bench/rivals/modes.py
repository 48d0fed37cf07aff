"""(e) The other ways to spread a model selection, with our own trainers and no database: what the way itself costs.

--task-parallel: a configuration stays on one worker from its first epoch to its last, and every worker has all rows.
--averaging: every worker has its share of the rows and trains a copy of one configuration on it; after each epoch the
weights are averaged, and the next configuration begins when one is done.

Rows are in files as the database would hand them to a trainer; how many bytes these take is what a way stores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from cerebro_db.core.protocol.parts import Origin, StateRef
from tests.bench.rivals.common import Json, Result, Task, task
from tests.nn.configurations import configuration
from tests.nn.trainer_client import Trainer, Visit


def definition(given: Task, one: Json, epochs: int) -> Json:
    return configuration(
        given.work["architectures"][one["model"]],
        "categorical_crossentropy",
        one["optimizer"],
        learning_rate=one["learning_rate"],
        batch_size=one["batch_size"],
        epochs=epochs,
    )


class Workers:
    """Trainers that start at once, each with the rows that are its own, and those to validate with."""

    def __init__(self, given: Task, engine: str, rows_of: Callable[[np.ndarray, int], np.ndarray]) -> None:
        self.given = given
        scratch = given.folder / "scratch"
        self.trainers = [
            Trainer(scratch / f"worker{number}", engine=engine, deterministic=False)
            for number in range(given.processes)
        ]
        data = given.arrays()
        shape, classes = list(data["x"].shape[1:]), data["y"].shape[1]
        layout = {
            "inputs": [{"name": "x", "dtype": "float32", "shape": shape, "scale": 1.0}],
            "outputs": [{"name": "y", "dtype": "uint8", "shape": [classes], "kind": "class"}],
        }
        for number, trainer in enumerate(self.trainers):
            trainer.data("training", layout, x=rows_of(data["x"], number), y=rows_of(data["y"], number))
            trainer.data("validation", layout, x=data["validation_x"], y=data["validation_y"])
        self.ready = time.time()

    def evaluate(self, trainer: Trainer, defined: Json, state: StateRef) -> Result:
        found = trainer.evaluate(defined, "validation", state)
        return {"loss": found.loss, "accuracy": found.metrics["accuracy"]}

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()


def task_parallel(given: Task, engine: str) -> None:
    workers = Workers(given, engine, lambda rows, _: rows)
    todo: SimpleQueue[int] = SimpleQueue()
    for number in range(len(given.configurations)):
        todo.put(number)
    results: dict[int, Result] = {}

    def work(trainer: Trainer) -> None:
        while True:
            try:
                number = todo.get_nowait()
            except Empty:
                return
            defined = definition(given, given.configurations[number], given.epochs)
            trained = trainer.train(defined, "training", seed=number, shuffle_seed=number)
            assert trained.state.token is not None
            results[number] = workers.evaluate(trainer, defined, StateRef.resident(trained.state.token))

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(work, workers.trainers))
    workers.close()
    given.done(workers.ready, [results[number] for number in range(len(given.configurations))])


def averaging(given: Task, engine: str) -> None:
    workers = Workers(given, engine, lambda rows, number: rows[number :: given.processes])
    average = given.folder / "scratch" / "average"
    results = []
    with ThreadPoolExecutor(given.processes) as pool:
        for number, described in enumerate(given.configurations):
            defined, state = definition(given, described, 1), StateRef.seed()
            for epoch in range(given.epochs):

                def train(
                    trainer: Trainer, seed: int = epoch, given_state: StateRef = state, what: Json = defined
                ) -> Any:
                    return weights(trainer.train(what, "training", given_state, seed=1, shuffle_seed=seed))

                copies = list(pool.map(train, workers.trainers))
                (sum(copies) / len(copies)).astype("<f4").tofile(average)
                state = StateRef(Origin.WEIGHTS, name="average", path=str(average))
            results.append(workers.evaluate(workers.trainers[number % given.processes], defined, state))
    workers.close()
    given.done(workers.ready, results)


def weights(trained: Visit) -> np.ndarray:
    with open(trained.path, "rb") as file:
        file.seek(trained.state.weights_offset)
        return np.frombuffer(file.read(trained.state.weights_bytes), "<f4")


if __name__ == "__main__":
    engine = next(
        (argument.partition("=")[2] for argument in sys.argv if argument.startswith("--engine=")), "tensorflow"
    )
    (averaging if "--averaging" in sys.argv else task_parallel)(task(), engine)
