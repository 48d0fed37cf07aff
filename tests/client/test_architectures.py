"""Pretrained models become architectures in one call: Keras models, files of Keras and safetensors, of any size."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from small_run import schema
from typer.testing import CliRunner

from cerebro_db import client
from cerebro_db.client import cli
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.models import architectures, keras_models
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import state
from cerebro_db.nn.models import build

SCHEMA = "architecture_tests"
EPOCHS = 6


@pytest.fixture(scope="module")
def cerebro(server: str) -> Iterator[Cerebro]:
    with schema(server, SCHEMA) as connection, Cerebro(connection) as found:
        yield found
        for (name,) in found.rows("SELECT name FROM cerebro.architectures"):
            found.drop_architecture(name)


def stored(cerebro: Cerebro, name: str) -> bytes:
    """The weights of an architecture, from their pieces."""
    rows = cerebro.rows("SELECT start, payload FROM cerebro.added_weights WHERE name = %s ORDER BY start", (name,))
    found = b""
    for start, payload in rows:
        assert start == len(found)
        found += bytes(payload)
    return found


def flat(model: Any) -> bytes:
    return b"".join(np.asarray(one, "<f4").tobytes() for one in model.get_weights())


def digits(*wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, and the places of their digits in the list."""
    data = load_digits()
    chosen = np.isin(data.target, wanted)
    labels = np.searchsorted(wanted, data.target[chosen])
    return (data.images[chosen] / 16).astype("float32"), np.eye(len(wanted), dtype="float32")[labels]


def small_mobile_net() -> Any:
    """As MobileNet: convolutions, depthwise and pointwise ones, with normalization; it ends in features."""
    import keras

    layers = keras.layers
    blocks = [
        (
            layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(6.0),
            layers.Conv2D(filters, 1, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(6.0),
        )
        for filters, strides in ((16, 1), (32, 2))
    ]
    stem = [layers.Reshape((8, 8, 1)), layers.Conv2D(8, 3, padding="same"), layers.ReLU(6.0)]
    return keras.Sequential(
        [keras.Input((8, 8)), *stem, *itertools.chain(*blocks), layers.GlobalAveragePooling2D()], name="body"
    )


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained in plain Keras on the digits 0 to 4, and saved."""
    import keras

    keras.utils.set_random_seed(5)
    model = small_mobile_net()
    whole = keras.Sequential([model, keras.layers.Dense(5, activation="softmax")])
    whole.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy", metrics=["accuracy"])
    history = whole.fit(*digits(0, 1, 2, 3, 4), batch_size=64, epochs=8, verbose=0)
    assert history.history["accuracy"][-1] > 0.9
    model.compile("adam", "mse")  # a body that was compiled itself is a body, too
    path = tmp_path_factory.mktemp("body") / "body.keras"
    model.save(path)
    return path


def with_head(body: Path, *, functional: bool = False) -> Any:
    """What a user of Keras does: load the body, freeze it, put a head behind it."""
    import keras

    keras.utils.set_random_seed(11)
    loaded = keras.models.load_model(body)
    loaded.trainable = False
    head = keras.layers.Dense(5, activation="softmax", name="head")
    if not functional:
        return keras.Sequential([keras.Input((8, 8)), loaded, head], name="digits")
    inputs = keras.Input((8, 8))
    return keras.Model(inputs, head(loaded(inputs)), name="digits")


def test_a_frozen_body_trains_as_in_keras(cerebro: Cerebro, body: Path) -> None:
    """Transfer learning from digits 0 to 4 to digits 5 to 9. All rows are one batch, so their order does not matter."""
    import keras

    models = {"sequential": with_head(body), "functional": with_head(body, functional=True)}
    images, labels = digits(5, 6, 7, 8, 9)
    cerebro.rows("CREATE TABLE digits AS SELECT i AS id, image, digit FROM unnest(%s, %s) AS u (i, digit),"
                 " LATERAL (SELECT %s::json -> i::integer AS pixels) p,"
                 " LATERAL (SELECT ARRAY(SELECT ARRAY(SELECT json_array_elements_text(line)::real)"
                 " FROM json_array_elements(pixels) line) AS image) a",
                 (list(range(len(images))), [5 + int(one) for one in labels.argmax(1)],
                  json.dumps(images.tolist())))  # fmt: skip
    for name, model in models.items():
        said = cerebro.add_architecture(name, model)
        assert said == f"{name} is an architecture with {len(flat(model)) // 4:,} weights to start from"
        assert stored(cerebro, name) == flat(model) == flat(models["sequential"])
    more = {"optimizer": "Adam", "learning_rate": 0.1, "batch_size": len(images), "passes": 1}
    run = cerebro.fit(
        "digits", "digits_models", [{"architecture": name, **more} for name in models],
        target="digit", inputs="image", validation=0, segments=1, epochs=EPOCHS,
        options={"seed": 3, "reuse": "all"},
    )  # fmt: skip
    built = cerebro.rows("SELECT detail FROM cerebro.event WHERE run = %s AND event = 'built'", (run.run,))
    assert {detail["feature_bytes"] for (detail,) in built} == {4 * 32}  # the features of a row are kept
    model = models["sequential"]  # the other one is the same to Keras
    model.compile(keras.optimizers.Adam(0.1), "categorical_crossentropy")
    there = []
    for _ in range(EPOCHS):
        there += model.fit(images, labels, batch_size=len(images), epochs=1, verbose=0).history["loss"]
    before = keras.models.load_model(body).get_weights()
    for configuration in (1, 2):
        here = [one.training_loss for one in run.learning_curve() if one.configuration == configuration]
        assert here == pytest.approx(there, rel=1e-3) and here[-1] < 0.9 * here[0]
        trained = cerebro.model("digits_models", configuration)
        for one, other in zip(trained.get_weights(), before):  # the body is as it was
            np.testing.assert_array_equal(one, other)
        assert not np.array_equal(trained.get_weights()[-2], with_head(body).get_weights()[-2])


def test_a_file_of_keras(cerebro: Cerebro, body: Path, tmp_path: Path) -> None:
    whole = with_head(body)
    whole.save(tmp_path / "whole.keras")
    cerebro.add_architecture("from_file", tmp_path / "whole.keras", description="a body and a head")
    assert stored(cerebro, "from_file") == flat(whole)
    described = "SELECT weights, description FROM cerebro.architectures WHERE name = 'from_file'"
    assert cerebro.rows(described) == [(len(flat(whole)) // 4, "a body and a head")]
    ((text,),) = cerebro.rows("SELECT architecture::text FROM cerebro.added_architecture WHERE name = 'from_file'")
    layers = {one["config"]["name"]: one["config"] for one in json.loads(text)["config"]["layers"]}
    assert {one["config"].get("trainable", False) for one in layers["body"]["layers"]} == {False}
    assert layers["head"]["trainable"] is True
    cerebro.drop_architecture("from_file")
    assert stored(cerebro, "from_file") == b"" and cerebro.rows(described) == []


def test_weights_in_many_pieces(cerebro: Cerebro) -> None:
    """Weights above the size of a piece, in arrays that do not end where pieces end."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(700_001), keras.layers.Dense(1)])
    cerebro.add_architecture("wide", model)
    found = cerebro.rows("SELECT count(*), max(octet_length(payload)) FROM cerebro.added_weights WHERE name = 'wide'")
    assert found[0][0] >= 5 and found[0][1] == state.PIECE
    assert stored(cerebro, "wide") == flat(model)
    cerebro.rows("CREATE TABLE points AS SELECT i * 0.1 AS a, i * 0.2 AS b, sin(i) AS c, i::real AS y"
                 " FROM generate_series(1, 100) i")  # fmt: skip
    cerebro.fit("points", "wide_models", [{"architecture": "wide", "learning_rate": 0.0, "optimizer": "SGD",
                                           "weight_decay": None}], target="y", epochs=1, validation=0)  # fmt: skip
    assert flat(cerebro.model("wide_models")) == flat(model)  # a learning rate of 0 changes nothing
    cerebro.drop_architecture("wide")


def test_pieces_that_are_missing(cerebro: Cerebro) -> None:
    """A user may write rows of their own, and spoils nobody's architecture but their own."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    cerebro.add_architecture("spoiled", model)
    cerebro.rows("INSERT INTO cerebro.added_weights (name, start, payload) VALUES ('spoiled', 100, 'abcd')")
    with pytest.raises(client.ServerError, match="have 20 bytes, and the first 16 of them can be read"):
        cerebro.fit("points", "spoiled_models", [{"architecture": "spoiled"}], target="y", epochs=1)
    for start, payload in ((-1, b"abcd"), (4, b""), (4, bytes((16 << 20) + 1))):
        with pytest.raises(client.ServerError, match="check constraint"):
            cerebro.rows("INSERT INTO cerebro.added_weights (name, start, payload) VALUES ('spoiled', %s, %s)",
                         (start, psycopg2.Binary(payload)))  # fmt: skip
    cerebro.drop_architecture("spoiled")


def test_json_without_weights(cerebro: Cerebro, tmp_path: Path) -> None:
    """With parameters, too; as a text, a dictionary and a file."""
    layers = [{"class_name": "InputLayer", "config": {"batch_shape": [None, 3]}, "module": "keras.layers"},
              {"class_name": "Dense", "config": {"units": "$width"}, "module": "keras.layers"}]  # fmt: skip
    document = {"class_name": "Sequential", "config": {"layers": layers}, "module": "keras"}
    (tmp_path / "tower.json").write_text(json.dumps(document))
    for given in (document, json.dumps(document), tmp_path / "tower.json", str(tmp_path / "tower.json")):
        assert "without weights" in cerebro.add_architecture("tower", given)
        found = cerebro.rows("SELECT parameter_names, weights FROM cerebro.architectures WHERE name = 'tower'")
        assert found == [(["width"], None)]
        cerebro.drop_architecture("tower")


def test_weights_of_safetensors(cerebro: Cerebro, server: str, tmp_path: Path) -> None:
    """By names, whatever order and types they have; and one after the other."""
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="b"), keras.layers.Dense(4, name="a")])
    random = np.random.default_rng(2)
    values = {one.path: random.normal(size=one.shape).astype("float32") for one in model.weights}
    path, first = tmp_path / "w.safetensors", model.weights[0].path
    save_file({**values, "optimizer/more": np.zeros(7, "int64")}, path)
    wanted = b"".join(values[one.path].tobytes() for one in model.weights)
    (tmp_path / "m.json").write_text(model.to_json())
    for given in (model, model.to_json(), tmp_path / "m.json"):
        cerebro.add_architecture("named", given, path)
        assert stored(cerebro, "named") == wanted
        cerebro.drop_architecture("named")
    save_file({name: one.astype("float16") for name, one in values.items()}, path)
    cerebro.add_architecture("halves", model, path)
    assert stored(cerebro, "halves") == b"".join(
        values[one.path].astype("float16").astype("float32").tobytes() for one in model.weights
    )
    save_file({f"{place}": values[one.path] for place, one in enumerate(model.weights)}, path)
    said: Any = CliRunner().invoke(
        cli.app, ["import", str(tmp_path / "m.json"), "ordered", "--weights", str(path), "--by-order", "--dsn",
                  server],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert stored(cerebro, "ordered") == wanted
    with pytest.raises(client.ClientError) as caught:
        cerebro.add_architecture("misnamed", model, path)
    assert caught.value.message == (
        "w.safetensors does not fit the model: b/kernel (3, 4) is not in it; b/bias (4,) is not in it;"
        " a/kernel (4, 4) is not in it; a/bias (4,) is not in it."
    )
    assert "It has 0, 1, 2, 3, which no weight is called." in str(caught.value.hint)
    save_file({**values, first: values[first].T.copy()}, path)
    with pytest.raises(client.ClientError, match=r"b/kernel \(3, 4\): b/kernel has F32 \(4, 3\)"):
        cerebro.add_architecture("transposed", model, path)
    save_file({first: values[first]}, path)
    with pytest.raises(client.ClientError, match="it has 1 tensors, and the model 4 weights"):
        cerebro.add_architecture("short", model, path, by="order")
    left = {name for (name,) in cerebro.rows("SELECT name FROM cerebro.architectures")}
    assert not left & {"misnamed", "transposed", "short"}


class Unknown:
    """Not a model."""


def refused() -> Iterator[tuple[str, Any, str]]:
    import keras

    layers = keras.layers
    code = keras.Sequential([keras.Input((3,)), layers.Lambda(lambda x: x, name="code")])
    yield "a lambda", code, "the layer Lambda|Lambda"
    yield "within a body", keras.Sequential([keras.Input((3,)), code]), "Lambda"
    yield "not built", keras.Sequential([layers.Dense(3)], name="flexible"), "'flexible' has no weights yet"

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    own = Own()
    own(np.zeros((1, 2)))
    yield "a class", own, "must be Sequential or Functional, not Own"
    yield "no model", Unknown(), "A Unknown is no model"
    yield "no JSON", "{", "cannot be read as JSON"
    yield "no file", "nowhere.keras", "There is no file nowhere.keras"


def test_what_is_refused(cerebro: Cerebro, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is sent."""

    def sent(*_: Any) -> Any:
        raise AssertionError("a statement was sent")

    with monkeypatch.context() as patched:
        patched.setattr(Cerebro, "transaction", sent)
        for name, model, why in refused():
            with pytest.raises(client.ClientError) as caught:
                cerebro.add_architecture("refused", model)
            assert re.search(why, str(caught.value)), name
        with pytest.raises(client.ClientError, match="w.bin is no file of safetensors"):
            cerebro.add_architecture("refused", "{}", "w.bin")
        with pytest.raises(client.ClientError, match="by cannot be 'luck'"):
            cerebro.add_architecture("refused", "{}", by="luck")  # type: ignore[arg-type]
    assert cerebro.rows("SELECT name FROM cerebro.architectures WHERE name = 'refused'") == []


def test_an_error_on_the_way_leaves_nothing(cerebro: Cerebro, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    def torn(array: np.ndarray) -> Iterator[memoryview]:
        yield memoryview(b"abcd")
        raise OSError("the disk is gone")

    monkeypatch.setattr(architectures, "_pieces", torn)
    with pytest.raises(OSError, match="the disk is gone"):
        cerebro.add_architecture("torn", keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    assert stored(cerebro, "torn") == b""
    assert cerebro.rows("SELECT name FROM cerebro.architectures WHERE name = 'torn'") == []


def test_a_dump_has_the_weights(cerebro: Cerebro) -> None:
    found = cerebro.rows("SELECT 'cerebro.added_weights'::regclass::oid = ANY (extconfig) FROM pg_extension"
                         " WHERE extname = 'cerebro_db'")  # fmt: skip
    assert found == [(True,)]


def test_frozen_attention_stays_frozen() -> None:
    """Keras forgets it when it reads the model."""
    import keras

    inputs = keras.Input((6, 8))
    body = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 4)(inputs, inputs))
    body.trainable = False
    model = keras.Sequential([keras.Input((6, 8)), body, keras.layers.Flatten(), keras.layers.Dense(2)])
    assert len(model.trainable_weights) == 2
    assert len(keras_models.built(model.to_json(), None).trainable_weights) == 2


ENORMOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "RepeatVector": ("few", {"n": 10**9}),
    "UpSampling2D": ("image", {"size": [10**5, 10**5]}),
    "ZeroPadding1D": ("rows", {"padding": [10**9, 0]}),
    "MultiHeadAttention": ("attention", {"n": 50_000}),  # of the layer before it: the scores are enormous
    "TimeDistributed": ("each", {"n": 10**9}),
}


@pytest.mark.parametrize("layer", ENORMOUS)
def test_layers_without_weights_have_a_bound_too(layer: str) -> None:
    """A few bytes of JSON would make whoever builds the model compute gigabytes for each row."""
    import keras
    from keras import layers

    named, large = ENORMOUS[layer]
    few, rows, image = keras.Input((4,)), keras.Input((4, 4)), keras.Input((4, 4, 1))
    repeated = layers.RepeatVector(3)(few)
    model = {
        "few": keras.Model(few, repeated),
        "image": keras.Model(image, layers.UpSampling2D(3)(image)),
        "rows": keras.Model(rows, layers.ZeroPadding1D(3)(rows)),
        "attention": keras.Model(few, layers.MultiHeadAttention(2, 2)(repeated, repeated)),
        "each": keras.Sequential([keras.Input((4, 4)), layers.TimeDistributed(layers.RepeatVector(3))]),
    }[named]
    assert keras_models.bytes_of_weights(model.to_json(), None) >= 0
    text = model.to_json()
    for name, value in large.items():
        text = re.sub(rf'"{name}": (\[[^]]*\]|[0-9]+)', f'"{name}": {json.dumps(value)}', text)
    for use in (keras_models.bytes_of_weights, keras_models.built):
        with pytest.raises(client.ClientError, match=r"computes [0-9,]+ values of each row; at most 268,435,456"):
            use(text, None)
    configuration = {"architecture": json.loads(text), "compile": {}, "fit": {}}
    with pytest.raises(CerebroError, match=r"computes [0-9,]+ values of each row"):
        build.build_to_predict(configuration, None)
