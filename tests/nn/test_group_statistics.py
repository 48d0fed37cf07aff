"""A model of a group with the parameter group_statistics measures its numbers by the rows of its group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy

from cerebro_db.core.architecture import building
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.protocol import Span
from cerebro_db.nn.models import group_statistics
from tests.core.test_building import EVERY, NUMBERS, PRICE, layout, windowed

from . import configurations as c
from .trainer_client import Trainer, full, visits_of, weights

MEASURED = c.configuration(c.binned(group_statistics=1), "mse", "SGD", learning_rate=0.0)
LEARNING = {"learning_rate": 0.01, "epochs": 2}
SPAN = Span(30, 50)
ROWS = slice(SPAN.start, SPAN.start + SPAN.rows)
WEIGHTS = 10  # arrays of the model
COLUMNS = c.made_up(120, 5)
COLUMNS["facts"][ROWS] = COLUMNS["facts"][ROWS] * [3, 0.001, 1, 0] + [10, 0, -2, 7]
COLUMNS["price"][ROWS] += 1000


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("statistics"), engine=request.param)
    trainer.data("all", c.PRICES, **COLUMNS)
    yield trainer
    trainer.close()


def trained(trainer: Trainer, configuration: c.Json = MEASURED, state: Any = None, **more: Any) -> Any:
    member = replace(trainer.member(configuration, state), **more)
    (group,) = trainer.train_groups("all", [[member]])
    (visit,) = visits_of([member], group)
    return visit


def of_layers(path: str) -> list[np.ndarray]:
    """The numbers of the layers with statistics: mean and variance of the inputs; deviation and mean of the target."""
    tensors = safetensors.numpy.load_file(path)
    names = [name for name in sorted(tensors) if "group_inputs" in name or "group_target" in name]
    assert len(names) == 4
    return [tensors[name] for name in names]


@pytest.mark.parametrize("more", [{"learning_rate": 0.0}, LEARNING], ids=["untrained", "trained"])
def test_the_numbers_are_those_of_the_group(trainer: Trainer, more: dict[str, Any]) -> None:
    configuration = c.configuration(c.binned(group_statistics=1), "mse", "Adam", **more)
    mean, variance, deviation, offset = of_layers(trained(trainer, configuration, span=SPAN).path)
    facts, price = COLUMNS["facts"][ROWS].astype(float), COLUMNS["price"][ROWS].astype(float)
    np.testing.assert_allclose(mean, facts.mean(axis=0), rtol=1e-6)
    least = group_statistics.LEAST_DEVIATION
    np.testing.assert_allclose(variance, [facts[:, 0].var(), least**2, facts[:, 2].var(), 1], rtol=1e-6)
    np.testing.assert_allclose([*deviation, *offset], [price.std(), price.mean()], rtol=1e-6)


def test_the_first_predictions_are_the_mean_of_the_group(trainer: Trainer) -> None:
    visit = trained(trainer, span=SPAN)
    price = COLUMNS["price"][ROWS].astype(float)
    assert visit.loss == pytest.approx(price.var(), rel=1e-4)
    (evaluated,) = trainer(trainer.evaluation("all", trainer.model(MEASURED, full(visit), span=SPAN))).models
    assert evaluated.loss == pytest.approx(price.var(), rel=1e-4)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_16_bits_do_not_lose_the_difference(trainer: Trainer, precision: str) -> None:
    """Numbers far from 0, in a group where they hardly differ, and a target that 16 bits cannot have."""
    columns = c.made_up(120, 5)
    columns = {"facts": 10 + 0.1 * columns["facts"], "price": 1e6 + 1000 * columns["price"]}
    trainer.data("far", c.PRICES, **columns)
    architecture = computed_in(c.binned(group_statistics=1, bins=0, linear=1), precision)
    configuration = c.configuration(architecture, "mse", "Adam", learning_rate=0.02, epochs=80)
    member = replace(trainer.member(configuration), span=SPAN)
    (group,) = trainer.train_groups("far", [[member]])
    (visit,) = visits_of([member], group)
    (evaluated,) = trainer(trainer.evaluation("far", trainer.model(configuration, full(visit), span=SPAN))).models
    assert evaluated.loss < 0.2 * columns["price"][ROWS].astype(float).var()


def test_the_next_layers_read_numbers_around_0(trainer: Trainer) -> None:
    """A model of the group learns what it learns from the group's rows, measured by hand."""
    facts, price = (COLUMNS[name][ROWS].astype(float) for name in ("facts", "price"))
    rows = np.arange(SPAN.rows)
    mean, variance = group_statistics.of_inputs(facts, rows, lambda: None)
    (deviation,), (offset,) = group_statistics.of_target(price.reshape(-1, 1), rows, np.array([2.0]), lambda: None)
    trainer.data("by hand", c.PRICES, facts=(facts - mean) / np.sqrt(variance), price=(price - offset) / deviation * 2)
    plain, measured = (
        c.configuration(c.binned(bins=0, embedding=0, **more), "mse", "SGD", learning_rate=rate, epochs=3)
        # The loss is in the unit of the target, and so is the gradient: 2 is the deviation that packing has.
        for more, rate in (({}, 0.01), ({"group_statistics": 1}, 0.01 * (2 / float(deviation)) ** 2))
    )
    expected = trainer.train(plain, "by hand")
    found = trained(trainer, measured, span=SPAN)
    assert found.loss == pytest.approx(expected.loss * (float(deviation) / 2) ** 2, rel=1e-3)


def test_a_model_on_all_rows_has_the_numbers_of_packing(trainer: Trainer) -> None:
    mean, variance, deviation, offset = of_layers(trained(trainer).path)
    assert (list(mean), list(variance), deviation.item(), offset.item()) == ([0] * 4, [1] * 4, 2, 0)
    plain = trained(trainer, c.configuration(c.binned(), "mse", "SGD", learning_rate=0.0))
    assert plain.loss == pytest.approx(trained(trainer).loss, rel=1e-6)


def test_without_rows_nothing_is_measured(trainer: Trainer) -> None:
    _, variance, deviation, offset = of_layers(trained(trainer, span=Span(5, 0)).path)
    assert (list(variance), deviation.item(), offset.item()) == ([1] * 4, 2, 0)


def test_they_are_measured_once(trainer: Trainer) -> None:
    """Later visits, other segments and a start from weights keep them: the weights were learned with them."""
    first = trained(trainer, span=SPAN)
    path = str(trainer.folder / "first")
    Path(first.path).rename(path)
    tensors = safetensors.numpy.load_file(path)
    of_model = [tensors[name] for name in sorted(tensors)[:WEIGHTS]]
    Path(path + ".weights").write_bytes(b"".join(one.tobytes() for one in of_model))
    for given in (replace(full(first), path=path, name=path), weights(path + ".weights")):
        again = trained(trainer, state=given, span=Span(0, 20), out=str(trainer.folder / "again"))
        for left, right in zip(of_layers(path), of_layers(again.path)):
            assert left.tobytes() == right.tobytes()


def test_another_group_and_fused_models_have_their_own(trainer: Trainer) -> None:
    fast, slow = (
        c.configuration(c.binned(group_statistics=1), "mse", "Adam", learning_rate=rate) for rate in (0.01, 0.001)
    )
    alone = [of_layers(trained(trainer, fast, span=span).path) for span in (SPAN, Span(0, 30))]
    assert not any(np.array_equal(left, right) for left, right in zip(*alone))
    members = [replace(trainer.member(one, out=place), span=Span(0, 30)) for place, one in enumerate((fast, slow))]
    (group,) = trainer.train_groups("all", [members])
    if group.error is not None:
        assert trainer.engine != "jax" and "fuse" in group.error.message
        return
    for visit in visits_of(members, group):
        for left, right in zip(of_layers(visit.path), alone[1]):
            np.testing.assert_array_equal(left, right)


def test_with_folds_the_rows_of_other_folds_count(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    folds = {**c.PRICES, "fold": [{"name": "fold", "dtype": "int16", "shape": []}]}
    fold = np.arange(120) % 3 + 1
    trainer.data("all", folds, fold=fold, **COLUMNS)
    _, _, _, offset = of_layers(trained(trainer, span=SPAN, fold=2).path)
    assert offset.item() == pytest.approx(COLUMNS["price"][ROWS][fold[ROWS] != 2].mean(), rel=1e-6)
    trainer.close()


@pytest.mark.parametrize("kind", [kind for kind, its in building.PARAMETERS.items() if "group_statistics" in its])
def test_every_kind_has_them(kind: str) -> None:
    packed = layout(EVERY, PRICE)
    if kind == "cnn_lstm":  # it reads windows only
        packed = replace(layout([windowed(NUMBERS)], PRICE), windows=Windows(("who",), ("at",), 20, 20, "last"))
    built = building.architecture(kind, packed, {"group_statistics": 1}, "test")
    model = keras.Model.from_config(built["config"])
    measured = [(layer.name, is_target) for layer, _, is_target in group_statistics.layers(model)]
    assert measured == [("group_inputs_1", False), ("group_target_1", True)]
    assert not any("group_" in one.path for one in model.trainable_variables)


@pytest.mark.parametrize(
    "own",
    [
        keras.layers.BatchNormalization(trainable=False, name="group_inputs_1"),
        keras.layers.BatchNormalization(center=False, scale=False, name="group_inputs_1"),
        keras.layers.BatchNormalization(center=False, scale=False, trainable=False, name="group_inputs_norm"),
        keras.layers.Dense(2, trainable=False, name="group_inputs_1"),
        keras.layers.Dense(2, trainable=False, name="group_target_1"),
        keras.layers.EinsumDense("bf,fe->be", [2], bias_axes="e", trainable=False, name="group_target_1"),
    ],
    ids=lambda layer: f"{type(layer).__name__} {layer.name}",
)
def test_a_layer_of_ones_own_is_left_alone(own: Any) -> None:
    model = keras.Sequential([keras.layers.Input([2]), own, keras.layers.Activation("linear")])
    assert list(group_statistics.layers(model)) == []


def test_a_layer_that_is_called_twice_is_left_alone() -> None:
    left, right = keras.layers.Input([2]), keras.layers.Input([2])
    own = keras.layers.BatchNormalization(center=False, scale=False, trainable=False, name="group_inputs_1")
    model = keras.Model([left, right], keras.layers.Add()([own(left), own(right)]))
    assert list(group_statistics.layers(model)) == []


def test_windows_and_equal_values() -> None:
    """Moments over parts of the rows, and over the steps of windows, are those of NumPy."""
    values = np.random.default_rng(1).normal(7, 3, (5000, 6, 4)).astype("float32")
    values[..., 2] = 5
    rows = np.arange(1000, 4500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_statistics, "BYTES_AT_ONCE", 7000)
        mean, variance = group_statistics.of_inputs(values, rows, lambda: None)
        deviation, offset = group_statistics.of_target(values[:, 0], rows, np.full(4, 9.0), lambda: None)
    taken = values[rows].reshape(-1, 4).astype(float)
    np.testing.assert_allclose(mean, taken.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(variance, [*taken[:, :2].var(axis=0), 1, taken[:, 3].var()], rtol=1e-6)
    first = values[rows, 0].astype(float)
    np.testing.assert_allclose(deviation, [*first[:, :2].std(axis=0), 9, first[:, 3].std()], rtol=1e-6)
    np.testing.assert_allclose(offset, first.mean(axis=0), rtol=1e-6)
