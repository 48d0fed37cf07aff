"""Assembles the extension from its pieces and puts it in place.

The one implementation behind ``make install`` and ``cerebro up``. Standard library only and Python 3.9,
because the Makefile runs it as a plain script, on servers that have nothing else of ours.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAME = "cerebro_db"
HEADER = f'\\echo Use "CREATE EXTENSION {NAME} CASCADE" to load this file. \\quit\n'
MARK = re.compile(r"^([ \t]*)@cerebro@[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """Where the pieces lie: in a clone, or in an environment that pip installed them into."""

    root: Path  # cerebro_db.control, sql/, migrations/
    package: Path  # cerebro_db
    plpy: Path  # cerebro_plpy

    @classmethod
    def find(cls) -> Sources:
        above = Path(__file__).resolve().parents[2]
        if (above / f"{NAME}.control").exists():
            return cls(above, above / NAME, above / "plpy" / "cerebro_plpy")
        return cls(Path(sys.prefix) / "share" / NAME, above / NAME, above / "cerebro_plpy")

    @property
    def version(self) -> str:
        found = re.search(r"^default_version\s*=\s*'([^']+)'", self.control.read_text(), re.MULTILINE)
        if not found:
            raise ValueError(f"{self.control} has no default_version")
        return found.group(1)

    @property
    def control(self) -> Path:
        return self.root / f"{NAME}.control"


def preamble(code: str) -> str:
    """The first line of every PL/Python body: puts the code folder on the path and imports the API."""
    # $ and @ are written as escapes: a dollar quote or an @extschema@ macro cannot start in a path.
    where = ascii(code).replace("$", "\\x24").replace("@", "\\x40")
    # First on the path, whatever is on it: on Greenplum a user can add to it (plpython3.python_path).
    return f"import sys; sys.path[:1] == [{where}] or sys.path.insert(0, {where}); from cerebro_plpy import api"


def expand(text: str, code: str) -> str:
    line = preamble(code)
    expanded = MARK.sub(lambda found: found.group(1) + line, text)
    if "@cerebro@" in expanded:
        raise ValueError("@cerebro@ must stand alone on its line")
    return expanded


def scripts(sources: Sources, code: str) -> dict[str, str]:
    """File name to text: the install script, put together in file-name order, and the upgrades."""
    if not os.path.isabs(code):
        raise ValueError(f"the code folder must be an absolute path, not {code!r}")
    pieces = sorted((sources.root / "sql").glob("[0-9]*.sql"))
    if not pieces:
        raise ValueError(f"no pieces sql/[0-9]*.sql in {sources.root}")
    body = "\n".join(f"-- {piece.name}\n{piece.read_text(encoding='utf-8')}" for piece in pieces)
    made = {f"{NAME}--{sources.version}.sql": HEADER + expand(body, code)}
    for upgrade in sorted((sources.root / "migrations").glob(f"{NAME}--*--*.sql")):
        made[upgrade.name] = expand(upgrade.read_text(encoding="utf-8"), code)
    return made


def install_scripts(sources: Sources, to: Path, code: str) -> None:
    """The control file and the scripts into an ``extension`` folder. Files of others there stay."""
    to.mkdir(parents=True, exist_ok=True)
    for name, text in scripts(sources, code).items():
        _write(to / name, text)
    _write(to / f"{NAME}.control", sources.control.read_text(encoding="utf-8"))


def install_code(sources: Sources, to: Path, trainer_python: str) -> None:
    """The Python that the server's interpreter and the trainer read, and ``install.json`` beside it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    # Built aside and renamed: a session that starts meanwhile never sees half of it.
    aside = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        new = aside / "new"
        new.mkdir()
        _copy(sources.plpy, new / "cerebro_plpy")
        (new / NAME).mkdir()
        shutil.copyfile(sources.package / "__init__.py", new / NAME / "__init__.py")
        for room in ("core", "nn"):
            _copy(sources.package / room, new / NAME / room)
        _write(
            new / "install.json",
            json.dumps({"trainer_python": trainer_python, "version": sources.version}, indent=1) + "\n",
        )
        # Byte code is a help, not a need: checked by hash, ignored by any other Python version.
        compileall.compile_dir(
            new,
            quiet=2,
            stripdir=str(new),
            prependdir=str(to),
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
        _readable_by_all_writable_by_owner(new)
        if to.exists():
            to.rename(aside / "old")
        new.rename(to)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def fingerprint(sources: Sources, code: str, trainer_python: str) -> str:
    """Changes whenever an installation of these sources would."""
    digest = hashlib.sha256(f"{code}\0{trainer_python}\0".encode())
    for name, text in scripts(sources, code).items():
        digest.update(f"{name}\0{text}\0".encode())
    digest.update(sources.control.read_bytes())
    rooms = [sources.plpy, sources.package / "core", sources.package / "nn", sources.package / "__init__.py"]
    for room in rooms:
        for file in sorted(room.rglob("*")) if room.is_dir() else [room]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{room.name}/{file.relative_to(room)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def script_hash(sources: Sources, code: str) -> str:
    """Changes whenever the SQL objects may have."""
    return hashlib.sha256(scripts(sources, code)[f"{NAME}--{sources.version}.sql"].encode()).hexdigest()


def _copy(source: Path, to: Path) -> None:
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.orig", ".*"))


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # in a private prefix it may be a link to the system's file
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _readable_by_all_writable_by_owner(top: Path) -> None:
    for folder, _, files in os.walk(top):
        os.chmod(folder, 0o755)
        for file in files:
            os.chmod(os.path.join(folder, file), 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("scripts", help="write the control file and the SQL scripts")
    one.add_argument("--to", type=Path, required=True, help="folder to write into")
    one.add_argument("--code", required=True, help="where the Python code will lie at run time")
    two = commands.add_parser("code", help="copy the Python code and write install.json")
    two.add_argument("--to", type=Path, required=True, help="folder to write into (replaced)")
    two.add_argument("--trainer-python", required=True, help="the trainer environment's interpreter")
    chosen = parser.parse_args()
    try:
        if chosen.command == "scripts":
            install_scripts(Sources.find(), chosen.to, chosen.code)
        else:
            install_code(Sources.find(), chosen.to, chosen.trainer_python)
    except (OSError, ValueError) as error:
        sys.exit(f"{NAME}: {error}")


if __name__ == "__main__":
    main()
