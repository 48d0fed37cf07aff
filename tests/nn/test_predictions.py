"""Predictions have the same bits, however many rows there are and wherever the weights come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.thorough import landing

from . import configurations as c
from .test_fusion import SEVERAL
from .test_hops import CASES
from .test_trainer import CATEGORICAL, raw_weights
from .trainer_client import USUAL_ENGINE, Trainer, full, weights

BATCH = 1024  # cerebro_db/nn/orders/predictions.py
ROWS = {"one": 1, "few": BATCH, "many": 19 * BATCH + 7}  # TensorFlow traces a function for "many" only


ENGINES = ["tensorflow", "jax"]


@pytest.fixture(scope="module", params=landing(ENGINES, USUAL_ENGINE))
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("trainer"), engine=request.param)
    for name, rows in ROWS.items():
        digits, some = load_digits(), np.arange(rows) % 1797
        images = digits.images.astype("uint8")[some]
        trainer.data(f"{name} digits", c.DIGITS, image=images, digit=c.one_hot(digits.target[some], 10))
        made_up = c.made_up(ROWS["many"], 3)
        first = {column: values[:rows] for column, values in made_up.items()}
        trainer.data(f"{name} sentences", c.SENTENCES, words=first["words"], mood=first["mood"])
        trainer.data(f"{name} pairs", c.TWO_BY_TWO, **first)
        trainer.data(f"{name} prices", c.PRICES, facts=first["facts"], price=first["price"])
        columns = [one["name"] for one in (*c.SHOP["inputs"], *c.SHOP["outputs"])]
        trainer.data(f"{name} shop", c.SHOP, **{column: first[column] for column in columns})
        trainer.data(f"{name} houses", c.HOUSES, facts=first["facts"], price=first["price"])
    yield trainer
    trainer.close()


def predicted(trainer: Trainer, configuration: c.Json, handle: str, state: Any) -> list[np.ndarray]:
    out = str(trainer.folder / "predicted")
    answer = trainer.predict(configuration, handle, state, out)
    return [np.fromfile(f"{out}.{number}", "f4") for number in range(len(answer.outputs))]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trainer", [USUAL_ENGINE], indirect=True)
def test_few_rows_and_many_rows(trainer: Trainer, name: str) -> None:
    check_few_and_many(trainer, name)


@pytest.mark.parametrize("name", landing(CASES, *SEVERAL))
@pytest.mark.parametrize("trainer", [engine for engine in ENGINES if engine != USUAL_ENGINE], indirect=True)
def test_few_rows_and_many_rows_of_the_other_engine(trainer: Trainer, name: str) -> None:
    check_few_and_many(trainer, name)


def check_few_and_many(trainer: Trainer, name: str) -> None:
    configuration, layout = CASES[name]
    layouts = {"digits": c.DIGITS, "sentences": c.SENTENCES, "pairs": c.TWO_BY_TWO, "prices": c.PRICES, "shop": c.SHOP}
    (kind,) = (name for name, one in layouts.items() if one is layout)
    trained = trainer.train(configuration, f"few {kind}")
    file = trainer.folder / "weights"
    file.write_bytes(raw_weights(trained))
    found = {rows: predicted(trainer, configuration, f"{rows} {kind}", weights(file)) for rows in ROWS}
    assert all(np.isfinite(values).all() and len(np.unique(values)) > 1 for values in found["few"])
    first = [many[: len(few)] for few, many in zip(found["few"], found["many"])]
    assert same(found["few"], first)
    for rows, values in found.items():
        assert same(values, predicted(trainer, configuration, f"{rows} {kind}", full(trained))), rows
        assert same(values, predicted(trainer, configuration, f"{rows} {kind}", weights(file))), f"{rows} again"


@pytest.mark.parametrize("trainer", ENGINES, indirect=True)
def test_other_weights_for_the_same_architecture(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    found = []
    for seed in (1, 2):
        file = trainer.folder / f"weights.{seed}"
        file.write_bytes(raw_weights(trainer.train(configuration, "one digits", seed=seed)))
        found.append(predicted(trainer, configuration, "few digits", weights(file)))
    assert not same(*found)
    assert same(found[0], predicted(trainer, configuration, "few digits", weights(trainer.folder / "weights.1")))


def test_how_it_was_trained_has_no_part_in_it(trainer: Trainer) -> None:
    """The moving averages of use_ema are no part of the weights; nothing may take their place."""
    found = []
    file: Path = trainer.folder / "weights.ema"
    for arguments in ({}, {"use_ema": True}):
        configuration = c.configuration(c.mlp(), CATEGORICAL, **arguments)
        if not found:
            file.write_bytes(raw_weights(trainer.train(configuration, "few digits")))
        found.append(predicted(trainer, configuration, "few digits", weights(file)))
    assert same(*found)
