"""What trainers have compiled, kept for the next trainers of the same user.

Compiling takes XLA longer than many a model takes to train, and each trainer of a run would compile the same.
What is kept is machine code: a trainer is let near that of the user for whom it works, and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .db import Database
from .trainer import installation

NAMES = "compiled-"  # and the number of the user
MOST_BYTES = 512 << 20  # on this server, everybody's; a small model leaves 2 MB


def folder_of_user(db: Database, scratch: Path) -> Path | None:
    """Where the current user's trainers find and leave it; None where the administrator wants none to be kept."""
    if not installation().get("keep_compiled", True):
        return None
    # Every name is qualified: the caller's search_path must have no say in whose folder this is.
    user = db.value(
        "SELECT o.oid::pg_catalog.int8 FROM pg_catalog.pg_roles o WHERE o.rolname OPERATOR(pg_catalog.=) current_user"
    )
    folder = scratch / f"{NAMES}{int(user)}"
    with contextlib.suppress(OSError):  # a full disk, for one: then every trainer compiles for itself
        folder.mkdir(mode=0o700, exist_ok=True)
        make_room(scratch)
        return folder
    return None


def make_room(scratch: Path) -> None:
    """Remove what was compiled longest ago, once all of it is too much."""
    files = []
    for folder in scratch.glob(f"{NAMES}*"):
        for path, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    found = os.lstat(os.path.join(path, name))
                    files.append((found.st_mtime, found.st_size, os.path.join(path, name)))
    excess = sum(size for _, size, _ in files) - MOST_BYTES
    for _, size, file in sorted(files):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(file)
            excess -= size
