"""The folders of servers in shared memory, and which of them belong to nobody any more.

A server's folder is named after its data folder.  Its link ``owner`` leads nowhere: it says where the data folder is,
and for which processes that path holds.  Containers can share memory files and have different files at the same path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "cerebro_db_"
OWNER = "owner"


def folder_of(data: Path, uid: int) -> Path:
    """The folder of the server that this account runs on a data folder."""
    found = data.stat()
    return SHARED_MEMORY / f"{PREFIX}{uid}_{found.st_dev:x}_{found.st_ino:x}"


@contextlib.contextmanager
def opened(folder: Path, uid: int) -> Iterator[Path | None]:
    """A path to the folder itself, whatever its name means later.  None: this account has not made it.

    Everybody can make names in shared memory.  What was a folder at one look may be a link at the next one.
    """
    with contextlib.ExitStack() as stack:
        place = None
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            if os.fstat(descriptor).st_uid == uid:
                place = Path(f"/proc/self/fd/{descriptor}")
        yield place


def sign(place: Path, data: Path) -> None:
    """Write down whose folder it is.  ``place``: the folder as it was opened."""
    text, link = f"{_files_seen()} {os.path.realpath(data)}", place / OWNER
    with contextlib.suppress(OSError):
        if os.readlink(link) == text:
            return
        link.unlink()  # the data folder has moved, or has the number of one that was removed
    with contextlib.suppress(FileExistsError):  # another session was faster
        link.symlink_to(text)


def ownerless(uid: int) -> list[Path]:
    """The folders of this account whose data folder is gone.  When in doubt, it is not."""
    found = []
    for folder in SHARED_MEMORY.glob(f"{PREFIX}{uid}_*"):
        with opened(folder, uid) as place:
            if place is not None and _has_lost_its_owner(folder, place, uid):
                found.append(folder)
    return found


def is_of(folder: Path, uid: int) -> bool:
    """Whether this account has made the folder."""
    with opened(folder, uid) as place:
        return place is not None


def remove_empty(folder: Path, uid: int) -> None:
    """Remove a folder of this account in which there is nothing but its owner's name."""
    with opened(folder, uid) as place, contextlib.suppress(OSError):
        if place is None:
            return
        if os.listdir(place) == [OWNER]:
            (place / OWNER).unlink()
        folder.rmdir()


def _has_lost_its_owner(folder: Path, place: Path, uid: int) -> bool:
    try:
        files_seen, _, data = os.readlink(place / OWNER).partition(" ")
    except OSError:
        return False
    if not data or files_seen != _files_seen():
        return False
    try:
        return folder_of(Path(data), uid) != folder
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _files_seen() -> str:
    """Equal for processes to which a path means the same file: a chroot has the mounts of others, and another root."""
    with contextlib.suppress(OSError):
        root = os.stat("/")
        return f"{os.readlink('/proc/self/ns/mnt')}/{root.st_dev:x}_{root.st_ino:x}"
    return ""
