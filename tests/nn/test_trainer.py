"""A real trainer process over real pipes: every order, every kind of data, every kind of failure."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from sklearn.datasets import load_digits

from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.core.protocol import (
    Describe,
    Done,
    DropRows,
    EngineStarted,
    Group,
    LoadRows,
    PredictedOutput,
    RowsLoaded,
    StartEngine,
    StateRef,
    Train,
    TrainerSettings,
    Wake,
)
from cerebro_db.nn.models.adapt import output_column

from . import configurations as c
from .trainer_client import Gone, OrderFailed, Trainer, Visit, full, resident, weights

digits = load_digits()
IMAGES, LABELS = digits.images.astype("uint8")[:600], digits.target[:600]
CATEGORICAL = "categorical_crossentropy"
MEMORY_LIMIT_MB = 8192
EMA = {"learning_rate": 0.02, "use_ema": True, "ema_momentum": 0.9}
AVERAGED = {
    "use_ema": c.configuration(c.mlp(), CATEGORICAL, **EMA),
    "use_ema, in 16 bits": c.configuration(computed_in(c.noisy_mlp(), "mixed_float16"), CATEGORICAL, **EMA),
    "schedule-free": c.configuration(c.noisy_mlp(), CATEGORICAL, "ScheduleFreeAdamW", learning_rate=0.02),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("trainer"), memory_limit_mb=MEMORY_LIMIT_MB)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainer
    trainer.close()


def raw_weights(visit: Visit) -> bytes:
    """The weights in the state that a visit has left, as MADlib stores them."""
    return Path(visit.path).read_bytes()[visit.state.weights_offset :][: visit.state.weights_bytes]


def check_averages(trainer: Trainer, configuration: c.Json, rows: str) -> None:
    """An evaluation of a state and of the weights for the model table agree; training goes on from the state itself."""

    def seen(state: StateRef) -> tuple[float, c.Json, bytes]:
        found = trainer.evaluate(configuration, rows, state)
        trainer.predict(configuration, rows, state, str(trainer.folder / "seen"))
        return found.loss, found.metrics, (trainer.folder / "seen.0").read_bytes()

    first = trainer.train(configuration, rows)
    second = trainer.train(configuration, rows, full(first), out=first.path + "2")
    for_tables, trained = (Path(f"{first.path}.{name}") for name in ("tables", "trained"))
    for_tables.write_bytes(raw_weights(second))
    values = safetensors.numpy.load_file(second.path)
    names = sorted(name for name in values if name[:1].isdigit())[: 8 if "norm" in str(configuration) else 4]
    trained.write_bytes(b"".join(values[name].astype("<f4").tobytes() for name in names))
    looked = seen(resident(second))
    assert looked == seen(full(second)) == seen(weights(for_tables)) != seen(weights(trained))
    third = trainer.train(configuration, rows, full(second), shuffle_seed=2, out=first.path + "3")
    again = trainer.train(configuration, rows, full(first), out=first.path + "2")
    assert again.state.sha256 == second.state.sha256
    assert seen(resident(again)) == looked
    on = trainer.train(configuration, rows, resident(again), shuffle_seed=2, out=first.path + "4")
    assert on.state.sha256 == third.state.sha256
    # The weights of a table begin a training of their own, and are not mixed with averages of the model before.
    warm = trainer.train(configuration, rows, weights(for_tables), out=first.path + "5")
    trainer.train(configuration, rows, seed=9, out=first.path + "6")
    assert trainer.train(configuration, rows, weights(for_tables)).state.sha256 == warm.state.sha256


def step_by_step(trainer: Trainer, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """What is averaged, after each of four steps: the weights, or schedule-free's sequence z; and the average."""
    fit = {"batch_size": 16, "steps_per_epoch": 1}
    configuration = {**AVERAGED[name], "architecture": c.mlp(), "fit": fit}
    state, after = None, []
    for step in range(4):
        visit = trainer.train(configuration, "digits", state, shuffle_seed=step, out=f"{trainer.folder}/step.{step}")
        tensors = safetensors.numpy.load_file(visit.path)
        names = sorted(tensors)
        chosen = names[:4] if name == "use_ema" else [one for one in names if one.endswith("_momentum")]
        after.append(np.concatenate([tensors[one].ravel() for one in chosen]).astype("f8"))
        state = full(visit)
    return after, np.frombuffer(raw_weights(visit), "<f4")


def failure(kind: str, call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(OrderFailed) as caught:
        call(*arguments, **more)
    assert caught.value.kind == kind, caught.value
    assert "\n" not in caught.value.message
    return caught.value.message


# --- orders ---


def test_start_engine(trainer: Trainer) -> None:
    assert set(trainer.started.versions) == {"python", "keras", "engine", "engine_version", "numpy"}
    assert trainer.started.devices == ["CPU:0"]
    assert trainer.started.pid == trainer.process.pid
    status = Path(f"/proc/{trainer.process.pid}/oom_score_adj")
    assert not status.exists() or status.read_text().strip() == "1000"
    assert isinstance(trainer.started, EngineStarted) and trainer.started.confinement == []
    failure("WrongState", trainer, StartEngine(TrainerSettings(engine="tensorflow")))


def test_load_and_drop_rows(trainer: Trainer) -> None:
    answer = trainer.data("other", c.DIGITS, image=IMAGES[:7], digit=c.one_hot(LABELS[:7], 10))
    assert answer == RowsLoaded(rows=7, bytes=7 * (64 + 20))
    assert trainer(DropRows("other")) == Done()
    message = failure("UndefinedObject", trainer.train, c.configuration(c.mlp(), CATEGORICAL), "other")
    assert "other" in message
    files = dict.fromkeys(("image", "digit"), str(trainer.folder / "other.image"))
    failure("BadData", trainer, LoadRows(handle="x", layout=c.DIGITS, rows=8, files=files))


@pytest.mark.tensorflow
def test_describe_is_exact(trainer: Trainer) -> None:
    configuration = c.configuration(c.noisy_mlp(), CATEGORICAL)
    answer = trainer(Describe(configuration, c.DIGITS))
    assert answer.parameters == 64 * 16 + 16 + 4 * 16 + 16 * 10 + 10
    assert (answer.inputs, answer.outputs) == ([[64]], [[10]])
    assert answer.state_bytes == trainer.train(configuration, "digits").state.bytes
    assert trainer(Describe(configuration, None)) == answer


def test_training_lowers_the_loss(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01)
    trained = [trainer.train(configuration, "digits")]
    for unit in range(1, 6):
        trained.append(trainer.train(configuration, "digits", full(trained[-1]), shuffle_seed=unit))
    assert trained[0].loss > 3 * trained[-1].loss
    assert trained[-1].metrics["accuracy"] > 0.95
    assert trained[0].rows == 600 and trained[0].steps == 38 and trained[0].finite is True
    assert set(trained[0].seconds) == {"build", "load", "train", "save"}
    assert trained[-1].seconds["build"] < 0.05  # the program is there already

    state = full(trained[-1])
    evaluated = trainer.evaluate(configuration, "digits", state)
    assert evaluated.rows == 600
    out = str(trainer.folder / "predicted")
    predicted = trainer.predict(configuration, "digits", state, out)
    assert (predicted.rows, predicted.outputs) == (600, [PredictedOutput(shape=[10])])
    probabilities = np.fromfile(out + ".0", "f4").reshape(600, 10)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    accuracy = (probabilities.argmax(1) == LABELS).mean()
    assert evaluated.metrics["accuracy"] == pytest.approx(accuracy)
    loss = -np.log(probabilities[np.arange(600), LABELS]).mean()  # weighted by rows, partial batch and all
    assert evaluated.loss == pytest.approx(loss, rel=1e-5)


def test_prediction_needs_no_outputs(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    state = full(trainer.train(configuration, "digits"))
    trainer.data("unlabelled", c.DIGITS, image=IMAGES[:5])
    out = str(trainer.folder / "unlabelled.out")
    assert trainer.predict(configuration, "unlabelled", state, out).rows == 5
    failure("WrongState", trainer.evaluate, configuration, "unlabelled", state)


@pytest.mark.parametrize("nested", [False, True])
def test_precision_does_not_round_rows(trainer: Trainer, nested: bool) -> None:
    """Also for a model that names no input type. Above 256, bfloat16 has only every second whole number."""
    normal = {"module": "keras.initializers", "class_name": "RandomNormal", "config": {"stddev": 1.0}}
    sizes = {"input_dim": 5000, "output_dim": 4, "embeddings_initializer": normal}
    words = [c.layer("Embedding", "embed", **sizes), c.layer("Flatten", "flat")]
    model = c.sequential(*([c.sequential(*words)] if nested else words), c.layer("Dense", "out", units=3))
    layout = {"inputs": [c.column("word", [1], "int32")], "outputs": [c.target("value", [3], "real", "float32")]}
    numbers = np.arange(4000, 4100)
    trainer.data("numbers", layout, word=numbers[:, None], value=np.zeros((100, 3)))
    exact = c.configuration(model, "mse", metrics=[])
    found = []
    state = full(trainer.train(exact, "numbers"))
    for architecture in (model, computed_in(model, "mixed_bfloat16")):
        out, asked = str(trainer.folder / "numbers.out"), {**exact, "architecture": architecture}
        trainer.predict(asked, "numbers", state, out)
        found.append(np.fromfile(out + ".0", "f4").reshape(100, 3))
    assert np.allclose(*found, atol=0.1)
    assert not np.array_equal(*found)


def test_no_rows(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    trainer.data("nothing", c.DIGITS, image=IMAGES[:0], digit=c.one_hot(LABELS[:0], 10))
    trained = trainer.train(configuration, "nothing")
    assert (trained.rows, trained.steps) == (0, 0)
    assert trainer.evaluate(configuration, "nothing", full(trained)).rows == 0
    answer = trainer.predict(configuration, "nothing", full(trained), str(trainer.folder / "none"))
    assert (answer.rows, answer.outputs) == (0, [PredictedOutput(shape=[10])])


def test_epochs_and_steps(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, epochs=3, steps_per_epoch=5)
    trained = trainer.train(configuration, "digits")
    assert (trained.rows, trained.steps) == (3 * 5 * 16, 15)
    # three passes are not the same pass three times
    once = c.configuration(c.mlp(), CATEGORICAL, epochs=1, steps_per_epoch=5)
    state: Any = StateRef.seed()
    for _ in range(3):
        state = full(trainer.train(once, "digits", state))
    assert state.sha256 != trained.state.sha256


def test_without_shuffling_the_seed_does_not_matter(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, shuffle=False)
    first, second = (trainer.train(configuration, "digits", shuffle_seed=seed).state for seed in (1, 2))
    assert first.sha256 == second.sha256
    shuffled = c.configuration(c.mlp(), CATEGORICAL)
    first, second = (trainer.train(shuffled, "digits", shuffle_seed=seed).state for seed in (1, 2))
    assert first.sha256 != second.sha256


# --- states ---


def test_a_seed_gives_one_state_whatever_was_built_before(trainer: Trainer) -> None:
    configuration = c.configuration(c.noisy_mlp(), CATEGORICAL)
    nothing = {**configuration, "fit": {**configuration["fit"], "steps_per_epoch": 1}}
    first = trainer.train(nothing, "digits", seed=3).state.sha256
    trainer.train(c.configuration(c.cnn(), CATEGORICAL), "digits", seed=9)
    assert trainer.train(nothing, "digits", seed=4).state.sha256 != first
    assert trainer.train(nothing, "digits", seed=3).state.sha256 == first


def test_configurations_share_a_program_without_sharing_anything_else(trainer: Trainer) -> None:
    """Two learning rates take turns; each gets the bits that it gets alone."""
    rates = [c.configuration(c.noisy_mlp(), CATEGORICAL, learning_rate=rate) for rate in (0.05, 0.001)]
    alone = []
    for configuration in rates:
        state: Any = StateRef.seed()
        for unit in range(3):
            state = full(trainer.train(configuration, "digits", state, shuffle_seed=unit))
        alone.append(state.sha256)
    states: list[Any] = [StateRef.seed()] * 2
    for unit in range(3):
        for number, configuration in enumerate(rates):
            out = str(trainer.folder / f"turn{number}")
            trained = trainer.train(configuration, "digits", states[number], shuffle_seed=unit, out=out)
            assert trained.seconds["build"] < 0.05  # nothing is traced again
            states[number] = full(trained)
    assert [state.sha256 for state in states] == alone
    assert alone[0] != alone[1]


def test_a_state_is_resident_until_another_replaces_it(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.02)
    first = trainer.train(configuration, "digits")
    trainer.evaluate(configuration, "digits", resident(first))
    second = trainer.train(configuration, "digits", resident(first), shuffle_seed=2, out=first.path + "2")
    failure("WrongState", trainer.train, configuration, "digits", resident(first))  # it was trained further
    again = trainer.train(configuration, "digits", full(first), shuffle_seed=2)
    assert again.state.sha256 == second.state.sha256
    trainer.train(configuration, "digits", seed=77)
    failure("WrongState", trainer.train, configuration, "digits", resident(again))


@pytest.mark.parametrize("name", AVERAGED)
def test_averages_are_what_is_evaluated_and_what_tables_get(trainer: Trainer, name: str) -> None:
    check_averages(trainer, AVERAGED[name], "digits")


def test_the_average_is_that_of_keras(trainer: Trainer) -> None:
    """The moving average of the weights after each step."""
    after, averaged = step_by_step(trainer, "use_ema")
    expected = after[0]
    for one in after[1:]:
        expected = 0.9 * expected + 0.1 * one
    np.testing.assert_allclose(averaged, expected, atol=2e-6)


def test_weights_as_madlib_has_them(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, "Adam", learning_rate=0.0, steps_per_epoch=1)
    given = np.arange(64 * 16 + 16 + 16 * 10 + 10, dtype="f4") / 1000
    path = trainer.folder / "weights"
    given.tofile(path)
    trained = trainer.train(configuration, "digits", weights(path))
    assert raw_weights(trained) == given.tobytes()  # a learning rate of 0 left them
    path.write_bytes(b"short")
    failure("CorruptState", trainer.train, configuration, "digits", weights(path))


def test_weights_that_are_not_float32(trainer: Trainer) -> None:
    half = c.sequential(
        c.input_layer([64]), c.layer("Dense", "half", units=4, dtype="bfloat16"), c.layer("Dense", "out", units=10)
    )
    trained = trainer.train(c.configuration(half, "mse", metrics=[]), "digits")
    again = trainer.train(c.configuration(half, "mse", metrics=[]), "digits", full(trained))
    assert again.loss < trained.loss
    assert again.state.weights_bytes == 4 * (64 * 4 + 4 + 4 * 10 + 10)


def test_names_of_tensors(trainer: Trainer) -> None:
    trained = trainer.train(c.configuration(c.noisy_mlp(), CATEGORICAL), "digits")
    names = sorted(safetensors.numpy.load_file(trained.path))
    assert names[0] == "000|model/hidden/kernel"
    assert names[8] == "008|seed_generator/seed_generator_state"
    assert names[9] == "009|adam/iteration"


@pytest.mark.parametrize("damage", ["flip", "cut", "other model", "gone"])
def test_a_damaged_state_is_refused(trainer: Trainer, damage: str) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.03)
    trained = trainer.train(configuration, "digits")
    good, path = Path(trained.path).read_bytes(), Path(trained.path)
    trainer.train(configuration, "digits", seed=8, out=str(path) + ".2")  # else the trainer need not look at the file
    if damage == "flip":
        path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    elif damage == "cut":
        path.write_bytes(good[:100])
    elif damage == "gone":
        path.unlink()
        failure("TrainerFailed", trainer.train, configuration, "digits", full(trained), out=str(path) + ".3")
        return
    else:
        configuration = c.configuration(c.mlp(units=17), CATEGORICAL)
    failure("CorruptState", trainer.train, configuration, "digits", full(trained), out=str(path) + ".3")


# --- kinds of data ---


def test_inputs_and_outputs_by_the_dozen(trainer: Trainer) -> None:
    columns = c.made_up(200, 1)
    trainer.data("two", c.TWO_BY_TWO, **columns)
    configuration = c.configuration(
        c.two_by_two(), ["mse", CATEGORICAL], learning_rate=0.02, metrics=[["mae"], ["acc"]]
    )
    first = trainer.train(configuration, "two")
    last = trainer.train(configuration, "two", full(first), shuffle_seed=2)
    assert set(first.metrics) == {"price_loss", "price_mae", "mood_loss", "mood_acc"}
    assert last.loss < first.loss
    out = str(trainer.folder / "two.out")
    answer = trainer.predict(configuration, "two", full(last), out)
    assert answer.outputs == [PredictedOutput(shape=[1]), PredictedOutput(shape=[3])]
    assert os.path.getsize(out + ".0") == 4 * 200 and os.path.getsize(out + ".1") == 4 * 600


@pytest.mark.parametrize("loss", [CATEGORICAL, [CATEGORICAL], {"out": CATEGORICAL}])
def test_a_graph_of_one_input_and_one_output(trainer: Trainer, loss: Any) -> None:
    """Keras writes the ends of a Functional model in two ways; both are the Sequential model here."""
    layers = [
        (c.input_layer([64]), []),
        (c.layer("Dense", "hidden", units=16, activation="relu"), ["rows"]),
        (c.layer("Dense", "out", units=10, activation="softmax"), ["hidden"]),
    ]
    graph = c.functional(layers, ["rows"], ["out"])
    flat = {**graph, "config": {**graph["config"], "input_layers": ["rows", 0, 0], "output_layers": ["out", 0, 0]}}
    expected = trainer.train(c.configuration(c.mlp(), CATEGORICAL), "digits")
    for architecture in (graph, flat):
        trained = trainer.train(c.configuration(architecture, loss), "digits")
        assert trained.loss == expected.loss
        assert trained.metrics["accuracy"] == expected.metrics["accuracy"]


def test_regression(trainer: Trainer) -> None:
    columns = c.made_up(300, 2)
    trainer.data("houses", c.HOUSES, facts=columns["facts"], price=columns["price"])
    linear = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=1))
    trained = trainer.train(c.configuration(linear, "mse", learning_rate=0.05, epochs=8, metrics=["mae"]), "houses")
    state = full(trained)
    configuration = c.configuration(linear, "mse", learning_rate=0.05, metrics=["mae"])
    answer = trainer.evaluate(configuration, "houses", state)
    assert answer.loss < 0.05 and set(answer.metrics) == {"mae"}


def test_sequences(trainer: Trainer) -> None:
    columns = c.made_up(200, 4)
    trainer.data("sentences", c.SENTENCES, words=columns["words"], mood=columns["mood"])
    trained = trainer.train(c.configuration(c.lstm(), CATEGORICAL, learning_rate=0.05, epochs=8), "sentences")
    assert trained.metrics["accuracy"] > 0.45
    trainer.data("unknown words", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    most = columns["words"].max() + 5
    for call in (trainer.train, lambda one, rows: trainer.evaluate(one, rows, StateRef.seed())):
        message = failure("ConfigurationFailed", call, c.configuration(c.lstm(), CATEGORICAL), "unknown words")
        assert message == (
            f"the layer embed (Embedding) takes numbers from 0 to 19, but the column words has numbers from 5 to {most}"
        )


def test_targets_that_make_no_sense_for_the_loss(trainer: Trainer) -> None:
    columns = c.made_up(40, 1)
    trainer.data("prices", c.HOUSES, **columns)
    trainer.data("shares", c.HOUSES, facts=columns["facts"], price=np.linspace(0, 1, 40, dtype="float32"))
    for units, loss in ((1, CATEGORICAL), (3, CATEGORICAL), (3, "sparse_" + CATEGORICAL), (1, "kl_divergence")):
        model = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=units, activation="softmax"))
        message = failure("ConfigurationFailed", trainer, Describe(c.configuration(model, loss), c.HOUSES))
        assert message == f"{loss} compares classes, but the column price holds a number per row, for a regression"
    sigmoid = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=1, activation="sigmoid"))
    configuration = c.configuration(sigmoid, "binary_crossentropy", metrics=[])
    message = failure("ConfigurationFailed", trainer.train, configuration, "prices")
    assert message.startswith("binary_crossentropy takes values from 0 to 1, but the column price has values from -")
    assert trainer.train(configuration, "shares").finite  # shares are probabilities


def test_a_number_as_class_could_be_a_number() -> None:
    linear = {"shape": [121], "name": "age", "kind": "class"}
    for loss in ("mse", CATEGORICAL, "sparse_" + CATEGORICAL):
        for preparation, regression in (("integer", True), ("bigint", True), ("text", False)):
            with pytest.raises(ConfigurationFailed) as caught:
                output_column({**linear, "preparation": {"kind": "one_hot", "type": preparation}}, (1,), loss)
            assert caught.value.hint is not None and "121 units" in caught.value.hint
            assert ("cast to real or double precision" in caught.value.hint) == regression


def test_a_sparse_loss_on_one_hot_classes(trainer: Trainer) -> None:
    """Both forms are the same loss and give the same numbers."""
    sparse, categorical = (
        trainer.train(c.configuration(c.mlp(), loss), "digits") for loss in ("sparse_" + CATEGORICAL, CATEGORICAL)
    )
    assert sparse.loss == pytest.approx(categorical.loss, rel=1e-5)
    assert sparse.metrics == pytest.approx(categorical.metrics)


def test_two_classes_and_one_unit(trainer: Trainer) -> None:
    layout = {"inputs": c.DIGITS["inputs"], "outputs": [c.target("zero", [2])]}
    trainer.data("binary", layout, image=IMAGES, zero=c.one_hot((LABELS == 0).astype(int), 2))
    one_unit = c.mlp(classes=1, activation="sigmoid")
    trained = trainer.train(c.configuration(one_unit, "binary_crossentropy", learning_rate=0.01, epochs=3), "binary")
    state, out = full(trained), str(trainer.folder / "binary.out")
    configuration = c.configuration(one_unit, "binary_crossentropy", learning_rate=0.01)
    trainer.predict(configuration, "binary", state, out)
    predicted = np.fromfile(out + ".0", "f4") > 0.5
    assert (predicted == (LABELS == 0)).mean() > 0.97  # class 1 is "is a zero", not the other way round


def test_class_weights_weigh(trainer: Trainer) -> None:
    weighted = {str(label): 0.0 for label in range(1, 10)}
    configuration = c.configuration(
        c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=3, class_weight=weighted, metrics=[]
    )
    state, out = full(trainer.train(configuration, "digits")), str(trainer.folder / "zeros.out")
    trainer.predict(configuration, "digits", state, out)
    assert (np.fromfile(out + ".0", "f4").reshape(-1, 10).argmax(1) == 0).all()
    # As in Keras they weigh what trains, not what is evaluated.
    plain = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01, metrics=[])
    assert trainer.evaluate(configuration, "digits", state).loss == trainer.evaluate(plain, "digits", state).loss > 1


def test_nan_is_a_result(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(activation="linear"), "mse", "SGD", learning_rate=1e30, metrics=[])
    trained = trainer.train(configuration, "digits")
    assert math.isnan(trained.loss) and trained.finite is False


# --- what is wrong, said in a sentence ---


def test_shapes_that_do_not_fit(trainer: Trainer) -> None:
    def told(architecture: c.Json, loss: str = CATEGORICAL, layout: c.Json = c.DIGITS, **more: Any) -> str:
        configuration = c.configuration(architecture, loss, **more)
        return failure("ConfigurationFailed", trainer, Describe(configuration, layout))

    expected = "the model's output has 3 units but the data has 10 classes (column digit)"
    assert told(c.mlp(classes=3)) == expected
    assert told(c.mlp(classes=3), "sparse_" + CATEGORICAL) == expected
    assert told(c.mlp(classes=3), "mse") == expected
    wide = c.sequential(c.input_layer([65]), c.layer("Dense", "out", units=10))
    assert told(wide) == (
        "Input shape (65,) in the model architecture does not match the input shape (8, 8) of column image"
    )
    assert told(c.two_by_two()) == "the model has 2 inputs but the data has 1 (image)"
    assert "one output" in told(c.two_by_two(), "mse", c.TWO_BY_TWO, class_weight={"0": 1.0}, metrics=None)


def test_errors_from_keras_are_one_line(trainer: Trainer) -> None:
    def told(architecture: c.Json, *arguments: Any, **more: Any) -> str:
        configuration = c.configuration(architecture, *arguments, **more)
        with pytest.raises(OrderFailed) as caught:
            trainer(Describe(configuration, c.DIGITS))
        # what the allow-list knows it refuses itself, in its own words
        assert caught.value.kind in ("ConfigurationFailed", "InvalidArgument", "UnsafeModel", "Unsupported")
        assert "\n" not in caught.value.message and "\x1b" not in caught.value.message
        return caught.value.message

    assert "foo" in told(c.mlp(), {"class_name": "CategoricalCrossentropy", "config": {"foo": 1}})
    assert "foo" in told(c.mlp(), "foo")
    assert "foo" in told(c.mlp(), CATEGORICAL, metrics=["foo"])
    assert "foo" in told(c.mlp(), CATEGORICAL, foo=0.1)
    assert "Foo" in told(c.mlp(), CATEGORICAL, "Foo")
    small = c.sequential(c.input_layer([8, 8, 1]), c.layer("Conv2D", "conv", filters=2, kernel_size=[9, 9]))
    assert "zero or negative" in told(small, CATEGORICAL)
    assert "batch_size" in told(c.mlp(), CATEGORICAL, batch_size=0)


def test_what_is_not_allowed_is_not_built(trainer: Trainer) -> None:
    code = c.sequential(c.input_layer([64]), c.layer("Lambda", "code", function="x"), c.layer("Dense", "out", units=10))
    assert "Lambda" in failure("UnsafeModel", trainer, Describe(c.configuration(code, CATEGORICAL), c.DIGITS))


def test_orders_that_make_no_sense(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    for document, said in (
        ({"order": "dance"}, "dance"),
        ({"order": "train"}, "lacks"),
        ({}, "null"),
        ({"order": "describe", "configuration": configuration, "engine": 1}, "engine"),
        (
            {
                "order": "evaluate",
                "handle": "digits",
                "configurations": [configuration],
                "models": [{"configuration": 0, "state": {"origin": "x"}}],
            },
            "origin",
        ),
        ({"order": "inspect"}, "takes no order"),
    ):
        assert said in failure("InvalidArgument", trainer.obey_document, document)
    out = str(trainer.folder / "no" / "such" / "folder")
    failure("TrainerFailed", trainer.train, configuration, "digits", out=out)
    failure("InvalidArgument", trainer, Describe({"fit": {}}))
    without_file = replace(trainer.member(configuration), out=None)
    assert "no file" in failure("InvalidArgument", trainer.train_fused, "digits", without_file)
    not_received = StateRef.full("never received", "0")
    assert "not there" in failure("CorruptState", trainer.train, configuration, "digits", not_received)
    assert trainer(DropRows("never was")) == Done()  # and it goes on working


# --- the process ---


def test_progress_is_told_in_good_time(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(units=64), CATEGORICAL, batch_size=2, epochs=25)
    trainer.progress.clear()
    started = time.monotonic()
    trained = trainer.train(configuration, "digits")
    seconds, frames = time.monotonic() - started, list(trainer.progress)
    assert 1 <= len(frames) <= 4 * seconds + 1
    rows = [frame.rows for frame in frames]
    assert rows == sorted(rows) and all(frame.of == trained.rows == 600 * 25 for frame in frames)
    assert all(math.isfinite(frame.loss) for frame in frames)


def test_ends(tmp_path: Path) -> None:
    """The session sees end-of-file after a crash; the trainer ends when its orders end."""
    crashed, orphaned = Trainer(tmp_path / "crashed"), Trainer(tmp_path / "orphaned")
    failure_at_start = Trainer(tmp_path / "unknown", engine="abacus")
    with pytest.raises(OrderFailed, match="abacus"):
        failure_at_start(Wake())
    failure_at_start.close()
    assert crashed(Wake()) == Done()
    started = time.monotonic()
    os.kill(crashed.process.pid, signal.SIGSEGV)
    with pytest.raises(Gone) as caught:
        crashed(Wake())
    assert caught.value.args[0] in (-signal.SIGSEGV, None) and time.monotonic() - started < 2

    orphaned.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    endless = c.configuration(c.mlp(), CATEGORICAL, epochs=1_000_000)
    member = orphaned.member(endless, out=str(tmp_path / "never"))
    orphaned.send(Train("digits", [endless], [Group([member])]))
    assert "progress" in orphaned.frame()
    assert orphaned.process.stdin is not None
    orphaned.process.stdin.close()  # the session is gone in the middle of a unit
    assert orphaned.process.wait(3) == 0


def test_a_memory_limit_is_kept(trainer: Trainer, tmp_path: Path) -> None:
    limits = Path(f"/proc/{trainer.process.pid}/limits")
    if limits.exists():
        (line,) = (line for line in limits.read_text().splitlines() if line.startswith("Max data size"))
        assert line.split()[3:5] == [str(MEMORY_LIMIT_MB << 20)] * 2
    # Too little for the framework itself.  (Inside TensorFlow it would wait ten seconds for memory to come free.)
    small = Trainer(tmp_path, memory_limit_mb=200)
    with pytest.raises((OrderFailed, Gone)):  # an import fails in many ways
        small(Wake())
    small.close()


def test_an_order_is_needed_first(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, first=Describe({}))
    with pytest.raises(OrderFailed, match=StartEngine.name):
        trainer.answer(Describe({}))
    trainer.close()
