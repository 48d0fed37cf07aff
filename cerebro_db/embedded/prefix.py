"""The private PostgreSQL installation that the extension is installed into.

PostgreSQL finds its share folder relative to its own executable. Copies of ``postgres``, ``initdb`` and
``pg_ctl`` below a folder of our own, with links to the rest of the system's installation, are therefore a
private installation. The extension goes into the private installation, so the system's PostgreSQL stays as it
is, several versions can exist side by side, and no root is needed.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import extension
from .installation import Installation

COPIED = ("postgres", "initdb", "pg_ctl")
# The files of the extensions in an ``extension`` folder.
OURS = re.compile(rf"({'|'.join(one.name for one in extension.EXTENSIONS)})(\.control$|--)")


@dataclass(frozen=True)
class Prefix:
    """The private installation below the folder ``top``. It has the system's layout, with ``top`` as the root."""

    top: Path
    of: Installation

    @property
    def bin(self) -> Path:
        return self._inside(self.of.bin)

    @property
    def share(self) -> Path:
        return self._inside(self.of.share)

    @property
    def code(self) -> Path:
        """The folder of the Python code that the server loads."""
        return self.share / extension.NAME / "python"

    def make(self) -> None:
        """Copies and links the system's installation. Does nothing if the system's has not changed since."""
        stamp, seen = self.bin / ".copied", self._fingerprint_of_system()
        if stamp.exists() and stamp.read_text() == seen:
            return
        self.bin.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            # Copies, because PostgreSQL resolves links before it looks for its share folder. Each is renamed into
            # its final name, because a running executable cannot be written to.
            shutil.copy2(self.of.bin / name, self.bin / f".{name}")
            (self.bin / f".{name}").rename(self.bin / name)
        _link(self._inside(self.of.lib), self.of.lib)
        for entry in self.of.share.iterdir():
            if entry.name not in ("extension", extension.NAME):
                _link(self.share / entry.name, entry)
        self._link_extensions()
        stamp.write_text(seen)

    def install_extension(self, sources: extension.Sources, trainer_python: str) -> bool:
        """Installs the extension from these sources. Returns False if the same files were installed already."""
        fingerprint = extension.fingerprint(sources, trainer_python)
        stamp = self.code.parent / "installed"
        if stamp.exists() and stamp.read_text() == fingerprint and self.code.exists():
            return False
        extensions = self.share / "extension"
        for old in extensions.iterdir():
            if OURS.match(old.name):
                old.unlink()
        extension.install_code(sources, self.code, trainer_python)
        extension.install_scripts(sources, extensions)
        stamp.write_text(fingerprint)
        return True

    def _inside(self, path: Path) -> Path:
        return self.top / path.relative_to(path.anchor)

    def _fingerprint_of_system(self) -> str:
        """Changes when the system's PostgreSQL is upgraded, and when it gains or loses an extension."""
        watched = [*(self.of.bin / name for name in COPIED), self.of.share, self.of.share / "extension"]
        return " ".join(f"{file.stat().st_mtime_ns}:{file.stat().st_size}" for file in watched)

    def _link_extensions(self) -> None:
        extensions = self.share / "extension"
        extensions.mkdir(parents=True, exist_ok=True)
        for old in extensions.iterdir():
            if old.is_symlink() and not old.exists():
                old.unlink()
        for entry in (self.of.share / "extension").iterdir():
            # The system's PostgreSQL may have another version of cerebro_db. It must not replace the private one.
            if not OURS.match(entry.name):
                _link(extensions / entry.name, entry)


def _link(link: Path, to: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        if os.readlink(link) == str(to):
            return
        link.unlink()
    link.symlink_to(to)
