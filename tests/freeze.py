"""Freezes a release: its scripts in migrations/, and a dump of a database with its runs (migrations/README.md).

python -m tests.freeze         once per release
python -m tests.freeze dump    the dump alone, again: at the commit of the release
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tempfile
from pathlib import Path

from cerebro_db.embedded import extension, throw_away
from tests.conftest import TRAINER
from tests.sql.moving import tool, trained

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
RELEASED = MIGRATIONS / "released.sha256"
DUMPS = Path(__file__).resolve().parent / "fixtures" / "released"
OWNER = "alice"  # of the runs in the dumps
PREDICTIONS = """SELECT key_value, class, probability
  FROM predict('calm', 'SELECT * FROM garden', top => 3) ORDER BY 1, 2"""


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


def dump(version: str) -> Path:
    """Writes a dump of a database with a finished run, an interrupted one and models, as this release makes them, and
    what the models predict."""
    DUMPS.mkdir(parents=True, exist_ok=True)
    file = DUMPS / f"{version}.sql.gz"
    cluster = throw_away.create(TRAINER)
    try:
        with trained(cluster, OWNER) as made, tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "dump.sql")
            tool("pg_dump", made.dsn, "--format=plain", "-f", str(text))
            lines = text.read_bytes().splitlines(keepends=True)
            # Programs of older minor releases do not know these two commands.
            kept = [line for line in lines if not line.startswith((b"\\restrict ", b"\\unrestrict "))]
            file.write_bytes(gzip.compress(b"".join(kept), mtime=0))
            (DUMPS / f"{version}.json").write_text(json.dumps(made.lab(PREDICTIONS)) + "\n", encoding="utf-8")
    finally:
        throw_away.remove(cluster)
    return file


if __name__ == "__main__":
    here = extension.Sources.find()
    if sys.argv[1:] != ["dump"]:
        print("\n".join(freeze(here, MIGRATIONS, RELEASED)))
    print(dump(here.version))
