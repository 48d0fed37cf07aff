"""The vectors of inner layers, which ``cerebro.embed`` gives: from which layers, and that the model stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.architecture import allowlist, keras_json, sources
from cerebro_db.core.architecture.ensembles import ensemble
from cerebro_db.core.errors import ConfigurationFailed, InvalidArgument
from cerebro_db.core.models.asked_vector import with_vector
from tests.thorough import landing

from . import configurations as c
from .test_predictions import predicted
from .test_shards import WORDS, dense, transformer
from .test_trainer import CATEGORICAL, IMAGES, LABELS, raw_weights
from .trainer_client import USUAL_ENGINE, Trainer, weights

Json = dict[str, Any]
X = np.random.default_rng(1).normal(size=(9, 4)).astype("f4")


def network(*, units: int = 6) -> Json:
    return c.functional(
        [
            (c.input_layer([4], name="x"), []),
            (dense("wide", units, activation="tanh"), ["x"]),
            (c.layer("Dropout", "rest", rate=0.5), ["wide"]),
            (dense("out", 3), ["rest"]),
            (c.layer("Activation", "shares", activation="softmax"), ["out"]),
        ],
        ["x"],
        ["shares"],
    )


def linear() -> Json:
    return c.functional([(c.input_layer([4], name="x"), []), (dense("shares", 3), ["x"])], ["x"], ["shares"])


def built(architecture: Json) -> Any:
    from cerebro_db.nn.models.build import build_model

    return build_model(c.configuration(architecture, CATEGORICAL, metrics=[]), None, seed=3)


def vector(architecture: Json, layer: str | None, rows: np.ndarray) -> np.ndarray:
    """That of the model, whose other outputs are those that it has without."""
    plain, model = built(architecture), built(with_vector(architecture, layer))
    assert [one.path for one in model.weights] == [one.path for one in plain.weights]
    *outputs, found = model(rows)
    assert np.array_equal(outputs[0], plain(rows))
    return np.asarray(found)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("architecture", "rows"),
    [(network(), X), (c.sequential(c.input_layer([4]), dense("wide", 6), dense("out", 3)), X), (transformer(), WORDS)],
    ids=["functional", "sequential", "transformer"],
)
def test_the_last_hidden_layer_gives_the_vector(architecture: Json, rows: np.ndarray) -> None:
    plain = built(architecture)
    matrix, bias = plain.layers[-1].weights or plain.get_layer("out").weights
    found = vector(architecture, None, rows[:9])
    scores = found @ np.asarray(matrix) + np.asarray(bias)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    linear_end = architecture["class_name"] == "Sequential" and rows is X
    np.testing.assert_allclose(plain(rows[:9]), scores if linear_end else shares, atol=1e-5)


@pytest.mark.tensorflow
def test_a_layer_by_its_name() -> None:
    plain = built(network())
    assert np.array_equal(vector(network(), "wide", X), plain.get_layer("wide")(X))
    assert np.array_equal(vector(network(), "shares", X), plain(X))


@pytest.mark.tensorflow
def test_an_adapter_is_part_of_the_vector() -> None:
    architecture = sources.made(network(), {"biases": True})
    model = built(with_vector(architecture, None))
    (added,) = [one for one in model.weights if "difference" in one.path]
    before = np.asarray(model(X)[-1])
    added.assign(np.full(added.shape, 0.5, "f4"))
    after = np.asarray(model(X)[-1])
    np.testing.assert_allclose(np.arctanh(after) - np.arctanh(before), 0.5, atol=1e-3)


@pytest.mark.tensorflow
def test_of_an_ensemble_the_vectors_of_the_members_that_have_one() -> None:
    members = [network(units=2), linear(), network(units=5)]
    whole = keras_json.architecture(json.dumps(ensemble(members)))
    first, third = (vector(whole, f"member_{number}/wide", X) for number in (1, 3))
    assert np.array_equal(vector(whole, None, X), np.hstack([first, third])) and first.shape == (9, 2)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("architecture", "layer", "error", "hint"),
    [
        (network(), "narrow", "the model has no layer narrow", "give a vector: x, wide, rest, out, shares."),
        (network(), "wide/kernel", "no layer wide/kernel", "wide, rest"),
        (linear(), None, "no hidden layer", "configuration => … names another model"),
        (transformer(), "add_1", "numbers for a row, and no vector", "Layers that give a vector"),
    ],
)
def test_layers_that_give_no_vector(architecture: Json, layer: str | None, error: str, hint: str) -> None:
    if layer == "add_1":
        layer = next(one.name for one in built(architecture).layers if len(one.output.shape) == 3)
    with pytest.raises(ConfigurationFailed, match=error) as raised:
        built(with_vector(architecture, layer))
    assert hint in raised.value.hint


def test_an_architecture_of_a_user_asks_for_no_vector() -> None:
    allowlist.check(network())
    with pytest.raises(InvalidArgument, match="vector"):
        allowlist.check(with_vector(network(), None))


ENGINES = ["tensorflow", "jax", "torch"]


@pytest.mark.parametrize("engine", landing(ENGINES, USUAL_ENGINE))
def test_every_engine_gives_it(tmp_path: Path, engine: str) -> None:
    trainer = Trainer(tmp_path / "trainer", engine=engine)
    try:
        trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
        plain = c.configuration(c.mlp(), CATEGORICAL)
        file = tmp_path / "weights"
        file.write_bytes(raw_weights(trainer.train(plain, "digits")))
        asked = {**plain, "architecture": with_vector(plain["architecture"], None)}
        (alone,) = predicted(trainer, plain, "digits", weights(file))
        shares, found = predicted(trainer, asked, "digits", weights(file))
        np.testing.assert_allclose(shares, alone, atol=1e-6)
        numbers = np.frombuffer(file.read_bytes(), "f4")
        width = found.size // len(IMAGES)
        matrix, bias = numbers[-(10 * width + 10) : -10].reshape(width, 10), numbers[-10:]
        scores = found.reshape(-1, width) @ matrix + bias
        expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        np.testing.assert_allclose(shares.reshape(-1, 10), expected, atol=1e-4)
    finally:
        trainer.close()
