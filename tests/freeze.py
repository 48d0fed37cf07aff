"""Freezes a release: its upgrade scripts in migrations/, and for tests its install scripts and a dump of a
database with runs (migrations/README.md).

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

ROOT = Path(__file__).resolve().parents[1]
MIGRATIONS, FIXTURES = "migrations", "tests/fixtures/released"  # below the root of the sources
LIST = f"{MIGRATIONS}/released.sha256"
DUMPS = ROOT / FIXTURES
OWNER = "alice"  # of the runs in the dumps
PREDICTIONS = """SELECT key_value, class, probability
  FROM predict('calm', 'SELECT * FROM garden', top => 3) ORDER BY 1, 2"""


def released(root: Path = ROOT) -> dict[str, str]:
    """File name -> hash."""
    lines = [line for line in (root / LIST).read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {name: digest for digest, name in (line.split() for line in lines)}


def place(name: str, root: Path = ROOT) -> Path:
    """Where a script lies. No server needs the install script of an old version, so it is compressed."""
    return root / MIGRATIONS / name if name.count("--") == 2 else root / FIXTURES / f"{name}.gz"


def script(name: str, root: Path = ROOT) -> str:
    content = place(name, root).read_bytes()
    return (content if name.count("--") == 2 else gzip.decompress(content)).decode()


def _sha256(name: str, root: Path) -> str:
    return hashlib.sha256(script(name, root).encode()).hexdigest()


def changed(version: str, root: Path = ROOT) -> list[str]:
    """Errors: released scripts that were changed or removed, and scripts of released versions that are not frozen."""
    frozen = released(root)
    wrong = [
        f"{name} is released and {'was changed' if place(name, root).exists() else 'is gone'}"
        for name, digest in frozen.items()
        if not place(name, root).exists() or _sha256(name, root) != digest
    ]
    for file in sorted(file for one in extension.EXTENSIONS for file in one.scripts_in(root / MIGRATIONS)):
        target = file.stem.rpartition("--")[2]
        if file.name not in frozen and target != version:
            wrong.append(f"{file.name} leads to {target}, which is not being made ({version}), but is not frozen")
    return wrong


def freeze(sources: extension.Sources) -> list[str]:
    """Freezes the version of the sources, and returns the names of the files that this has added."""
    root, frozen = sources.root, released(sources.root)
    names = []
    for one in extension.EXTENSIONS:
        if not one.is_in(sources):
            continue
        whole = f"{one.name}--{sources.version}.sql"
        if whole in frozen:
            raise SystemExit(f"{sources.version} is released already")
        place(whole, root).parent.mkdir(parents=True, exist_ok=True)
        place(whole, root).write_bytes(gzip.compress(extension.install_script(sources, one).encode(), mtime=0))
        steps = one.scripts_in(root / MIGRATIONS, sources.version)
        for step in steps:  # the line @api@ stands for the functions and views of this version, not of a later one
            step.write_text(extension.upgrade_script(sources, step, one), encoding="utf-8")
        names += [whole, *(step.name for step in steps)]
    new = [name for name in names if name not in frozen]
    with open(root / LIST, "a") as out:
        out.writelines(f"{_sha256(name, root)}  {name}\n" for name in new)
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
        print("\n".join(freeze(here)))
    print(dump(here.version))
