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

model = keras.Sequential.from_config(work["architecture"]["config"])
model.compile(keras.optimizers.Adam(), loss="categorical_crossentropy", metrics=["accuracy"], steps_per_execution=50)
model.optimizer.build(model.trainable_variables)

results = []
for seed in work["seeds"]:
    of_seed = []
    for rate, batch in work["configurations"]:
        keras.utils.set_random_seed(1000 + seed)
        # One model with new weights and a new optimizer's state each time: it is traced once.
        model.set_weights(keras.Sequential.from_config(work["architecture"]["config"]).get_weights())
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        model.optimizer.learning_rate = rate
        model.fit(*data["training"], batch_size=batch, epochs=work["epochs"], verbose=0)
        of_seed.append(model.evaluate(*data["validation"], verbose=0))
    results.append(of_seed)
(folder / "results.json").write_text(json.dumps(results))
