"""A resting trainer wakes with the next order; without an order it removes its files and ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cerebro_db.core.protocol import Rest, Wake
from tests.nn.trainer_client import Gone, Trainer


def filled(folder: Path) -> Path:
    """A session's scratch folder, with files and a folder of rows."""
    (folder / "data-1").mkdir(parents=True)
    for name in ("state.in", "trainer.log", "data-1/0"):
        (folder / name).write_bytes(b"x" * 100)
    return folder


def test_it_wakes(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer(Rest(2, [str(folder)]))
        trainer(Wake())
        time.sleep(2.5)  # the rest is over, nothing of it goes on
        trainer(Wake())
        assert (folder / "data-1" / "0").exists()
        assert trainer.started.pid == trainer.process.pid
    finally:
        trainer.close()


def test_it_waits_in_vain(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer(Rest(1, [str(tmp_path / "gone"), str(folder)]))
        assert trainer.process.wait(30) == 0
        assert list(folder.iterdir()) == []
        with pytest.raises((Gone, BrokenPipeError)):
            trainer(Wake())
    finally:
        trainer.close()


def test_its_session_goes(tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    trainer = Trainer(tmp_path)
    try:
        trainer(Rest(600, [str(folder)]))
        assert trainer.process.stdin is not None
        trainer.process.stdin.close()
        assert trainer.process.wait(30) == 0
        assert list(folder.iterdir()) == []
    finally:
        trainer.close()
