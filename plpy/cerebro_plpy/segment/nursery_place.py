"""Where the nursery of this server is.  A new session imports this at once, so it imports next to nothing itself."""

from __future__ import annotations

import os
from _blake2 import blake2b  # hashlib would load OpenSSL, which takes a new session several milliseconds

SCRATCH = "pgsql_tmp_cerebro"  # in the data folder; pg_basebackup leaves out names that begin like this
INSTALLATION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def sources_of(installed: str, trainer_python: str) -> list[str]:
    """The paths of what a nursery imports, as far as an upgrade changes them."""
    environment = os.path.dirname(os.path.dirname(trainer_python))
    libraries: list[str] = []
    try:
        for name in sorted(os.listdir(os.path.join(environment, "lib"))):
            if name.startswith("python3"):
                libraries.append(os.path.join(environment, "lib", name, "site-packages"))
    except OSError:
        pass
    return [os.path.join(installed, "install.json"), os.path.join(environment, "pyvenv.cfg"), *libraries]


def looks(paths: list[str]) -> list[str]:
    """How files look: another text after a change."""
    found = []
    for path in paths:
        try:
            file = os.stat(path)
        except OSError:
            continue
        found.append(f"{path} {file.st_mtime_ns} {file.st_ino}")
    return found


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=32).hexdigest()


def version(seen: list[str]) -> str:
    """A name for what a nursery imports: after an upgrade there is a new nursery, and the old one ends when idle."""
    return digest("\n".join(seen))[:12]


def start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; OSError if that cannot be read."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def folder(version: str) -> str:
    """The folder of the nursery, from the data folder, in which each session works."""
    # A server that was restarted has a nursery of its own, while the one of its predecessor is ending.
    server = os.getppid()
    return os.path.join(SCRATCH, f"{server}-{start_of(server)}", f"nursery-{version}")


def server_started() -> list[str]:
    """What tells apart the server before and after a start or a crash: lines of its postmaster.pid."""
    with open("postmaster.pid", encoding="latin-1") as file:  # it has names of folders, in any encoding
        return file.read().splitlines()[:7]  # the last one is its shared memory's, which is new after a crash
