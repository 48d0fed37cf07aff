"""The scratch folders of sessions: which of them are left over, where servers share memory files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_plpy.segment import scratch


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: Any) -> Iterator[tuple[Path, Path]]:
    """The data folders of two servers, each with a place in shared memory."""
    folders = tmp_path / "one", tmp_path / "another"
    places = []
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        places.append(scratch.memory_folder())
        places[-1].mkdir()
    yield folders
    for place in places:
        shutil.rmtree(place)


def test_a_server_removes_what_it_has_left_and_nothing_of_others(servers: Any, monkeypatch: Any) -> None:
    """A container sees no processes of others, and its own have other numbers after a restart."""
    one, another = servers
    nobody = "4194304-1"  # a process number above the largest one
    mine = f"{os.getpid()}-{scratch.process_start(os.getpid())}"
    monkeypatch.chdir(another)
    theirs = scratch.memory_folder() / nobody
    theirs.mkdir()
    monkeypatch.chdir(one)
    place = scratch.memory_folder()
    for name in (nobody, "1-2", mine):
        (place / name).mkdir()
    scratch.remove_leftovers()
    assert [folder.name for folder in place.iterdir()] == [mine]
    assert theirs.is_dir()
    monkeypatch.chdir(another)
    scratch.remove_leftovers()
    assert not theirs.exists()
