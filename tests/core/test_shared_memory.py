"""Everybody can make names in shared memory: a folder is opened once, and used as it was opened."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from cerebro_db.core.trainers import shared_memory


def test_a_link_that_takes_the_place_of_a_folder_is_not_believed(tmp_path: Path) -> None:
    """A stranger's folder, that becomes a link to a folder of this account between two looks, and a folder again."""
    name, aside, link = (tmp_path / one for one in ("name", "aside", "link"))
    name.mkdir()
    if os.getuid() == 0:
        os.chown(name, 1, -1)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            name.rename(aside)
            link.symlink_to("/")  # of the account 0
            link.rename(name)
            name.unlink()
            aside.rename(name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        assert not any(shared_memory.is_of(name, 0) for _ in range(5000))
    finally:
        ended.set()
        thread.join()


def test_an_opened_folder_stays_itself(tmp_path: Path) -> None:
    folder, aside, other = (tmp_path / one for one in ("folder", "aside", "other"))
    folder.mkdir()
    other.mkdir()
    with shared_memory.opened(folder, os.getuid()) as place:
        assert place is not None
        folder.rename(aside)
        folder.symlink_to(other)
        shared_memory.sign(place, tmp_path)
        shared_memory.remove_empty(folder, os.getuid())
    assert [one.name for one in aside.iterdir()] == [shared_memory.OWNER] and not list(other.iterdir())
    before = set(os.listdir("/proc/self/fd"))
    for refused, uid in ((folder, os.getuid()), (aside, os.getuid() + 1), (tmp_path / "nowhere", os.getuid())):
        with shared_memory.opened(refused, uid) as place:
            assert place is None
    assert set(os.listdir("/proc/self/fd")) == before
    with contextlib.suppress(OSError):
        folder.unlink()
    shared_memory.remove_empty(aside, os.getuid())
    assert not aside.exists()
