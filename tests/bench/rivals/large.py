"""One configuration of LightGBM or Keras on the table ``large``, for so many seconds.

``python large.py FOLDER NAME SECONDS`` reads the tables from files of COPY in binary form, and writes result.json: the
log loss on ``large_held_out``.  The seconds count from the start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 20
NAMES = [f"x{n + 1}" for n in range(COLUMNS)]
HEADER = 19  # bytes of COPY's binary form before the first row
VALIDATION, MOST_ROUNDS, PATIENCE = 0.02, 100_000, 50
RESERVED = 10  # seconds for predicting
BEGAN = time.monotonic()


def rows_of(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and the target of all rows: a length precedes each number."""
    of_row = np.dtype([("count", ">i2"), ("numbers", [("length", ">i4"), ("value", ">f4")], COLUMNS + 1)])
    count = (file.stat().st_size - HEADER - 2) // of_row.itemsize
    values = np.memmap(file, of_row, "r", HEADER, count)["numbers"]["value"]
    return values[:, :COLUMNS].astype(np.float32), values[:, COLUMNS].astype(np.float32)


def log_loss(truth: np.ndarray, probability: np.ndarray) -> float:
    probability = np.clip(probability.astype(float), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(truth > 0.5, np.log(probability), np.log(1 - probability))))


def lightgbm(x: np.ndarray, y: np.ndarray, held: np.ndarray, seconds: float) -> np.ndarray:
    import lightgbm as library  # type: ignore[import-not-found]

    first = int(len(x) * VALIDATION)
    train = library.Dataset(x[first:], y[first:])
    validation = library.Dataset(x[:first], y[:first], reference=train)

    def stop(env: Any) -> None:
        if time.monotonic() - BEGAN > seconds - RESERVED:
            raise library.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    settings = {"objective": "binary", "verbose": -1, "num_threads": os.cpu_count(), "seed": 1}
    stops = [library.early_stopping(PATIENCE, verbose=False), stop]
    model = library.train(settings, train, MOST_ROUNDS, valid_sets=[validation], callbacks=stops)
    return np.asarray(model.predict(held))


def keras(x: np.ndarray, y: np.ndarray, held: np.ndarray, seconds: float) -> np.ndarray:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras as library

    library.utils.set_random_seed(1)

    class Stop(library.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if time.monotonic() - BEGAN > seconds - RESERVED:
                self.model.stop_training = True

    mean, deviation = x.mean(axis=0), x.std(axis=0)
    x, held = (x - mean) / deviation, (held - mean) / deviation
    dense = [library.layers.Dense(128, activation="relu") for _ in range(3)]
    model = library.Sequential([library.Input((COLUMNS,)), *dense, library.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=library.optimizers.AdamW(0.001), loss="binary_crossentropy")
    model.fit(x, y, batch_size=512, epochs=MOST_ROUNDS, verbose=0, callbacks=[Stop()])
    return np.asarray(model.predict(held, batch_size=4096, verbose=0)).ravel()


def main(folder: Path, name: str, seconds: float) -> None:
    x, y = rows_of(folder / "large")
    held, truth = rows_of(folder / "large_held_out")
    predicted = {"LightGBM": lightgbm, "Keras": keras}[name](x, y, held, seconds)
    (folder / "result.json").write_text(json.dumps(log_loss(truth, predicted)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
