"""The reference for the accuracy test: plain ``model.fit`` on all rows, one configuration after the other.

A script.  Its argument is a folder with the file work.json; the script writes results.json there.  It shares no code
with the product.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np

folder = Path(sys.argv[1])
work = json.loads((folder / "work.json").read_text())
data = {}
for name in ("training", "validation"):
    images, digits = zip(*work[name])
    data[name] = np.asarray(images, "float32") / 16.0, np.eye(10, dtype="float32")[np.asarray(digits)]

results = []
for seed in work["seeds"]:
    of_seed = []
    for rate, batch in work["configurations"]:
        keras.utils.set_random_seed(1000 + seed)
        model = keras.Sequential.from_config(work["architecture"]["config"])
        model.compile(keras.optimizers.Adam(learning_rate=rate), loss="categorical_crossentropy", metrics=["accuracy"])
        model.fit(*data["training"], batch_size=batch, epochs=work["epochs"], verbose=0)
        of_seed.append(model.evaluate(*data["validation"], verbose=0))
    results.append(of_seed)
(folder / "results.json").write_text(json.dumps(results))
