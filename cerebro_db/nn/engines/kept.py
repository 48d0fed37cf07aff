"""Files that a trainer leaves for later trainers of the same user: what it has traced or compiled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CODE = Path(__file__).resolve().parents[1]  # all that has a part in what is traced
DIGEST_BYTES = 32


class Kept:
    """The files of trainers in equal circumstances: versions, devices, settings, and our own code."""

    def __init__(self, folder: Path | None, circumstances: Sequence[Any]) -> None:
        self.folder = folder
        self._circumstances = [] if folder is None else [*circumstances, _code()]

    def path(self, *key: Any) -> Path | None:
        """The file with this key; None if nothing is kept."""
        if self.folder is None:
            return None
        text = json.dumps([*self._circumstances, *key])
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:40]

    def note(self, *key: Any) -> None:
        """Tell later trainers that something was found out."""
        path = self.path(*key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                path.touch()

    def noted(self, *key: Any) -> bool:
        path = self.path(*key)
        return path is not None and path.exists()


def read_whole(path: Path) -> bytes | None:
    """What ``write_whole`` has kept; None if the file is not there, or was cut short."""
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        digest, content = found[:DIGEST_BYTES], found[DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == digest:
            return zlib.decompress(content)
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Keep a content, unless the disk is full: later trainers then do the work themselves."""
    compressed = zlib.compress(content, 1)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            beside.write_bytes(hashlib.sha256(compressed).digest() + compressed)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _code() -> str:
    """A name for the code that builds models and steps: other code may trace other steps."""
    digest = hashlib.sha256()
    for file in sorted(CODE.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
