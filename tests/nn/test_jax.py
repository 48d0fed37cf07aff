"""The JAX engine: hops between processes change no bit, and the numbers equal TensorFlow's within rounding."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.protocol import Describe, Predicted, PredictedOutput, RehearseFusion
from cerebro_db.nn.engines import xla
from tests.thorough import landing

from . import configurations as c
from .other_engine import OtherEngine, engines_of, in_turns, visits
from .test_hops import CASES, same
from .test_numbers import PAIRS
from .test_trainer import CATEGORICAL, LABELS, failure, step_by_step
from .trainer_client import OrderFailed, Trainer, full


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    yield from engines_of(tmp_path_factory, "jax")


class TestJax(OtherEngine):
    engine, module = "jax", "jaxlib"


def test_switches_that_a_compiler_does_not_have_are_left_out() -> None:
    """XLA ends the process when it is given an unknown one, and compiles for GPUs at levels of 2 and above only."""
    older, newer = (SimpleNamespace(__version_info__=version) for version in ((0, 11, 0), (0, 11, 1)))
    for effort in (xla.HASTE, xla.CARE):
        found = [xla.switches(jax, effort, gpu=False) for jax in (older, newer)]
        assert found[0].pop("xla_cpu_use_fusion_emitters") == (effort == xla.CARE)
        assert found[0] == found[1] == {"xla_backend_optimization_level": effort}
        assert xla.switches(older, effort, gpu=True) == {}


@pytest.mark.parametrize("error", ["NotImplementedError", "jax.errors.JaxRuntimeError"])
def test_a_device_without_a_topology_is_named_by_its_kind(error: str) -> None:
    tried = f"""
import jax
from jax._src.lib import xla_client
from cerebro_db.nn.engines.executables import machine
known = machine(jax)
def unknown(devices):
    raise {error}("no topology")
xla_client.get_topology_for_devices = unknown
found = machine(jax)
assert found[0] == jax.devices()[0].device_kind != known[0] and found[1:] == known[1:]
"""
    subprocess.run([sys.executable, "-c", tried], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


# Other cases: test_hops.py has them on TensorFlow, and test_kept.py trains one of 16 bits in one process after another.
@pytest.mark.parametrize(
    "name",
    landing(
        CASES, "AdamW, cosine schedule, BatchNorm, Dropout", "two inputs, two outputs", "attention of related rows"
    ),
)
def test_hops_change_no_bit(engines: list[Trainer], name: str) -> None:
    configuration, layout = CASES[name]
    _, hopped, _ = visits(engines[:2], configuration, layout)
    _, stayed, _ = visits(engines[:1], configuration, layout)
    assert all(same(hopped, stayed))
    assert len(hopped) > 6


def test_the_average_is_that_of_the_paper(engines: list[Trainer]) -> None:
    """Schedule-free's x is the mean of its z.  On other engines Keras mixes the last z into it: there z is a variable
    that has changed when Keras reads the value that it had before the step."""
    after, averaged = step_by_step(engines[0], "schedule-free")
    np.testing.assert_allclose(averaged, np.mean(after, axis=0), atol=2e-6)


def test_random_numbers_go_on_in_another_engine(engines: list[Trainer]) -> None:
    """TensorFlow has wider types for seeds and counters; their values are the same."""
    configuration, layout = CASES["AdamW, cosine schedule, BatchNorm, Dropout"]
    _, _, state = visits(engines[2:], configuration, layout)
    _, _, there = visits(engines[:1], configuration, layout, state)
    before, after = (safetensors.numpy.load_file(one.path) for one in (state, there))
    seeds, counters = (next(name for name in before if part in name) for part in ("seed_generator", "iteration"))
    assert before[seeds].dtype != after[seeds].dtype and before[seeds][0] == after[seeds][0]
    assert after[counters] == 2 * before[counters]
    visits(engines[2:], configuration, layout, there)


def test_a_counter_too_large_for_the_engine_is_refused(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    state = full(engines[2].train(configuration, "digits"))
    assert state.path is not None
    tensors = safetensors.numpy.load_file(state.path)
    (counter,) = (name for name in tensors if name.endswith("iteration"))
    raw = Path(state.path).read_bytes()
    position = raw.index(tensors[counter].tobytes(), 8 + int.from_bytes(raw[:8], "little"))
    Path(state.path).write_bytes(raw[:position] + (1 << 40).to_bytes(8, "little") + raw[position + 8 :])
    checksum = hashlib.sha256(Path(state.path).read_bytes()).hexdigest()
    grown = replace(state, sha256=checksum)
    assert engines[2].train(configuration, "digits", grown, out=state.path + ".2").finite
    message = failure("CorruptState", engines[0].train, configuration, "digits", grown)
    assert "iteration does not fit into int32" in message


def test_configurations_share_a_program(engines: list[Trainer]) -> None:
    both = PAIRS["Adam"]
    alone = [visits(engines[:1], configuration, c.DIGITS)[1] for configuration in both]
    found, building = in_turns(engines[0], both)
    assert max(building) < 0.1  # nothing is compiled again
    for mine, theirs in zip(found, alone):
        assert all(same(mine, theirs))


def test_learning_evaluating_predicting(engines: list[Trainer]) -> None:
    trainer = engines[0]
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=6)
    trained = trainer.train(configuration, "digits")
    state = full(trained)
    assert trained.steps == 6 * 38
    evaluated = trainer.evaluate(configuration, "digits", state)
    out = str(trainer.folder / "predicted")
    assert trainer.predict(configuration, "digits", state, out) == Predicted(600, [PredictedOutput(shape=[10])])
    probabilities = np.fromfile(out + ".0", "f4").reshape(600, 10)
    accuracy = (probabilities.argmax(1) == LABELS).mean()
    assert accuracy > 0.95 and evaluated.metrics["accuracy"] == pytest.approx(accuracy)
    loss = -np.log(probabilities[np.arange(600), LABELS]).mean()
    assert evaluated.loss == pytest.approx(loss, rel=1e-4)
    other = str(trainer.folder / "theirs")
    engines[2].predict(configuration, "digits", state, other)
    assert np.fromfile(other + ".0", "f4").reshape(600, 10) == pytest.approx(probabilities, abs=1e-5)


def test_steps_per_epoch_and_rows_as_they_lie(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, epochs=3, steps_per_epoch=5, shuffle=False)
    trained = [engines[number].train(configuration, "digits", shuffle_seed=number) for number in range(2)]
    assert (trained[0].rows, trained[0].steps) == (3 * 5 * 16, 15)
    assert trained[0].state.sha256 == trained[1].state.sha256


def test_nan_is_a_result(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(activation="linear"), "mse", "SGD", learning_rate=1e30, metrics=[])
    trained = engines[0].train(configuration, "digits")
    assert math.isnan(trained.loss) and trained.finite is False


def test_a_word_that_is_not_in_the_vocabulary(engines: list[Trainer]) -> None:
    """XLA would give such a row the value NaN without a word."""
    columns = c.made_up(40, 4)
    engines[0].data("unknown", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    with pytest.raises(OrderFailed, match="takes numbers from 0 to 19, but the column words has numbers from 5 to 24"):
        engines[0].train(c.configuration(c.lstm(), CATEGORICAL), "unknown")


def test_errors_are_one_line(engines: list[Trainer]) -> None:
    small = c.sequential(c.input_layer([8, 8, 1]), c.layer("Conv2D", "conv", filters=2, kernel_size=[9, 9]))
    order = Describe(c.configuration(small, CATEGORICAL), c.DIGITS)
    assert "zero or negative" in failure("ConfigurationFailed", engines[0], order)


def test_nothing_is_measured_before_it_has_run(engines: list[Trainer]) -> None:
    """A call that returns early would make the engine seem a hundred times as fast, in about one of thirty calls."""
    layout = {"inputs": [c.column("x", [64])], "outputs": [c.target("y", [2])]}
    rows = np.random.default_rng(1).normal(size=(30000, 64)).astype("float32")
    engines[0].data("many", layout, x=rows, y=c.one_hot((rows[:, 0] > 0).astype(int), 2))
    dense = [c.layer("Dense", name, units=units, activation="relu") for name, units in (("a", 128), ("b", 64))]
    model = c.sequential(c.input_layer([64]), *dense, c.layer("Dense", "out", units=2, activation="softmax"))
    order = RehearseFusion([c.configuration(model, "categorical_crossentropy", batch_size=128)], "many")
    found = [engines[0](order).alone for _ in range(100)]
    assert min(found) > np.median(found) / 15  # a busy machine makes some several times as slow
