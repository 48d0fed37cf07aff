"""The scratch folders of a segment's process, and the room that is left in them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cerebro_db.core.errors import MAKE_ROOM, DiskFull, OutOfResources
from cerebro_db.core.trainers import scratch_names, shared_memory

from ..platform import machine
from .nursery_place import SCRATCH, start_of

RESERVE = 64 << 20  # bytes that rows and states leave free
ENOUGH_SHARED_MEMORY = 4 << 30  # bytes


def data_folder() -> Path:
    """The scratch folder of all processes of this server."""
    return Path(os.getcwd()) / SCRATCH


def memory_folder() -> Path:
    """The folder of this server in shared memory, named after the data folder.

    Containers can share their memory files and not see each other's processes: what another server has there may be in
    use, although no process of its number is seen.  And a container that is started again numbers processes anew, so
    that only the data folder tells that what is left there was this server's.
    """
    return shared_memory.folder_of(Path(), os.getuid())  # the data folder is every backend's working directory


def scratch_folders() -> tuple[Path, Path]:
    """New folders of this process, in memory and on disk; where there is little memory, both are the folder on disk.

    Containers have only 64 MB in /dev/shm; mapped files in the data folder serve as well.
    """
    remove_leftovers()
    owner = scratch_names.folder(os.getpid(), process_start(os.getpid()))
    on_disk = data_folder()
    on_disk.mkdir(mode=0o700, exist_ok=True)
    in_memory = memory_folder()
    folders = [_made(on_disk / owner)]
    with contextlib.suppress(OSError):
        if (machine.room(in_memory.parent) or 0) > ENOUGH_SHARED_MEMORY:
            in_memory.mkdir(mode=0o700, exist_ok=True)
            with shared_memory.opened(in_memory, os.getuid()) as place:
                if place is not None:
                    shared_memory.sign(place, Path())
                    _made(place / owner)
                    folders.insert(0, in_memory / owner)
    return folders[0], folders[-1]


def _made(folder: Path) -> Path:
    """The folder, which is new."""
    remove(folder)
    folder.mkdir(mode=0o700)
    return folder


def remove_leftovers() -> None:
    """Remove the folders of processes that have ended; those of a server that crashed could not remove them.

    Every session does this when it first calls a function of the extension (api.py), so the memory is free again soon
    after the server is back.
    """
    for base in (data_folder(), memory_folder()):
        # There may be no such folder yet, or another session removes the same ones.
        with shared_memory.opened(base, os.getuid()) as place, contextlib.suppress(OSError):
            for leftover in place.iterdir() if place is not None else ():
                owner = scratch_names.owner(leftover.name)
                if owner is not None and has_ended(*owner):
                    remove(leftover)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that is possible."""
    with contextlib.suppress(OSError, ImportError):  # also when no descriptor is free to import with
        if folder.exists():
            import shutil  # only now: importing it takes a new session 2 ms

            shutil.rmtree(folder, ignore_errors=True)


def place_of(folder: Path) -> str:
    """Equal for processes to which a folder of all segments is the same: files can be renamed from one to another."""
    with contextlib.suppress(OSError):
        found = folder.stat()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{found.st_dev}/{found.st_ino}"
    return ""


def has_ended(pid: int, start: str) -> bool:
    """Whether a process that started then is gone.  When in doubt (no descriptor is free), it is not."""
    try:
        return start_of(pid) != start
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def process_start(pid: int) -> str:
    """The time when a process started, in clock ticks since boot: it tells processes with the same number apart."""
    try:
        return start_of(pid)
    except OSError:
        return ""


def require_disk(folder: Path, size: int, held: int = 0) -> None:
    """The write-ahead log may be on the same disk, and the server ends when the log has no room.

    ``held`` is as for shared memory.
    """
    room = machine.room(folder)
    if room is not None and room < held + size + RESERVE:
        raise DiskFull(f"{room >> 20:,} MB left in {folder} for what does not fit into memory", hint=MAKE_ROOM)


def require_shared_memory(folder: Path, size: int, held: int = 0) -> None:
    """Shared memory is the machine's memory: other processes need some of it.

    A session that holds ``held`` bytes already gets no more than it leaves, so half of what was free at most.
    """
    room = machine.room(folder)
    if room is not None and room < held + size + RESERVE:
        raise OutOfResources(
            f"{room >> 20:,} MB of shared memory left in {folder} for model states",
            hint="Train in fewer segments or with smaller models.",
        )
