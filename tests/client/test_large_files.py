"""Files that are written one weight after the other: they are those that Keras writes of the whole model."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from cerebro_db.client import ClientError
from cerebro_db.client.errors import NoSuchModel
from cerebro_db.client.models import keras_models, large_files, model_files


@dataclass
class Stored:
    """A model as its table has it."""

    architecture: str
    weights: bytes
    input_shapes: Any = None

    @property
    def size(self) -> int:
        return len(self.weights)

    def pieces(self) -> Iterator[bytes]:
        return (self.weights[start : start + 1000] for start in range(0, len(self.weights), 1000))

    @classmethod
    def of(cls, model: Any) -> Stored:
        weights = [np.asarray(one, np.float32).reshape(-1) for one in model.get_weights()]
        return cls(model.to_json(), np.concatenate(weights).tobytes())


def stack() -> Any:
    return keras.Sequential([
        keras.Input((4,)), layers.Dense(40), layers.Dropout(0.5, name="drop", seed=3), layers.BatchNormalization(),
        keras.Sequential([keras.Input((40,)), layers.Dense(8, name="inner")], name="part"),
        layers.Dense(3, dtype="mixed_bfloat16"),
    ])  # fmt: skip


def attentive() -> Any:
    words = keras.Input((6,), dtype="int32")
    vectors = layers.Embedding(10, 8)(words)
    mixed = layers.MultiHeadAttention(2, 4)(vectors, vectors)
    read = layers.Bidirectional(layers.LSTM(5))(layers.LayerNormalization()(layers.Add()([mixed, vectors])))
    return keras.Model(words, layers.Dense(2)(read))


def content(path: Path) -> tuple[bytes, dict[str, Any]]:
    found: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file, h5py.File(file) as weights:
        weights.visititems(lambda name, one: found.update({name: one[...] if isinstance(one, h5py.Dataset) else None}))
        return re.sub(rb'"shared_object_id": [0-9]+', b"", archive.read("config.json")), found  # identities of objects


@pytest.mark.parametrize("made", [stack, attentive])
def test_a_file_of_keras(made: Any, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    stored = Stored.of(made())
    large_files.write_keras(stored, {}, tmp_path / "large.keras")  # type: ignore[arg-type]
    whole = keras_models.build(stored)
    whole.save(tmp_path / "whole.keras")
    (ours, mine), (theirs, its) = (content(tmp_path / f"{name}.keras") for name in ("large", "whole"))
    assert ours == theirs and mine.keys() == its.keys()
    for name, value in its.items():
        if value is not None and "seed_generator" not in name:
            assert value.dtype == mine[name].dtype and np.array_equal(value, mine[name]), name
    again = model_files.read_keras(tmp_path / "large.keras")
    assert all(map(np.array_equal, again.get_weights(), whole.get_weights()))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["large.keras", "whole.keras"]


@pytest.mark.parametrize("made", [stack, attentive])
def test_a_file_of_safetensors(made: Any, tmp_path: Path) -> None:
    stored = Stored.of(made())
    large_files.write_safetensors(stored, {"a": 1}, tmp_path / "x.safetensors")  # type: ignore[arg-type]
    again = model_files.read_safetensors(tmp_path / "x.safetensors")
    assert all(map(np.array_equal, again.get_weights(), keras_models.build(stored).get_weights()))


@pytest.mark.parametrize("ending", ["keras", "safetensors"])
def test_what_is_not_as_it_should_be(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, write = Stored.of(stack()), large_files.WRITERS[f".{ending}"]
    with pytest.raises(NoSuchModel, match="the architecture needs"):
        write(Stored(stored.architecture, stored.weights[:-4]), {}, tmp_path / f"x.{ending}")  # type: ignore[arg-type]
    read = large_files._bytes_of
    monkeypatch.setattr(large_files, "_bytes_of", lambda values: memoryview(bytes(len(read(values)))))
    if ending == "safetensors":
        monkeypatch.setattr(large_files, "PIECE", 0)  # nothing is read again
    else:
        count = iter(range(1000))
        monkeypatch.setattr(large_files, "_bytes_of", lambda values: memoryview(bytes([next(count)])))
    with pytest.raises(ClientError, match="other bytes than were written"):
        write(stored, {}, tmp_path / f"x.{ending}")  # type: ignore[arg-type]
