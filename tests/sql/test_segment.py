"""A segment's side by itself, without a server: states on their way in, and trainers that failed."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro_db.core.errors import ConfigurationFailed, DiskFull, TrainerFailed
from cerebro_plpy import choosing, machine, segment, trainer
from cerebro_plpy.segment import RESERVE, Segment


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: Any) -> Segment:
    """Its files are on disk, as where there is little memory."""
    monkeypatch.setattr(segment, "scratch_folders", lambda: (tmp_path, tmp_path))
    monkeypatch.setattr(segment, "listener", lambda plpy: lambda: None)
    return Segment(None)


def test_states_that_come_in_by_turns(alone: Segment) -> None:
    """One file is open at a time; who comes back to another finds what is there already, and rows have no order."""
    for ticket, start, payload in (("a", 4, b"5678"), ("b", 0, b"one"), ("a", 0, b"1234"), ("b", 3, b" two")):
        assert alone.state_in(ticket, start, payload) == len(payload)
    found = {ticket: Path(alone.state({"kind": "full", "ticket": ticket})["path"]) for ticket in "ab"}
    assert {ticket: path.read_bytes() for ticket, path in found.items()} == {"a": b"12345678", "b": b"one two"}
    alone.drop_arrived(["a", "nobody"])
    assert not found["a"].exists() and found["b"].exists()
    alone.state_in("a", 0, b"anew")
    alone.drop_arrived(["a", "b"])
    assert alone.arriving is None and not list(alone.folder.iterdir())


def test_states_on_disk_leave_room_for_the_log(alone: Segment, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "room", lambda folder: RESERVE + 100)
    alone.state_in("a", 0, bytes(100))
    with pytest.raises(DiskFull, match="64 MB left") as refused:
        alone.state_in("a", 100, bytes(101))
    assert refused.value.hint


def test_no_signal_goes_to_a_number_that_may_be_anothers_by_now(monkeypatch: Any) -> None:
    struck: list[int] = []
    monkeypatch.setattr(trainer.os, "killpg", lambda pid, signal: struck.append(pid))
    for pid, returncode in ((1001, None), (1002, 0), (1003, -9)):
        one = trainer.Trainer.__new__(trainer.Trainer)
        one._process = SimpleNamespace(pid=pid, returncode=returncode, wait=lambda: None)  # type: ignore[assignment]
        one._orders, one._answers = io.BytesIO(), io.BytesIO()  # type: ignore[assignment]
        one.kill()
    assert struck == [1001]


def test_what_passes_is_not_remembered_against_an_engine() -> None:
    program = choosing.Program("p")
    answers = {"jax": DiskFull("no room"), "torch": TrainerFailed("died"), "tensorflow": ConfigurationFailed("never")}
    program.add("kind", [SimpleNamespace(earlier=None)], answers)  # type: ignore[list-item]
    assert program.crashes == {"jax": "no room", "torch": "died"} and program.refusals == {"tensorflow": "never"}
