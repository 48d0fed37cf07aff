"""Keras' predict on an array in memory, as it comes (batches of 32) or with larger batches: --times=16 --batch=1024."""

from __future__ import annotations

import sys
import time

import numpy as np

from tests.bench.rivals.common import model_of, task


def main() -> None:
    given = task()
    asked = dict(argument[2:].split("=") for argument in sys.argv[2:])
    model = model_of(given.work, given.configurations[0])
    rows = np.tile(given.arrays()["x"], (int(asked["times"]), 1))
    ready = time.time()
    predicted = model.predict(rows, batch_size=int(asked.get("batch", 32)), verbose=0)
    given.done(ready, [], rows=len(predicted))


if __name__ == "__main__":
    main()
