"""A Sequential that is built once has the names and the initial values of one that Keras builds layer by layer."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from tests.nn import configurations as c  # noqa: E402

DENSE = c.layer("Dense", "dense", units=5, activation="relu")
# SpectralNormalization draws a seed when it is built, so the layers after it get other seeds if it is built later.
SPECTRAL = c.layer("SpectralNormalization", "norm", layer=c.layer("Dense", "inner", units=3))
STACKS: dict[str, list[Any]] = {
    "plain": [c.input_layer([4]), DENSE, c.layer("Dense", "out", units=2)],
    "with seeds": [
        c.input_layer([4]),
        DENSE,
        c.layer("Dropout", "dropout", rate=0.5),
        c.layer("BatchNormalization", "batch"),
        c.layer("GaussianNoise", "noise", stddev=0.1),
        c.layer("Dense", "out", units=2),
    ],
    "drawn when built": [c.input_layer([4]), SPECTRAL, c.layer("Dropout", "dropout", rate=0.5), DENSE],
    "nested": [c.input_layer([4]), c.sequential(c.input_layer([4]), DENSE), c.layer("Dense", "out", units=2)],
}


@pytest.mark.parametrize("stack", STACKS)
def test_built_once_is_built_the_same(stack: str) -> None:
    import keras
    from keras.src.utils.naming import reset_uids

    from cerebro_db.nn.engines.program import whole_state
    from cerebro_db.nn.models import build

    config = {"name": "sequential", "layers": STACKS[stack]}
    states = []
    for make in (keras.Sequential.from_config, build._sequential):
        reset_uids()
        keras.utils.set_random_seed(7)
        model = make(copy.deepcopy(config))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        states.append([(variable.path, np.asarray(variable)) for variable in whole_state(model)])
    assert [path for path, _ in states[0]] == [path for path, _ in states[1]]
    for (path, one), (_, another) in zip(*states):
        np.testing.assert_array_equal(one, another, err_msg=path)


def test_a_stack_without_an_input_is_built_from_its_shape() -> None:
    from cerebro_db.nn.models import build

    config = {"name": "s", "layers": [DENSE], "build_input_shape": [None, 4]}
    assert build._sequential(config).count_params() == 25
