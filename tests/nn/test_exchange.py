"""Evaluating with exchanged values gives the bits of evaluating rows that were exchanged beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import EvaluatedModel, Exchange, InputElements, StateRef
from cerebro_db.nn.rows import data
from cerebro_db.nn.rows.data import Dataset, row_order
from cerebro_db.nn.rows.exchange import exchanged

from . import configurations as c
from .trainer_client import Trainer, full

ROWS, SEED = 300, 3
COLUMNS = c.made_up(ROWS, 6)
TWO = c.configuration(
    c.two_by_two(), ["mse", "categorical_crossentropy"], learning_rate=0.02, metrics=[["mae"], ["auc"]]
)


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("exchange"), engine=request.param)
    trainer.data("rows", c.TWO_BY_TWO, **COLUMNS)
    yield trainer
    trainer.close()


def evaluated(trainer: Trainer, handle: str, state: StateRef, *exchanges: Exchange) -> EvaluatedModel:
    (model,) = trainer(trainer.evaluation(handle, trainer.model(TWO, state, exchanges=list(exchanges)))).models
    return model


def beforehand(trainer: Trainer, state: StateRef, repeat: int = 0, **elements: slice) -> EvaluatedModel:
    """The result for rows that NumPy has exchanged."""
    order, columns = row_order(ROWS, SEED, repeat), {name: values.copy() for name, values in COLUMNS.items()}
    for name, along in elements.items():
        columns[name][:, along] = COLUMNS[name][order][:, along]
    trainer.data("other", c.TWO_BY_TWO, **columns)
    return evaluated(trainer, "other", state)


def test_the_bits_are_those_of_rows_exchanged_beforehand(trainer: Trainer) -> None:
    state = full(trainer.train(TWO, "rows"))
    plain = evaluated(trainer, "rows", state)
    some, all_words = InputElements("facts", 1, 2), InputElements("words")
    found = evaluated(
        trainer, "rows", state,
        Exchange([some], SEED), Exchange([all_words], SEED), Exchange([some, all_words], SEED),
        Exchange([InputElements("facts", 0, 1), InputElements("facts", 3, 1)], SEED),
    )  # fmt: skip
    assert (found.loss, found.metrics, found.metric_states) == (plain.loss, plain.metrics, plain.metric_states)
    wanted = [
        beforehand(trainer, state, facts=slice(1, 3)),
        beforehand(trainer, state, words=slice(None)),
        beforehand(trainer, state, facts=slice(1, 3), words=slice(None)),
        beforehand(trainer, state, facts=slice(0, 4, 3)),
    ]
    assert found.exchanged == [one.metric_states for one in wanted]
    assert len({one.loss for one in [plain, *wanted]}) == 5
    assert set(found.exchanged[0].means) >= {"loss", "price_loss", "mood_loss"}
    assert evaluated(trainer, "rows", state).metric_states == plain.metric_states


def test_repeats_add_up(trainer: Trainer) -> None:
    state = full(trainer.train(TWO, "rows"))
    (found,) = evaluated(trainer, "rows", state, Exchange([InputElements("words")], SEED, 3)).exchanged
    each = [beforehand(trainer, state, repeat, words=slice(None)).metric_states for repeat in range(3)]
    assert found.means["loss"] == [sum(one.means["loss"][place] for one in each) for place in (0, 1)]
    assert found.means["loss"][1] == 3 * ROWS and len({one.means["loss"][0] for one in each}) == 3


@pytest.mark.parametrize(
    ("elements", "says"),
    [
        (InputElements("price"), "no input 'price'"),
        (InputElements("facts", 3, 2), "the input 'facts' has the shape [4], and no 2 elements from 3 on"),
    ],
)
def test_elements_that_are_not_there(trainer: Trainer, elements: InputElements, says: str) -> None:
    found = evaluated(trainer, "rows", StateRef.seed(), Exchange([elements]))
    assert found.error is not None and found.error.kind == "InvalidArgument" and says in found.error.message


def test_many_rows_are_exchanged_part_by_part(trainer: Trainer) -> None:
    """More rows than are copied at a time."""
    width, rows = 2000, 5200
    assert data.LARGEST_SLAB < 4 * width * rows < 2 * data.LARGEST_SLAB
    chance = np.random.default_rng(4)
    x, y = chance.normal(size=(rows, width)).astype("f4"), chance.normal(size=rows).astype("f4")
    layout = {"inputs": [c.column("x", [width])], "outputs": [c.target("y", [1], "real", "float32")]}
    model = c.sequential(c.input_layer([width]), c.layer("Dense", "out", units=1))
    configuration = c.configuration(model, "mse", metrics=[])
    order = row_order(rows, SEED, 0)
    for handle, values in (("plain", x), ("mixed", np.hstack([x[order][:, :700], x[:, 700:]])), ("swapped", x[order])):
        trainer.data(handle, layout, x=values, y=y)
    state = full(trainer.train(configuration, "plain"))
    exchanges = [Exchange([InputElements("x", 0, 700)], SEED), Exchange([InputElements("x")], SEED)]
    (found,) = trainer(trainer.evaluation("plain", trainer.model(configuration, state, exchanges=exchanges))).models
    wanted = [trainer.evaluate(configuration, handle, state).metric_states.means for handle in ("mixed", "swapped")]
    for one, other in zip(found.exchanged, wanted):
        assert one.means["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.parametrize("largest", [1 << 30, 500])  # as if in memory; and on disk
@pytest.mark.parametrize("most", [7, 40, 100])
def test_parts_are_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, most: int) -> None:
    """Without a framework."""
    monkeypatch.setattr(data, "SLAB_FROM_DISK", largest)
    values = {"steps": np.arange(40 * 6, dtype="f4").reshape(40, 3, 2), "one": np.arange(40, dtype="u1")}
    files = {name: str(tmp_path / name) for name in values}
    for name, array in values.items():
        array.tofile(files[name])
    layout = {"inputs": [c.column("steps", [3, 2]), c.column("one", [], "uint8")], "outputs": []}
    dataset = Dataset(layout, 40, files)
    assert dataset.from_disk == (largest == 500)
    exchange = Exchange([InputElements("steps", 1, 1), InputElements("one")], SEED)
    parts = list(exchanged(dataset, exchange, 2, most))
    assert [part.rows for part in parts] == [min(most, 40 - start) for start in range(0, 40, most)]
    steps, one = (np.concatenate([part.inputs[place] for part in parts]) for place in (0, 1))
    order = row_order(40, SEED, 2)
    assert (steps[..., 0] == values["steps"][..., 0]).all() and (one == values["one"][order]).all()
    assert (steps[..., 1] == values["steps"][order][..., 1]).all()
    assert (dataset.inputs[0] == values["steps"]).all(), "the rows stay as they are"
