"""A trainer that rests wakes with the next order; one that waits in vain takes its files away and ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.nn.trainer_client import Gone, Trainer


def filled(folder: Path) -> Path:
    """A scratch folder as a session has it, with files and a folder of rows."""
    (folder / "data-1").mkdir(parents=True)
    for name in ("state.in", "trainer.log", "data-1/0"):
        (folder / name).write_bytes(b"x" * 100)
    return folder


def test_it_wakes(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer("rest", seconds=2, folders=[str(folder)])
        trainer("wake")
        time.sleep(2.5)  # the rest is over, nothing of it goes on
        trainer("wake")
        assert (folder / "data-1" / "0").exists()
        assert trainer.hello["pid"] == trainer.process.pid
    finally:
        trainer.close()


def test_it_waits_in_vain(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer("rest", seconds=1, folders=[str(tmp_path / "gone"), str(folder)])
        assert trainer.process.wait(30) == 0
        assert list(folder.iterdir()) == []
        with pytest.raises((Gone, BrokenPipeError)):
            trainer("wake")
    finally:
        trainer.close()


def test_its_session_goes(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer("rest", seconds=600, folders=[str(folder)])
        assert trainer.process.stdin is not None
        trainer.process.stdin.close()
        assert trainer.process.wait(30) == 0
        assert list(folder.iterdir()) == []
    finally:
        trainer.close()
