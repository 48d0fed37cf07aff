"""What the rivals of the searches have in common: the space, and one trial that reports after each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Task, model_of

RATES, BATCHES, OPTIMIZERS = (1e-4, 1.0), [16, 32, 64, 128], ["Adam", "SGD"]


def train(given: Task, data: dict[str, np.ndarray], point: Json, report: Callable[[int, float], bool]) -> None:
    """Train up to the epochs of the work.  ``report`` gets each epoch and its accuracy, and says whether to stop."""
    import keras

    class Reporting(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if report(epoch + 1, float(logs["val_accuracy"])):
                self.model.stop_training = True

    configuration = {"model": 0, "learning_rate": point["learning_rate"], "optimizer": point["optimizer"]}
    model = model_of(given.work, configuration)
    model.fit(
        data["x"], data["y"], batch_size=point["batch_size"], epochs=given.epochs, verbose=0,
        validation_data=(data["validation_x"], data["validation_y"]), callbacks=[Reporting()],
    )  # fmt: skip


class Epochs:
    """Notes when each epoch of a process has ended, how long it took, and its accuracy."""

    def __init__(self, given: Task, name: object) -> None:
        self.path = given.folder / "scratch" / f"epochs-{name}.txt"
        self.since = time.time()

    def begin(self) -> None:
        self.since = time.time()

    def note(self, accuracy: float) -> None:
        now = time.time()
        with open(self.path, "a") as file:
            print(now, now - self.since, accuracy, file=file)
        self.since = now


def noted(given: Task) -> list[list[float]]:
    """What all processes have noted."""
    files = (given.folder / "scratch").glob("epochs-*.txt")
    return [[float(word) for word in line.split()] for file in files for line in file.read_text().splitlines()]
