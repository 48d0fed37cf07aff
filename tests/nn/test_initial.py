"""Initial states that follow a recipe are those of a model that is built for the seed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from tests.nn import configurations as c  # noqa: E402

CROSS = "categorical_crossentropy"
ATTENTION = c.functional(
    [
        (c.input_layer([6], "int32", name="words"), []),
        (c.layer("Embedding", "embed", input_dim=20, output_dim=4), ["words"]),
        (c.layer("MultiHeadAttention", "attend", num_heads=2, key_dim=3, dropout=0.1), ["embed", "embed"]),
        (c.layer("GlobalAveragePooling1D", "mean"), ["attend"]),
        (c.layer("Dense", "mood", units=3, activation="softmax"), ["mean"]),
    ],
    ["words"],
    ["mood"],
)
ATTENTION["config"]["layers"][2]["inbound_nodes"][0]["args"] = [
    one for one in ATTENTION["config"]["layers"][2]["inbound_nodes"][0]["args"][0]
]  # a query and a value, not a list of both
SEEDED = c.sequential(
    c.input_layer([64]),
    c.layer("Dense", "own", units=4, kernel_initializer={
        "module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": 5}}),
    c.layer("Dense", "same", units=4, kernel_initializer={
        "module": "keras.initializers", "class_name": "Orthogonal", "config": {"gain": 1.0, "seed": None}}),
    c.layer("Dense", "out", units=10, activation="softmax"),
)  # fmt: skip
MODELS = {
    "dropout": (c.noisy_mlp(), c.DIGITS, "Adam"),
    "convolutions": (c.cnn(), c.DIGITS, "SGD"),
    "recurrent": (c.lstm(), c.SENTENCES, "RMSprop"),
    "attention": (ATTENTION, c.SENTENCES, "AdamW"),
    "a seed of its own": (SEEDED, c.DIGITS, "Adagrad"),
}


def program(name: str, seed: int, **more: Any) -> Any:
    import tensorflow as tf

    from cerebro_db.nn.engines.kept import Kept
    from cerebro_db.nn.engines.tensorflow import TensorFlowProgram

    return TensorFlowProgram(tf, Kept(None, []), *configured(name, **more), seed)


def configured(name: str, **more: Any) -> tuple[Any, Any]:
    architecture, layout, optimizer = MODELS[name]
    return c.configuration(architecture, CROSS, optimizer, **more), layout


def same(one: Any, other: Any) -> bool:
    return all(
        mine.dtype == its.dtype and mine.tobytes() == its.tobytes() for mine, its in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.tensorflow
def test_a_recipe_gives_what_is_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebro_db.nn.models import build

    expected = {seed: program(name, seed, learning_rate=seed / 100).get_all() for seed in (1, 2, 3, 4 + (1 << 40))}
    one = program(name, 1, learning_rate=0.01)
    one.initialise(configured(name, learning_rate=0.02)[0], 2)
    assert same(one.get_all(), expected[2]) and one._recipe_is_right
    monkeypatch.setattr(build, "build_model", None)  # from now on nothing is built
    for seed in (3, 4 + (1 << 40), 1, 3):
        one.initialise(configured(name, learning_rate=seed / 100)[0], seed)
        assert same(one.get_all(), expected[seed]), seed


@pytest.mark.tensorflow
def test_a_recipe_that_is_wrong_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version of Keras drew in another way."""
    from cerebro_db.nn.models import initial

    expected = {seed: program("dropout", seed, learning_rate=0.01).get_all() for seed in (2, 3)}
    right = initial._draws
    monkeypatch.setattr(initial, "_draws", lambda seed, count: right(seed if seed == 1 else seed + 1, count))
    one = program("dropout", 1, learning_rate=0.01)
    for seed in (2, 3):
        one.initialise(configured("dropout", learning_rate=0.01)[0], seed)
        assert same(one.get_all(), expected[seed])
    assert one._recipe is None


@pytest.mark.tensorflow
def test_without_a_learning_rate_the_model_is_built() -> None:
    expected = program("dropout", 3).get_all()
    one = program("dropout", 1, learning_rate=0.01)
    one.initialise(configured("dropout", learning_rate=0.01)[0], 2)
    one.initialise(configured("dropout")[0], 3)
    assert same(one.get_all(), expected)
    assert np.isclose(float(one.model.optimizer.learning_rate), 0.001)


@pytest.mark.tensorflow
@pytest.mark.parametrize("rate", [0.01, c.cosine(0.01, 5)], ids=["a rate", "a schedule"])
def test_models_that_begin_alike_are_built_once(rate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the groups of a configuration do."""
    from cerebro_db.nn.models import build

    configuration, _ = configured("dropout", learning_rate=rate)
    expected = {seed: program("dropout", seed, learning_rate=rate).get_all() for seed in (1, 2)}
    one = program("dropout", 1, learning_rate=rate)
    built = build.build_model
    for seed in (1, 2):
        for once in (True, False, False):
            one.set_all([np.ones_like(value) for value in expected[1]])
            monkeypatch.setattr(build, "build_model", built if once else None)
            one.initialise(configuration, seed)
            assert same(one.get_all(), expected[seed]), seed


@pytest.mark.tensorflow
def test_weights_that_are_given_are_not_taken_for_those_of_the_seed() -> None:
    configuration, _ = configured("dropout", learning_rate=0.01)
    expected = program("dropout", 1, learning_rate=0.01).get_all()
    one = program("dropout", 1, learning_rate=0.01)
    given = [np.full_like(value, 0.5) for value in one.get_all()[: one.weights]]
    one.initialise(configuration, 1, given)
    assert same(one.get_all()[: one.weights], given)
    one.initialise(configuration, 1)
    assert same(one.get_all(), expected)
