"""The JAX engine: what hops between its processes equals one process, and its numbers are TensorFlow's."""

from __future__ import annotations

import hashlib
import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from . import configurations as c
from .test_hops import CASES, SEED, SHUFFLE_SEEDS, partitions, same
from .test_numbers import PAIRS
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import Trainer, full

NUMBERS = itertools.count()
UNITS = 4  # of 40, 43, 46 and 49 rows: the last batch is another size in each


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two trainers with JAX, of which one is confined as it is in a database, and one with TensorFlow."""
    folder = tmp_path_factory.mktemp("engines")
    trainers = [
        Trainer(folder / "jax", engine="jax"),
        Trainer(folder / "confined", engine="jax", confined=True),
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
    """Losses, the variables and the state after a visit to some partitions, trainers taking turns."""
    losses = []
    for unit, arrays in enumerate(partitions(layout)[:UNITS]):
        trainer = trainers[unit % len(trainers)]
        trainer.data("partition", layout, **arrays)
        out = str(trainer.folder / f"state.{next(NUMBERS)}")
        trained = trainer.train(
            configuration,
            "partition",
            state and brought(state, trainer),
            seed=SEED,
            shuffle_seed=SHUFFLE_SEEDS[unit],
            out=out,
            hop=unit,
        )
        assert trained["rows"] == len(arrays[layout["inputs"][0]["name"]])
        losses.append(trained["loss"])
        state = full(trained["state"])
    tensors = safetensors.numpy.load_file(state["path"])
    return losses, [tensors[name] for name in sorted(tensors)], state


def brought(state: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """The state where the trainer may read it."""
    copy = trainer.folder / f"brought.{next(NUMBERS)}"
    shutil.copy(state["path"], copy)
    return {**state, "path": str(copy)}


def test_hello(engines: list[Trainer]) -> None:
    versions = engines[0].hello["versions"]
    assert versions["engine"] == "jax" and versions["keras"] == engines[2].hello["versions"]["keras"]
    assert engines[0].hello["devices"] == ["CPU:0"]


@pytest.mark.parametrize("engine", [0, 2])
def test_one_framework_per_process(engines: list[Trainer], engine: int) -> None:
    """Memory and start time: neither engine brings the other along."""
    libraries = Path(f"/proc/{engines[engine].process.pid}/maps").read_text()
    found = [name for name in ("jaxlib", "tensorflow") if f"/{name}/" in libraries]
    assert found == [("jaxlib", None, "tensorflow")[engine]]


@pytest.mark.parametrize("name", CASES)
def test_hops_change_no_bit(engines: list[Trainer], name: str) -> None:
    configuration, layout = CASES[name]
    _, hopped, _ = visits(engines[:2], configuration, layout)
    _, stayed, _ = visits(engines[:1], configuration, layout)
    assert all(same(hopped, stayed))
    assert len(hopped) > 6


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


@pytest.mark.parametrize("name", WITHOUT_CHANCE)
def test_the_numbers_are_those_of_tensorflow(engines: list[Trainer], name: str) -> None:
    """From the same state, over the same rows in the same order; the state changes engines on its way."""
    configuration, layout = WITHOUT_CHANCE[name]
    _, _, state = visits(engines[2:], configuration, layout)
    theirs, _, _ = visits(engines[2:], configuration, layout, state)
    losses, _, there = visits(engines[:1], configuration, layout, state)
    assert losses == pytest.approx(theirs, rel=2e-3)
    back = visits(engines[2:], configuration, layout, there)[0]
    assert back == pytest.approx(visits(engines[1:2], configuration, layout, there)[0], rel=2e-3)
    answers = []
    for trainer in engines[1:]:
        state = brought(there, trainer)
        answers.append(trainer("evaluate", configuration=configuration, handle="partition", state=state))
    assert answers[0]["loss"] == pytest.approx(answers[1]["loss"], rel=2e-3)
    assert answers[0]["metrics"] == pytest.approx(answers[1]["metrics"], rel=2e-3)


def test_random_numbers_go_on_in_another_engine(engines: list[Trainer]) -> None:
    """Seeds and counters are wider in TensorFlow; the same integers are in both."""
    configuration, layout = CASES["AdamW, cosine schedule, BatchNorm, Dropout"]
    _, _, state = visits(engines[2:], configuration, layout)
    _, _, there = visits(engines[:1], configuration, layout, state)
    before, after = (safetensors.numpy.load_file(one["path"]) for one in (state, there))
    seeds, counters = (next(name for name in before if part in name) for part in ("seed_generator", "iteration"))
    assert before[seeds].dtype != after[seeds].dtype and before[seeds][0] == after[seeds][0]
    assert after[counters] == 2 * before[counters]
    visits(engines[2:], configuration, layout, there)


def test_a_counter_too_large_for_the_engine_is_refused(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    state = engines[2].train(configuration, "digits")["state"]
    tensors = safetensors.numpy.load_file(state["path"])
    (counter,) = (name for name in tensors if name.endswith("iteration"))
    raw = Path(state["path"]).read_bytes()
    position = raw.index(tensors[counter].tobytes(), 8 + int.from_bytes(raw[:8], "little"))
    Path(state["path"]).write_bytes(raw[:position] + (1 << 40).to_bytes(8, "little") + raw[position + 8 :])
    checksum = hashlib.sha256(Path(state["path"]).read_bytes()).hexdigest()
    grown = {"kind": "full", "path": state["path"], "sha256": checksum}
    assert engines[2].train(configuration, "digits", grown, out=state["path"] + ".2")["finite"]
    message = failure("CorruptState", engines[0].train, configuration, "digits", grown)
    assert "iteration does not fit into int32" in message


def test_configurations_share_a_program(engines: list[Trainer]) -> None:
    both, alone, states = PAIRS["Adam"], [], [None, None]
    trainer = engines[0]
    for configuration in both:
        _, variables, _ = visits([trainer], configuration, c.DIGITS)
        alone.append(variables)
    trainer.data("partition", c.DIGITS, **partitions(c.DIGITS)[0])
    for unit, arrays in enumerate(partitions(c.DIGITS)[:UNITS]):
        trainer.data("partition", c.DIGITS, **arrays)
        for number, configuration in enumerate(both):
            out = str(trainer.folder / f"turn{number}.{unit}")
            trained = trainer.train(
                configuration, "partition", states[number], seed=SEED, shuffle_seed=SHUFFLE_SEEDS[unit], out=out
            )
            assert trained["seconds"]["build"] < 0.1  # nothing is compiled again
            states[number] = full(trained["state"])
    for state, variables in zip(states, alone):
        tensors = safetensors.numpy.load_file(state["path"])
        assert all(same([tensors[name] for name in sorted(tensors)], variables))


def test_learning_evaluating_predicting(engines: list[Trainer]) -> None:
    trainer = engines[0]
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=6)
    trained = trainer.train(configuration, "digits")
    state = full(trained["state"])
    assert trained["steps"] == 6 * 38
    evaluated = trainer("evaluate", configuration=configuration, handle="digits", state=state)
    out = str(trainer.folder / "predicted")
    assert trainer("predict", configuration=configuration, handle="digits", state=state, out=out) == {
        "rows": 600,
        "outputs": [{"shape": [10]}],
    }
    probabilities = np.fromfile(out + ".0", "f4").reshape(600, 10)
    accuracy = (probabilities.argmax(1) == LABELS).mean()
    assert accuracy > 0.95 and evaluated["metrics"]["accuracy"] == pytest.approx(accuracy)
    loss = -np.log(probabilities[np.arange(600), LABELS]).mean()
    assert evaluated["loss"] == pytest.approx(loss, rel=1e-4)
    other = str(trainer.folder / "theirs")
    engines[2]("predict", configuration=configuration, handle="digits", state=state, out=other)
    assert np.fromfile(other + ".0", "f4").reshape(600, 10) == pytest.approx(probabilities, abs=1e-5)


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


def test_steps_per_epoch_and_rows_as_they_lie(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, epochs=3, steps_per_epoch=5, shuffle=False)
    trained = [engines[number].train(configuration, "digits", shuffle_seed=number) for number in range(2)]
    assert (trained[0]["rows"], trained[0]["steps"]) == (3 * 5 * 16, 15)
    assert trained[0]["state"]["sha256"] == trained[1]["state"]["sha256"]


def test_nan_is_a_result(engines: list[Trainer]) -> None:
    configuration = c.configuration(c.mlp(activation="linear"), "mse", "SGD", learning_rate=1e30, metrics=[])
    trained = engines[0].train(configuration, "digits")
    assert math.isnan(trained["loss"]) and trained["finite"] is False


def test_a_word_that_is_not_in_the_vocabulary(engines: list[Trainer]) -> None:
    """TensorFlow raises an error; compiled by XLA such a row has no value, and that cannot be overlooked."""
    columns = c.made_up(40, 4)
    engines[0].data("unknown", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    assert engines[0].train(c.configuration(c.lstm(), CATEGORICAL), "unknown")["finite"] is False


def test_errors_are_one_line(engines: list[Trainer]) -> None:
    small = c.sequential(c.input_layer([8, 8, 1]), c.layer("Conv2D", "conv", filters=2, kernel_size=[9, 9]))
    told = {"configuration": c.configuration(small, CATEGORICAL), "layout": c.DIGITS}
    assert "zero or negative" in failure("ConfigurationFailed", engines[0], "describe", **told)
    flipped = c.sequential(
        c.input_layer([8, 8, 1]),
        c.layer("RandomFlip", "flip"),
        c.layer("Flatten", "flat"),
        c.layer("Dense", "out", units=10),
    )
    told = {"configuration": c.configuration(flipped, CATEGORICAL), "layout": c.DIGITS}
    assert "TensorFlow only" in failure("ConfigurationFailed", engines[0], "describe", **told)
    assert engines[2]("describe", **told)["outputs"] == [[10]]


def test_a_custom_loss(engines: list[Trainer]) -> None:
    source = "def doubled(y_true, y_pred):\n    return 2 * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)\n"
    registered = {"name": "doubled", "version": 1, "kind": "loss", "source": source}
    functions = [{**registered, "sha256": hashlib.sha256(source.encode()).hexdigest()}]
    configuration = c.configuration(c.mlp(), "mse", steps_per_epoch=1, shuffle=False, metrics=[])
    plain = engines[0].train(configuration, "digits")
    configuration["compile"]["loss"] = "doubled@1"
    custom = engines[0].train(configuration, "digits", functions=functions)
    assert custom["loss"] == pytest.approx(2 * plain["loss"], rel=1e-5)


def test_nothing_is_measured_before_it_has_run(engines: list[Trainer]) -> None:
    """A call that comes back early would make its engine seem a hundred times as fast, about one in thirty times."""
    layout = {"inputs": [c.column("x", [64])], "outputs": [c.target("y", [2])]}
    rows = np.random.default_rng(1).normal(size=(30000, 64)).astype("float32")
    engines[0].data("many", layout, x=rows, y=c.one_hot((rows[:, 0] > 0).astype(int), 2))
    dense = [c.layer("Dense", name, units=units, activation="relu") for name, units in (("a", 128), ("b", 64))]
    model = c.sequential(c.input_layer([64]), *dense, c.layer("Dense", "out", units=2, activation="softmax"))
    members = [{"configuration": c.configuration(model, "categorical_crossentropy", batch_size=128), "seed": SEED}]
    found = [engines[0]("rehearse", handle="many", members=members)["alone"] for _ in range(100)]
    assert min(found) > np.median(found) / 15  # a busy machine makes some several times as slow
