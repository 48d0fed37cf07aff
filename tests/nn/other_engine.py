"""Tests of every engine: a second trainer changes no bit, and the numbers equal TensorFlow's within rounding."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.models import state
from cerebro_db.core.protocol import CustomFunction, Describe, StateRef
from tests.thorough import landing

from . import configurations as c
from .test_hops import CASES, SEED, SHUFFLE_SEEDS, partitions
from .test_trainer import AVERAGED, CATEGORICAL, IMAGES, LABELS, check_averages, failure
from .trainer_client import Trainer, full

NUMBERS = itertools.count()
# Of 40, 43 and again 40 rows: the last batch is another size in the second, so an engine that compiles does it twice.
UNITS = (0, 1, 0)

# Dropout's random numbers are each framework's own, so it is left out here.
WITHOUT_CHANCE = {
    "BatchNorm, AdamW, cosine schedule": (
        c.configuration(
            c.sequential(
                c.input_layer([64]),
                c.layer("Dense", "hidden", units=16, activation="relu"),
                c.layer("BatchNormalization", "norm", momentum=0.9),
                c.layer("Dense", "out", units=10, activation="softmax"),
            ),
            CATEGORICAL,
            "AdamW",
            learning_rate=c.cosine(0.01, 40),
        ),
        c.DIGITS,
    ),
    "LSTM": (
        c.configuration(
            c.sequential(
                c.input_layer([None], "int32"),
                c.layer("Embedding", "embed", input_dim=20, output_dim=4),
                c.layer("LSTM", "lstm", units=5),
                c.layer("Dense", "out", units=3, activation="softmax"),
            ),
            CATEGORICAL,
            learning_rate=0.01,
        ),
        c.SENTENCES,
    ),
    **{name: case for name, case in CASES.items() if "weights" in name or name.startswith("CNN") or "two" in name},
}


# What another configuration has left, the configuration that takes it over, and the learning rate of that.
FAST, SLOW = (c.configuration(c.mlp(), CATEGORICAL, learning_rate=rate) for rate in (0.01, 0.003))
SCHEDULE = c.configuration(c.mlp(), CATEGORICAL, learning_rate=c.cosine(0.01, 40))
HALF, HALF_SLOW = (
    c.configuration(computed_in(c.mlp(), "mixed_float16"), CATEGORICAL, learning_rate=rate) for rate in (0.01, 0.003)
)
ADOPTED: dict[str, tuple[c.Json, c.Json, float | None]] = {
    "another rate": (FAST, SLOW, 0.003),
    "the default rate": (FAST, c.configuration(c.mlp(), CATEGORICAL), 0.001),
    "to a schedule": (FAST, SCHEDULE, None),
    "from a schedule": (SCHEDULE, FAST, 0.01),
    "another schedule": (SCHEDULE, c.configuration(c.mlp(), CATEGORICAL, learning_rate=c.cosine(0.02, 9)), None),
    "with loss scaling": (HALF, HALF_SLOW, 0.003),
}


def is_rate(name: str) -> bool:
    return name.endswith("/learning_rate")


def with_rate(left: StateRef, like: StateRef, rate: float | None) -> StateRef:
    """The state ``left`` with the variables that ``like`` has; of these only the learning rate may be another."""
    raw, shape = (Path(one.path).read_bytes() for one in (left, like))
    values = [raw[one.start : one.end] for one in state.read_header(raw).tensors if not is_rate(one.name)]
    tensors = state.read_header(shape).tensors
    assert len(values) == sum(not is_rate(one.name) for one in tensors)
    header = state.header_bytes([one[:3] for one in tensors], state.read_header(shape).metadata)
    rest = iter(values)
    made = header + b"".join(np.float32(rate).tobytes() if is_rate(one.name) else next(rest) for one in tensors)
    path = Path(f"{left.path}.by_hand")
    path.write_bytes(made)
    return replace(left, path=str(path), sha256=hashlib.sha256(made).hexdigest())


def engines_of(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[list[Trainer]]:
    """Two trainers with an engine, the second one confined as in a database, and a trainer with TensorFlow."""
    folder = tmp_path_factory.mktemp("engines")
    trainers = [
        Trainer(folder / engine, engine=engine),
        Trainer(folder / "confined", engine=engine, confined=True),
        Trainer(folder / "tensorflow"),
    ]
    for trainer in trainers:
        trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainers
    for trainer in trainers:
        trainer.close()


def visits(
    trainers: list[Trainer], configuration: c.Json, layout: c.Json, state: Any = None
) -> tuple[list[float], list[np.ndarray], Any]:
    """Losses, variables and state after visits to some partitions; the trainers take turns."""
    losses, parts = [], partitions(layout)
    for unit, part in enumerate(UNITS):
        trainer, arrays = trainers[unit % len(trainers)], parts[part]
        trainer.data("partition", layout, **arrays)
        out = str(trainer.folder / f"state.{next(NUMBERS)}")
        trained = trainer.train(
            configuration,
            "partition",
            state and brought(state, trainer),
            seed=SEED,
            shuffle_seed=SHUFFLE_SEEDS[unit],
            out=out,
        )
        assert trained.rows == len(arrays[layout["inputs"][0]["name"]])
        losses.append(trained.loss)
        state = full(trained)
    return losses, variables(state), state


def in_turns(trainer: Trainer, configurations: Sequence[c.Json]) -> tuple[list[list[np.ndarray]], list[float]]:
    """The variables of each configuration after visits to some partitions, and the seconds that each visit built."""
    states: list[Any] = [None] * len(configurations)
    building, parts = [], partitions(c.DIGITS)
    for unit, part in enumerate(UNITS):
        trainer.data("partition", c.DIGITS, **parts[part])
        for number, configuration in enumerate(configurations):
            out = str(trainer.folder / f"turn{number}.{unit}")
            trained = trainer.train(
                configuration, "partition", states[number], seed=SEED, shuffle_seed=SHUFFLE_SEEDS[unit], out=out
            )
            building.append(trained.seconds["build"])
            states[number] = full(trained)
    return list(map(variables, states)), building


def variables(state: Any) -> list[np.ndarray]:
    tensors = safetensors.numpy.load_file(state.path)
    return [tensors[name] for name in sorted(tensors)]


def brought(state: StateRef, trainer: Trainer) -> StateRef:
    """The state in a folder that the trainer may read."""
    copy = trainer.folder / f"brought.{next(NUMBERS)}"
    shutil.copy(state.path, copy)
    return replace(state, path=str(copy))


class OtherEngine:
    """Tests of an engine other than TensorFlow.  A subclass names it; its module has the fixture ``engines``."""

    engine: str
    module: str

    def test_start_engine(self, engines: list[Trainer]) -> None:
        versions = engines[0].started.versions
        assert versions["engine"] == self.engine and versions["keras"] == engines[2].started.versions["keras"]
        assert engines[1].started.devices == ["CPU:0"]
        assert engines[1].started.confinement and not engines[0].started.confinement

    @pytest.mark.parametrize("place", [0, 2])
    def test_one_framework_per_process(self, engines: list[Trainer], place: int) -> None:
        """No engine imports another one: that would cost memory and start time."""
        assert engines[place].started
        libraries = Path(f"/proc/{engines[place].process.pid}/maps").read_text()
        found = [name for name in ("jaxlib", "tensorflow", "torch") if f"/{name}/" in libraries]
        assert found == ["tensorflow" if place == 2 else self.module]

    @pytest.mark.parametrize("name", AVERAGED)
    def test_averages_are_what_is_evaluated_and_what_tables_get(self, engines: list[Trainer], name: str) -> None:
        check_averages(engines[0], AVERAGED[name], "digits")

    # Class weights: test_joint.py has them on each engine.
    @pytest.mark.parametrize(
        "name", landing(WITHOUT_CHANCE, *(name for name in WITHOUT_CHANCE if "weights" not in name))
    )
    def test_the_numbers_are_those_of_tensorflow(self, engines: list[Trainer], name: str) -> None:
        """From the same state, over the same rows in the same order; the state changes engines on its way."""
        configuration, layout = WITHOUT_CHANCE[name]
        _, _, state = visits(engines[2:], configuration, layout)
        theirs, _, _ = visits(engines[2:], configuration, layout, state)
        losses, _, there = visits(engines[:1], configuration, layout, state)
        assert losses == pytest.approx(theirs, rel=2e-3)
        back = visits(engines[2:], configuration, layout, there)[0]
        assert back == pytest.approx(visits(engines[:1], configuration, layout, there)[0], rel=2e-3)
        answers, outputs = [], []
        for trainer in (engines[0], engines[2]):
            here = brought(there, trainer)
            answers.append(trainer.evaluate(configuration, "partition", here))
            out = str(trainer.folder / "predicted")
            told = trainer.predict(configuration, "partition", here, out).outputs
            outputs.append(np.concatenate([np.fromfile(f"{out}.{number}", "f4") for number in range(len(told))]))
        assert answers[0].loss == pytest.approx(answers[1].loss, rel=2e-3)
        assert answers[0].metrics == pytest.approx(answers[1].metrics, rel=2e-3)
        assert outputs[0] == pytest.approx(outputs[1], abs=1e-4)

    @pytest.mark.parametrize("place", [0, 2])
    @pytest.mark.parametrize("kind", ADOPTED)
    def test_the_state_of_another_configuration_but_its_learning_rate(
        self, engines: list[Trainer], place: int, kind: str
    ) -> None:
        """As from a state that was put together by hand; the states of either may lack the rate, for a schedule."""
        before, after, rate = ADOPTED[kind]
        trainer, outs = engines[place], (str(engines[place].folder / f"adopted.{next(NUMBERS)}") for _ in range(4))
        left = full(trainer.train(before, "digits", out=next(outs)))
        like = full(trainer.train(after, "digits", out=next(outs)))
        by_hand = with_rate(left, like, rate)
        expected = full(trainer.train(after, "digits", by_hand, seed=3, out=next(outs)))
        found = full(trainer.train(after, "digits", replace(left, adopted=True), seed=3, out=next(outs)))
        assert found.sha256 == expected.sha256 != like.sha256
        if (rate is None) == (not any(map(is_rate, safetensors.numpy.load_file(left.path)))):
            as_it_is = full(trainer.train(after, "digits", left, seed=3, out=str(trainer.folder / "as_it_is")))
            assert (as_it_is.sha256 == found.sha256) == (rate is None), "the rate is the parent's unless it is adopted"

    def test_slabs_have_no_influence(self, engines: list[Trainer]) -> None:
        """The second time the trainer knows its speed, and its slabs have more batches."""
        configuration = c.configuration(c.mlp(units=7), CATEGORICAL, batch_size=3, epochs=2)
        first = engines[0].train(configuration, "digits").state.sha256
        assert engines[0].train(configuration, "digits").state.sha256 == first

    def test_no_rows_and_few(self, engines: list[Trainer]) -> None:
        configuration = c.configuration(c.mlp(), CATEGORICAL)
        for rows in (0, 5):
            engines[0].data("few", c.DIGITS, image=IMAGES[:rows], digit=c.one_hot(LABELS[:rows], 10))
            trained = engines[0].train(configuration, "few")
            assert (trained.rows, trained.steps) == (rows, min(rows, 1))
            assert engines[0].evaluate(configuration, "few", full(trained)).rows == rows
            out = str(engines[0].folder / "few.out")
            assert engines[0].predict(configuration, "few", full(trained), out).rows == rows

    def test_the_state_of_a_seed_does_not_depend_on_the_seeds_before(self, engines: list[Trainer]) -> None:
        configuration = c.configuration(c.mlp(units=7), CATEGORICAL, learning_rate=0.01, steps_per_epoch=1)
        for seed in (21, 22, 23):
            last = engines[0].train(configuration, "digits", seed=seed)
        assert last.state.sha256 == engines[1].train(configuration, "digits", seed=23).state.sha256

    def test_a_layer_that_only_tensorflow_has(self, engines: list[Trainer]) -> None:
        looked_up = c.sequential(
            c.input_layer([8, 8, 1]),
            c.layer("Flatten", "flat"),
            c.layer("IntegerLookup", "code", vocabulary=[1, 2, 3]),
            c.layer("Dense", "out", units=10),
        )
        order = Describe(c.configuration(looked_up, CATEGORICAL), c.DIGITS)
        assert "TensorFlow only" in failure("ConfigurationFailed", engines[0], order)
        assert engines[2](order).outputs == [[10]]

    def test_layers_that_look_for_a_graph_of_tensorflow(self, engines: list[Trainer]) -> None:
        """Architectures for a number to predict end with Rescaling."""
        scaled = c.sequential(
            c.input_layer([8, 8, 1]),
            c.layer("Rescaling", "scaled", scale=2.0, offset=0.5),
            c.layer("Flatten", "flat"),
            c.layer("Dense", "out", units=10, activation="softmax", kernel_initializer="zeros"),
        )
        configuration = c.configuration(scaled, CATEGORICAL, learning_rate=0.01, steps_per_epoch=2, shuffle=False)
        mine, its = (engines[place].train(configuration, "digits").loss for place in (0, 2))
        assert mine == pytest.approx(its, rel=1e-3)
        scaled["config"]["layers"].insert(1, c.layer("RandomFlip", "flip"))
        first, second = (engines[place].train(configuration, "digits", seed=3).state for place in (0, 1))
        assert first.sha256 == second.sha256

    def test_a_custom_loss(self, engines: list[Trainer]) -> None:
        source = (
            "def doubled(y_true, y_pred):\n    return 2 * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)\n"
        )
        functions = [CustomFunction("doubled", 1, "loss", source, hashlib.sha256(source.encode()).hexdigest())]
        configuration = c.configuration(c.mlp(), "mse", steps_per_epoch=1, shuffle=False, metrics=[])
        plain = engines[0].train(configuration, "digits")
        configuration["compile"]["loss"] = "doubled@1"
        custom = engines[0].train(configuration, "digits", functions=functions)
        assert custom.loss == pytest.approx(2 * plain.loss, rel=1e-5)
