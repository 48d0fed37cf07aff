"""``make deb``: what is in the packages. Installing them takes minutes, a network and a Debian that may be changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cerebro_db
from cerebro_db.embedded import extension
from cerebro_db.embedded.extension import Sources

CLONE = Path(__file__).resolve().parents[2]
ROOT = os.environ.get("CEREBRO_TEST_DEBIAN_ROOT")
VERSION = f"{cerebro_db.__version__}-1"
SETUP = CLONE / "docker" / "packages" / "debian" / "cerebro-db-trainer-setup"

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb")


def build(to: Path, versions: str) -> subprocess.CompletedProcess[str]:
    """Builds from a copy, so that the packages of the clone stay."""
    copy = to / "clone"
    if not copy.exists():
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "tests", "__pycache__", ".*_cache")
        shutil.copytree(CLONE, copy, ignore=ignored)
    quick = {"DPKG_DEB_COMPRESSOR_LEVEL": "1"}  # the packages are a fifth larger
    environment = {**os.environ, **quick, "PG_VERSIONS": versions, "SOURCE_DATE_EPOCH": "1700000000"}
    return subprocess.run([copy / "docker/packages/deb.sh"], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    done = build(folder, "15 17")
    assert done.returncode == 0, done.stderr
    return folder / "clone" / "dist"


def fields(package: Path) -> dict[str, str]:
    shown = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"^([A-Z][\w-]*): (.*)$", shown, re.MULTILINE))


def unpacked(package: Path, to: Path) -> Path:
    subprocess.run(["dpkg-deb", "--raw-extract", package, to], check=True)
    return to


def test_one_package_per_version_and_one_of_the_trainer(built: Path) -> None:
    names = {f"postgresql-{number}-cerebro-db_{VERSION}_all.deb" for number in (15, 17)}
    assert {file.name for file in built.iterdir()} == names | {f"cerebro-db-trainer_{VERSION}_all.deb"}
    server = fields(built / f"postgresql-17-cerebro-db_{VERSION}_all.deb")
    assert {"postgresql-plpython3-17", "python3-psycopg2"} <= set(server["Depends"].split(", "))
    assert server["Recommends"] == "cerebro-db-trainer"
    assert "python3-venv" in fields(built / f"cerebro-db-trainer_{VERSION}_all.deb")["Depends"]


def test_a_package_has_the_files_of_make_install(built: Path, tmp_path: Path) -> None:
    root = unpacked(built / f"postgresql-15-cerebro-db_{VERSION}_all.deb", tmp_path / "root")
    share = root / "usr/share/postgresql/15"
    for name, text in extension.scripts(Sources.find()).items():
        assert (share / "extension" / name).read_text() == text
    extension.install_code(Sources.find(), tmp_path / "installed" / "python", "/var/lib/cerebro/venv/bin/python")
    installed = {file.relative_to(tmp_path / "installed") for file in (tmp_path / "installed").rglob("*.py")}
    assert {file.relative_to(share / "cerebro_db") for file in (share / "cerebro_db/python").rglob("*.py")} == installed
    assert not list(root.rglob("*.pyc")), "the package is for any Python"
    link = share / "cerebro_db" / "python" / "install.json"
    assert os.readlink(link) == "/etc/cerebro-db/15.json", "an upgrade must not replace the administrator's settings"
    assert json.loads((share / "cerebro_db" / "install.json").read_text()) == {
        "setup": "cerebro-db-trainer-setup",
        "trainer_python": "/var/lib/cerebro/venv/bin/python",
        "version": cerebro_db.__version__,
    }
    for script in (root / "DEBIAN").glob("p*"):
        assert "@" not in re.sub(r"\$@", "", script.read_text()), script
        assert subprocess.run(["sh", "-n", script]).returncode == 0 and script.stat().st_mode & 0o111


def test_a_new_release_keeps_the_settings(tmp_path: Path) -> None:
    packaged, kept = tmp_path / "install.json", tmp_path / "etc" / "15.json"

    def configure() -> subprocess.CompletedProcess[str]:
        program = CLONE / "docker" / "packages" / "keep_settings.py"
        return subprocess.run([sys.executable, "-I", program, packaged, kept], capture_output=True, text=True)

    packaged.write_text('{"trainer_python": "/venv/bin/python", "version": "1"}')
    assert configure().returncode == 0 and json.loads(kept.read_text()) == json.loads(packaged.read_text())
    kept.write_text(
        '{"trainer_python": "/other/python", "keep_ready": 60, "version": "1", "setup": "", "keep_redy": 1}'
    )
    packaged.write_text('{"trainer_python": "/venv/bin/python", "version": "2", "setup": "it"}')
    done = configure()
    assert done.returncode == 0 and "loses keys that are no settings: keep_redy" in done.stderr
    assert json.loads(kept.read_text()) == {
        "trainer_python": "/other/python", "keep_ready": 60, "version": "2", "setup": "it",
    }  # fmt: skip
    for broken in ("[1]", "{"):
        kept.write_text(broken)
        done = configure()
        assert done.returncode == 1 and "Repair or remove it" in done.stderr and kept.read_text() == broken


def test_the_trainers_package_has_the_pinned_versions(built: Path, tmp_path: Path) -> None:
    root = unpacked(built / f"cerebro-db-trainer_{VERSION}_all.deb", tmp_path / "root")
    for name in ("requirements.txt", "requirements-gpu.txt", "requirements-jax.txt", "docker/install.sh"):
        assert (root / "usr/share/cerebro-db-trainer" / name).read_bytes() == (CLONE / name).read_bytes()
    assert os.access(root / "usr/sbin/cerebro-db-trainer-setup", os.X_OK)


def test_the_same_sources_make_the_same_bytes(built: Path, tmp_path: Path) -> None:
    assert build(tmp_path, "15").returncode == 0
    name = f"postgresql-15-cerebro-db_{VERSION}_all.deb"
    assert (tmp_path / "clone" / "dist" / name).read_bytes() == (built / name).read_bytes()


def test_wrong_versions_are_refused(tmp_path: Path) -> None:
    for wrong in ("12", "15 x", "../15"):
        done = build(tmp_path, wrong)
        assert done.returncode == 1 and "is not a major version from 13 on" in done.stderr
    assert not list((tmp_path / "clone").glob("dist/*.deb"))


def test_the_setup_command_explains_itself() -> None:
    shown = subprocess.run([SETUP, "--help"], capture_output=True, text=True)
    assert (
        shown.returncode == 0 and "cerebro-db-trainer-setup [--gpu |" in shown.stdout and "set -eu" not in shown.stdout
    )
    refused = subprocess.run([SETUP, "--dev"], capture_output=True, text=True)
    assert refused.returncode == 1 and "unknown argument --dev" in refused.stderr


@pytest.mark.skipif(not ROOT, reason="CEREBRO_TEST_DEBIAN_ROOT names no folder of a Debian that may be changed")
def test_installing_training_and_purging(tmp_path: Path) -> None:
    """In a chroot: the root of a Debian without PostgreSQL, in which apt and pip work. About ten minutes."""
    root = Path(ROOT or "")
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    (number,) = re.findall(
        r"Depends: postgresql-(\d+)",
        subprocess.run(
            ["chroot", root, "apt-cache", "depends", "postgresql"], check=True, capture_output=True, text=True
        ).stdout,
    )
    assert build(tmp_path, number).returncode == 0
    shutil.copytree(CLONE / "tests" / "installcheck", tmp_path / "clone" / "tests" / "installcheck")
    where = root / "srv" / "cerebro-packages"
    shutil.rmtree(where, ignore_errors=True)
    try:
        shutil.copytree(tmp_path / "clone", where)
        inside = "/srv/cerebro-packages"
        done = subprocess.run(["chroot", root, f"{inside}/tests/installcheck/debian.sh", f"{inside}/dist"])
        assert done.returncode == 0
    finally:
        shutil.rmtree(where)
