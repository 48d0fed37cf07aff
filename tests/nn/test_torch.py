"""The PyTorch engine: the bits of model.fit on PyTorch, in however many processes; the numbers of TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.nn.build import program_key

from . import configurations as c
from .test_hops import SEED, SHUFFLE_SEEDS, as_keras_wants_it, partitions, same
from .test_jax import UNITS, WITHOUT_CHANCE, brought, visits
from .test_numbers import PAIRS
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import Trainer, full

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the optional package torch is not installed"
)


def seeded(configuration: c.Json) -> c.Json:
    """Where a layer has no seed, plain Keras takes PyTorch's own random numbers, which no state carries."""
    return json.loads(json.dumps(configuration).replace('"rate": 0.3', '"rate": 0.3, "seed": 7'))


SHARED = {name: (seeded(one), seeded(other)) for name, (one, other) in PAIRS.items()}
CASES = {
    "AdamW, cosine schedule, BatchNorm, Dropout": (
        seeded(c.configuration(c.noisy_mlp(), CATEGORICAL, "AdamW", learning_rate=c.cosine(0.01, 40))),
        c.DIGITS,
    ),
    **{name: case for name, case in WITHOUT_CHANCE.items() if "BatchNorm" not in name},
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two trainers with PyTorch, of which one is confined as it is in a database, and one with TensorFlow."""
    folder = tmp_path_factory.mktemp("engines")
    trainers = [
        Trainer(folder / "torch", engine="torch"),
        Trainer(folder / "confined", engine="torch", confined=True),
        Trainer(folder / "tensorflow"),
    ]
    for trainer in trainers:
        trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainers
    for trainer in trainers:
        trainer.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plain Keras on PyTorch at work on all cases, in the background."""
    folder, cases = tmp_path_factory.mktemp("plain"), []
    shared = {f"{name}, {place}": (one, c.DIGITS) for name, both in SHARED.items() for place, one in enumerate(both)}
    for name, (configuration, layout) in (CASES | shared).items():
        number, files = len(cases), []
        for unit, arrays in enumerate(partitions(layout)[:UNITS]):
            files.append(str(folder / f"{number}.{unit}.npz"))
            np.savez(files[-1], **as_keras_wants_it(arrays, configuration))
        sides = {side: [variable["name"] for variable in layout[side]] for side in ("inputs", "outputs")}
        case = {"configuration": configuration, "seed": SEED, "shuffle_seeds": SHUFFLE_SEEDS, "units": files, **sides}
        cases.append({**case, "name": name, "out": str(folder / f"{number}.out.npz")})
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("plain_keras.py")
    process = subprocess.Popen([sys.executable, str(script), str(folder / "cases.json"), "torch"])

    def variables(name: str) -> list[np.ndarray]:
        assert process.wait(300) == 0
        (out,) = (case["out"] for case in cases if case["name"] == name)
        with np.load(out) as arrays:
            return [arrays[file] for file in arrays.files]

    yield variables
    process.kill()
    process.wait()


def test_hello(engines: list[Trainer]) -> None:
    versions = engines[0].hello["versions"]
    assert versions["engine"] == "torch" and versions["keras"] == engines[2].hello["versions"]["keras"]
    assert engines[1].hello["devices"] == ["CPU:0"]
    assert engines[1].hello["confinement"] and not engines[0].hello["confinement"]


@pytest.mark.parametrize("engine", [0, 2])
def test_one_framework_per_process(engines: list[Trainer], engine: int) -> None:
    assert engines[engine].hello
    libraries = Path(f"/proc/{engines[engine].process.pid}/maps").read_text()
    found = [name for name in ("jaxlib", "tensorflow", "torch") if f"/{name}/" in libraries]
    assert found == [("torch", None, "tensorflow")[engine]]


@pytest.mark.parametrize("name", CASES)
def test_hops_have_the_bits_of_plain_keras(engines: list[Trainer], plain: Any, name: str) -> None:
    _, hopped, _ = visits(engines[:2], *CASES[name])
    assert all(same(hopped, plain(name)))


@pytest.mark.parametrize("architecture", [c.noisy_mlp(), c.lstm()])
def test_random_numbers_hop_where_an_architecture_names_no_seed(engines: list[Trainer], architecture: c.Json) -> None:
    layout = c.SENTENCES if architecture == c.lstm() else c.DIGITS
    configuration = c.configuration(architecture, CATEGORICAL, learning_rate=0.01)
    _, hopped, there = visits(engines[:2], configuration, layout)
    _, stayed, _ = visits(engines[:1], configuration, layout)
    assert all(same(hopped, stayed))
    losses, _, _ = visits(engines[2:], configuration, layout, there)  # the same seeds and counters go on in TensorFlow
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("name", SHARED)
def test_configurations_share_a_program(engines: list[Trainer], plain: Any, name: str) -> None:
    both, states, trainer = SHARED[name], [None, None], engines[0]
    assert program_key(both[0], c.DIGITS) == program_key(both[1], c.DIGITS)
    for unit, arrays in enumerate(partitions(c.DIGITS)[:UNITS]):
        trainer.data("partition", c.DIGITS, **arrays)
        for number, configuration in enumerate(both):  # in turns
            out = str(trainer.folder / f"turn{number}.{unit}")
            trained = trainer.train(
                configuration, "partition", states[number], seed=SEED, shuffle_seed=SHUFFLE_SEEDS[unit], out=out
            )
            states[number] = full(trained["state"])
    for number, state in enumerate(states):
        tensors = safetensors.numpy.load_file(state["path"])
        assert all(same([tensors[name] for name in sorted(tensors)], plain(f"{name}, {number}")))


@pytest.mark.parametrize("name", WITHOUT_CHANCE)
def test_the_numbers_are_those_of_tensorflow(engines: list[Trainer], name: str) -> None:
    """From the same state, over the same rows in the same order; the state changes engines on its way."""
    configuration, layout = WITHOUT_CHANCE[name]
    _, _, state = visits(engines[2:], configuration, layout)
    theirs, _, _ = visits(engines[2:], configuration, layout, state)
    losses, _, there = visits(engines[:1], configuration, layout, state)
    assert losses == pytest.approx(theirs, rel=2e-3)
    answers, outputs = [], []
    for trainer in engines[::2]:
        order = {"configuration": configuration, "handle": "partition", "state": brought(there, trainer)}
        answers.append(trainer("evaluate", **order))
        out = str(trainer.folder / "predicted")
        told = trainer("predict", out=out, **order)["outputs"]
        outputs.append(np.concatenate([np.fromfile(f"{out}.{number}", "f4") for number in range(len(told))]))
    assert answers[0]["loss"] == pytest.approx(answers[1]["loss"], rel=2e-3)
    assert answers[0]["metrics"] == pytest.approx(answers[1]["metrics"], rel=2e-3)
    assert outputs[0] == pytest.approx(outputs[1], abs=1e-4)


def test_slabs_have_no_influence(engines: list[Trainer]) -> None:
    """The second time the trainer knows how fast it is and hands over more batches at once."""
    configuration = c.configuration(c.mlp(units=7), CATEGORICAL, batch_size=3, epochs=2)
    first = engines[0].train(configuration, "digits")["state"]["sha256"]
    assert engines[0].train(configuration, "digits")["state"]["sha256"] == first


def test_no_rows_and_few(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    for rows in (0, 5):
        engines[0].data("few", c.DIGITS, image=IMAGES[:rows], digit=c.one_hot(LABELS[:rows], 10))
        trained = engines[0].train(configuration, "few")
        assert (trained["rows"], trained["steps"]) == (rows, min(rows, 1))
        arguments = {"configuration": configuration, "handle": "few", "state": full(trained["state"])}
        assert engines[0]("evaluate", **arguments)["rows"] == rows
        assert engines[0]("predict", out=str(engines[0].folder / "few.out"), **arguments)["rows"] == rows


def test_evaluating_leaves_the_state_as_it_is(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=6)
    trained = engines[1].train(configuration, "digits")
    held = {"kind": "held", "token": trained["state"]["token"]}
    first = engines[1]("evaluate", configuration=configuration, handle="digits", state=held)
    assert first["metrics"]["accuracy"] > 0.95
    assert {**engines[1]("evaluate", configuration=configuration, handle="digits", state=held), "seconds": 0} == {
        **first,
        "seconds": 0,
    }
    message = failure("WrongState", engines[1].train, configuration, "digits", {"kind": "held", "token": "another"})
    assert "does not hold that state" in message


def test_brain_floats_hop(engines: list[Trainer]) -> None:
    half = json.loads(json.dumps(c.mlp()).replace('"units": 16', '"units": 16, "dtype": "bfloat16"'))
    configuration = c.configuration(half, CATEGORICAL, learning_rate=0.01)
    _, hopped, state = visits(engines[:2], configuration, c.DIGITS)
    assert {array.dtype.name for array in hopped} >= {"bfloat16", "float32"}
    assert all(same(hopped, visits(engines[:1], configuration, c.DIGITS)[1]))
    visits(engines[2:], configuration, c.DIGITS, state)


def test_errors_are_one_line(engines: list[Trainer]) -> None:
    flipped = c.sequential(
        c.input_layer([8, 8, 1]),
        c.layer("RandomFlip", "flip"),
        c.layer("Flatten", "flat"),
        c.layer("Dense", "out", units=10),
    )
    told = {"configuration": c.configuration(flipped, CATEGORICAL), "layout": c.DIGITS}
    assert "TensorFlow only" in failure("ConfigurationFailed", engines[0], "describe", **told)
    columns = c.made_up(40, 4)
    engines[0].data("unknown", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    assert "out of range" in failure(
        "ConfigurationFailed", engines[0].train, c.configuration(c.lstm(), CATEGORICAL), "unknown"
    )


def test_what_does_not_fit_into_memory(tmp_path: Path) -> None:
    small = Trainer(tmp_path, engine="torch", memory_limit_mb=1500)
    small.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    wide = c.configuration(c.mlp(units=1_000_000), CATEGORICAL)
    assert "memory" in failure("OutOfResources", small.train, wide, "digits")
    assert small.train(c.configuration(c.mlp(), CATEGORICAL), "digits")["finite"]
    small.close()


def test_a_custom_loss(engines: list[Trainer]) -> None:
    source = "def doubled(y_true, y_pred):\n    return 2 * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)\n"
    registered = {"name": "doubled", "version": 1, "kind": "loss", "source": source}
    functions = [{**registered, "sha256": hashlib.sha256(source.encode()).hexdigest()}]
    configuration = c.configuration(c.mlp(), "mse", steps_per_epoch=1, shuffle=False, metrics=[])
    plain = engines[0].train(configuration, "digits")
    configuration["compile"]["loss"] = "doubled@1"
    custom = engines[0].train(configuration, "digits", functions=functions)
    assert custom["loss"] == pytest.approx(2 * plain["loss"], rel=1e-5)
