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
from cerebro_db.core.protocol import Span
from cerebro_db.nn.models import group_statistics
from tests.core.test_building import EVERY, PRICE, layout

from . import configurations as c
from .trainer_client import OrderFailed, Trainer, full, visits_of, weights

MEASURED = c.configuration(c.binned(group_statistics=1), "mse", "SGD", learning_rate=0.0)
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


def test_the_numbers_are_those_of_the_group(trainer: Trainer) -> None:
    mean, variance, deviation, offset = of_layers(trained(trainer, span=SPAN).path)
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


def test_a_model_on_all_rows_has_the_numbers_of_packing(trainer: Trainer) -> None:
    mean, variance, deviation, offset = of_layers(trained(trainer).path)
    assert (list(mean), list(variance), deviation.item(), offset.item()) == ([0] * 4, [1] * 4, 2, 0)
    plain = trained(trainer, c.configuration(c.binned(), "mse", "SGD", learning_rate=0.0))
    assert plain.loss == pytest.approx(trained(trainer).loss, rel=1e-6)


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
    try:
        (group,) = trainer.train_groups("all", [members])
        visits = visits_of(members, group)
    except OrderFailed as failed:
        assert "fuse" in failed.message
        return
    for visit in visits:
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


@pytest.mark.parametrize("kind", building.PARAMETERS)
def test_every_kind_has_them(kind: str) -> None:
    built = building.architecture(kind, layout(EVERY, PRICE), {"group_statistics": 1}, "test")
    model = keras.Model.from_config(built["config"])
    measured = [(layer.name, is_target) for layer, _, is_target in group_statistics.layers(model)]
    assert measured == [("group_inputs_1", False), ("group_target_1", True)]
    assert not any("group_" in one.path for one in model.trainable_variables)


def test_a_frozen_layer_of_ones_own_is_left_alone() -> None:
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.BatchNormalization(trainable=False, name="own")])
    assert list(group_statistics.layers(model)) == []
