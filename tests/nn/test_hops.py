"""A model that hops between processes equals, bit for bit, a model that stays in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from sklearn.datasets import load_digits

from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.protocol import StateRef
from tests.thorough import landing

from . import configurations as c
from .trainer_client import Trainer, Visit, full, resident, weights

UNITS = 8
HOPS = 3  # from a seed in one process, on in the other, and back
SEED = 5
SHUFFLE_SEEDS = [100 + unit for unit in range(UNITS)]

CASES: dict[str, tuple[c.Json, c.Json]] = {
    "AdamW, cosine schedule, BatchNorm, Dropout": (
        c.configuration(c.noisy_mlp(), "categorical_crossentropy", "AdamW", learning_rate=c.cosine(0.01, 40)),
        c.DIGITS,
    ),
    "SGD with momentum and class weights": (
        c.configuration(
            c.mlp(),
            "categorical_crossentropy",
            "SGD",
            learning_rate=0.1,
            momentum=0.9,
            class_weight={"0": 2.0, "3": 0.5},
        ),
        c.DIGITS,
    ),
    "CNN, RMSprop": (
        c.configuration(c.cnn(), "categorical_crossentropy", "RMSprop", learning_rate=0.005),
        c.DIGITS,
    ),
    "Embedding, LSTM": (c.configuration(c.lstm(), "categorical_crossentropy", learning_rate=0.01), c.SENTENCES),
    "two inputs, two outputs": (
        c.configuration(
            c.two_by_two(), ["mse", "categorical_crossentropy"], "Nadam", learning_rate=0.01, metrics=[["mae"], ["acc"]]
        ),
        c.TWO_BY_TWO,
    ),
    "numbers in bins": (c.configuration(c.binned(), "mse", "AdamW", learning_rate=0.01, metrics=["mae"]), c.PRICES),
    "attention of related rows": (
        c.configuration(
            c.of_related(encoder="attention"), "categorical_crossentropy", "AdamW", learning_rate=0.01, metrics=["acc"]
        ),
        c.SHOP,
    ),
    "GRU of related rows, without aggregates": (
        c.configuration(
            c.of_related(encoder="gru", related="neighbourhoods"), "categorical_crossentropy", learning_rate=0.01
        ),
        c.SHOP,
    ),
    "aggregates, and inputs that are not read": (
        c.configuration(c.of_related(related="aggregates"), "categorical_crossentropy", learning_rate=0.01),
        c.SHOP,
    ),
    "mixed_bfloat16, CNN": (
        c.configuration(
            computed_in(c.cnn(), "mixed_bfloat16"), "categorical_crossentropy", "RMSprop", learning_rate=0.005
        ),
        c.DIGITS,
    ),
    "mixed_float16, loss scaled": (
        c.configuration(
            computed_in(c.noisy_mlp(), "mixed_float16"), "categorical_crossentropy", learning_rate=0.01, clipnorm=1.0
        ),
        c.DIGITS,
    ),
}


def partitions(layout: c.Json) -> list[dict[str, np.ndarray]]:
    """Eight partitions of unequal size, so that there are partial batches."""
    rows = [40 + 3 * unit for unit in range(UNITS)]
    if layout is c.DIGITS:
        digits = load_digits()
        columns = {"image": digits.images.astype("uint8"), "digit": c.one_hot(digits.target, 10)}
    else:
        columns = c.made_up(sum(rows), 3)
    ends = np.cumsum(rows)
    names = [variable["name"] for variable in layout["inputs"] + layout["outputs"]]
    return [{name: columns[name][end - size : end] for name in names} for end, size in zip(ends, rows)]


def as_keras_wants_it(arrays: dict[str, np.ndarray], configuration: c.Json) -> dict[str, np.ndarray]:
    """The columns after the conversion that a user of plain Keras writes by hand."""
    found = {name: array.astype("int32" if name == "words" else "float32") for name, array in arrays.items()}
    if "image" in found:
        first = configuration["architecture"]["config"]["layers"][0]["config"]["batch_shape"]
        found["image"] = (found["image"] / np.float32(16)).reshape(-1, *first[1:])
    if "price" in found:
        found["price"] = found["price"].reshape(-1, 1)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hops")


@pytest.fixture(scope="module")
def replays(folder: Path) -> Any:
    """Plain Keras at work on all cases, in the background."""
    cases = []
    for name, (configuration, layout) in CASES.items():
        number = len(cases)
        files = []
        for unit, arrays in enumerate(partitions(layout)[:HOPS]):
            files.append(str(folder / f"{number}.{unit}.npz"))
            np.savez(files[-1], **as_keras_wants_it(arrays, configuration))
        case = {"configuration": configuration, "seed": SEED, "shuffle_seeds": SHUFFLE_SEEDS, "units": files}
        case["inputs"] = [variable["name"] for variable in layout["inputs"]]
        case["outputs"] = [variable["name"] for variable in layout["outputs"]]
        cases.append({**case, "name": name, "out": str(folder / f"{number}.out.npz")})
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("plain_keras.py")
    process = subprocess.Popen([sys.executable, str(script), str(folder / "cases.json")])
    yield process, {case["name"]: case["out"] for case in cases}
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def trainers(folder: Path, replays: Any) -> Any:
    pair = [Trainer(folder / "a"), Trainer(folder / "b")]
    yield pair
    for trainer in pair:
        trainer.close()


def hop(trainers: list[Trainer], name: str, carry: Any = full, take_turns: bool = True) -> list[np.ndarray]:
    """The variables after a visit to each of some partitions; the two processes take turns."""
    configuration, layout = CASES[name]
    state, file = None, Path()
    for unit, arrays in enumerate(partitions(layout)[:HOPS]):
        trainer = trainers[unit % 2 if take_turns else 0]
        trainer.data("partition", layout, **arrays)
        file = trainer.folder / f"state.{unit}"
        trained = trainer.train(
            configuration, "partition", state, seed=SEED, shuffle_seed=SHUFFLE_SEEDS[unit], out=str(file)
        )
        assert trained.rows == len(arrays[layout["inputs"][0]["name"]])
        state = carry(trained)
    tensors = safetensors.numpy.load_file(file)
    return [tensors[name] for name in sorted(tensors)]  # numbered names


def plain(replays: Any, name: str) -> list[np.ndarray]:
    process, outs = replays
    assert process.wait(300) == 0
    with np.load(outs[name]) as arrays:
        return [arrays[file] for file in arrays.files]


def same(left: list[np.ndarray], right: list[np.ndarray]) -> list[bool]:
    assert [(a.shape, a.dtype) for a in left] == [(a.shape, a.dtype) for a in right]
    return [a.tobytes() == b.tobytes() for a, b in zip(left, right)]


@pytest.mark.parametrize("name", CASES)
def test_hops_change_no_bit(trainers: list[Trainer], replays: Any, name: str) -> None:
    hopped = hop(trainers, name)
    assert all(same(hopped, plain(replays, name)))
    assert len(hopped) > 6


def test_mixed_precision_is_in_what_is_computed_and_not_in_what_is_kept(trainers: list[Trainer]) -> None:
    full_precision, mixed, scaled = (
        hop(trainers, name) for name in ("CNN, RMSprop", "mixed_bfloat16, CNN", "mixed_float16, loss scaled")
    )
    assert not any(same(full_precision, mixed)[:4]), "the weights"
    assert {array.dtype.name for array in (*mixed, *scaled)} == {"float32", "int64"}  # seeds and counters
    scales = [array for array in scaled if array.shape == () and array.dtype == "float32" and array > 1000]
    assert len(scales) == 1, "the loss' scale is part of the state"


def inner(kind: str) -> c.Json:
    """A model with another model inside one of its layers."""
    dense, square = c.layer("Dense", "cell", units=3), c.layer("Reshape", "square", target_shape=[8, 8])
    model = c.functional([(c.input_layer([64], name="in"), []), (dense, ["in"])], ["in"], ["cell"])
    model["config"]["output_layers"] = ["cell", 0, 0]  # as Keras writes it of a single one
    layers = {
        "TimeDistributed": [square, c.layer("TimeDistributed", "each", layer=dense)],
        "RNN": [square, c.layer("RNN", "steps", cell=c.layer("LSTMCell", "cell", units=3))],
        "SpectralNormalization": [c.layer("SpectralNormalization", "normal", layer=dense)],
        "Functional": [model],
    }[kind]
    last = c.layer("Dense", "out", units=10, activation="softmax")
    return c.sequential(c.input_layer([64]), *layers, c.layer("Flatten", "flat"), last)


@pytest.mark.parametrize("precision", landing(["float32", "mixed_bfloat16", "mixed_float16"], "float32"))
@pytest.mark.parametrize("kind", ["TimeDistributed", "RNN", "SpectralNormalization", "Functional"])
def test_a_layer_within_a_layer(trainers: list[Trainer], kind: str, precision: str) -> None:
    """Keras empties the dictionaries that it reads, and an architecture is read twice: to measure and to build it."""
    configuration = c.configuration(computed_in(inner(kind), precision), "categorical_crossentropy")
    trainers[0].data("partition", c.DIGITS, **partitions(c.DIGITS)[0])
    assert trainers[0].train(configuration, "partition").finite


def test_weights_alone_do_not_do(trainers: list[Trainer], replays: Any) -> None:
    """The same hops with weights alone, as in MADlib, give other bits: the whole state is needed."""
    name = next(iter(CASES))

    def weights_only(visit: Visit) -> StateRef:
        raw = Path(visit.path).read_bytes()[visit.state.weights_offset :][: visit.state.weights_bytes]
        Path(visit.path + ".weights").write_bytes(raw)
        return weights(visit.path + ".weights")

    equal = same(hop(trainers, name, weights_only), plain(replays, name))
    assert not any(equal[:4])


def test_a_resident_state_equals_one_that_hops(trainers: list[Trainer]) -> None:
    name = next(iter(CASES))
    assert all(same(hop(trainers, name, resident, take_turns=False), hop(trainers, name)))
