"""Adapters in Keras: what they compute, that nothing else trains, and the order of a state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cerebro_db.core.architecture import keras_json, sources
from cerebro_db.core.protocol import MergeAdapters, Predict, StateRef
from tests.thorough import landing

from . import configurations as c
from .test_shards import MOODS, WORDS, dense, transformer
from .trainer_client import USUAL_ENGINE, OrderFailed, Trainer, full, weights

Json = dict[str, Any]
ENGINES = ["tensorflow", "jax", "torch"]
SORTS: dict[str, Json] = {
    "lora": {"lora_rank": 2, "lora_alpha": 3},
    "lora of all": {"lora_rank": 2, "adapter_layers": "*"},
    "lora with dropout": {"lora_rank": 2, "lora_dropout": 0.3, "adapter_layers": "*"},
    "bottleneck": {"bottleneck": 3},
    "biases": {"biases": True},
    "together": {"lora_rank": 2, "bottleneck": 3, "biases": True},
}
CATEGORICAL = "categorical_crossentropy"


def without_dropout() -> Json:
    model = transformer()
    for layer in model["config"]["layers"]:
        layer["config"].update({name: 0.0 for name in ("dropout", "rate") if name in layer["config"]})
    return model


def adapted(**values: Any) -> Json:
    return sources.made(without_dropout(), values)


def built(architecture: Json, weights: Any = None) -> Any:
    from cerebro_db.nn.models.build import build_model

    return build_model(c.configuration(architecture, CATEGORICAL, metrics=[]), None, seed=3, weights=weights)


def given() -> list[np.ndarray]:
    """Weights for the layers."""
    random = np.random.default_rng(1)
    return [random.normal(0, 0.3, one.shape).astype("f4") for one in built(without_dropout()).weights]


@pytest.mark.tensorflow
@pytest.mark.parametrize("sort", SORTS)
def test_a_model_begins_as_it_is_without_adapters_and_only_these_and_the_head_train(sort: str) -> None:
    from cerebro_db.core.architecture.adapters import layers as adapters

    weights = given()
    plain = built(sources.made(without_dropout(), {"frozen": -1}), weights)
    model = built(adapted(**SORTS[sort]), weights)
    assert np.array_equal(model(WORDS[:9]), plain(WORDS[:9]))
    order = adapters.weights(model)
    assert [one.numpy().tobytes() for one in order[: len(weights)]] == [one.tobytes() for one in weights]
    added = order[len(weights) :]
    assert added and all(map(adapters.are, added)) and not any(map(adapters.are, order[: len(weights)]))
    trains = {id(one) for one in model.trainable_variables}
    assert trains == {id(one) for one in [*added, *order[len(weights) - 2 : len(weights)]]}


@pytest.mark.tensorflow
def test_a_low_rank_product_is_that_of_a_larger_matrix() -> None:
    from cerebro_db.core.architecture.adapters import layers as adapters

    weights = given()
    model = built(adapted(lora_rank=2, lora_alpha=3, adapter_layers="*"), weights)
    random = np.random.default_rng(2)
    for one in adapters.weights(model)[len(weights) :]:
        one.assign(random.normal(0, 0.3, one.shape))
    merged = built(without_dropout(), weights)
    paths = {one.path: one for one in model.weights}
    changed = 0
    for variable in merged.weights:
        layer, _, name = variable.path.rpartition("/")
        ends = "lora_embeddings_" if name == "embeddings" else "lora_kernel_"
        if f"{layer}/{ends}a" in paths and name in ("embeddings", "kernel"):
            a, b = (paths[f"{layer}/{ends}{one}"].numpy() for one in "ab")
            variable.assign_add(1.5 * (a @ b).reshape(variable.shape))
            changed += 1
    assert changed == 1 + 2 * (4 + 2)  # the embedding, and of two blocks attention and two matrices
    np.testing.assert_allclose(model(WORDS[:9]), merged(WORDS[:9]), atol=1e-5)
    assert not np.allclose(model(WORDS[:9]), built(without_dropout(), weights)(WORDS[:9]), atol=1e-2)


@pytest.mark.tensorflow
def test_differences_of_biases_are_those_of_larger_biases() -> None:
    from cerebro_db.core.architecture.adapters import layers as adapters

    weights = given()
    model, merged = built(adapted(biases=True), weights), built(without_dropout(), weights)
    random = np.random.default_rng(2)
    paths = {one.path: one for one in merged.weights}
    added = adapters.weights(model)[len(weights) :]
    for one in added:
        one.assign(random.normal(0, 0.3, one.shape))
        paths[one.path.removesuffix("_difference")].assign_add(one.numpy())
    assert len(added) == 2 * (4 + 1 + 2)  # of two blocks: attention, a normalization and two matrices
    np.testing.assert_allclose(model(WORDS[:9]), merged(WORDS[:9]), atol=1e-5)


@pytest.mark.tensorflow
def test_a_bottleneck_adds_to_what_a_layer_gives() -> None:
    import keras

    from cerebro_db.core.architecture.adapters import layers as adapters

    network = c.sequential(c.input_layer([4]), dense("wide", 6, activation="tanh"), dense("out", 2))
    model = built(sources.made(network, {"bottleneck": 3}))
    random = np.random.default_rng(2)
    down, down_bias, up, up_bias = adapters.weights(model)[4:]
    for one in (down, down_bias, up, up_bias):
        one.assign(random.normal(0, 0.5, one.shape))
    rows = random.normal(size=(5, 4)).astype("f4")
    wide = keras.Model(model.inputs, model.get_layer("wide").output)
    kernel, bias = (one.numpy() for one in adapters.weights(model)[:2])
    inner = np.tanh(rows @ kernel + bias)
    wanted = inner + np.maximum(inner @ down.numpy() + down_bias.numpy(), 0) @ up.numpy() + up_bias.numpy()
    np.testing.assert_allclose(wide(rows), wanted, atol=1e-5)


@pytest.mark.tensorflow
def test_adapters_train_in_a_body_that_is_a_frozen_layer() -> None:
    import keras

    rows, inner = keras.Input((4,), name="rows"), keras.Input((4,), name="inner")
    body = keras.Model(inner, keras.layers.Dense(6, name="wide")(inner), name="body")
    body.trainable = False
    model = keras.Model(rows, keras.layers.Dense(2, name="out")(body(rows)))
    found = built(sources.made(keras_json.architecture(model.to_json()), {"lora_rank": 2}))
    assert [one.path for one in found.trainable_variables] == [
        "wide/lora_kernel_a", "wide/lora_kernel_b", "out/kernel", "out/bias",
    ]  # fmt: skip
    assert len(found.get_layer("body").trainable_variables) == 2


@pytest.fixture(scope="module", params=landing(ENGINES, USUAL_ENGINE))
def trainers(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trainer]]:
    """Two of one engine: a model hops between them."""
    found = []
    for number in range(2):
        trainer = Trainer(tmp_path_factory.mktemp(f"adapters_{number}"), engine=request.param, reuse="none")
        trainer.data("words", c.SENTENCES, words=WORDS, mood=MOODS)
        found.append(trainer)
    yield found
    for trainer in found:
        trainer.close()


@pytest.mark.parametrize("sort", SORTS)
def test_training_changes_the_adapters_and_the_head_alone(trainers: list[Trainer], sort: str) -> None:
    ours = c.configuration(adapted(**SORTS[sort]), CATEGORICAL, "Adam", learning_rate=0.02)
    one, other = trainers
    first = one.train(ours, "words", seed=4, out=str(one.folder / "first"))
    second = other.train(ours, "words", full(first), shuffle_seed=2, out=str(other.folder / "second"))
    again = one.train(ours, "words", full(first), shuffle_seed=2, out=str(one.folder / "second"))
    assert second.state.sha256 == again.state.sha256
    before, after = (load_file(visit.path) for visit in (first, second))
    body = len(given()) - 2
    changed = [name for name in before if before[name].tobytes() != after[name].tobytes()]
    weights = [name for name in before if int(name.partition("|")[0]) < body]
    assert len(weights) == body and not set(weights) & set(changed)
    assert sum("lora" in name or "difference" in name or "down" in name or "up" in name for name in changed) > 3
    assert second.loss < first.loss


MERGED: dict[str, Json] = {
    "lora": {**SORTS["lora of all"], "biases": True},  # attention, an embedding, and matrices
    "lora with dropout": SORTS["lora with dropout"],
    "biases": SORTS["biases"],
}


@pytest.mark.parametrize("sort", MERGED)
def test_a_trainer_adds_adapters_to_the_weights_of_their_layers(trainers: list[Trainer], sort: str) -> None:
    trainer, architecture = trainers[0], adapted(**MERGED[sort])
    ours = c.configuration(architecture, CATEGORICAL, "Adam", learning_rate=0.02)
    visit = trainer.train(ours, "words", seed=4, out=str(trainer.folder / "first"))
    start, size = visit.state.weights_offset, visit.state.weights_bytes
    path, out = trainer.folder / "weights", str(trainer.folder / "predicted")

    def predicted(configuration: Json, payload: bytes) -> np.ndarray:
        other = trainer.folder / hashlib.sha256(payload).hexdigest()  # a trainer knows weights by their names
        other.write_bytes(payload)
        trainer(Predict(configuration, weights(other), out, handle="words"))
        return np.fromfile(f"{out}.0", "<f4")

    before = Path(visit.path).read_bytes()[start : start + size]
    path.write_bytes(before)
    trainer(MergeAdapters(architecture, [list(WORDS.shape[1:])], weights(path)))
    after, with_adapters = path.read_bytes(), predicted(ours, before)
    plain = c.configuration(without_dropout(), CATEGORICAL, "Adam")
    assert len(after) == 4 * sum(one.size for one in given()) < len(before)
    np.testing.assert_allclose(predicted(plain, after), with_adapters, atol=1e-5)
    difference = np.abs(predicted(plain, before[: len(after)]) - with_adapters).max()
    assert difference > 1e-2, "the adapters have learned something"
    with pytest.raises(OrderFailed, match="the architecture needs"):
        trainer(MergeAdapters(architecture, [list(WORDS.shape[1:])], weights(path)))
    with pytest.raises(OrderFailed, match="were not received"):
        trainer(MergeAdapters(architecture, [list(WORDS.shape[1:])], StateRef.weights("none")))


@pytest.mark.tensorflow
@pytest.mark.parametrize("sort", ["lora with dropout", "together"])
def test_a_cut_model_has_the_bits_of_a_whole_one(tmp_path: Path, sort: str) -> None:
    ours = c.configuration(adapted(**SORTS[sort]), CATEGORICAL, "Adam", learning_rate=0.02)
    found = []
    for shard in ("never", 3):
        folder = tmp_path / str(shard)
        folder.mkdir()
        trainer = Trainer(folder, engine="tensorflow", shard=shard)
        trainer.data("words", c.SENTENCES, words=WORDS, mood=MOODS)
        visit = trainer.train(ours, "words", seed=4, out=str(folder / "first"))
        found.append((visit.state.sha256, hashlib.sha256(Path(visit.path).read_bytes()).hexdigest(), visit.loss))
        trainer.close()
    assert found[0] == found[1]


def test_layers_below_the_first_adapter_are_computed_once(tmp_path: Path) -> None:
    from cerebro_db.core.protocol import Describe

    trainer = Trainer(tmp_path, engine=USUAL_ENGINE, reuse="all")
    trainer.data("words", c.SENTENCES, words=WORDS, mood=MOODS)
    layers = {}
    for pattern in ("attention0/*", "attention1/*"):
        ours = c.configuration(adapted(lora_rank=2, adapter_layers=pattern), CATEGORICAL, "Adam")
        layers[pattern] = trainer(Describe(ours, c.SENTENCES, [])).frozen_layers
    trainer.close()
    assert layers["attention0/*"] <= 1 < 6 <= layers["attention1/*"]
    assert keras_json.architecture(adapted(lora_rank=2))
