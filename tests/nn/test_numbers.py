"""Configurations that differ in numbers share one program, and still give the bits of plain Keras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.nn.models import numbers
from cerebro_db.nn.models.build import program_key
from tests.thorough import TIMES

from . import configurations as c
from .test_hops import SEED, SHUFFLE_SEEDS, as_keras_wants_it, partitions, same
from .trainer_client import Trainer, full

UNITS = 2
# Values of which neither they nor their complements are exact in float32.
ONE = {"momentum": 0.9, "rho": 0.9, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-5, "weight_decay": 0.004}
OTHER = {"momentum": 0.37, "rho": 0.83, "beta_1": 0.71, "beta_2": 0.93, "epsilon": 3e-4, "weight_decay": 0.07}


def penalised(one: float, other: float, activity: float) -> c.Json:
    def regularizer(class_name: str, **factors: float) -> c.Json:
        return {"module": "keras.regularizers", "class_name": class_name, "config": factors, "registered_name": None}

    return c.sequential(
        c.input_layer([64]),
        c.layer(
            "Dense",
            "hidden",
            units=16,
            activation="relu",
            kernel_regularizer=regularizer("L2", l2=one),
            bias_regularizer=regularizer("L1", l1=other),
        ),
        c.layer("Dropout", "drop", rate=0.3, activity_regularizer=regularizer("L2", l2=activity)),
        c.layer(
            "Dense", "out", units=10, activation="softmax", kernel_regularizer=regularizer("L1L2", l1=other, l2=one)
        ),
    )


def pair(optimizer: str, **more: Any) -> tuple[c.Json, c.Json]:
    """Two configurations that have no number in common."""
    names = [*numbers.OF_OPTIMIZERS[optimizer], "weight_decay"]
    return tuple(
        c.configuration(
            penalised(*factors),
            "categorical_crossentropy",
            optimizer,
            learning_rate=rate,
            **{name: values[name] for name in names},
            **{name: value[number] for name, value in more.items()},
        )
        for number, (values, factors, rate) in enumerate(
            [(ONE, (1e-3, 1e-4, 1e-5), 0.01), (OTHER, (3e-2, 7e-3, 1e-3), 0.003)]
        )
    )  # type: ignore[return-value]


PAIRS = {name: pair(name) for name in numbers.OF_OPTIMIZERS} | {
    "SGD, clipnorm": pair("SGD", clipnorm=(1.0, 0.13)),
    "Adam, clipvalue": pair("Adam", clipvalue=(0.3, 0.0007)),
    "RMSprop, centered": pair("RMSprop", centered=(True, True)),
    "SGD, Nesterov": pair("SGD", nesterov=(True, True)),
}


# With plain Keras, which takes longest.  The second of a pair trains with a program that was traced for the first, and
# follows the first at each visit.
COMPARED = (0, 1) if TIMES >= 5 else (1,)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plain Keras at work on all configurations, in the background."""
    folder, cases = tmp_path_factory.mktemp("plain"), []
    files = []
    for unit, arrays in enumerate(partitions(c.DIGITS)[:UNITS]):
        files.append(str(folder / f"{unit}.npz"))
        np.savez(files[-1], **as_keras_wants_it(arrays, PAIRS["SGD"][0]))
    for name, both in PAIRS.items():
        for number in COMPARED:
            configuration = both[number]
            out = str(folder / f"{len(cases)}.out.npz")
            case = {"configuration": configuration, "seed": SEED, "shuffle_seeds": SHUFFLE_SEEDS, "units": files}
            cases.append({**case, "inputs": ["image"], "outputs": ["digit"], "name": (name, number), "out": out})
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("plain_keras.py")
    process = subprocess.Popen([sys.executable, str(script), str(folder / "cases.json")])

    def variables(name: str, number: int) -> list[np.ndarray]:
        assert process.wait(300) == 0
        (out,) = (case["out"] for case in cases if case["name"] == (name, number))
        with np.load(out) as arrays:
            return [arrays[file] for file in arrays.files]

    yield variables
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory, plain: Any) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("numbers"))
    for unit, arrays in enumerate(partitions(c.DIGITS)[:UNITS]):
        trainer.data(str(unit), c.DIGITS, **arrays)
    yield trainer
    trainer.close()


@pytest.mark.parametrize("name", PAIRS)
def test_shared_numbers_change_no_bit(trainer: Trainer, plain: Any, name: str) -> None:
    both = PAIRS[name]
    assert program_key(both[0], c.DIGITS) == program_key(both[1], c.DIGITS)
    states: list[Any] = [None, None]
    for unit in range(UNITS):
        for number, configuration in enumerate(both):  # in turns
            file = trainer.folder / f"{number}.{unit}"
            trained = trainer.train(
                configuration, str(unit), states[number], seed=SEED, shuffle_seed=SHUFFLE_SEEDS[unit], out=str(file)
            )
            if unit == number == 0:
                tracing = trained.seconds["build"]
            else:
                assert trained.seconds["build"] < tracing / 3, "nothing is traced again"
            states[number] = full(trained)
    for number in COMPARED:
        tensors = safetensors.numpy.load_file(states[number].path)
        found = [tensors[name] for name in sorted(tensors)]
        assert all(same(found, plain(name, number)))


def test_evaluation_counts_the_configurations_own_penalty(trainer: Trainer) -> None:
    both = PAIRS["Adam"]
    state = full(trainer.train(both[0], "0"))
    losses = [trainer.evaluate(one, "0", state).loss for one in both]
    assert losses[1] > losses[0] + 0.5


def test_what_a_key_keeps() -> None:
    """The key keeps numbers that change an operation, or that as variables would change the bits."""

    def key(architecture: c.Json, optimizer: str = "SGD", **more: Any) -> str:
        return program_key(c.configuration(architecture, "mse", optimizer, **more), c.DIGITS)

    model = penalised(1e-3, 1e-4, 1e-5)
    assert key(model) == key(penalised(2e-3, 1e-4, 3e-5))
    assert key(model) != key(penalised(0.0, 1e-4, 1e-5))
    assert key(model, momentum=0.0) != key(model, momentum=0.9) == key(model, momentum=0.8)
    assert key(model, weight_decay=0.1) != key(model)
    assert key(model, global_clipnorm=1.0) != key(model, global_clipnorm=2.0)
    assert key(model, "Muon", momentum=0.9) != key(model, "Muon", momentum=0.8)
    half = json.loads(json.dumps(model).replace('"units": 16', '"units": 16, "dtype": "bfloat16"'))
    assert key(half) != key(json.loads(json.dumps(half).replace("0.001", "0.002")))
