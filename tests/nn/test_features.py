"""What frozen layers give is computed once, and the models are those that compute it in each step, within rounding."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.protocol import Describe, Exchange, InputElements, Span
from cerebro_db.nn import state_file
from cerebro_db.nn.engines import tensorflow
from cerebro_db.nn.frozen_features import Features, features_of
from cerebro_db.nn.models import frozen as frozen_layers
from cerebro_db.nn.rows.data import Dataset, Slab
from tests.thorough import landing

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS
from .trainer_client import USUAL_ENGINE, OrderFailed, Trainer, Visit, full, resident

Json = dict[str, Any]

CONVOLUTIONS = [
    c.layer("Conv2D", "conv", filters=4, kernel_size=3, padding="same", activation="relu"),
    c.layer("BatchNormalization", "norm"),
    c.layer("Dropout", "rest", rate=0.0),
    c.layer("Flatten", "flat"),
    c.layer("Dense", "wide", units=24, activation="relu"),
]
ENGINES = ["tensorflow", "jax", "torch"]
# How a program computes features and trains on them is of the engine; which layers give them and what is kept is not.
on_each = pytest.mark.parametrize("trainers", ENGINES, indirect=True)
HEAD = [c.layer("Dropout", "drop", rate=0.3), c.layer("Dense", "out", units=10, activation="softmax")]


def network(frozen: int, *, head: list[Json] = HEAD) -> Json:
    """The first layers with weights do not train."""
    layers = copy.deepcopy([*CONVOLUTIONS, *head])
    for layer in layers[:frozen]:
        layer["config"]["trainable"] = False
    return c.sequential(c.input_layer([8, 8, 1]), *layers)


@pytest.fixture(scope="module", params=landing(ENGINES, USUAL_ENGINE))
def trainers(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that keeps features, and one that computes them in each step."""
    both = []
    for reuse in ("all", "none"):
        folder = tmp_path_factory.mktemp(f"features_{reuse}")
        trainer = Trainer(folder, engine=request.param, reuse=reuse, features_mb=8)
        trainer.data("rows", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
        both.append(trainer)
    yield both
    for trainer in both:
        trainer.close()


def described(
    trainer: Trainer, architecture: Json, layout: Json = c.DIGITS, loss: str = CATEGORICAL
) -> tuple[int, int]:
    """The layers that are computed once, and the bytes of what they give for a row."""
    found = trainer(Describe(c.configuration(architecture, CATEGORICAL), layout, []))
    return found.frozen_layers, found.feature_bytes


@on_each
def test_which_layers_are_computed_once(trainers: list[Trainer]) -> None:
    kept, computed = trainers
    assert [described(kept, network(frozen)) for frozen in (0, 1, 2, 4, 5)] == [
        (0, 0),  # nothing is frozen
        (1, 4 * 256),
        (4, 4 * 256),  # a normalization that is frozen, and two layers without weights
        (4, 4 * 256),
        (5, 4 * 24),
    ]
    assert described(computed, network(5)) == (0, 0)
    assert described(kept, network(6)) == (5, 4 * 24)  # what is random ends it
    assert described(kept, network(6, head=HEAD[1:])) == (0, 0)  # nothing would train


@pytest.mark.parametrize(
    "changed, layers",
    [
        ({"rest": {"rate": 0.2}}, 2),  # a layer that drops values
        ({"norm": {"trainable": True, "center": False, "scale": False}}, 1),  # it has statistics of each batch
        ({"conv": {"activity_regularizer": {"module": "keras.regularizers", "class_name": "L2", "config": {}}}}, 0),
        ({"flat": {"trainable": True}}, 5),  # it has no weights
    ],
)  # fmt: skip
def test_a_layer_that_training_changes_is_computed_in_each_step(
    trainers: list[Trainer], changed: Json, layers: int
) -> None:
    architecture = network(5)
    for layer in architecture["config"]["layers"]:
        layer["config"].update(changed.get(layer["config"]["name"], {}))
    assert described(trainers[0], architecture)[0] == layers


def as_keras_writes_it(model: Any) -> Json:
    return keras_json.architecture(json.loads(model.to_json()))


def nested(rate: float, *, frozen: bool = True) -> Json:
    """A model that calls another one."""
    import keras
    from keras import layers

    rows, inner = keras.Input((64,), name="rows"), keras.Input((64,), name="inner")
    base = keras.Model(inner, layers.Dropout(rate)(layers.Dense(12, activation="relu", name="d")(inner)), name="base")
    base.trainable = not frozen
    both = layers.Concatenate(name="both")([base(rows, training=False), layers.Dense(3, name="beside")(rows)])
    return as_keras_writes_it(keras.Model(rows, layers.Dense(10, activation="softmax", name="out")(both), name="model"))


def test_a_model_within_a_model(trainers: list[Trainer]) -> None:
    """Keras drops values in training also where the inner model was called with training=False."""
    kept, _ = trainers
    assert described(kept, nested(0.5)) == described(kept, nested(0.0, frozen=False)) == (0, 0)
    assert described(kept, nested(0.0)) == (1, 4 * 12)
    configuration = c.configuration(nested(0.0), CATEGORICAL)
    losses = [trainer.train(configuration, "rows", seed=5).loss for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def computed_by(operation: Callable[[Any], Any], *, inner: bool) -> Json:
    """A frozen layer, then an operation on its values, in a model of its own or not."""
    import keras
    from keras import layers

    rows = keras.Input((64,), name="rows")
    found = operation(layers.Dense(12, activation="relu", name="frozen", trainable=False)(rows))
    base = keras.Model(rows, found, name="base")
    flat = layers.Flatten(name="flat")(base(rows) if inner else found)
    return as_keras_writes_it(keras.Model(rows, layers.Dense(10, activation="softmax", name="out")(flat), name="model"))


def of_each_row(x: Any) -> Any:
    import keras

    return keras.layers.ReLU(6.0)(x + 3.0) * (1 / 6) - x / 2 + (-x)


@pytest.mark.parametrize("inner", [False, True])
def test_operations_that_compute_each_row_by_itself(trainers: list[Trainer], inner: bool) -> None:
    kept, _ = trainers
    architecture = computed_by(of_each_row, inner=inner)
    layers, size = described(kept, architecture)
    assert size == 4 * 12 and layers > 0
    configuration = c.configuration(architecture, CATEGORICAL)
    losses = [trainer.train(configuration, "rows", seed=5).loss for trainer in trainers]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def without_the_mean(x: Any) -> Any:
    import keras

    return x - keras.ops.mean(x, axis=0, keepdims=True)


def with_the_last_row_first(x: Any) -> Any:
    import keras

    return keras.ops.flip(x, axis=0) + x


@pytest.mark.parametrize("operation", [without_the_mean, with_the_last_row_first])
def test_operations_that_mix_rows(trainers: list[Trainer], operation: Callable[[Any], Any]) -> None:
    assert described(trainers[0], computed_by(operation, inner=True)) == (0, 0)
    layers, _ = described(trainers[0], computed_by(operation, inner=False))
    assert layers <= 2  # before the operation


def test_a_sum_of_tensors_with_other_numbers_of_dimensions() -> None:
    """It puts the rows of one beside each row of the other."""
    import keras

    x = keras.layers.Dense(12, trainable=False)(keras.Input((64,)))
    for other, is_calm in ((x, True), (keras.layers.Reshape((1, 12))(x), False)):
        assert frozen_layers._is_calm((x + other)._keras_history.operation) is is_calm


def test_a_softmax_over_the_rows() -> None:
    """An input without dimensions gives one number for each row."""
    import keras

    for shape, is_calm in (((), False), ((1,), True)):
        found = keras.layers.Activation("softmax")(keras.Input(shape))
        assert frozen_layers._is_calm(found._keras_history.operation) is is_calm


def test_masks_are_not_lost(trainers: list[Trainer]) -> None:
    def sentence(mask: bool) -> Json:
        return c.sequential(
            c.input_layer([6], "int32"),
            c.layer("Embedding", "words", input_dim=20, output_dim=8, mask_zero=mask, trainable=False),
            c.layer("GlobalAveragePooling1D", "mean"),
            c.layer("Dense", "out", units=3, activation="softmax"),
        )

    assert described(trainers[0], sentence(False), c.SENTENCES) == (2, 4 * 8)
    assert described(trainers[0], sentence(True), c.SENTENCES) == (0, 0)


@on_each
def test_features_for_which_there_is_no_room_are_computed_for_each_slab(trainers: list[Trainer]) -> None:
    configuration = c.configuration(network(1), CATEGORICAL)  # 1 kB of features for a row
    many = [np.concatenate([column] * 16) for column in (IMAGES, c.one_hot(LABELS, 10))]  # 9.4 MB of features
    losses = []
    for trainer in trainers:
        visit = two_visits(trainer, configuration)[1]
        trainer.data("many", c.DIGITS, image=many[0], digit=many[1])
        losses.append([trainer.evaluate(configuration, "many", full(visit)).loss])
        losses[-1].append(trainer.train(configuration, "many", full(visit)).loss)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def two_visits(trainer: Trainer, configuration: Json) -> list[Visit]:
    first = trainer.train(configuration, "rows", seed=5, out=str(trainer.folder / "first"))
    return [first, trainer.train(configuration, "rows", full(first), out=str(trainer.folder / "second"))]


def state(visit: Visit) -> dict[str, np.ndarray]:
    return load_file(str(visit.path))


@pytest.mark.parametrize("frozen", landing([1, 2, 5], 1, 5))
@on_each
def test_the_state_is_that_of_a_model_that_computes_them_in_each_step(trainers: list[Trainer], frozen: int) -> None:
    configuration = c.configuration(network(frozen), CATEGORICAL, metrics=["accuracy"])
    kept, computed = ([*map(state, two_visits(each, configuration))] for each in trainers)
    for mine, other in zip(kept, computed):
        assert [*mine] == [*other]  # names and order, those of the optimizer included
        for name, value in mine.items():
            np.testing.assert_allclose(value, other[name], rtol=2e-4, atol=2e-5, err_msg=name)
    changed = [name for name in kept[0] if not np.array_equal(kept[0][name], kept[1][name])]
    assert any("out" in name for name in changed)
    assert not any("conv" in name for name in changed)


@on_each
def test_losses_metrics_and_predictions_are_the_same(trainers: list[Trainer], tmp_path: Path) -> None:
    configuration = c.configuration(network(5), CATEGORICAL, metrics=["accuracy"])
    found = []
    for number, trainer in enumerate(trainers):
        _, visit = two_visits(trainer, configuration)
        evaluated = trainer.evaluate(configuration, "rows", resident(visit))
        out = trainer.folder / f"predicted.{number}"
        trainer.predict(configuration, "rows", full(visit), str(out))
        predicted = np.fromfile(f"{out}.0", "<f4")
        found.append(np.concatenate([[visit.loss, evaluated.loss, *evaluated.metrics.values()], predicted]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def tower(*layers: Json) -> Json:
    """Frozen layers on the 64 pixels, and one behind them that trains."""
    frozen = copy.deepcopy(list(layers))
    for layer in frozen:
        layer["config"]["trainable"] = False
    return c.sequential(c.input_layer([64]), *frozen, c.layer("Dense", "out", units=10, activation="softmax"))


def require_same(trainers: list[Trainer], *architectures: Json) -> list[float]:
    """One trainer after the other trains all of them: the losses of the one that keeps features."""
    losses = [
        [trainer.train(c.configuration(one, CATEGORICAL), "rows", seed=5).loss for one in architectures]
        for trainer in trainers
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    return losses[0]


WIDE = c.layer("Dense", "wide", units=12, activation="relu")


def test_layers_that_differ_in_little_have_features_of_their_own(trainers: list[Trainer]) -> None:
    """In one of them a layer has the name of its activation."""
    both = [tower(WIDE, c.layer("Activation", name, activation=name)) for name in ("relu", "tanh")]
    assert all(described(trainers[0], one) == (2, 4 * 12) for one in both)
    relu, tanh = require_same(trainers, *both)
    assert relu != tanh


def test_a_frozen_layer_may_have_a_penalty(trainers: list[Trainer]) -> None:
    penalty = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": 0.01}, "registered_name": None}
    layer = c.layer("Dense", "wide", units=12, activation="relu", kernel_regularizer=penalty)
    assert described(trainers[0], tower(layer)) == (1, 4 * 12)
    require_same(trainers, tower(layer))


def test_the_same_beginning_with_other_ends(trainers: list[Trainer]) -> None:
    """What goes beside the features belongs to the end."""
    beside = c.functional(
        [
            (c.input_layer([64]), []),
            (c.layer("Dense", "wide", units=12, activation="relu", trainable=False), ["rows"]),
            (c.layer("Dense", "own", units=5, activation="relu"), ["rows"]),
            (c.layer("Concatenate", "both"), ["own", "wide"]),
            (c.layer("Dense", "out", units=10, activation="softmax"), ["both"]),
        ],
        ["rows"],
        ["out"],
    )
    alone = c.functional(
        [
            (c.input_layer([64]), []),
            (c.layer("Dense", "wide", units=12, activation="relu", trainable=False), ["rows"]),
            (c.layer("Dense", "out", units=10, activation="softmax"), ["wide"]),
        ],
        ["rows"],
        ["out"],
    )
    assert described(trainers[0], beside) == described(trainers[0], alone) == (1, 4 * 12)
    require_same(trainers, alone, beside, alone)


def shared() -> Json:
    """A frozen layer is called on the rows, and again behind a layer that trains."""
    return c.functional(
        [
            (c.input_layer([64]), []),
            (c.layer("Dense", "wide", units=64, trainable=False), ["rows"]),
            (c.layer("Activation", "relu", activation="relu"), ["wide"]),
            (c.layer("Dense", "own", units=64), ["relu"]),
            (c.layer("Dense", "out", units=10, activation="softmax"), ["own"]),
        ],
        ["rows"],
        ["out"],
    )


def called_twice() -> Json:
    architecture = shared()
    layers = architecture["config"]["layers"]
    again = copy.deepcopy(layers[2]["inbound_nodes"][0])
    again["args"][0]["config"]["keras_history"] = ["own", 0, 0]
    layers[2]["inbound_nodes"].append(again)
    layers[4]["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["relu", 1, 0]
    return architecture


def test_a_layer_that_is_called_twice_is_computed_in_each_step(trainers: list[Trainer]) -> None:
    assert described(trainers[0], shared()) == (2, 4 * 64)
    assert described(trainers[0], called_twice()) == (1, 4 * 64)
    require_same(trainers, shared(), called_twice())


@pytest.mark.parametrize(
    "layer",
    [
        c.layer("UnitNormalization", "unit", axis=0),
        c.layer("Softmax", "soft", axis=0),
        c.layer("SpectralNormalization", "wrapped", layer=c.layer("Dense", "inner", units=12)),
        c.layer("GaussianNoise", "noise", stddev=0.1),
    ],
    ids=lambda layer: layer["class_name"],
)
def test_what_looks_at_a_batch_or_its_step_ends_the_beginning(trainers: list[Trainer], layer: Json) -> None:
    ended = tower(WIDE, WIDE | {"config": {**WIDE["config"], "name": "more"}}, layer)
    assert described(trainers[0], ended) == (2, 4 * 12)


def test_a_confined_trainer_keeps_them_in_a_file_without_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    trainer = Trainer(folder, confined=True, engine=USUAL_ENGINE, reuse="all", features_mb=50)
    trainer.data("rows", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    trainer.train(c.configuration(network(5), CATEGORICAL), "rows")
    mapped = Path(f"/proc/{trainer.process.pid}/maps").read_text()
    assert [line for line in mapped.splitlines() if str(folder) in line and line.endswith("(deleted)")]
    trainer.close()


class Counting:
    """A program that counts the rows whose features it computes."""

    def __init__(self, program: Any) -> None:
        self._program, self.rows = program, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        self.rows += batch.rows
        return self._program.features_of(batch)  # type: ignore[no-any-return]


def test_rows_that_were_added_need_the_features_of_no_others(tmp_path: Path) -> None:
    engine = tensorflow.open(None, False, None)
    program = Counting(engine.program(c.configuration(network(5), CATEGORICAL), c.DIGITS, 0, "float32"))
    features = Features("all", 1 << 20)

    def computed(rows: Dataset) -> int:
        features.row_seconds(program, rows)
        before = program.rows
        found = features.kept(program, rows, lambda: None)
        np.testing.assert_array_equal(found.inputs[0], features_of(program, rows, lambda: None)[0])
        return program.rows - before - rows.rows

    first, order = 300, np.arange(500)
    begun = written(tmp_path, "begun", order[:first])
    assert (computed(begun), computed(begun)) == (first, 0)
    del begun
    grown = written(tmp_path, "grown", order)
    assert (computed(grown), computed(grown)) == (200, 0)
    assert computed(written(tmp_path, "less", order[:first])) == first  # no rows begin with more than they are
    order[3] = 4
    assert computed(written(tmp_path, "other", order)) == 500
    assert features.bytes <= 1 << 20
    assert computed(written(tmp_path, "same", order)) == 0  # rows of another name with the same values


def written(folder: Path, name: str, places: np.ndarray) -> Dataset:
    """These digits as a data set of their own."""
    columns = {"image": IMAGES[places], "digit": c.one_hot(LABELS[places], 10)}
    files = {one: str(folder / f"{name}.{one}") for one in columns}
    for one, values in columns.items():
        values.tofile(files[one])
    return Dataset(c.DIGITS, len(places), files)


class Visits:
    """Visits of models with different frozen layers to the same rows, where there is room for the features of one.

    Each has the letter of its program, upper case where the visit computed features and kept them, lower case where it
    found them kept; - if there was no room, and so each slab computes them.
    """

    ROWS = 300

    def __init__(self, folder: Path, seconds: dict[str, float], room: int = 1) -> None:
        """``seconds``: by letter, what the features of a row are said to cost."""
        engine = tensorflow.open(None, False, None)
        self.rows = written(folder, "rows", np.arange(self.ROWS))
        self.features = Features("all", room * 4 * 24 * self.ROWS)
        self.programs = {}
        for units, (letter, cost) in enumerate(seconds.items()):
            layers = copy.deepcopy(CONVOLUTIONS)
            layers[-1]["config"]["name"] = f"wide_{units}"
            for layer in layers:
                layer["config"]["trainable"] = False
            architecture = c.sequential(c.input_layer([8, 8, 1]), *layers, *HEAD)
            self.programs[letter] = Counting(
                engine.program(c.configuration(architecture, CATEGORICAL), c.DIGITS, units, "float32")
            )
            self.features._row_seconds[self.programs[letter].features_key] = cost

    def __call__(self, letters: str) -> str:
        said = ""
        for letter in letters:
            program = self.programs[letter]
            before, found = program.rows, self.features.kept(program, self.rows, lambda: None)
            assert self.features.bytes <= self.features._most
            computed = program.rows - before
            assert computed in (0, self.ROWS) and (found is not None or not computed)
            said += "-" if found is None else letter.upper() if computed else letter
        return said


@pytest.fixture
def visits(tmp_path: Path) -> Any:
    return lambda *arguments, **more: Visits(tmp_path, *arguments, **more)


def test_models_that_take_turns_do_not_drop_each_others_features(visits: Any) -> None:
    """Dropped at each visit, they would be computed at each visit, and the time to keep them would be lost."""
    assert visits({"a": 1e-3, "b": 1e-3})("ab" * 20) == "A-" + "a-" * 19
    assert visits({"a": 1e-3, "b": 1.4e-3})("ab" * 20) == "A-" + "a-" * 19  # a measurement is not that exact
    assert visits({"a": 1e-3, "b": 1e-3, "d": 1e-3}, room=2)("abd" * 10) == "AB-" + "ab-" * 9


def test_the_features_that_save_more_time_are_kept(visits: Any) -> None:
    assert visits({"a": 1e-3, "b": 5e-3})("ab" * 10) == "AB" + "-b" * 9  # each visit saves more
    assert visits({"a": 1e-3, "b": 1e-3})("abbb" * 10).endswith("-bbb" * 8)  # more visits do
    said = visits({"a": 1e-3, "b": 2e-3, "d": 9e-3}, room=2)("abd" * 10)
    assert said == "ABD" + "-bd" * 9


def test_features_that_nobody_uses_any_more_make_room(visits: Any) -> None:
    said = visits({"a": 1e-3, "b": 1e-3})("a" * 30 + "b" * 40)
    assert said.count("A") == said.count("B") == 1 and said[-20:] == "b" * 20


def test_of_rows_that_are_trained_and_those_that_are_evaluated_the_larger_part_is_kept(tmp_path: Path) -> None:
    visited = Visits(tmp_path, {"a": 1e-3})
    program = visited.programs["a"]
    few = written(tmp_path, "few", np.arange(300, 400))
    assert visited.features.kept(program, few, lambda: None) is not None
    assert visited("a") == "A" and visited.features.kept(program, few, lambda: None) is None
    assert visited("a") == "a"


def test_frozen_weights_whose_checksum_is_known_are_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = network(5)
    architecture["config"]["layers"][-3]["config"]["units"] = 1200  # 1.2 MB
    configuration = c.configuration(architecture, CATEGORICAL)
    program: Any = tensorflow.open(None, False, None).program(configuration, c.DIGITS, 0, "float32")
    read, values_of = [], program.values_of
    monkeypatch.setattr(program, "values_of", lambda variables: read.append(len(variables)) or values_of(variables))

    def name(known: bool) -> str:
        read.clear()
        found: str = program.features_name()
        assert not read if known else read
        return found

    def state(seed: int) -> Any:
        program.initialise(configuration, seed)
        first, path = name(known=False), str(tmp_path / f"state.{seed}")
        left = state_file.write(program, path, 0, None)
        assert left.frozen is not None and name(known=seed in seen) == first == name(known=True)
        seen.add(seed)
        return (
            first,
            path,
            left.sha256,
            state_file.FrozenFile(left.frozen, state_file.frozen_path(path, left.frozen.sha256)),
        )

    seen: set[int] = set()
    states = [state(seed) for seed in (1, 2, 1)]
    assert states[0][0] == states[2][0] != states[1][0]
    for first, path, sha256, frozen in states:
        state_file.read(program, path, sha256, frozen=frozen)
        assert name(known=True) == first
    program.set_weights([np.zeros_like(weight) for weight in program.get_all()[: program.weights]])
    assert name(known=False) not in {first for first, *_ in states}


def test_a_cancel_while_they_are_computed_leaves_none(tmp_path: Path) -> None:
    program = tensorflow.open(None, False, None).program(
        c.configuration(network(5), CATEGORICAL), c.DIGITS, 0, "float32"
    )
    rows, features, heard = written(tmp_path, "rows", np.arange(600)), Features("all", 1 << 20), iter(range(5))

    def listen() -> None:
        if next(heard) == 4:  # the rows are hashed in three parts
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features.kept(program, rows, listen)
    assert features.bytes == 0
    found = features.kept(program, rows, lambda: None)
    assert found is not None
    np.testing.assert_array_equal(found.inputs[0], features_of(program, rows, lambda: None)[0])


def test_a_segment_without_rows(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, engine=USUAL_ENGINE, reuse="auto", features_mb=50)
    nothing = {"image": IMAGES[:0], "digit": c.one_hot(LABELS[:0], 10)}
    trainer.data("nothing", c.DIGITS, **nothing)
    visit = trainer.train(c.configuration(network(5), CATEGORICAL), "nothing")
    assert (visit.rows, visit.finite) == (0, True)
    trainer.close()


def test_models_of_other_weights_have_other_features(trainers: list[Trainer]) -> None:
    kept, computed = trainers
    configuration = c.configuration(network(5), CATEGORICAL)
    losses = []
    for trainer in (kept, computed):
        losses.append([trainer.train(configuration, "rows", seed=seed).loss for seed in (1, 2, 1)])
    assert losses[0][0] == losses[0][2] != losses[0][1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@on_each
def test_an_exchange_of_inputs_goes_through_the_frozen_layers(trainers: list[Trainer]) -> None:
    configuration = c.configuration(network(5), CATEGORICAL)
    exchange = Exchange([InputElements("image")], seed=3, repeats=1)
    losses = []
    for trainer in trainers:
        visit = two_visits(trainer, configuration)[1]
        model = trainer.model(configuration, full(visit), exchanges=[exchange])
        (found,) = trainer(trainer.evaluation("rows", model)).models
        losses.append([found.loss, found.exchanged[0].means["loss"][0]])
    assert losses[0][1] > losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_rows_in_another_unit_have_other_features(trainers: list[Trainer]) -> None:
    halves = {**c.DIGITS, "inputs": [{**c.DIGITS["inputs"][0], "scale": 8.0}]}
    configuration = c.configuration(network(5), CATEGORICAL)
    losses = []
    for trainer in trainers:
        trainer.data("halves", halves, image=IMAGES // 2, digit=c.one_hot(LABELS, 10))
        trainer.data("doubled", halves, image=IMAGES, digit=c.one_hot(LABELS, 10))
        losses.append([trainer.train(configuration, handle).loss for handle in ("rows", "doubled", "halves")])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert len({*losses[0]}) == 3


@on_each
def test_rows_of_a_group(trainers: list[Trainer]) -> None:
    configuration = c.configuration(network(5), CATEGORICAL)
    losses = []
    for trainer in trainers:
        model = trainer.model(configuration, full(two_visits(trainer, configuration)[1]), span=Span(70, 90))
        (found,) = trainer(trainer.evaluation("rows", model)).models
        losses.append(found.loss)
        assert found.rows == 90
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def scaled(factor: float) -> Json:
    """A frozen layer without weights that multiplies what another one gives."""
    return tower(WIDE, c.layer("Rescaling", "larger", scale=factor, offset=0.0))


def test_features_of_two_bytes(tmp_path: Path, trainers: list[Trainer]) -> None:
    """They take half the room, and the losses are the same within their precision, also where none are kept."""
    engine, losses = trainers[0].engine, []
    for features_mb in (50, 0):
        trainer = Trainer(
            tmp_path / str(features_mb), engine=engine, reuse="all", features_mb=features_mb, features_type="float16"
        )
        trainer.data("rows", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
        assert described(trainer, network(5)) == (5, 2 * 24)
        configuration = c.configuration(network(5), CATEGORICAL)
        first, second = two_visits(trainer, configuration)
        evaluated = trainer.evaluate(configuration, "rows", full(second))
        losses.append([first.loss, second.loss, evaluated.loss])
        trainer.close()
    first, second = two_visits(trainers[0], configuration)
    losses.append([first.loss, second.loss, trainers[0].evaluate(configuration, "rows", full(second)).loss])
    np.testing.assert_allclose(losses[0], losses[2], rtol=0.01)
    np.testing.assert_allclose(losses[1], losses[2], rtol=0.01)
    assert losses[0] != losses[2]


def test_features_that_two_bytes_cannot_hold_are_refused(tmp_path: Path, trainers: list[Trainer]) -> None:
    trainer = Trainer(
        tmp_path / "half", engine=trainers[0].engine, reuse="all", features_mb=50, features_type="float16"
    )
    trainer.data("rows", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    trainer.train(c.configuration(scaled(10.0), CATEGORICAL), "rows")
    with pytest.raises(OrderFailed, match="the frozen layers give numbers up to [0-9,]+; float16 holds numbers up to"):
        trainer.train(c.configuration(scaled(1e6), CATEGORICAL), "rows")
    trainer.train(c.configuration(scaled(10.0), CATEGORICAL), "rows")
    trainer.close()


def test_copies_on_a_device_are_limited(tmp_path: Path) -> None:
    """Each visit uses one data set.  Those that were used before keep their copies only while there is room."""
    jax = pytest.importorskip("jax")
    from cerebro_db.nn.engines.jax import DeviceCopies

    datasets = [written(tmp_path, str(number), np.arange(100)) for number in range(3)]
    copies = DeviceCopies(jax, 2 * datasets[0].bytes)
    on_device = []
    for place in (0, 1, 0, 2, 0, 1):
        (image, digit) = copies.columns(datasets[place])
        np.testing.assert_array_equal(np.asarray(image), datasets[place].inputs[0])
        np.testing.assert_array_equal(np.asarray(digit), datasets[place].outputs[0])
        on_device.append([number for number, one in enumerate(datasets) if one.on_device is not None])
    assert on_device == [[0], [0, 1], [0, 1], [0, 2], [0, 2], [0, 1]]
    del datasets[0]
    copies.columns(datasets[1])  # of rows that are gone there is no copy to count
    assert all(one.on_device is not None for one in datasets)
