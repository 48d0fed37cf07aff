"""The weights that the models of a work with frozen layers begin with: for each architecture a file, in Keras' order.

The first layers are those of a model that was trained for another work: to tell MNIST's digits 0 to 4 (digits), or the
subjects of texts (texts).
"""

from __future__ import annotations

import sys

import numpy as np

from tests.bench.rivals.common import model_of, task
from tests.bench.works import digits, subjects

EPOCHS = 4


def others(how: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows of the other work, and their classes."""
    if how == "digits":
        both = digits(5_000)
        chosen = np.flatnonzero(both.y < 5)
        return both.x[chosen].astype("float32"), both.y[chosen], 5
    texts = subjects(10_000, seed=5)
    return texts.x.astype("float32"), texts.y, 16


def main(how: str) -> None:
    import keras

    keras.utils.set_random_seed(1)
    given = task()
    body = model_of(given.work, given.configurations[0])
    x, y, classes = others(how)
    end = keras.layers.Dense(classes, activation="softmax")
    learner = keras.Sequential([*body.layers[:-1], end])
    for layer in learner.layers:
        layer.trainable = True
    learner.compile("adam", loss="sparse_categorical_crossentropy")
    learner.fit(x / given.work["scale"], y, batch_size=32, epochs=EPOCHS, verbose=0)
    values = {layer.name: layer.get_weights() for layer in body.layers[:-1]}
    for number in range(len(given.work["architectures"])):
        model = model_of(given.work, {**given.configurations[0], "model": number})
        for layer in model.layers:
            its = values.get(layer.name, [])
            if [value.shape for value in its] == [value.shape for value in layer.get_weights()]:
                layer.set_weights(its)
        arrays = {f"weight{place:03}": value for place, value in enumerate(model.get_weights())}
        np.savez(given.folder / f"weights{number}.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[2])
