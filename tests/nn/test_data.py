"""Rows on disk are trained in the same order as rows in memory; only the order of reading differs."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import RehearseFusion, TryEngine
from cerebro_db.nn.rows import data
from cerebro_db.nn.rows.data import MEMORY, SLAB_FROM_DISK, Dataset, SlabSize, row_order, slabs

from . import configurations as c
from .trainer_client import Trainer, full


@pytest.mark.parametrize("rows, batch_size", [(1000, 32), (999, 100), (5, 8)])
def test_they_are_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, batch_size: int) -> None:
    x = np.arange(rows * 3, dtype="f4").reshape(rows, 3)
    y = np.arange(rows, dtype="i2").reshape(rows, 1)
    x.tofile(tmp_path / "x")
    y.tofile(tmp_path / "y")
    layout = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [3]}],
        "outputs": [{"name": "y", "dtype": "int16", "shape": [1]}],
    }
    files = {name: str(tmp_path / name) for name in ("x", "y")}
    order = row_order(rows, 7, 1)
    visits = []
    for largest in (1 << 30, 500):  # as if in memory; and in slabs of so many bytes
        monkeypatch.setattr(data, "SLAB_FROM_DISK", largest)
        dataset = Dataset(layout, rows, files)
        assert dataset.from_disk == (dataset.bytes > largest)
        pieces = [slab.gathered(dataset.columns) for slab in slabs(dataset, rows, batch_size, SlabSize(), order)]
        visits.append([np.concatenate(arrays) for arrays in zip(*pieces)])
    for memory, disk, whole in zip(*visits, (x, y)):
        assert (memory == disk).all() and (memory == whole[order]).all()


@pytest.mark.parametrize("engine", ["tensorflow", "jax", "torch"])
def test_where_they_lie_changes_no_bit(tmp_path: Path, engine: str) -> None:
    """Two slabs; the last slab and its last batch are short."""
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"the package {engine} is not installed")
    width, rows = 4096, 20123
    assert SLAB_FROM_DISK < width * rows < 2 * SLAB_FROM_DISK
    chance = np.random.default_rng(5)
    x = chance.integers(0, 255, (rows, width), "uint8")
    labels = chance.integers(0, 2, rows)
    layout = {"inputs": [c.column("x", [width], "uint8", 1 / 255)], "outputs": [c.target("y", [2])]}
    model = c.sequential(c.input_layer([width]), c.layer("Dense", "out", units=2, activation="softmax"))
    configuration = c.configuration(model, "categorical_crossentropy", batch_size=1000)
    answers: list[Any] = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        for folder in (Path(memory), tmp_path):
            trainer = Trainer(folder, engine=engine)
            trainer.data("wide", layout, x=x, y=c.one_hot(labels, 2))
            trained = trainer.train(configuration, "wide")
            evaluated = trainer.evaluate(configuration, "wide", full(trained))
            answers.append([trained.state.sha256, trained.loss, evaluated.loss, evaluated.metrics])
            assert trainer(TryEngine(configuration, "wide")).batch > 0
            if engine == "jax":  # it reads them itself there
                assert trainer(RehearseFusion([configuration, configuration], "wide")).alone > 0
            trainer.close()
    assert answers[0] == answers[1]


def test_slabs_are_large_only_where_rows_are_read_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.zeros((1000, 3), "f4").tofile(tmp_path / "x")
    layout = {"inputs": [{"name": "x", "dtype": "float32", "shape": [3]}], "outputs": []}
    monkeypatch.setattr(data, "SLAB_FROM_DISK", 4800)
    dataset = Dataset(layout, 1000, {"x": str(tmp_path / "x")})

    def sizes(dataset: Dataset, order: Any) -> list[int]:
        return [slab.rows for slab in slabs(dataset, dataset.rows, 10, SlabSize(), order)]

    assert sizes(dataset, row_order(1000, 1, 1)) == [400, 400, 200]
    assert sizes(dataset, None) == 25 * [40]
    beginning = dataset.part(0, 600)  # what is tried with them is over as soon as with rows in memory
    assert beginning.bytes == 7200 and len(beginning.columns[0]) == 600
    assert sizes(beginning, row_order(600, 1, 1)) == 15 * [40]
