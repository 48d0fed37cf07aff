"""Assembling the extension from its pieces, and installing it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_sources import HELLO, small_sources

import cerebro_db
from cerebro_db.core import arguments, records
from cerebro_db.embedded import extension, heads
from cerebro_db.embedded.extension import Sources
from cerebro_db.embedded.installation import Installation


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return small_sources(tmp_path)


def test_the_makefile_can_run_it_as_a_plain_script() -> None:
    """On a server that has only Python 3.9 and its standard library."""
    ours = [extension, heads, arguments, records]
    modules: set[str] = set()
    for module in ours:
        tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 9))
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {
            node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level
        }
    assert "argparse" in modules
    of_ours = {module.__name__ for module in ours} | {"cerebro_db.core", "cerebro_db.embedded"}
    assert {module.partition(".")[0] for module in modules - of_ours} <= sys.stdlib_module_names


def test_one_version_everywhere() -> None:
    sources = Sources.find()
    assert sources.version == cerebro_db.__version__
    for one in extension.EXTENSIONS:
        assert f"default_version = '{cerebro_db.__version__}'" in (sources.root / one.control).read_text()


def test_pieces_are_put_together_in_file_name_order(sources: Sources) -> None:
    (sources.root / "migrations" / "cerebro_db--0.0.9--0.1.0.sql").write_text(HELLO)
    made = extension.scripts(sources, "/opt/code")
    assert set(made) == {
        "cerebro_db.control",
        f"cerebro_db--{sources.version}.sql",
        "cerebro_db--0.0.9--0.1.0.sql",
    }
    script = made[f"cerebro_db--{sources.version}.sql"]
    assert script.startswith('\\echo Use "CREATE EXTENSION')
    assert script.index("CREATE TABLE first") < script.index("CREATE FUNCTION hello")
    made.pop("cerebro_db.control")
    assert all("@cerebro@" not in text and "from cerebro_plpy import api" in text for text in made.values())


def test_no_function_knows_a_folder_of_one_version() -> None:
    """pg_upgrade takes functions as they are to a server that has other folders."""
    texts = extension.scripts(Sources.find()).values()
    assert any("pg_config()" in text for text in texts)
    for text in texts:
        assert not re.search(r"/(usr|opt|var|home|srv|root|work|lib|share)/", text)


def test_the_extension_with_madlibs_names_may_have_another_schema() -> None:
    sources = Sources.find()
    usual, other = (extension.scripts(sources, "/opt/code", schema) for schema in (None, "madlib_dl"))
    assert "\nschema = madlib\n" in usual["cerebro_db_madlib.control"]
    assert "\nschema = madlib_dl\n" in other["cerebro_db_madlib.control"]
    script = usual[f"cerebro_db_madlib--{sources.version}.sql"]
    assert script == other[f"cerebro_db_madlib--{sources.version}.sql"]
    assert "@extschema@.madlib_keras_predict" in script and " madlib." not in script
    for wrong in ("Mad", "pg_mad", "a b", "a\nrequires = x"):
        with pytest.raises(ValueError, match="cannot be the schema"):
            extension.scripts(sources, "/opt/code", wrong)


@pytest.mark.parametrize(
    "code",
    ["/opt/code", "/a b/'c'", '/a"b', "/a$python$b/$$", "/@extschema@/x", "/größe/\U0001f600", "/back\\slash\nline"],
)
def test_any_fixed_folder_is_quoted(code: str, db: Any) -> None:
    first = extension.preamble(code)
    assert "$" not in first and "@" not in first and "\n" not in first
    before = list(sys.path)
    try:
        exec(first.replace('"cerebro_plpy" in sys.modules or ', "").replace("; from cerebro_plpy import api", ""), {})
        assert sys.path == [code, *before]
    finally:
        sys.path[:] = before
    line = extension.expand("@code@", code)
    assert "$" not in line and "@" not in line
    with db.cursor() as cursor:
        cursor.execute(f"SELECT {line}")
        assert cursor.fetchone()[0] == code


def test_a_misplaced_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="alone on its line"):
        extension.expand("x = 1; @cerebro@\n", "/opt/code")


def test_code_is_replaced_as_a_whole_and_writable_by_its_owner_only(sources: Sources, tmp_path: Path) -> None:
    to = tmp_path / "installed" / "python"
    (sources.plpy / "__pycache__").mkdir()
    (sources.plpy / "__pycache__" / "stale.pyc").write_bytes(b"x")
    (sources.plpy / "gone.py").write_text("")
    extension.install_code(sources, to, "/some/python")
    (sources.plpy / "gone.py").unlink()
    extension.install_code(sources, to, "/some/python")
    assert json.loads((to / "install.json").read_text())["trainer_python"] == "/some/python"
    assert not (to / "cerebro_plpy" / "gone.py").exists()
    assert not list(to.rglob("stale.pyc"))
    assert [entry.name for entry in to.parent.iterdir()] == ["python"]
    for file in to.rglob("*"):
        assert not file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_settings_of_the_administrator_stay(sources: Sources, tmp_path: Path) -> None:
    to = tmp_path / "installed" / "python"
    extension.install_code(sources, to, "/old/python")
    file = to / "install.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "keep_ready": 60, "version": "0.0.1", "keep_redy": 1}))
    extension.install_code(sources, to, "/new/python")
    written = {"keep_ready": 60, "trainer_python": "/new/python", "version": sources.version}
    assert json.loads(file.read_text()) == written
    for broken in ("no JSON", "[]"):
        file.write_text(broken)
        extension.install_code(sources, to, "/new/python")
        assert json.loads(file.read_text()) == {name: written[name] for name in ("trainer_python", "version")}


def test_the_fingerprint_sees_every_change(sources: Sources) -> None:
    seen = {extension.fingerprint(sources, "/p"), extension.fingerprint(sources, "/q")}
    (sources.plpy / "api.py").write_text("# new\n")
    seen.add(extension.fingerprint(sources, "/p"))
    (sources.root / "sql" / "30_more.sql").write_text("-- more\n")
    seen.add(extension.fingerprint(sources, "/p"))
    assert len(seen) == 4


def test_make_install_puts_the_same_files_in_place_and_make_uninstall_removes_all(tmp_path: Path) -> None:
    clone = Path(__file__).resolve().parents[2]
    if not shutil.which("make") or not (clone / "Makefile").exists():
        pytest.skip("no make, or no clone")
    installation = Installation.choose()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    copy = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
    shutil.copytree(clone, copy, ignore=ignored)
    command = [
        "make",
        "-C",
        str(copy),
        "install",
        f"PG_CONFIG={installation.bin / 'pg_config'}",
        f"DESTDIR={tmp_path}/to",
    ]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    share = tmp_path / "to" / installation.share.relative_to("/")
    for name, text in extension.scripts(Sources.find()).items():
        assert (share / "extension" / name).read_text() == text
    assert (share / "cerebro_db" / "python" / "cerebro_plpy" / "__init__.py").exists()
    compiled = list((share / "cerebro_db" / "python").rglob("*.pyc"))
    assert compiled and not any(str(tmp_path).encode() in file.read_bytes() for file in compiled)
    assert json.loads((share / "cerebro_db/python/install.json").read_text())["version"] == cerebro_db.__version__
    command[command.index("install")] = "uninstall"
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert list(share.iterdir()) == [share / "extension"] and not any((share / "extension").iterdir())
