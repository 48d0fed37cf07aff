"""Assembles the extension from its pieces and installs it, for ``make install`` and for ``cerebro up``.

It needs Python 3.9 and the standard library only, because the Makefile runs it as a plain script on servers that have
nothing else.
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
API_MARK = re.compile(r"^@api@[ \t]*$", re.MULTILINE)
# Folders of pieces, in the order of installation: what runs once, then what may run again.
RUN_ONCE, REPLACEABLE = ("", "schema"), ("api",)  # "": a script that is not split, such as a frozen release


@dataclass(frozen=True)
class Sources:
    """The folders of the pieces: in a clone, or in an environment that pip has installed them into."""

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
    # Always the first entry, because on Greenplum a user can add entries (plpython3.python_path).
    return f"import sys; sys.path[:1] == [{where}] or sys.path.insert(0, {where}); from cerebro_plpy import api"


def expand(text: str, code: str) -> str:
    line = preamble(code)
    expanded = MARK.sub(lambda found: found.group(1) + line, text)
    if "@cerebro@" in expanded:
        raise ValueError("@cerebro@ must stand alone on its line")
    return expanded


def scripts(sources: Sources, code: str) -> dict[str, str]:
    """File name to text: the install script and the upgrade scripts, as PostgreSQL reads them."""
    if not os.path.isabs(code):
        raise ValueError(f"the code folder must be an absolute path, not {code!r}")
    whole = install_script(sources)
    if not whole:
        raise ValueError(f"no pieces [0-9]*.sql in {sources.root / 'sql'}, its schema or its api folder")
    made = {f"{NAME}--{sources.version}.sql": HEADER + expand(whole, code)}
    for upgrade in sorted((sources.root / "migrations").glob(f"{NAME}--*--*.sql")):
        made[upgrade.name] = expand(upgrade_script(sources, upgrade), code)
    return made


def install_script(sources: Sources) -> str:
    """All pieces, those that run once first. The marks ``@cerebro@`` stay."""
    return "\n".join(part for part in (_joined(sources, RUN_ONCE), replaceable(sources)) if part)


def replaceable(sources: Sources) -> str:
    """The pieces that change nothing when they run again: functions, views, comments and grants."""
    return _joined(sources, REPLACEABLE)


def upgrade_script(sources: Sources, upgrade: Path) -> str:
    """A migration, with the replaceable pieces in place of its line ``@api@``. The marks ``@cerebro@`` stay."""
    text = upgrade.read_text(encoding="utf-8")
    if API_MARK.search(text) and not upgrade.name.endswith(f"--{sources.version}.sql"):
        # The pieces are those of the current version: they may need tables that the older version does not have.
        raise ValueError(f"{upgrade.name} has a line @api@, but does not lead to version {sources.version}")
    return API_MARK.sub(lambda _: replaceable(sources), text)


def _joined(sources: Sources, folders: tuple[str, ...]) -> str:
    pieces = [piece for folder in folders for piece in sorted((sources.root / "sql" / folder).glob("[0-9]*.sql"))]
    return "\n".join(
        f"-- {piece.relative_to(sources.root).as_posix()}\n{piece.read_text(encoding='utf-8')}" for piece in pieces
    )


def install_scripts(sources: Sources, to: Path, code: str) -> None:
    """The control file and the scripts into an ``extension`` folder. Files of others there stay."""
    to.mkdir(parents=True, exist_ok=True)
    for name, text in scripts(sources, code).items():
        _write(to / name, text)
    _write(to / f"{NAME}.control", sources.control.read_text(encoding="utf-8"))


def install_code(sources: Sources, to: Path, trainer_python: str) -> None:
    """The Python code of the server and of the trainer, with ``install.json`` beside it, into the folder ``to``."""
    to.parent.mkdir(parents=True, exist_ok=True)
    # Built in another folder and renamed, so that a session that starts meanwhile never sees half of the files.
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
        # Byte code makes imports faster. It is checked by hash, and other Python versions ignore it.
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
    """A hash that changes when the installed files would change."""
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
    """A hash that changes when the SQL of the extension changes."""
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
