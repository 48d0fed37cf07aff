"""Small configurations and data for the trainer's tests, as plain JSON: the tests themselves need no framework."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np

from cerebro_db.core.architecture import building
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.packing.features import NumberFeature
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Measured, Numbers
from cerebro_db.core.parameters.params import compile_params
from cerebro_db.core.sql_types import SqlType
from tests.core import shop

Json = dict[str, Any]


def layer(class_name: str, name: str, **config: Any) -> Json:
    return {"module": "keras.layers", "class_name": class_name, "config": {"name": name, **config}}


def input_layer(shape: list[int | None], dtype: str = "float32", name: str = "rows") -> Json:
    return layer("InputLayer", name, batch_shape=[None, *shape], dtype=dtype)


def sequential(*layers: Json) -> Json:
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "model", "layers": list(layers)}}


def functional(layers: list[tuple[Json, list[str]]], inputs: list[str], outputs: list[str]) -> Json:
    """A Functional model; each layer comes with the names of the layers that it is called on."""

    def tensor(name: str) -> Json:
        return {
            "class_name": "__keras_tensor__",
            "config": {"shape": [None, None], "dtype": "float32", "keras_history": [name, 0, 0]},
        }

    nodes = []
    for one, called_on in layers:
        arguments = [tensor(name) for name in called_on]
        args = [] if not arguments else [arguments] if len(arguments) > 1 else arguments
        called = [{"args": args, "kwargs": {}}] if arguments else []
        nodes.append({**one, "name": one["config"]["name"], "inbound_nodes": called})
    ends = {"input_layers": [[name, 0, 0] for name in inputs], "output_layers": [[name, 0, 0] for name in outputs]}
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": {"name": "model", "layers": nodes, **ends},
    }


def with_attention(layers: list[tuple[Json, list[str]]], inputs: list[str], outputs: list[str]) -> Json:
    """As ``functional``, with MultiHeadAttention, which is called with a query and a value instead of a list."""
    model = functional(layers, inputs, outputs)
    for one in model["config"]["layers"]:
        if one["class_name"] == "MultiHeadAttention":
            call = one["inbound_nodes"][0]
            call["args"] = call["args"][0]
    return model


def configuration(architecture: Json, loss: Any, optimizer: str = "Adam", **more: Any) -> Json:
    """``more``: arguments of the optimizer, and metrics, batch_size, epochs and other fit parameters."""
    metrics = more.pop("metrics", ["accuracy"])
    known = ("batch_size", "epochs", "shuffle", "class_weight", "steps_per_epoch")
    fit = {"batch_size": 16, **{name: more.pop(name) for name in known if name in more}}
    compile_ = {"optimizer": {"class_name": optimizer, "config": more}, "loss": loss, "metrics": metrics}
    with contextlib.suppress(CerebroError):  # the trainer is told wrong ones, too
        compile_ = compile_params(json.dumps(compile_))
    return {"architecture": architecture, "compile": compile_, "fit": fit}


def column(name: str, shape: list[int], dtype: str = "float32", scale: float = 1.0) -> Json:
    return {"name": name, "dtype": dtype, "shape": shape, "scale": scale}


def target(name: str, shape: list[int], kind: str = "class", dtype: str = "int16") -> Json:
    return {"name": name, "dtype": dtype, "shape": shape, "kind": kind}


def cosine(rate: float, steps: int) -> Json:
    return {
        "module": "keras.optimizers.schedules",
        "class_name": "CosineDecay",
        "config": {"initial_learning_rate": rate, "decay_steps": steps},
    }


DIGITS = {"inputs": [column("image", [8, 8], "uint8", 16.0)], "outputs": [target("digit", [10])]}
SENTENCES = {"inputs": [column("words", [6], "int32")], "outputs": [target("mood", [3])]}
HOUSES = {"inputs": [column("facts", [4])], "outputs": [target("price", [], "real", "float32")]}
PRICES = {"inputs": [column("facts", [4])], "outputs": [target("price", [1], "real", "float32")]}
TWO_BY_TWO = {
    "inputs": [column("facts", [4]), column("words", [6], "int16")],
    "outputs": [target("price", [1], "real", "float32"), target("mood", [3])],
}
SHOP = {
    "inputs": [one.for_trainer() for one in shop.SHOP.inputs],
    "outputs": [one.for_trainer() for one in shop.SHOP.outputs],
}


def mlp(classes: int = 10, units: int = 16, activation: str = "softmax") -> Json:
    return sequential(
        input_layer([64]),
        layer("Dense", "hidden", units=units, activation="relu"),
        layer("Dense", "out", units=classes, activation=activation),
    )


def noisy_mlp() -> Json:
    """A model with state beside its weights: moving statistics and seeds."""
    return sequential(
        input_layer([64]),
        layer("Dense", "hidden", units=16, activation="relu"),
        layer("BatchNormalization", "norm", momentum=0.9),
        layer("Dropout", "drop", rate=0.3),
        layer("Dense", "out", units=10, activation="softmax"),
    )


def cnn() -> Json:
    return sequential(
        input_layer([8, 8, 1]),
        layer("Conv2D", "conv", filters=4, kernel_size=[3, 3], activation="relu"),
        layer("MaxPooling2D", "pool"),
        layer("Flatten", "flat"),
        layer("Dense", "out", units=10, activation="softmax"),
    )


def lstm() -> Json:
    return sequential(
        input_layer([None], "int32"),
        layer("Embedding", "embed", input_dim=20, output_dim=4),
        layer("LSTM", "lstm", units=5, recurrent_dropout=0.1),
        layer("Dense", "out", units=3, activation="softmax"),
    )


def two_by_two() -> Json:
    return functional(
        [
            (input_layer([4], name="facts"), []),
            (input_layer([6], "int32", name="words"), []),
            (layer("Embedding", "embed", input_dim=20, output_dim=3), ["words"]),
            (layer("Flatten", "flat"), ["embed"]),
            (layer("Concatenate", "both"), ["facts", "flat"]),
            (layer("Dense", "price", units=1), ["both"]),
            (layer("Dense", "mood", units=3, activation="softmax"), ["both"]),
        ],
        ["facts", "words"],
        ["price", "mood"],
    )


def binned(**more: int) -> Json:
    """An mlp as a packed table gets it, whose numbers enter by their bins."""
    fact = NumberFeature(
        "number", SqlType("real"), "standard", 0.0, 1.0, 0.0, False, "error", edges=(-2.0, -0.5, 0.0, 1.0)
    )
    facts = Variable("facts", "float32", (4,), ("a", "b", "c", "d"), Numbers((fact,) * 4))
    price = Variable("price", "float32", (1,), ("price",), Measured(0.0, 2.0))
    built = building.architecture(
        "mlp",
        Layout((facts,), (price,), 0, ()),
        {"layers": 1, "units": 8, "bins": 3, "embedding": 2, **more},
        "binned",
    )
    return {name: one for name, one in built.items() if name != "compile_config"}


def of_related(kind: str = "mlp", **parameters: Any) -> Json:
    """A model of customers and of their latest orders and visits (tests/core/shop.py)."""
    small = {"layers": 1, "units": 8, "embedding": 2} if kind == "mlp" else {}
    built = building.architecture(kind, shop.SHOP, {**small, **parameters}, "related")
    return {name: one for name, one in built.items() if name != "compile_config"}


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype="int16")[labels]


def made_up(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Columns for all layouts above except DIGITS; the targets depend on the inputs."""
    random = np.random.default_rng(seed)
    facts = random.normal(size=(rows, 4)).astype("float32")
    words = random.integers(0, 20, (rows, 6))
    price = (facts @ [1.0, -2.0, 0.5, 0.0] + 0.1 * random.normal(size=rows)).astype("float32")
    of_shop = dict(zip((one.name for one in shop.SHOP.inputs), shop.customers(rows, seed)))
    churn = one_hot((of_shop[shop.ORDERS.numbers][:, 0, 1] > 0).astype(int), 2)
    own = {"facts": facts, "words": words, "price": price, "mood": one_hot(words[:, 0] % 3, 3)}
    return {**own, **of_shop, "churn": churn}
