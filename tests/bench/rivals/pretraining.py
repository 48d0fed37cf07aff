"""The weights that the models of a work with frozen layers begin with: for each architecture a file, in Keras' order.

digits: the first layers are those of a model of the first architecture that was trained on MNIST's digits 0 to 4.
random: they are those of one that was not trained.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.bench.rivals.common import model_of, task
from tests.bench.works import digits

EPOCHS = 4


def main(how: str) -> None:
    import keras

    keras.utils.set_random_seed(1)
    given = task()
    body = model_of(given.work, given.configurations[0])
    if how == "digits":
        both = digits(5_000)
        lower = np.flatnonzero(both.y < 5)
        for layer in body.layers:
            layer.trainable = True
        body.compile("adam", loss="categorical_crossentropy")
        x = (both.x[lower] / given.work["scale"]).astype("float32")
        body.fit(x, np.eye(5, dtype="float32")[both.y[lower]], batch_size=32, epochs=EPOCHS, verbose=0)
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
