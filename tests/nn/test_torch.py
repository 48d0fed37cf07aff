"""The PyTorch engine: the bits of model.fit on PyTorch in any number of processes; TensorFlow's numbers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy bfloat16)
import numpy as np
import pytest

from cerebro_db.core.protocol import StateRef
from cerebro_db.nn.models.build import program_key

from . import configurations as c
from .other_engine import UNITS, WITHOUT_CHANCE, OtherEngine, engines_of, in_turns, visits
from .test_hops import SEED, SHUFFLE_SEEDS, as_keras_wants_it, partitions, same
from .test_numbers import PAIRS
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import Trainer, resident

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the optional package torch is not installed"
)


def seeded(configuration: c.Json) -> c.Json:
    """If a layer has no seed, plain Keras takes PyTorch's own random numbers, whose state does not hop."""
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
    yield from engines_of(tmp_path_factory, "torch")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plain Keras on PyTorch at work on all cases, in the background."""
    folder, cases = tmp_path_factory.mktemp("plain"), []
    shared = {f"{name}, {place}": (one, c.DIGITS) for name, both in SHARED.items() for place, one in enumerate(both)}
    for name, (configuration, layout) in (CASES | shared).items():
        number, files = len(cases), []
        for unit, part in enumerate(UNITS):
            files.append(str(folder / f"{number}.{unit}.npz"))
            np.savez(files[-1], **as_keras_wants_it(partitions(layout)[part], configuration))
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


class TestTorch(OtherEngine):
    engine = module = "torch"


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
    both = SHARED[name]
    assert program_key(both[0], c.DIGITS) == program_key(both[1], c.DIGITS)
    for number, mine in enumerate(in_turns(engines[0], both)[0]):
        assert all(same(mine, plain(f"{name}, {number}")))


def test_evaluating_leaves_the_state_as_it_is(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=6)
    trained = engines[1].train(configuration, "digits")
    first = engines[1].evaluate(configuration, "digits", resident(trained))
    assert first.metrics["accuracy"] > 0.95
    again = engines[1].evaluate(configuration, "digits", resident(trained))
    assert replace(again, seconds={}) == replace(first, seconds={})
    message = failure("WrongState", engines[1].train, configuration, "digits", StateRef.resident("another"))
    assert "no longer has that state" in message


def test_brain_floats_hop(engines: list[Trainer]) -> None:
    half = json.loads(json.dumps(c.mlp()).replace('"units": 16', '"units": 16, "dtype": "bfloat16"'))
    configuration = c.configuration(half, CATEGORICAL, learning_rate=0.01)
    _, hopped, state = visits(engines[:2], configuration, c.DIGITS)
    assert {array.dtype.name for array in hopped} >= {"bfloat16", "float32"}
    assert all(same(hopped, visits(engines[:1], configuration, c.DIGITS)[1]))
    visits(engines[2:], configuration, c.DIGITS, state)


def test_errors_are_one_line(engines: list[Trainer]) -> None:
    columns = c.made_up(40, 4)
    engines[0].data("unknown", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    assert "out of range" in failure(
        "ConfigurationFailed", engines[0].train, c.configuration(c.lstm(), CATEGORICAL), "unknown"
    )


def test_what_does_not_fit_into_memory(tmp_path: Path) -> None:
    small = Trainer(tmp_path, engine="torch", memory_limit_mb=1500)
    small.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    wide = c.configuration(c.mlp(units=1_000_000), CATEGORICAL)
    assert "memory" in failure("OutOfMemory", small.train, wide, "digits")
    assert small.train(c.configuration(c.mlp(), CATEGORICAL), "digits").finite
    small.close()
