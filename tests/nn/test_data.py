"""Rows from disk are visited in the same order, only read in another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cerebro_db.nn import data
from cerebro_db.nn.data import Dataset, SlabSize, row_order, slabs


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
