"""The kind cnn_lstm is the network of CHAP: as many numbers, and the same probabilities with the same given weights.

CHAP's network is written here in NumPy, with the weights in the form in which PyTorch has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from small_run import schema

from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.errors import ClientError
from cerebro_db.core.architecture import building
from cerebro_db.core.packing.features import NumberFeature
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Numbers, OneHot
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.sql_types import SqlType
from tests.nn.chap import in_the_order_of_keras

SCHEMA = "cnn_lstm_tests"
OF_CHAP = 5_977_217
EVERY, STEPS, BLOCKS, CHANNELS, HIDDEN, UNITS = 20, 6, 3, 4, 12, 5
ROWS = """
CREATE TABLE hips AS SELECT who * 1000 + i AS id, who, i AS at, sin(i * 0.7 + who)::real AS x, cos(i * 0.3)::real AS y,
  sin(i * i * 0.01)::real AS z, (i / 40 + who) % 2 = 0 AS sits
 FROM generate_series(1, 6) who, generate_series(1, 500) i
"""


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection, Cerebro(connection) as found:
        yield found
        found.drop_architecture("chap")


def layout_of_chap() -> Layout:
    axis = NumberFeature("number", SqlType("real"), "standard", 0.0, 1.0, 0.0, False, "error")
    acceleration = Variable("numbers", "float32", (4200, 3), ("x", "y", "z"), Numbers((axis,) * 3))
    sits = Variable("sits", "int16", (42, 2), ("sits",), OneHot(SqlType("boolean"), ("false", "true")), 42)
    windows = Windows(("who",), ("at",), 4200, 4200, "each", every=100)
    return Layout((acceleration,), (sits,), 0, (), windows=windows)


def keras_model(architecture: dict[str, Any]) -> Any:
    import keras

    document = {name: value for name, value in architecture.items() if name != "compile_config"}
    return keras.models.model_from_json(json.dumps(document))


def test_it_has_the_numbers_of_chap() -> None:
    """PyTorch has each bias of an LSTM twice, and CHAP one logit where a softmax of two classes has two."""
    found = keras_model(building.architecture("cnn_lstm", layout_of_chap(), None, "test"))
    biases, second_class = 2 * 4 * 128, 2 * 128 + 1
    assert found.count_params() + biases - second_class == OF_CHAP
    assert [tensor.shape for tensor in found.outputs] == [(None, 42, 2)]


# -- the same weights ----------------------------------------------------------------------------------------


def drawn() -> dict[str, np.ndarray]:
    """Weights as PyTorch has them."""
    random = np.random.default_rng(1)
    sizes: dict[str, tuple[int, ...]] = {}
    before, length = 1, EVERY
    for block in range(BLOCKS):
        filters, length = CHANNELS * 2**block, -(-length // 2)
        sizes |= {f"conv{block}.weight": (filters, before, 5, 1 if block else 3), f"conv{block}.bias": (filters,)}
        before = filters
    sizes |= {"fc.weight": (HIDDEN, before * length * 3), "fc.bias": (HIDDEN,)}
    for end in ("", "_reverse"):
        sizes |= {f"weight_ih{end}": (4 * UNITS, HIDDEN), f"weight_hh{end}": (4 * UNITS, UNITS)}
        sizes |= {f"bias_ih{end}": (4 * UNITS,), f"bias_hh{end}": (4 * UNITS,)}
    sizes |= {"last.weight": (1, 2 * UNITS), "last.bias": (1,)}
    return {name: random.normal(0, 0.3, size).astype("f4") for name, size in sizes.items()}


def convolved(images: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Every second place of the first dimension, with zeros around the image."""
    _, _, height, width = images.shape
    tall, wide = weight.shape[2:]
    above = max((-(-height // 2) - 1) * 2 + tall - height, 0)
    padded = np.pad(images, [(0, 0), (0, 0), (above // 2, above - above // 2), ((wide - 1) // 2, wide // 2)])
    patches = np.lib.stride_tricks.sliding_window_view(padded, (tall, wide), axis=(2, 3))[:, :, ::2]
    return np.einsum("ncijhw,fchw->nfij", patches, weight) + bias[:, None, None]


def recurrent(rows: np.ndarray, given: dict[str, np.ndarray], end: str) -> np.ndarray:
    hidden = cell = np.zeros(UNITS)
    found = []
    for row in rows:
        gates = given[f"weight_ih{end}"] @ row + given[f"bias_ih{end}"]
        gates = gates + given[f"weight_hh{end}"] @ hidden + given[f"bias_hh{end}"]
        enters, forgets, new, leaves = np.split(gates, 4)
        cell = sigmoid(forgets) * cell + sigmoid(enters) * np.tanh(new)
        hidden = sigmoid(leaves) * np.tanh(cell)
        found.append(hidden)
    return np.array(found)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def probabilities(window: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    """Of the second class, in each step of a window of the shape (rows, 3)."""
    images = window.reshape(STEPS, 1, EVERY, 3)
    for block in range(BLOCKS):
        images = np.maximum(convolved(images, given[f"conv{block}.weight"], given[f"conv{block}.bias"]), 0)
    steps = images.reshape(STEPS, -1) @ given["fc.weight"].T + given["fc.bias"]
    both = np.hstack([recurrent(steps, given, ""), recurrent(steps[::-1], given, "_reverse")[::-1]])
    return sigmoid(both @ given["last.weight"][0] + given["last.bias"])


def test_given_weights_give_the_probabilities_of_chap(cerebro: Cerebro, tmp_path: Path) -> None:
    cerebro.rows(ROWS)
    sequence = {"by": "who", "order": "at", "length": EVERY * STEPS, "target": "each", "every": EVERY}
    cerebro.rows("SELECT cerebro.pack('hips', 'hips_packed', 'sits', inputs => 'x, y, z', sequence => %s)",
                 (json.dumps(sequence),))  # fmt: skip
    parameters = {"blocks": BLOCKS, "channels": CHANNELS, "hidden": HIDDEN, "units": UNITS}
    ((architecture,),) = cerebro.rows("SELECT cerebro.architecture('cnn_lstm', 'hips_packed', %s)",
                                      (json.dumps(parameters),))  # fmt: skip
    given = drawn()
    save_file({f"{place:02}": np.ascontiguousarray(one) for place, one in enumerate(in_the_order_of_keras(given))},
              tmp_path / "chap.safetensors")  # fmt: skip
    cerebro.add_architecture("chap", architecture, tmp_path / "chap.safetensors", by="order")
    cerebro.rows(
        "SELECT cerebro.fit('hips_packed', 'chap_models',"
        ' \'[{"architecture": "chap", "optimizer": "SGD", "learning_rate": 1e-12}]\', epochs => 1)'
    )
    predicted = {
        int(key): probability
        for key, probability in cerebro.rows(
            "SELECT key_value, probability FROM cerebro.predict('chap_models', 'hips', 'id', probability_of => 'true')"
        )  # fmt: skip
    }
    scales = {
        name: (one["mean"], one["deviation"])
        for name, one in cerebro.rows(
            "SELECT column_name, parameters FROM cerebro.prepared_columns('hips_packed') WHERE NOT is_target"
        )  # fmt: skip
    }
    rows = cerebro.rows("SELECT who, id, x, y, z FROM hips ORDER BY who, at")
    worst = compared = 0
    for who in range(1, 7):
        its = [row[1:] for row in rows if row[0] == who]
        numbers = np.array([[(value - scales[n][0]) / scales[n][1] for n, value in zip("xyz", row[1:])] for row in its])
        for start in range(0, len(its) - EVERY * STEPS + 1, EVERY * STEPS):
            found = probabilities(numbers[start : start + EVERY * STEPS], given)
            for step, probability in enumerate(found):
                key = its[start + EVERY * (step + 1) - 1][0]
                worst, compared = max(worst, abs(predicted[key] - probability)), compared + 1
    assert compared == len(predicted) == 6 * 4 * STEPS and worst < 1e-5, worst
    assert np.ptp(list(predicted.values())) > 0.1


def test_it_reads_windows_with_one_target_too(cerebro: Cerebro) -> None:
    sequence = {"by": "who", "order": "at", "length": 40, "target": "majority"}
    cerebro.rows(
        "SELECT cerebro.fit('hips', 'whole', %s, 'sits', inputs => 'x, y, z', epochs => 2, sequence => %s)",
        (json.dumps([{"architecture": "cnn_lstm", "rows": 8, **{"channels": 4, "hidden": 8, "units": 4}}]),
         json.dumps(sequence)),
    )  # fmt: skip
    assert len(cerebro.rows("SELECT * FROM cerebro.predict('whole', 'hips', 'id')")) == 6 * 12


def test_layouts_with_other_steps_are_refused() -> None:
    found = layout_of_chap()
    Layout.from_json(found.to_json())
    for output in (replace(found.outputs[0], steps=0), replace(found.outputs[0], steps=41, shape=(41, 2))):
        with pytest.raises(Exception, match="steps has to be 42, as the sequence says"):
            Layout.from_json(replace(found, outputs=(output,)).to_json())


def test_models_of_steps_and_of_means_stay_in_the_database(cerebro: Cerebro, tmp_path: Path) -> None:
    for name, more, says in (
        ("stepwise", {"target": "each", "every": 10}, "the model predicts each step of a window"),
        ("of_means", {"mean": 2}, "the model reads means of rows"),
    ):
        sequence = {"by": "who", "order": "at", "length": 40, **more}
        cerebro.rows(
            "SELECT cerebro.fit('hips', %s, '[{\"architecture\": \"mlp\", \"units\": 4}]', 'sits', inputs => 'x, y, z',"
            " epochs => 1, sequence => %s)",
            (name, json.dumps(sequence)),
        )
        with pytest.raises(ClientError, match=says) as error:
            cerebro.export(name, tmp_path / f"{name}.keras")
        assert error.value.hint
    ((said,),) = cerebro.rows("SELECT cerebro.create_predictor('of_means', 'sits_now')")
    assert said.endswith("sits_now(x, y, z)")
    # On Greenplum no query that reads a table may call it.
    (window,) = cerebro.rows(
        "SELECT array_agg(x ORDER BY at), array_agg(y ORDER BY at), array_agg(z ORDER BY at)"
        " FROM hips WHERE who = 1 AND at <= 80"
    )
    ((inside,),) = cerebro.rows("SELECT sits_now(%s::real[], %s::real[], %s::real[])", window)
    ((outside,),) = cerebro.rows(
        "SELECT class FROM cerebro.predict('of_means', 'SELECT * FROM hips WHERE who = 1 AND at <= 80')"
    )
    assert str(inside).lower() == outside
