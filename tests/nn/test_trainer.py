"""A real trainer process over real pipes: every order, every kind of data, every kind of failure."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from sklearn.datasets import load_digits

from cerebro_db.core.precision import computed_in

from . import configurations as c
from .trainer_client import Gone, OrderFailed, Trainer, full

digits = load_digits()
IMAGES, LABELS = digits.images.astype("uint8")[:600], digits.target[:600]
CATEGORICAL = "categorical_crossentropy"
MEMORY_LIMIT_MB = 8192


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("trainer"), memory_limit_mb=MEMORY_LIMIT_MB)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainer
    trainer.close()


def failure(kind: str, call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(OrderFailed) as caught:
        call(*arguments, **more)
    assert caught.value.kind == kind, caught.value
    assert "\n" not in caught.value.message
    return caught.value.message


# --- orders ---


def test_hello(trainer: Trainer) -> None:
    assert set(trainer.hello["versions"]) == {"python", "keras", "engine", "engine_version", "numpy"}
    assert trainer.hello["devices"] == ["CPU:0"]
    assert trainer.hello["pid"] == trainer.process.pid
    status = Path(f"/proc/{trainer.process.pid}/oom_score_adj")
    assert not status.exists() or status.read_text().strip() == "1000"
    failure("WrongState", trainer, "hello", engine="tensorflow")


def test_data_and_forget(trainer: Trainer) -> None:
    answer = trainer.data("other", c.DIGITS, image=IMAGES[:7], digit=c.one_hot(LABELS[:7], 10))
    assert answer == {"rows": 7, "bytes": 7 * (64 + 20)}
    assert trainer("forget", handle="other") == {}
    message = failure("UndefinedObject", trainer.train, c.configuration(c.mlp(), CATEGORICAL), "other")
    assert "other" in message
    failure("BadData", trainer, "data", handle="x", layout=c.DIGITS, rows=8, files=dict.fromkeys(
        ("image", "digit"), str(trainer.folder / "other.image")))  # fmt: skip


def test_describe_is_exact(trainer: Trainer) -> None:
    configuration = c.configuration(c.noisy_mlp(), CATEGORICAL)
    answer = trainer("describe", configuration=configuration, layout=c.DIGITS)
    assert answer["parameters"] == 64 * 16 + 16 + 4 * 16 + 16 * 10 + 10
    assert (answer["inputs"], answer["outputs"]) == ([[64]], [[10]])
    assert answer["state_bytes"] == trainer.train(configuration, "digits")["state"]["bytes"]
    assert trainer("describe", configuration=configuration, layout=None) == answer


def test_training_lowers_the_loss(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01)
    trained = [trainer.train(configuration, "digits")]
    for unit in range(1, 6):
        trained.append(trainer.train(configuration, "digits", full(trained[-1]["state"]), shuffle_seed=unit))
    assert trained[0]["loss"] > 3 * trained[-1]["loss"]
    assert trained[-1]["metrics"]["accuracy"] > 0.95
    assert trained[0]["rows"] == 600 and trained[0]["steps"] == 38 and trained[0]["finite"] is True
    assert set(trained[0]["seconds"]) == {"build", "load", "train", "save"}
    assert trained[-1]["seconds"]["build"] < 0.05  # the program is there already

    state = full(trained[-1]["state"])
    evaluated = trainer("evaluate", configuration=configuration, handle="digits", state=state)
    assert evaluated["rows"] == 600
    out = str(trainer.folder / "predicted")
    predicted = trainer("predict", configuration=configuration, handle="digits", state=state, out=out)
    assert (predicted["rows"], predicted["outputs"]) == (600, [{"shape": [10]}])
    probabilities = np.fromfile(out + ".0", "f4").reshape(600, 10)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    accuracy = (probabilities.argmax(1) == LABELS).mean()
    assert evaluated["metrics"]["accuracy"] == pytest.approx(accuracy)
    loss = -np.log(probabilities[np.arange(600), LABELS]).mean()  # weighted by rows, partial batch and all
    assert evaluated["loss"] == pytest.approx(loss, rel=1e-5)


def test_prediction_needs_no_outputs(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    state = full(trainer.train(configuration, "digits")["state"])
    trainer.data("unlabelled", c.DIGITS, image=IMAGES[:5])
    out = str(trainer.folder / "unlabelled.out")
    arguments = {"configuration": configuration, "handle": "unlabelled", "state": state}
    assert trainer("predict", out=out, **arguments)["rows"] == 5
    failure("WrongState", trainer, "evaluate", **arguments)


@pytest.mark.parametrize("nested", [False, True])
def test_precision_does_not_round_rows(trainer: Trainer, nested: bool) -> None:
    """Of a model that does not say what it takes, too: above 256 bfloat16 has every second whole number only."""
    normal = {"module": "keras.initializers", "class_name": "RandomNormal", "config": {"stddev": 1.0}}
    sizes = {"input_dim": 5000, "output_dim": 4, "embeddings_initializer": normal}
    words = [c.layer("Embedding", "embed", **sizes), c.layer("Flatten", "flat")]
    model = c.sequential(*([c.sequential(*words)] if nested else words), c.layer("Dense", "out", units=3))
    layout = {"inputs": [c.column("word", [1], "int32")], "outputs": [c.target("value", [3], "real", "float32")]}
    numbers = np.arange(4000, 4100)
    trainer.data("numbers", layout, word=numbers[:, None], value=np.zeros((100, 3)))
    exact = c.configuration(model, "mse", metrics=[])
    found = []
    state = full(trainer.train(exact, "numbers")["state"])
    for architecture in (model, computed_in(model, "mixed_bfloat16")):
        out, asked = str(trainer.folder / "numbers.out"), {**exact, "architecture": architecture}
        trainer("predict", configuration=asked, handle="numbers", state=state, out=out)
        found.append(np.fromfile(out + ".0", "f4").reshape(100, 3))
    assert np.allclose(*found, atol=0.1)
    assert not np.array_equal(*found)


def test_no_rows(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    trainer.data("nothing", c.DIGITS, image=IMAGES[:0], digit=c.one_hot(LABELS[:0], 10))
    trained = trainer.train(configuration, "nothing")
    assert (trained["rows"], trained["steps"]) == (0, 0)
    arguments = {"configuration": configuration, "handle": "nothing", "state": full(trained["state"])}
    assert trainer("evaluate", **arguments)["rows"] == 0
    answer = trainer("predict", out=str(trainer.folder / "none"), **arguments)
    assert answer == {"rows": 0, "outputs": [{"shape": [10]}]}


def test_epochs_and_steps(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, epochs=3, steps_per_epoch=5)
    trained = trainer.train(configuration, "digits")
    assert (trained["rows"], trained["steps"]) == (3 * 5 * 16, 15)
    # three passes are not the same pass three times
    once = c.configuration(c.mlp(), CATEGORICAL, epochs=1, steps_per_epoch=5)
    state: Any = {"kind": "none"}
    for _ in range(3):
        state = full(trainer.train(once, "digits", state)["state"])
    assert state["sha256"] != trained["state"]["sha256"]


def test_without_shuffling_the_seed_does_not_matter(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, shuffle=False)
    first, second = (trainer.train(configuration, "digits", shuffle_seed=seed)["state"] for seed in (1, 2))
    assert first["sha256"] == second["sha256"]
    shuffled = c.configuration(c.mlp(), CATEGORICAL)
    first, second = (trainer.train(shuffled, "digits", shuffle_seed=seed)["state"] for seed in (1, 2))
    assert first["sha256"] != second["sha256"]


# --- states ---


def test_a_seed_gives_one_state_whatever_was_built_before(trainer: Trainer) -> None:
    configuration = c.configuration(c.noisy_mlp(), CATEGORICAL)
    nothing = {**configuration, "fit": {**configuration["fit"], "steps_per_epoch": 1}}
    first = trainer.train(nothing, "digits", seed=3)["state"]["sha256"]
    trainer.train(c.configuration(c.cnn(), CATEGORICAL), "digits", seed=9)
    assert trainer.train(nothing, "digits", seed=4)["state"]["sha256"] != first
    assert trainer.train(nothing, "digits", seed=3)["state"]["sha256"] == first


def test_configurations_share_a_program_without_sharing_anything_else(trainer: Trainer) -> None:
    """Two learning rates take turns; their bits are those of either alone."""
    rates = [c.configuration(c.noisy_mlp(), CATEGORICAL, learning_rate=rate) for rate in (0.05, 0.001)]
    alone = []
    for configuration in rates:
        state: Any = {"kind": "none"}
        for unit in range(3):
            state = full(trainer.train(configuration, "digits", state, shuffle_seed=unit)["state"])
        alone.append(state["sha256"])
    states: list[Any] = [{"kind": "none"}] * 2
    for unit in range(3):
        for number, configuration in enumerate(rates):
            out = str(trainer.folder / f"turn{number}")
            trained = trainer.train(configuration, "digits", states[number], shuffle_seed=unit, out=out)
            assert trained["seconds"]["build"] < 0.05  # nothing is traced again
            states[number] = full(trained["state"])
    assert [state["sha256"] for state in states] == alone
    assert alone[0] != alone[1]


def test_a_held_state_is_there_until_another_comes(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.02)
    first = trainer.train(configuration, "digits")["state"]
    held = {"kind": "held", "token": first["token"]}
    trainer("evaluate", configuration=configuration, handle="digits", state=held)
    second = trainer.train(configuration, "digits", held, shuffle_seed=2, out=first["path"] + "2")["state"]
    failure("WrongState", trainer.train, configuration, "digits", held)  # it has gone on since
    again = trainer.train(configuration, "digits", full(first), shuffle_seed=2)["state"]
    assert again["sha256"] == second["sha256"]
    held = {"kind": "held", "token": again["token"]}
    trainer.train(configuration, "digits", seed=77)
    failure("WrongState", trainer.train, configuration, "digits", held)


def test_averaged_weights_are_for_looking_only(trainer: Trainer) -> None:
    """With use_ema Keras evaluates the moving average; the training goes on from the weights themselves."""
    averaged = {"learning_rate": 0.02, "use_ema": True, "ema_momentum": 0.9}
    configuration = c.configuration(c.mlp(), CATEGORICAL, **averaged)
    first = trainer.train(configuration, "digits")["state"]
    second = trainer.train(configuration, "digits", full(first), out=first["path"] + "2")["state"]
    state = full(second)
    looked = trainer("evaluate", configuration=configuration, handle="digits", state=state)
    third = trainer.train(configuration, "digits", state, out=first["path"] + "3")["state"]
    plain = trainer.train(configuration, "digits", full(first), out=first["path"] + "2")["state"]
    assert plain["sha256"] == second["sha256"]
    token = {"kind": "held", "token": plain["token"]}
    unlooked = trainer.train(configuration, "digits", token, out=first["path"] + "4")["state"]
    assert unlooked["sha256"] == third["sha256"]
    without = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.02)
    weights = Path(second["path"]).read_bytes()[second["weights_offset"] :][: second["weights_bytes"]]
    Path(first["path"] + ".raw").write_bytes(weights)
    state = {"kind": "weights", "path": first["path"] + ".raw"}
    raw = trainer("evaluate", configuration=without, handle="digits", state=state)
    assert raw["loss"] != looked["loss"]


def test_weights_as_madlib_has_them(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, "Adam", learning_rate=0.0, steps_per_epoch=1)
    weights = np.arange(64 * 16 + 16 + 16 * 10 + 10, dtype="f4") / 1000
    path = trainer.folder / "weights"
    weights.tofile(path)
    state = trainer.train(configuration, "digits", {"kind": "weights", "path": str(path)})["state"]
    found = Path(state["path"]).read_bytes()[state["weights_offset"] :][: state["weights_bytes"]]
    assert found == weights.tobytes()  # a learning rate of 0 left them
    path.write_bytes(b"short")
    failure("CorruptState", trainer.train, configuration, "digits", {"kind": "weights", "path": str(path)})


def test_weights_that_are_not_float32(trainer: Trainer) -> None:
    half = c.sequential(
        c.input_layer([64]), c.layer("Dense", "half", units=4, dtype="bfloat16"), c.layer("Dense", "out", units=10)
    )
    trained = trainer.train(c.configuration(half, "mse", metrics=[]), "digits")
    again = trainer.train(c.configuration(half, "mse", metrics=[]), "digits", full(trained["state"]))
    assert again["loss"] < trained["loss"]
    assert again["state"]["weights_bytes"] == 4 * (64 * 4 + 4 + 4 * 10 + 10)


def test_names_of_tensors(trainer: Trainer) -> None:
    state = trainer.train(c.configuration(c.noisy_mlp(), CATEGORICAL), "digits")["state"]
    names = sorted(safetensors.numpy.load_file(state["path"]))
    assert names[0] == "000|model/hidden/kernel"
    assert names[8] == "008|seed_generator/seed_generator_state"
    assert names[9] == "009|adam/iteration"


@pytest.mark.parametrize("damage", ["flip", "cut", "other model", "gone"])
def test_a_damaged_state_is_refused(trainer: Trainer, damage: str) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.03)
    state = trainer.train(configuration, "digits")["state"]
    good, path = Path(state["path"]).read_bytes(), Path(state["path"])
    trainer.train(configuration, "digits", seed=8, out=str(path) + ".2")  # else the trainer need not look at the file
    if damage == "flip":
        path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    elif damage == "cut":
        path.write_bytes(good[:100])
    elif damage == "gone":
        path.unlink()
        failure("TrainerFailed", trainer.train, configuration, "digits", full(state), out=str(path) + ".3")
        return
    else:
        configuration = c.configuration(c.mlp(units=17), CATEGORICAL)
    failure("CorruptState", trainer.train, configuration, "digits", full(state), out=str(path) + ".3")


# --- kinds of data ---


def test_inputs_and_outputs_by_the_dozen(trainer: Trainer) -> None:
    columns = c.made_up(200, 1)
    trainer.data("two", c.TWO_BY_TWO, **columns)
    configuration = c.configuration(
        c.two_by_two(), ["mse", CATEGORICAL], learning_rate=0.02, metrics=[["mae"], ["acc"]]
    )
    first = trainer.train(configuration, "two")
    last = trainer.train(configuration, "two", full(first["state"]), shuffle_seed=2)
    assert set(first["metrics"]) == {"price_loss", "price_mae", "mood_loss", "mood_acc"}
    assert last["loss"] < first["loss"]
    out = str(trainer.folder / "two.out")
    answer = trainer("predict", configuration=configuration, handle="two", state=full(last["state"]), out=out)
    assert answer["outputs"] == [{"shape": [1]}, {"shape": [3]}]
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
        assert trained["loss"] == expected["loss"]
        assert trained["metrics"]["accuracy"] == expected["metrics"]["accuracy"]


def test_regression(trainer: Trainer) -> None:
    columns = c.made_up(300, 2)
    trainer.data("houses", c.HOUSES, facts=columns["facts"], price=columns["price"])
    linear = c.sequential(c.input_layer([4]), c.layer("Dense", "out", units=1))
    trained = trainer.train(c.configuration(linear, "mse", learning_rate=0.05, epochs=8, metrics=["mae"]), "houses")
    state = full(trained["state"])
    configuration = c.configuration(linear, "mse", learning_rate=0.05, metrics=["mae"])
    answer = trainer("evaluate", configuration=configuration, handle="houses", state=state)
    assert answer["loss"] < 0.05 and set(answer["metrics"]) == {"mae"}


def test_sequences(trainer: Trainer) -> None:
    columns = c.made_up(200, 4)
    trainer.data("sentences", c.SENTENCES, words=columns["words"], mood=columns["mood"])
    trained = trainer.train(c.configuration(c.lstm(), CATEGORICAL, learning_rate=0.05, epochs=8), "sentences")
    assert trained["metrics"]["accuracy"] > 0.45
    trainer.data("unknown words", c.SENTENCES, words=columns["words"] + 5, mood=columns["mood"])
    assert "not in [0, 20)" in failure(
        "ConfigurationFailed", trainer.train, c.configuration(c.lstm(), CATEGORICAL), "unknown words"
    )


def test_a_sparse_loss_on_one_hot_classes(trainer: Trainer) -> None:
    """It is the same loss, so it gives the same numbers."""
    sparse, categorical = (
        trainer.train(c.configuration(c.mlp(), loss), "digits") for loss in ("sparse_" + CATEGORICAL, CATEGORICAL)
    )
    assert sparse["loss"] == pytest.approx(categorical["loss"], rel=1e-5)
    assert sparse["metrics"] == pytest.approx(categorical["metrics"])


def test_two_classes_and_one_unit(trainer: Trainer) -> None:
    layout = {"inputs": c.DIGITS["inputs"], "outputs": [c.target("zero", [2])]}
    trainer.data("binary", layout, image=IMAGES, zero=c.one_hot((LABELS == 0).astype(int), 2))
    one_unit = c.mlp(classes=1, activation="sigmoid")
    trained = trainer.train(c.configuration(one_unit, "binary_crossentropy", learning_rate=0.01, epochs=3), "binary")
    state, out = full(trained["state"]), str(trainer.folder / "binary.out")
    configuration = c.configuration(one_unit, "binary_crossentropy", learning_rate=0.01)
    trainer("predict", configuration=configuration, handle="binary", state=state, out=out)
    predicted = np.fromfile(out + ".0", "f4") > 0.5
    assert (predicted == (LABELS == 0)).mean() > 0.97  # class 1 is "is a zero", not the other way round


def test_class_weights_weigh(trainer: Trainer) -> None:
    weighted = {str(label): 0.0 for label in range(1, 10)}
    configuration = c.configuration(
        c.mlp(), CATEGORICAL, learning_rate=0.01, epochs=3, class_weight=weighted, metrics=[]
    )
    state, out = full(trainer.train(configuration, "digits")["state"]), str(trainer.folder / "zeros.out")
    trainer("predict", configuration=configuration, handle="digits", state=state, out=out)
    assert (np.fromfile(out + ".0", "f4").reshape(-1, 10).argmax(1) == 0).all()


def test_nan_is_a_result(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(activation="linear"), "mse", "SGD", learning_rate=1e30, metrics=[])
    trained = trainer.train(configuration, "digits")
    assert math.isnan(trained["loss"]) and trained["finite"] is False


# --- what is wrong, said in a sentence ---


def test_shapes_that_do_not_fit(trainer: Trainer) -> None:
    def told(architecture: c.Json, loss: str = CATEGORICAL, layout: c.Json = c.DIGITS, **more: Any) -> str:
        configuration = c.configuration(architecture, loss, **more)
        return failure("ConfigurationFailed", trainer, "describe", configuration=configuration, layout=layout)

    expected = "the model's output has 3 units but the data has 10 classes (column digit)"
    assert told(c.mlp(classes=3)) == expected
    assert told(c.mlp(classes=3), "sparse_" + CATEGORICAL) == expected
    assert told(c.mlp(classes=3), "mse") == expected
    wide = c.sequential(c.input_layer([65]), c.layer("Dense", "out", units=10))
    assert told(wide) == "the model takes (65,) per row but the data has (8, 8) (column image)"
    assert told(c.two_by_two()) == "the model has 2 inputs but the data has 1 (image)"
    assert "one output" in told(c.two_by_two(), "mse", c.TWO_BY_TWO, class_weight={"0": 1.0}, metrics=None)


def test_errors_from_keras_are_one_line(trainer: Trainer) -> None:
    def told(architecture: c.Json, *arguments: Any, **more: Any) -> str:
        configuration = c.configuration(architecture, *arguments, **more)
        with pytest.raises(OrderFailed) as caught:
            trainer("describe", configuration=configuration, layout=c.DIGITS)
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
    told = {"configuration": c.configuration(code, CATEGORICAL), "layout": c.DIGITS}
    assert "Lambda" in failure("UnsafeModel", trainer, "describe", **told)


def test_orders_that_make_no_sense(trainer: Trainer) -> None:
    failure("InvalidArgument", trainer, "dance")
    failure("InvalidArgument", trainer, "train")
    assert "no order None" in failure("InvalidArgument", trainer, None)  # type: ignore[arg-type]
    arguments = {"configuration": c.configuration(c.mlp(), CATEGORICAL), "handle": "digits", "state": {"kind": "x"}}
    failure("InvalidArgument", trainer, "evaluate", **arguments)
    out = {"out": str(trainer.folder / "no" / "such" / "folder")}
    failure("TrainerFailed", trainer.train, arguments["configuration"], "digits", **out)
    assert trainer("forget", handle="never was") == {}  # and it goes on working


# --- the process ---


def test_progress_is_told_in_good_time(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(units=64), CATEGORICAL, batch_size=2, epochs=25)
    trainer.progress.clear()
    started = time.monotonic()
    trained = trainer.train(configuration, "digits")
    seconds, frames = time.monotonic() - started, list(trainer.progress)
    assert 1 <= len(frames) <= 4 * seconds + 1
    rows = [frame["rows"] for frame in frames]
    assert rows == sorted(rows) and all(frame["of"] == trained["rows"] == 600 * 25 for frame in frames)
    assert all(math.isfinite(frame["loss"]) for frame in frames)


def test_ends(tmp_path: Path) -> None:
    """Of a crash the other side sees the end of the file; an end of the orders is an end of the trainer."""
    crashed, orphaned = Trainer(tmp_path / "crashed"), Trainer(tmp_path / "orphaned")
    failure_at_start = Trainer(tmp_path / "unknown", engine="abacus")
    with pytest.raises(OrderFailed, match="abacus"):
        failure_at_start("forget", handle="x")
    failure_at_start.close()
    assert crashed("forget", handle="x") == {}
    started = time.monotonic()
    os.kill(crashed.process.pid, signal.SIGSEGV)
    with pytest.raises(Gone) as caught:
        crashed("forget", handle="x")
    assert caught.value.args[0] in (-signal.SIGSEGV, None) and time.monotonic() - started < 2

    orphaned.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    endless = c.configuration(c.mlp(), CATEGORICAL, epochs=1_000_000)
    member = {"configuration": endless, "state": {"kind": "none"}, "shuffle_seed": 1, "out": str(tmp_path / "never")}
    orphaned.send({"order": "train", "handle": "digits", "members": [member]})
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
        small("forget", handle="x")
    small.close()


def test_an_order_is_needed_first(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, order="describe")
    with pytest.raises(OrderFailed, match="hello"):
        trainer.answer()
    trainer.close()
