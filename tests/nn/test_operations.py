"""Operations on tensors in functional models, and lookups: built from what Keras writes, trained on two engines."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
from keras import ops

from cerebro_db.core.architecture import allowlist, tables
from cerebro_db.core.architecture.precision import computed_in

from . import configurations as c
from .test_trainer import failure
from .trainer_client import Trainer, full

ROWS = 64
FACTS = {"inputs": [c.column("facts", [4])], "outputs": [c.target("price", [1], "real", "float32")]}
NUMBERS = {"inputs": [c.column("words", [6], "int32")], "outputs": [c.target("price", [1], "real", "float32")]}


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp(request.param), engine=request.param)
    columns = c.made_up(ROWS, 1)
    columns["price"] = columns["price"][:, None]
    trainer.data("facts", FACTS, **columns)
    trainer.data("words", NUMBERS, **columns)
    yield trainer
    trainer.close()


def of_operations(x: Any) -> Any:
    """Everyday operations, one of nearly each sort."""
    a, b = x[:, :2], x[..., 2:]
    hidden = keras.layers.Dense(2, activation="relu", name="hidden")(a + b * 0.5 - 1.0)
    parts = [
        hidden,
        ops.abs(a) ** 2 / (1.0 + ops.exp(-ops.square(b))),
        ops.where(a > 0.5, a, ops.clip(b, -1, 1)),
        ops.mean(x, axis=-1, keepdims=True) + ops.sum(x, axis=1, keepdims=True),
        ops.max(ops.reshape(x, (-1, 2, 2)), axis=1),
        ops.einsum("ij,ij->i", a, b)[:, None],
        ops.matmul(ops.transpose(ops.reshape(x, (-1, 2, 2)), (0, 2, 1)), ops.expand_dims(a, -1))[:, 0],
        ops.softmax(a) + ops.relu(b) + ops.sigmoid(ops.minimum(a, b)),
        ops.squeeze(ops.stack([a, b], axis=1)[:, 1:], axis=1),
        ops.cast(a, "float16") * 1.0,
        ops.logsumexp(x, axis=1, keepdims=True),
    ]
    parts = [ops.cast(part, "float32") for part in parts]
    return keras.layers.Dense(1, name="price")(ops.concatenate(parts, axis=-1))


def test_a_graph_of_operations(trainer: Trainer) -> None:
    x = keras.Input((4,), name="facts")
    model = keras.Model(x, of_operations(x))
    architecture = json.loads(model.to_json())
    architecture = {name: architecture[name] for name in ("module", "class_name", "config")}
    allowlist.check(architecture)
    configuration = c.configuration(architecture, "mse", learning_rate=0.0, metrics=["mae"])
    visit = trainer.train(configuration, "facts")
    trainer.predict(configuration, "facts", full(visit), str(trainer.folder / "predicted"))
    predicted = np.fromfile(trainer.folder / "predicted.0", "float32").reshape(ROWS, 1)
    model.set_weights(weights_of(visit))
    np.testing.assert_allclose(predicted, model.predict(c.made_up(ROWS, 1)["facts"], verbose=0), rtol=1e-3, atol=1e-4)
    mixed = {**configuration, "architecture": computed_in(architecture, "mixed_bfloat16")}
    assert np.isfinite(trainer.train(mixed, "facts").loss)


def weights_of(visit: Any) -> list[np.ndarray]:
    found = safetensors.numpy.load_file(visit.path)
    named = sorted(name for name in found if "hidden" in name or "price" in name)
    return [found[name] for name in named if "optimizer" not in name and "adam" not in name]


@pytest.mark.parametrize(
    "layer",
    [
        c.layer("Hashing", "lookup", num_bins=20),
        c.layer("IntegerLookup", "lookup", vocabulary=[1, 5, 7], vocabulary_dtype="int64"),
    ],
)
def test_lookups(trainer: Trainer, layer: c.Json) -> None:
    architecture = c.sequential(
        c.input_layer([6], "int32"), layer, c.layer("Embedding", "embed", input_dim=20, output_dim=3),
        c.layer("Flatten", "flat"), c.layer("Dense", "price", units=1),
    )  # fmt: skip
    configuration = c.configuration(architecture, "mse", metrics=[])
    if "tensorflow" not in trainer.folder.name:
        message = failure("ConfigurationFailed", trainer.train, configuration, "words")
        assert "works with TensorFlow only" in message
        return
    assert np.isfinite(trainer.train(configuration, "words").loss)


def test_the_names_of_operations_are_those_of_keras() -> None:
    for module, table in tables.OPERATIONS.items():
        found = importlib.import_module(module)
        for name, arguments in table.items():
            assert issubclass(getattr(found, name), keras.Operation), name
            assert getattr(found, name).__module__ == module, name
            assert arguments <= set(inspect.signature(getattr(found, name).__init__).parameters), name
