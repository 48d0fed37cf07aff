"""What models make of the latest related rows: places without a row change nothing, and encoders find what is planted.

The numbers of orders are: whether there is one, its age, its amount.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from cerebro_db.core.architecture import building, keras_json
from cerebro_db.core.architecture.ensembles import ensemble
from cerebro_db.core.architecture.precision import computed_in
from tests.core import shop
from tests.core.test_building import IMAGE

from . import configurations as c
from .trainer_client import Trainer, resident

CASES = [
    *(("mlp", {"encoder": encoder}) for encoder in ("attention", "gru", "mean")),
    ("resnet", {"encoder": "attention"}),
    ("cnn", {"encoder": "gru"}),
    ("transformer", {}),
    ("lstm", {"layers": 2}),
    ("conv1d", {}),
]
ROWS = 12


def model_of(kind: str, parameters: dict[str, Any], places: int = shop.PLACES, precision: str = "float32") -> Any:
    layout = shop.with_places(places)
    if kind == "cnn":
        layout = replace(layout, inputs=(*layout.inputs, IMAGE))
    built = building.architecture(kind, layout, parameters, "test")
    keras.utils.set_random_seed(1)
    model = keras.Model.from_config(computed_in(keras_json.architecture(json.dumps(built)), precision)["config"])
    last = model.layers[-1]  # begins with zeros
    last.set_weights([np.random.default_rng(1).normal(size=one.shape) for one in last.get_weights()])
    return model


def predicted(model: Any, values: list[Any]) -> Any:
    images = [np.ones((len(values[0]), 4, 4), "float32")] * (len(model.inputs) - len(values))
    return np.asarray(model.predict_on_batch([*values, *images]), "float32")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {f"{kind} {parameters}": model_of(kind, parameters) for kind, parameters in CASES}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([0.0, -1.0, 1.0, 1e4]))
@pytest.mark.parametrize("case", [f"{kind} {parameters}" for kind, parameters in CASES])
def test_what_a_place_without_a_row_holds_changes_nothing(
    models: dict[str, Any], case: str, seed: int, scale: float
) -> None:
    values = shop.customers(ROWS, seed)
    before = predicted(models[case], values)
    random = np.random.default_rng(seed)
    numbers, codes, visits = (one.copy() for one in values[2:])
    for array in (numbers, visits):
        empty = array[..., 0] == 0
        array[empty, 1:] = scale * random.normal(size=array[empty, 1:].shape)
    codes[numbers[..., 0] == 0] = random.integers(0, 4)
    np.testing.assert_array_equal(predicted(models[case], [*values[:2], numbers, codes, visits]), before)
    assert np.isfinite(before).all() and len(np.unique(before, axis=0)) > 1


@pytest.mark.parametrize(("kind", "parameters"), [case for case in CASES if case[0] != "conv1d"])
def test_more_places_without_rows_change_nothing(kind: str, parameters: dict[str, Any]) -> None:
    """A convolution's maxima and means are over all places; all others see the rows alone."""
    values = shop.customers(ROWS, 3)
    few, many = model_of(kind, parameters), model_of(kind, parameters, places=shop.PLACES + 5)
    many.set_weights(few.get_weights())
    longer = [np.pad(one, ((0, 0), (0, 5), (0, 0))) if at in (2, 3) else one for at, one in enumerate(values)]
    np.testing.assert_allclose(predicted(many, longer), predicted(few, values), atol=2e-6)


@pytest.mark.parametrize(("kind", "parameters"), [case for case in CASES if case[0] != "cnn"])
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_customers_without_an_order_train(kind: str, parameters: dict[str, Any], precision: str) -> None:
    """Softmax of nothing is no NaN, neither forward nor in the gradients."""
    model = model_of(kind, parameters, precision=precision)
    values = shop.customers(16, 5)
    values[2][:8], values[3][:8], values[4][:12] = 0, 0, 0
    model.compile("sgd", "categorical_crossentropy")
    loss = model.train_on_batch(values, np.eye(2, dtype="float32")[np.arange(16) % 2])
    assert np.isfinite(loss) and all(np.isfinite(one).all() for one in model.get_weights())


@pytest.mark.parametrize("related", ["aggregates", "neighbourhoods", "none"])
def test_what_is_not_read_changes_nothing(related: str) -> None:
    """NaN in each element that is not read; all else matters."""
    model = model_of("mlp", {"related": related})
    values = shop.customers(ROWS, 4)
    before = predicted(model, values)
    each: dict[str, list[tuple[int, Any]]] = {
        "aggregates": [(2, ...), (4, ...)],
        "neighbourhoods": [(0, (..., [1, 2, 4]))],
        "none": [(0, (..., slice(1, 5))), (2, ...), (4, ...)],
    }
    unread = each[related]
    changed = [one.copy() for one in values]
    for at, elements in unread:
        changed[at][elements] = np.nan
    if related != "aggregates":
        changed[1][:, 0] = 3 - changed[1][:, 0]
    if related != "neighbourhoods":
        changed[3][:] = 3 - changed[3]
    np.testing.assert_array_equal(predicted(model, changed), before)
    for at in range(5):
        other = [one.copy() for one in values]
        other[at][:] = np.nan if other[at].dtype == "float32" else 3 - other[at]
        if at not in {place for place, elements in unread if elements is ...} and (
            related == "neighbourhoods" or at < 3
        ):
            assert (predicted(model, other) != before).any()


def test_models_that_read_different_inputs_make_an_ensemble() -> None:
    """Also trees beside networks."""
    every = [("mlp", {"encoder": "gru"}), ("mlp", {"related": "aggregates"}), ("resnet", {"related": "none"}),
             ("transformer", {"related": "neighbourhoods"}), ("trees", {"rounds": 2})]  # fmt: skip
    members = [building.architecture(kind, shop.SHOP, parameters, "test") for kind, parameters in every]
    whole = keras.Model.from_config(keras_json.architecture(json.dumps(ensemble(members)))["config"])
    values = shop.customers(ROWS, 6)
    each = [keras.Model.from_config(keras_json.architecture(json.dumps(one))["config"]) for one in members]
    whole.set_weights([weight for model in each for weight in model.get_weights()])
    mean = np.mean([predicted(model, values) for model in each], axis=0)
    np.testing.assert_allclose(predicted(whole, values), mean, atol=1e-6)


# -- planted signals -----------------------------------------------------------------------------------------

A, B = 1, 2


def events(rows: int, seed: int, pattern: str, places: int) -> tuple[list[Any], Any]:
    """Customers with their latest orders.  The label is the pattern, and of 3 customers in 100 the opposite."""
    random = np.random.default_rng(seed)
    values = shop.customers(rows, seed, places)
    there = values[2][..., 0]
    status = random.integers(1, 4, there.shape) * there
    ages = np.cumsum(random.exponential(1.0, there.shape), axis=1)
    values[2][..., 1] = there * (np.log1p(ages) - 1)
    values[3][..., 0] = status
    if pattern == "order":  # an order with the status A, and right after it one with B: the newest is first
        hit = ((status[:, :-1] == B) & (status[:, 1:] == A)).any(axis=1)
    else:
        hit = (ages[:, 0] < 0.7) & (there[:, 0] > 0)
    labels = np.where(random.random(rows) < 0.03, ~hit, hit).astype(int)
    return values, np.eye(2, dtype="float32")[labels]


@pytest.mark.parametrize("encoder", ["attention", "gru", "mean"])
@pytest.mark.parametrize("pattern", ["recency", "order"])
def test_planted(pattern: str, encoder: str) -> None:
    """All encoders see how long ago the newest order was.  Which order follows which, a mean of orders does not say."""
    places, epochs = (12, 9) if pattern == "order" else (6, 3)
    model = model_of("mlp", {"units": 64, "encoder": encoder}, places)
    model.compile(keras.optimizers.AdamW(0.003), "categorical_crossentropy")
    model.fit(*events(10_000, 1, pattern, places), batch_size=128, epochs=epochs, verbose=0)
    values, targets = events(4000, 2, pattern, places)
    found = roc_auc_score(targets[:, 1], predicted(model, values)[:, 1])
    assert found < 0.92 if (pattern, encoder) == ("order", "mean") else found > 0.94, found


@pytest.mark.parametrize("encoder", ["attention", "gru"])
def test_looking_changes_nothing(tmp_path: Path, encoder: str) -> None:
    """Keras' GRU draws random numbers in evaluation, too: the state in memory stays as it was."""
    more = {"learning_rate": 0.01, "metrics": ["acc"]}
    configuration = c.configuration(c.of_related(encoder=encoder), "categorical_crossentropy", **more)
    trainer, ends = Trainer(tmp_path), []
    trainer.data("shop", c.SHOP, **c.made_up(60, 3))
    for looks in (False, True):
        first = trainer.train(configuration, "shop", out=str(tmp_path / f"first {looks}"))
        if looks:
            trainer.evaluate(configuration, "shop", resident(first))
            trainer.predict(configuration, "shop", resident(first), str(tmp_path / "predicted"))
        second = trainer.train(configuration, "shop", resident(first), out=str(tmp_path / f"second {looks}"))
        ends.append((first.state.sha256, second.state.sha256))
    trainer.close()
    assert ends[0] == ends[1] and ends[0][0] != ends[0][1]
