"""Models with frozen layers in Keras: as a user writes it, and on features that a user has stored by hand.

--by-hand: the outputs of the frozen layers are computed once for each architecture and stored, and the layers behind
train on them.  --tuned: many steps per call, and one thread for each process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Result, Task, from_queue, model_of, task
from tests.bench.rivals.keras_queue import STEPS_PER_CALL

BATCH = 256


def whole(given: Task, configuration: Json, **compiled: object) -> Any:
    model = model_of(given.work, configuration, **compiled)
    with np.load(given.folder / f"weights{configuration['model']}.npz") as found:
        model.set_weights([found[name] for name in found.files])
    return model


def frozen_layers(model: Any) -> int:
    """How many of the first layers do not train."""
    return next(place for place, layer in enumerate(model.layers) if layer.trainable_variables)


def store_features(given: Task) -> None:
    import keras

    data = given.arrays()
    for number in {one["model"]: one for one in given.configurations}.values():
        model = whole(given, number)
        body = keras.Model(model.inputs, model.layers[frozen_layers(model) - 1].output)
        for side in ("x", "validation_x"):
            np.save(given.folder / f"features{number['model']}_{side}.npy", body.predict(data[side], BATCH, verbose=0))


def prepare(given: Task, by_hand: bool, tuned: bool) -> Callable[[Json], Result]:
    compiled: dict[str, object] = {}
    if tuned:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        compiled = {"steps_per_execution": STEPS_PER_CALL, "jit_compile": True}
    import keras

    data = given.arrays()

    def train(configuration: Json) -> Result:
        model, x, validation_x = whole(given, configuration, **compiled), data["x"], data["validation_x"]
        if by_hand:
            head = keras.Sequential(model.layers[frozen_layers(model) :])
            optimizer = getattr(keras.optimizers, configuration["optimizer"])(configuration["learning_rate"])
            x, validation_x = (
                np.load(given.folder / f"features{configuration['model']}_{side}.npy") for side in ("x", "validation_x")
            )
            head.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"], **compiled)
            model = head
        model.fit(x, data["y"], batch_size=configuration["batch_size"], epochs=given.epochs, verbose=0, shuffle=True)
        loss, accuracy = model.evaluate(validation_x, data["validation_y"], verbose=0)
        return {"loss": loss, "accuracy": accuracy}

    return train


if __name__ == "__main__":
    by_hand = "--by-hand" in sys.argv
    if by_hand:
        store_features(task())
    from_queue(task(), partial(prepare, by_hand=by_hand, tuned="--tuned" in sys.argv))
