"""Architectures of Keras 2, loaded by the Keras we run: same weights in the same order, same outputs."""

from __future__ import annotations

import base64
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from cerebro_db.core.architecture.allowlist import check
from cerebro_db.core.architecture.keras2 import is_legacy, to_keras3

FIXTURES = sorted((pathlib.Path(__file__).parent.parent / "fixtures" / "keras2").glob("*.json"))
CASES = [
    pytest.param(json.loads(path.read_text()), form, id=f"{path.stem}-{form}")
    for path in FIXTURES
    for form in ("keras2", "older")
    if json.loads(path.read_text())[form] is not None
]


def array(packed: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["base64"]), "<f4").reshape(packed["shape"])


def load(architecture: dict) -> keras.Model:
    return keras.models.model_from_json(json.dumps(architecture))


def outputs(model: keras.Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    found = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    return [np.asarray(one) for one in (found if isinstance(found, (list, tuple)) else [found])]


def test_there_are_enough_of_them():
    assert len(FIXTURES) >= 13
    assert sum(path.stat().st_size for path in FIXTURES) < 300_000


@pytest.mark.parametrize(("fixture", "form"), CASES)
def test_weights_and_outputs_are_the_same(fixture, form):
    translated = to_keras3(fixture[form])
    check(translated)
    assert not is_legacy(translated) and to_keras3(translated) is translated
    model = load(translated)
    shapes = fixture["weight_shapes"]
    assert [list(weight.shape) for weight in model.get_weights()] == shapes
    flat, start, weights = array(fixture["weights"]), 0, []
    for shape in shapes:
        size = int(np.prod(shape))
        weights.append(flat[start : start + size].reshape(shape))
        start += size
    model.set_weights(weights)
    found = outputs(model, [array(packed) for packed in fixture["inputs"]])
    assert len(found) == len(fixture["outputs"])
    for one, packed in zip(found, fixture["outputs"]):
        np.testing.assert_allclose(one, array(packed), atol=1e-6, rtol=0)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_what_keras_3_saves_passes_unchanged(path):
    """The allow-list accepts Keras 3's own JSON of the same models, and nothing changes it."""
    saved = json.loads(load(to_keras3(json.loads(path.read_text())["keras2"])).to_json())
    assert not is_legacy(saved)
    assert to_keras3(saved) is saved
    check(saved)
