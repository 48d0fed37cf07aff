"""Freezes the scripts of a release in migrations/; the README there describes how.  Run it once per release.

python -m tests.freeze
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cerebro_db.embedded import extension

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
RELEASED = MIGRATIONS / "released.sha256"


def released(list_: Path = RELEASED) -> dict[str, str]:
    """File name -> hash."""
    lines = [line for line in list_.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {name: digest for digest, name in (line.split() for line in lines)}


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def changed(folder: Path, list_: Path, version: str) -> list[str]:
    """Errors: released scripts that were changed or removed, and scripts of released versions that are not frozen."""
    frozen = released(list_)
    wrong = [
        f"{name} is released and {'was changed' if (folder / name).exists() else 'is gone'}"
        for name, digest in frozen.items()
        if not (folder / name).exists() or sha256(folder / name) != digest
    ]
    scripts = {file for one in extension.EXTENSIONS for file in folder.glob(f"{one.name}--*.sql")}
    for file in sorted(scripts):
        target = file.stem.rpartition("--")[2]
        if file.name not in frozen and target != version:
            wrong.append(f"{file.name} leads to {target}, which is not being made ({version}), but is not frozen")
    return wrong


def freeze(sources: extension.Sources, folder: Path, list_: Path) -> list[str]:
    """Freezes the version of the sources, and returns the names of the files that this has added."""
    frozen = released(list_)
    files = []
    for one in extension.EXTENSIONS:
        if not one.is_in(sources):
            continue
        whole = folder / f"{one.name}--{sources.version}.sql"
        if whole.name in frozen:
            raise SystemExit(f"{sources.version} is released already")
        whole.write_text(extension.install_script(sources, one), encoding="utf-8")
        steps = one.scripts_in(folder, sources.version)
        for step in steps:  # the line @api@ stands for the functions and views of this version, not of a later one
            step.write_text(extension.upgrade_script(sources, step, one), encoding="utf-8")
        files += [whole, *steps]
    new = [file.name for file in files if file.name not in frozen]
    with open(list_, "a") as out:
        out.writelines(f"{sha256(folder / name)}  {name}\n" for name in new)
    return new


if __name__ == "__main__":
    print("\n".join(freeze(extension.Sources.find(), MIGRATIONS, RELEASED)))
