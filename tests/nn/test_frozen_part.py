"""The frozen part of a state: which bytes it has, its file, and that it is neither written nor read again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.protocol import OutgoingState
from cerebro_db.nn import state_file
from cerebro_db.nn.models.frozen import constant_weights

SHAPES = ((3, 2), (600, 500), (500,), (4, 4), (40, 3), (5,))
FROZEN = [1, 2, 4]  # 4 is a stretch of its own, and too small


class HalfFrozen:
    """A program, as far as its state goes.  It counts what is read of its variables, and what is put into them."""

    def __init__(self, seed: int, constants: list[int], *, first: bool = False) -> None:
        random = np.random.default_rng(seed)
        shapes = SHAPES[1:] if first else SHAPES
        self.values = [random.normal(size=shape).astype("float32") for shape in shapes]
        self.variables = [(f"v{at}", value.dtype.name, value.shape) for at, value in enumerate(self.values)]
        self.weights, self.averages, self.known_frozen = len(shapes) - 1, False, None
        self.constants = [place - first for place in constants if place >= first]
        self.read: list[int] = []
        self.written: list[int] = []

    def get(self, number: int) -> np.ndarray:
        self.read.append(number)
        return self.values[number]

    def set(self, number: int, value: np.ndarray, *, stays: bool = False) -> None:
        self.written.append(number)
        self.values[number] = value


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "SMALL", 0)


def write(program: Any, folder: Path, name: str) -> tuple[OutgoingState, str, state_file.FrozenFile]:
    path = str(folder / f"state.out.10.{name}")
    state = state_file.write(program, path, 0, None)
    assert state.frozen is not None
    return state, path, state_file.FrozenFile(state.frozen, state_file.frozen_path(path, state.frozen.sha256))


def whole(path: str, frozen: state_file.FrozenFile) -> bytes:
    content = bytearray(Path(path).read_bytes())
    content[frozen.part.start : frozen.part.end] = Path(frozen.path).read_bytes()
    return bytes(content)


@pytest.mark.parametrize("first", [True, False])
def test_the_part_is_written_once_and_read_once(tmp_path: Path, first: bool) -> None:
    """``first``: nothing but the header is before it."""
    program: Any = HalfFrozen(1, FROZEN, first=first)
    state, path, frozen = write(program, tmp_path, "aa")
    assert frozen.part.bytes == 4 * 500 * 601 and state.bytes == os.path.getsize(path)
    assert os.stat(path).st_blocks * 512 < frozen.part.bytes < os.path.getsize(frozen.path) + 1
    content = whole(path, frozen)
    assert hashlib.sha256(content).hexdigest() == state.sha256
    assert hashlib.sha256(Path(frozen.path).read_bytes()).hexdigest() == frozen.part.sha256
    body = {1 - first, 2 - first}
    # What trains changes, and is written; the body is not even looked at.
    program.values[-1] = program.values[-1] + 1
    program.read.clear()
    later, later_path, same = write(program, tmp_path, "bb")
    assert not body & set(program.read) and same.path == frozen.path
    assert later.sha256 != state.sha256 and hashlib.sha256(whole(later_path, same)).hexdigest() == later.sha256
    other: Any = HalfFrozen(2, FROZEN, first=first)
    state_file.read(other, path, state.sha256, frozen=frozen)
    assert sorted(other.written) == list(range(len(other.values)))
    other.written.clear()
    state_file.read(other, later_path, later.sha256, frozen=frozen)
    assert body.isdisjoint(other.written) == first, "with changing bytes before it, the checksum needs all of them"
    assert all(np.array_equal(mine, its) for mine, its in zip(other.values, program.values))
    assert write(other, tmp_path, "cc")[0] == later


def test_a_state_with_all_bytes_is_read_as_ever(tmp_path: Path) -> None:
    program: Any = HalfFrozen(1, FROZEN)
    state, path, frozen = write(program, tmp_path, "aa")
    file = tmp_path / "whole"
    file.write_bytes(whole(path, frozen))
    other: Any = HalfFrozen(2, FROZEN)
    write(other, tmp_path, "bb")
    state_file.read(other, str(file), state.sha256)
    assert write(other, tmp_path, "cc")[0] == state
    # So does the average of both forms, and a model that trains these layers.
    state_file.read_average(other, [(str(file), state.sha256, 1), (path, state.sha256, 2)], [None, frozen])
    assert write(other, tmp_path, "dd")[0] == state
    trains: Any = HalfFrozen(3, [])
    state_file.read(trains, path, state.sha256, frozen=frozen)
    assert state_file.write(trains, str(tmp_path / "ee"), 0, None) == replace(state, frozen=None)


def test_other_frozen_weights_are_read(tmp_path: Path) -> None:
    one: Any = HalfFrozen(1, FROZEN, first=True)
    two: Any = HalfFrozen(2, FROZEN, first=True)
    program: Any = HalfFrozen(3, FROZEN, first=True)
    for source, name in ((one, "aa"), (two, "bb"), (one, "cc")):
        state, path, frozen = write(source, tmp_path, name)
        state_file.read(program, path, state.sha256, frozen=frozen)
        assert write(program, tmp_path, f"{name}dd")[0] == state


def test_a_damaged_part_is_noticed(tmp_path: Path) -> None:
    program: Any = HalfFrozen(1, FROZEN)
    state, path, frozen = write(program, tmp_path, "aa")
    content = bytearray(Path(frozen.path).read_bytes())
    content[7] ^= 1
    os.unlink(frozen.path)  # the program has the memory of that file
    Path(frozen.path).write_bytes(content)
    with pytest.raises(CorruptState, match="checksum"):
        state_file.read(HalfFrozen(2, FROZEN), path, state.sha256, frozen=frozen)  # type: ignore[arg-type]
    Path(frozen.path).write_bytes(content[:-1])
    with pytest.raises(CorruptState):
        state_file.read(HalfFrozen(2, FROZEN), path, state.sha256, frozen=frozen)  # type: ignore[arg-type]
    # A file that was cut is written again.
    assert write(program, tmp_path, "bb")[0] == state and os.path.getsize(frozen.path) == frozen.part.bytes


def test_which_weights_are_constant() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, name="frozen", trainable=False),  # 0, 1
            layers.BatchNormalization(trainable=False),  # 2 to 5
            layers.BatchNormalization(),  # its averages move: 6 to 9
            layers.Dense(3),  # 10, 11
            layers.SpectralNormalization(layers.Dense(3, trainable=False), trainable=False),  # it writes its vector
            layers.Dense(2, trainable=False),
        ]
    )
    model(np.zeros((1, 4)))
    found = constant_weights(model, model.weights)
    assert found[:6] == [0, 1, 2, 3, 4, 5] and not {6, 7, 8, 9, 10, 11} & set(found)
    assert found[-2:] == [len(model.weights) - 2, len(model.weights) - 1]
    assert all(model.weights[place].path.rpartition("/")[2] in ("kernel", "bias") for place in found[6:])
