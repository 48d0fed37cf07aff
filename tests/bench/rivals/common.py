"""What the Keras rivals have in common: reading the work, making a model, a queue with as many processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np

Json = dict[str, Any]
Result = dict[str, float]  # loss and accuracy on the rows to validate with


class Task:
    """The folder that a rival is called with."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.work: Json = json.loads((self.folder / "work.json").read_text())
        self.configurations: list[Json] = self.work["configurations"]
        self.epochs: int = self.work["epochs"]
        self.processes: int = self.work["processes"]

    def arrays(self) -> dict[str, np.ndarray]:
        """x, y (one-hot), and the same to validate with; all float32."""
        return {name: np.load(self.folder / f"{name}.npy") for name in ("x", "y", "validation_x", "validation_y")}

    def done(self, ready: float, results: list[Result], **more: Any) -> None:
        """``ready``: when, by time.time(), all processes could begin to train."""
        found = {"ready": ready, "results": results, **more}
        (self.folder / "result.json").write_text(json.dumps(found))


def task() -> Task:
    return Task(sys.argv[1])


def model_of(work: Json, configuration: Json, **compiled: Any) -> Any:
    import keras

    model = keras.Sequential.from_config(work["architectures"][configuration["model"]]["config"])
    optimizer = getattr(keras.optimizers, configuration["optimizer"])(configuration["learning_rate"])
    model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"], **compiled)
    return model


def from_queue(given: Task, prepare: Callable[[Task], Callable[[Json], Result]]) -> None:
    """Processes that take one configuration after the other. ``prepare`` makes each of them ready to train."""
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    processes = [
        context.Process(target=_worker, args=(str(given.folder), prepare, todo, done)) for _ in range(given.processes)
    ]
    for process in processes:
        process.start()
    for number, configuration in enumerate(given.configurations):
        todo.put((number, configuration))
    for _ in processes:
        todo.put(None)
    ready = 0.0
    results: dict[int, Result] = {}
    while len(results) < len(given.configurations):
        try:
            number, answer = done.get(timeout=1)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                sys.exit("one of the processes died")
            continue
        if number is None:
            ready = max(ready, answer)
        else:
            results[number] = answer
    for process in processes:
        process.join()
    given.done(ready, [results[number] for number in range(len(results))])


def _worker(folder: str, prepare: Callable[[Task], Callable[[Json], Result]], todo: Any, done: Any) -> None:
    train = prepare(Task(folder))
    done.put((None, time.time()))
    while (item := todo.get()) is not None:
        number, configuration = item
        done.put((number, train(configuration)))
