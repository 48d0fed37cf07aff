"""The folders in which trainers keep compiled programs for later trainers of the same user.

Compiling (XLA) and tracing (TensorFlow) take longer than training many a model, and each trainer of a run would do them
for the same programs.  The folders hold machine code and graphs of any operations, so a trainer may use the folder of
the user for whom it works, and no other.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .installation import installation

NAMES = "compiled-"  # followed by the user's oid
# Of all users of this server.  A small model leaves 2 MB (JAX) or five files of 30 kB (TensorFlow), and each start of a
# trainer looks at all files.
MOST_BYTES, MOST_FILES = 512 << 20, 5000


def folder_of_user(user: int, scratch: Path) -> Path | None:
    """The folder of a user; None if the administrator wants no compiled programs to be kept."""
    if not installation().get("keep_compiled", True):
        return None
    folder = scratch / f"{NAMES}{user}"
    with contextlib.suppress(OSError):  # on a full disk, for example, every trainer compiles for itself
        folder.mkdir(mode=0o700, exist_ok=True)
        make_room(scratch)
        return folder
    return None


def make_room(scratch: Path) -> None:
    """Remove the oldest files, of any user, when all files together are too large or too many."""
    files = []
    for folder in scratch.glob(f"{NAMES}*"):
        for path, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    found = os.lstat(os.path.join(path, name))
                    files.append((found.st_mtime, found.st_size, os.path.join(path, name)))
    bytes_left, files_left = sum(size for _, size, _ in files), len(files)
    for _, size, file in sorted(files):
        if bytes_left <= MOST_BYTES and files_left <= MOST_FILES:
            return
        with contextlib.suppress(OSError):
            os.unlink(file)
            bytes_left, files_left = bytes_left - size, files_left - 1
