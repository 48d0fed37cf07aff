"""``make installcheck``, ``make dist`` and ``make rpm``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

import cerebro_db
from cerebro_db.embedded import extension
from cerebro_db.embedded.installation import Installation

CLONE = Path(__file__).resolve().parents[2]
ROOT = os.environ.get("CEREBRO_TEST_DEBIAN_ROOT")
SERVER = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make")


def make(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not re.match("MAKE|MFLAGS|PG|CONTRIB", name)}
    command = ["make", "--no-print-directory", "-C", str(folder), *arguments]
    return subprocess.run(command, env={**kept, **settings}, capture_output=True, text=True, timeout=300)


@pytest.mark.throw_away
def test_installcheck_trains_in_a_running_server(server: str, tmp_path: Path) -> None:
    where = {SERVER[name]: value for name, value in parse_dsn(server).items() if name in SERVER}
    program = f"PG_CONFIG={Installation.choose().bin / 'pg_config'}"
    database = "CONTRIB_TESTDB=t_installcheck"
    done = make(CLONE, "installcheck", program, database, RESULTS=str(tmp_path), **where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("^ok ", done.stdout, re.MULTILINE)) == len(list(CLONE.glob("tests/installcheck/sql/*.sql")))

    assert "database t_installcheck" in done.stdout
    postgres = make(CLONE, "installcheck", program, "CONTRIB_TESTDB=postgres", RESULTS=str(tmp_path), **where)
    assert postgres.returncode != 0 and "was not made by make installcheck" in postgres.stderr


def test_installcheck_without_a_server(tmp_path: Path) -> None:
    program = f"PG_CONFIG={Installation.choose().bin / 'pg_config'}"
    done = make(CLONE, "installcheck", program, PGHOST=str(tmp_path))
    assert done.returncode != 0 and "no server answers: set PGHOST" in done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unzipped bundle."""
    if not shutil.which("git") or not (CLONE / ".git").exists():
        pytest.skip("no clone with git")
    done = make(CLONE, "dist")
    assert done.returncode == 0, done.stderr
    name = f"cerebro_db-{cerebro_db.__version__}"
    folder = tmp_path_factory.mktemp("bundle")
    with zipfile.ZipFile(CLONE / "dist" / f"{name}.zip") as packed:
        packed.extractall(folder)
        for entry in packed.infolist():
            if mode := entry.external_attr >> 16 & 0o777:
                (folder / entry.filename).chmod(mode)
    assert [entry.name for entry in folder.iterdir()] == [name]
    return folder / name


def test_the_bundle_installs_as_a_clone_does(bundle: Path, tmp_path: Path) -> None:
    installation = Installation.choose()
    done = make(bundle, "install", f"PG_CONFIG={installation.bin / 'pg_config'}", f"DESTDIR={tmp_path}")
    assert done.returncode == 0, done.stderr
    share = tmp_path / installation.share.relative_to("/")
    (main, madlib) = (one.name for one in extension.EXTENSIONS)
    for one in (main, madlib):
        assert (share / "extension" / f"{one}.control").exists()
        assert (share / "extension" / f"{one}--{cerebro_db.__version__}.sql").exists()
    assert (share / "cerebro_db" / "python" / "cerebro_plpy" / "__init__.py").exists()


def test_what_pgxn_requires_of_the_bundle(bundle: Path) -> None:
    meta = json.loads((bundle / "META.json").read_text())
    required = {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"}
    assert all(meta.get(field) for field in required)
    assert f"{meta['name']}-{meta['version']}" == bundle.name
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[A-Za-z][A-Za-z0-9-]*)?", meta["version"]), "PGXN takes semantic versions only"
    assert meta["release_status"] in ("stable", "testing", "unstable")
    assert meta["meta-spec"]["url"].endswith("pgxn.org/meta/spec.txt")
    for provided in meta["provides"].values():
        assert (bundle / provided["file"]).exists() and (bundle / provided["docfile"]).exists()
        assert provided["version"] == meta["version"]
    for requirement in meta["prereqs"]["runtime"]["requires"].values():
        assert requirement == 0 or re.fullmatch(r"\d+\.\d+\.\d+", requirement)


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="no rpmbuild")
def test_the_rpm_packages(bundle: Path) -> None:
    done = make(CLONE, "rpm", "PG_VERSIONS=17", "RPMBUILD=rpmbuild --nodeps")
    assert done.returncode == 0, done.stderr
    (server,) = CLONE.glob(f"dist/noarch/cerebro_db_17-{cerebro_db.__version__}-1*.rpm")
    shown = subprocess.run(["rpm", "-qp", "--list", server], check=True, capture_output=True, text=True).stdout
    files = set(shown.splitlines())
    for one in extension.EXTENSIONS:
        assert f"/usr/pgsql-17/share/extension/{one.name}--{cerebro_db.__version__}.sql" in files
    code = bundle / "plpy"
    modules = {f"/usr/pgsql-17/share/cerebro_db/python/{it.relative_to(code)}" for it in code.rglob("*.py")}
    assert modules <= files
    assert {"/usr/pgsql-17/share/cerebro_db/install.json", "/usr/pgsql-17/share/cerebro_db/keep_settings.py"} <= files
    assert make(CLONE, "rpm", "PG_VERSIONS=").returncode != 0 or list(Path("/usr").glob("pgsql-*"))


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="no rpmbuild")
@pytest.mark.skipif(not ROOT, reason="CEREBRO_TEST_DEBIAN_ROOT names no folder of a Debian that may be changed")
def test_rpm_packages_are_installed_and_removed_in_a_clean_root(bundle: Path) -> None:
    """Their scripts run there, with its Python. Of what they require, Debian has other names."""
    root, sharedir = Path(ROOT or ""), "/usr/pgsql-17/share"
    assert make(CLONE, "rpm", "PG_VERSIONS=17", "RPMBUILD=rpmbuild --nodeps").returncode == 0
    files = [*CLONE.glob(f"dist/noarch/*-{cerebro_db.__version__}-1*.rpm")]
    assert len(files) == 2
    rpm = ["rpm", "--root", str(root), "--dbpath", "/srv/cerebro-rpm"]

    def inside(*command: str) -> str:
        return subprocess.run(["chroot", root, *command], check=True, capture_output=True, text=True).stdout

    try:
        subprocess.run([*rpm, "--nodeps", "--install", *files], check=True)
        settings = json.loads((root / "etc/cerebro-db/17.json").read_text())
        assert settings["setup"] == "cerebro-db-trainer-setup" and settings["version"] == cerebro_db.__version__
        code = f"import sys; sys.path.insert(0, '{sharedir}/cerebro_db/python'); import cerebro_db; "
        assert inside("python3", "-IB", "-c", f"{code}print(cerebro_db.__version__)").strip() == cerebro_db.__version__
        assert json.loads(inside("cat", f"{sharedir}/cerebro_db/python/install.json")) == settings
        assert "cerebro-db-trainer-setup [--gpu |" in inside("cerebro-db-trainer-setup", "--help")
        subprocess.run([*rpm, "--erase", "cerebro_db_17", "cerebro_db-trainer"], check=True)
        places = ("usr/pgsql-17/share/cerebro_db", "etc/cerebro-db", "usr/sbin/cerebro-db-trainer-setup")
        assert [place for place in places if (root / place).exists()] == []
        assert list((root / "usr/pgsql-17").rglob("*cerebro*")) == []
    finally:
        shutil.rmtree(root / "srv/cerebro-rpm", ignore_errors=True)
