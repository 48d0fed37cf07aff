"""The files of cut models' states: what they take on the disk, and what is left of them when a trainer ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import Group, Train

from . import configurations as c
from .trainer_client import OrderFailed, Trainer, resident

pytestmark = pytest.mark.tensorflow
Json = dict[str, Any]
ROWS = 64


def model(units: int, deep: int = 2) -> Json:
    layers = [c.layer("Dense", f"dense{n}", units=units, activation="relu") for n in range(deep)]
    stack = c.sequential(c.input_layer([8, 8]), c.layer("Flatten", "flat"), *layers,
                         c.layer("Dense", "out", units=10, activation="softmax"))  # fmt: skip
    return c.configuration(stack, "categorical_crossentropy", "Adam", batch_size=ROWS)


def trainer_of(folder: Path, rows: int = ROWS, **settings: Any) -> Trainer:
    trainer = Trainer(folder, engine="tensorflow", shard=3, **settings)
    rng = np.random.default_rng(0)
    digits = c.one_hot(rng.integers(0, 10, rows), 10)
    trainer.data("digits", c.DIGITS, image=rng.integers(0, 16, (rows, 8, 8)), digit=digits)
    return trainer


def files_without_names(trainer: Trainer) -> list[int]:
    """Bytes on the disk of the files that this process has open, and that have no name."""
    found = []
    for entry in Path(f"/proc/{trainer.process.pid}/fd").iterdir():
        if "(deleted)" in os.readlink(entry):
            found.append(entry.stat().st_blocks << 9)
    return found


def test_files_of_states_make_room_for_each_other(tmp_path: Path) -> None:
    large, other = model(600), model(601)  # states of 4.8 MB
    trainer = trainer_of(tmp_path / "little", features_mb=8)
    first = trainer.train(large, "digits")
    trainer.train(other, "digits", out=str(tmp_path / "other"))
    assert sum(files_without_names(trainer)) < 8 << 20
    with pytest.raises(OrderFailed, match="no longer has that state"):
        trainer.train(large, "digits", resident(first))
    again = trainer.train(large, "digits", out=str(tmp_path / "again"))
    assert again.state.sha256 == first.state.sha256
    trainer.close()

    trainer = trainer_of(tmp_path / "more", features_mb=100)
    first = trainer.train(large, "digits")
    trainer.train(other, "digits", out=str(tmp_path / "another"))
    assert sum(files_without_names(trainer)) > 8 << 20
    assert trainer.train(large, "digits", resident(first)).finite
    trainer.close()


def test_a_state_larger_than_the_disk_is_an_error_of_its_model(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    units = free.f_bavail * free.f_frsize // (2 * 12 * 64) + (1 << 20)  # the state takes more than half of it
    trainer = trainer_of(tmp_path)
    with pytest.raises(OrderFailed, match="no room on the disk for the model's state") as caught:
        trainer.train(model(units, deep=1), "digits")
    assert caught.value.kind == "OutOfResources"
    assert sum(files_without_names(trainer)) < 1 << 20
    assert trainer.train(model(20), "digits").finite
    trainer.close()


def test_a_trainer_ends_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """Its session is gone: a cancel, or a kill.  One batch takes many seconds here, and one shard less than one."""
    trainer = trainer_of(tmp_path / "own", rows=ROWS)
    slow = model(2048, deep=24)  # a state of 1.2 GB
    member = trainer.member(slow)
    trainer.send(Train("digits", trainer.configurations, [Group([member])]))
    assert trainer.started
    deadline = time.monotonic() + 120
    while sum(files_without_names(trainer)) < 1 << 30 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    assert trainer.process.poll() is None
    began = time.monotonic()
    trainer.process.stdin.close()  # type: ignore[union-attr]
    trainer.process.wait(30)
    assert time.monotonic() - began < 5  # a second on an idle machine
    assert not list(tmp_path.rglob("tmp*"))
