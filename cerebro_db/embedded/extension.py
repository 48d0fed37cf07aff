"""Assembles the two extensions from their pieces and installs them, for ``make install`` and for ``cerebro up``.

It and what it imports need Python 3.9 and the standard library only, because the Makefile runs it as a plain script on
servers that have nothing else.
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

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cerebro_db.embedded import heads  # noqa: E402

NAME = "cerebro_db"
SETTINGS = ("keep_ready", "keep_compiled", "confine")  # of install.json; docs/install.md documents them
HEADER = '\\echo Use "CREATE EXTENSION {} CASCADE" to load this file. \\quit\n'
MARK = re.compile(r"^([ \t]*)@cerebro@[ \t]*$", re.MULTILINE)
# PL/Python writes the line of a call into the context of its errors, so the line is short.
CALL = re.compile(r"^([ \t]*)return api\.(\w+)\(plpy\b", re.MULTILINE)
API_MARK = re.compile(r"^@api@[ \t]*$", re.MULTILINE)
PIECE_MARK = re.compile(r"^@(schema/[0-9][\w]*\.sql)@[ \t]*$", re.MULTILINE)
SCHEMA = re.compile(r"^schema\s*=.*$", re.MULTILINE)


@dataclass(frozen=True)
class Extension:
    """One extension: its control file, and the folders of its pieces below ``sql/`` in the order of installation."""

    name: str
    control: str
    run_once: tuple[str, ...]
    replaceable: tuple[str, ...]  # pieces that may run again

    def is_in(self, sources: Sources) -> bool:
        return (sources.root / self.control).exists()

    def scripts_in(self, folder: Path, version: str = "*") -> list[Path]:
        """Its upgrade scripts to a version in a folder."""
        return sorted(folder.glob(f"{self.name}--*--{version}.sql"))


# "": a script that is not split, such as a frozen release
MAIN = Extension(NAME, f"{NAME}.control", ("", "schema"), ("api",))
MADLIB = Extension(f"{NAME}_madlib", f"sql/madlib/{NAME}_madlib.control", ("madlib/schema",), ("madlib",))
EXTENSIONS = (MAIN, MADLIB)
PACKAGES = ("cerebro_plpy", "cerebro_madlib")


@dataclass(frozen=True)
class Sources:
    """The folders of the pieces: in a clone, or in an environment that pip has installed them into."""

    root: Path  # cerebro_db.control, sql/, migrations/
    package: Path  # cerebro_db
    plpy: Path  # cerebro_plpy, with the packages beside it that use it

    @classmethod
    def find(cls) -> Sources:
        above = Path(__file__).resolve().parents[2]
        if (above / f"{NAME}.control").exists():
            return cls(above, above / NAME, above / "plpy" / "cerebro_plpy")
        return cls(Path(sys.prefix) / "share" / NAME, above / NAME, above / "cerebro_plpy")

    @property
    def of_server(self) -> list[Path]:
        """The packages that the server loads, besides core."""
        return [folder for name in PACKAGES if (folder := self.plpy.with_name(name)).exists()]

    @property
    def version(self) -> str:
        found = re.search(r"^default_version\s*=\s*'([^']+)'", self.control.read_text(), re.MULTILINE)
        if not found:
            raise ValueError(f"{self.control} has no default_version")
        return found.group(1)

    @property
    def control(self) -> Path:
        return self.root / f"{NAME}.control"


# The folder of the code is asked for at call time, because pg_upgrade takes functions to a server with other folders.
ASKED = 'plpy.execute("SELECT cerebro_internal._code_folder() AS it")[0]["it"]'
BESIDE_THE_EXTENSION = "(SELECT setting || '/cerebro_db/python' FROM pg_catalog.pg_config() WHERE name = 'SHAREDIR')"


def preamble(code: str | None = None) -> str:
    """The first line of every PL/Python body: puts the code folder on the path, once per process, and imports the API.

    ``code``: a fixed folder.  Greenplum needs one: there a cancel that meets a statement here would crash the server.
    The folder is the first entry of the path, because on Greenplum a user can add entries (plpython3.python_path).
    """
    # $ and @ are written as escapes: a dollar quote or an @extschema@ macro cannot start in a path.
    where = ASKED if code is None else ascii(code).replace("$", "\\x24").replace("@", "\\x40")
    return f'import sys; "cerebro_plpy" in sys.modules or sys.path.insert(0, {where}); from cerebro_plpy import api'


def expand(text: str, code: str | None = None) -> str:
    """The text without marks.  ``code``: a fixed folder of the code, in place of one in the server's share folder."""
    line = preamble(code)
    expanded = MARK.sub(lambda found: found.group(1) + line, text)
    expanded = CALL.sub(r"\1with api.QUIETLY: return api.\2(\n\1    plpy", expanded)
    if "@cerebro@" in expanded:
        raise ValueError("@cerebro@ must stand alone on its line")
    return expanded.replace("@code@", BESIDE_THE_EXTENSION if code is None else _quoted(code))


def _quoted(path: str) -> str:
    """A path as an SQL literal, in which no dollar quote and no macro like @extschema@ can start."""
    escapes = {"\\": "\\\\", "'": "''", "$": "\\x24", "@": "\\x40"}
    return "E'" + "".join(escapes.get(letter, letter) for letter in path) + "'"


def scripts(sources: Sources, code: str | None = None, madlib_schema: str | None = None) -> dict[str, str]:
    """File name to text: control files, install scripts and upgrade scripts, as PostgreSQL reads them.

    ``code``: a fixed folder of the code, if it does not lie in the server's share folder.
    ``madlib_schema``: another schema for the second extension than the one in its control file.
    """
    if code is not None and not os.path.isabs(code):
        raise ValueError(f"the code folder must be an absolute path, not {code!r}")
    made = {}
    for one in EXTENSIONS:
        if one is MADLIB and not one.is_in(sources):  # the sources of a test, or of a frozen release
            continue
        control = (sources.root / one.control).read_text(encoding="utf-8")
        if one is MADLIB and madlib_schema:
            control = SCHEMA.sub(f"schema = {_control_value(madlib_schema)}", control)
        whole = install_script(sources, one)
        if not whole:
            folders = ", ".join(str(sources.root / "sql" / folder) for folder in (*one.run_once, *one.replaceable))
            raise ValueError(f"no pieces [0-9]*.sql in {folders}")
        made[f"{one.name}.control"] = control
        made[f"{one.name}--{sources.version}.sql"] = HEADER.format(one.name) + expand(whole, code)
        for upgrade in one.scripts_in(sources.root / "migrations"):
            made[upgrade.name] = expand(upgrade_script(sources, upgrade, one), code)
    return made


def _control_value(schema: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", schema) or schema.startswith("pg_"):
        raise ValueError(f"{schema!r} cannot be the schema: use lower-case letters, digits and underscores")
    return schema


def install_script(sources: Sources, of: Extension = MAIN) -> str:
    """All pieces, those that run once first. The marks ``@cerebro@`` stay."""
    return "\n".join(part for part in (_joined(sources, of.run_once), replaceable(sources, of)) if part)


def replaceable(sources: Sources, of: Extension = MAIN) -> str:
    """The pieces that change nothing when they run again: functions, views, comments and grants."""
    return _joined(sources, of.replaceable)


def upgrade_script(sources: Sources, upgrade: Path, of: Extension = MAIN) -> str:
    """A migration, with the replaceable pieces in place of its line ``@api@``. The marks ``@cerebro@`` stay.

    A line ``@schema/75_registry.sql@`` stands for that piece, whose objects the older version does not have.
    """
    text = upgrade.read_text(encoding="utf-8")
    if (API_MARK.search(text) or PIECE_MARK.search(text)) and not upgrade.name.endswith(f"--{sources.version}.sql"):
        # The pieces are those of the current version: they may need tables that the older version does not have.
        raise ValueError(f"{upgrade.name} has a line @api@, but does not lead to version {sources.version}")
    text = PIECE_MARK.sub(lambda found: (sources.root / "sql" / found.group(1)).read_text(encoding="utf-8"), text)
    return API_MARK.sub(lambda _: replaceable(sources, of), text)


def _joined(sources: Sources, folders: tuple[str, ...]) -> str:
    pieces = [piece for folder in folders for piece in sorted((sources.root / "sql" / folder).glob("[0-9]*.sql"))]
    return "\n".join(
        f"-- {piece.relative_to(sources.root).as_posix()}\n{heads.filled(piece.read_text(encoding='utf-8'))}"
        for piece in pieces
    )


def install_scripts(sources: Sources, to: Path, code: str | None = None, madlib_schema: str | None = None) -> None:
    """The control files and the scripts into an ``extension`` folder. Files of others there stay."""
    to.mkdir(parents=True, exist_ok=True)
    for name, text in scripts(sources, code, madlib_schema).items():
        _write(to / name, text)


def install_code(sources: Sources, to: Path, trainer_python: str, destdir: Path | None = None) -> None:
    """The Python code of the server and of the trainer, with ``install.json`` beside it, into the folder ``to``.

    ``destdir``: the part of ``to`` that is left out on the running system, as packages are built.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    # Built in another folder and renamed, so that a session that starts meanwhile never sees half of the files.
    aside = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        new = aside / "new"
        new.mkdir()
        for package in sources.of_server:
            _copy(package, new / package.name)
        (new / NAME).mkdir()
        shutil.copyfile(sources.package / "__init__.py", new / NAME / "__init__.py")
        for room in ("core", "nn"):
            _copy(sources.package / room, new / NAME / room)
        written = {**_settings(to), "trainer_python": trainer_python, "version": sources.version}
        _write(new / "install.json", json.dumps(written, indent=1) + "\n")
        # Byte code makes imports faster, and other Python versions ignore it. A session need not read the sources to
        # check it: the folder is replaced as a whole.
        compileall.compile_dir(
            new,
            quiet=2,
            stripdir=str(new),
            prependdir=str(to if destdir is None else "/" / to.relative_to(destdir)),  # tracebacks show it
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        _readable_by_all_writable_by_owner(new)
        if to.exists():
            to.rename(aside / "old")
        new.rename(to)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _settings(installed: Path) -> dict[str, object]:
    """The administrator's settings, which a new installation keeps. It drops all other keys."""
    try:
        written = json.loads((installed / "install.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: written[name] for name in SETTINGS if name in written} if isinstance(written, dict) else {}


def fingerprint(sources: Sources, trainer_python: str) -> str:
    """A hash that changes when the installed files would change."""
    digest = hashlib.sha256(f"{trainer_python}\0".encode())
    for name, text in scripts(sources).items():
        digest.update(f"{name}\0{text}\0".encode())
    rooms = [*sources.of_server, sources.package / "core", sources.package / "nn", sources.package / "__init__.py"]
    for room in rooms:
        for file in sorted(room.rglob("*")) if room.is_dir() else [room]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{room.name}/{file.relative_to(room)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def script_hash(sources: Sources) -> str:
    """A hash that changes when the SQL of one of the extensions changes."""
    installed = [text for name, text in scripts(sources).items() if name.endswith(f"--{sources.version}.sql")]
    return hashlib.sha256("\0".join(installed).encode()).hexdigest()


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
    one = commands.add_parser("scripts", help="write the control files and the SQL scripts")
    one.add_argument("--to", type=Path, required=True, help="folder to write into")
    one.add_argument("--code", help="where the Python code will lie, if not in the server's share folder")
    one.add_argument("--madlib-schema", help=f"the schema of {MADLIB.name}, if a real MADlib has the schema madlib")
    two = commands.add_parser("code", help="copy the Python code and write install.json")
    two.add_argument("--to", type=Path, required=True, help="folder to write into (replaced)")
    two.add_argument("--trainer-python", required=True, help="the trainer environment's interpreter")
    two.add_argument("--destdir", type=Path, help="the beginning of --to that the running system does not have")
    chosen = parser.parse_args()
    try:
        if chosen.command == "scripts":
            install_scripts(Sources.find(), chosen.to, chosen.code, chosen.madlib_schema)
        else:
            install_code(Sources.find(), chosen.to, chosen.trainer_python, chosen.destdir)
    except (OSError, ValueError) as error:
        sys.exit(f"{NAME}: {error}")


if __name__ == "__main__":
    main()
