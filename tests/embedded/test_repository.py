"""The files that describe the project agree with each other."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
import tomllib

import cerebro_db
from cerebro_db.embedded.extension import EXTENSIONS, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of apache.org's LICENSE-2.0.txt


def test_the_license_is_the_unchanged_apache_license() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_the_pgxn_metadata() -> None:
    """What the PGXN meta specification 1.0.0 requires, and the version of everything else."""
    meta = json.loads((ROOT / "META.json").read_text())
    assert {"name", "abstract", "version", "maintainer", "license", "provides", "meta-spec"} <= set(meta)
    assert (meta["name"], meta["license"], meta["meta-spec"]["version"]) == ("cerebro_db", "apache_2_0", "1.0.0")
    assert set(meta["provides"]) == {extension.name for extension in EXTENSIONS}
    for provided in meta["provides"].values():
        assert meta["version"] == provided["version"] == cerebro_db.__version__
        assert (ROOT / provided["file"]).exists() and (ROOT / provided["docfile"]).exists()


def test_the_changelog_has_the_current_version() -> None:
    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == cerebro_db.__version__


def test_the_environment_has_every_upgrade_script() -> None:
    """``cerebro up`` updates a cluster with the scripts of the environment, where there is no clone."""
    installed = Path(sys.prefix) / "share" / "cerebro_db" / "migrations"
    assert {one.name for one in installed.iterdir()} == {one.name for one in (ROOT / "migrations").glob("*.sql")}


def test_the_settings_that_an_installation_keeps_are_those_that_are_documented() -> None:
    page = (ROOT / "docs" / "install.md").read_text().partition("\n## Settings\n")[2]
    assert tuple(re.findall(r'^- `"(\w+)":', page, re.MULTILINE)) == SETTINGS
    of_packages = (ROOT / "docker" / "packages" / "keep_settings.py").read_text()
    assert f"KEPT = {(*SETTINGS, 'trainer_python')}".replace("'", '"') in of_packages


def test_type_hints_are_packaged() -> None:
    server = ("cerebro_plpy", "cerebro_madlib")
    assert all((ROOT / folder / "py.typed").exists() for folder in ("cerebro_db", *(f"plpy/{name}" for name in server)))
    packaged = PROJECT["tool"]["setuptools"]["package-data"]
    drawing = ["client/dashboard/*.js", "client/report/*.js", "client/report/*.css", "client/report/uplot/*"]
    of_client = ["py.typed", "embedded/iris.sql", *drawing]
    assert packaged == {"cerebro_db": of_client, **{name: ["py.typed"] for name in server}}
    assert all(list((ROOT / "cerebro_db").glob(pattern)) for pattern in packaged["cerebro_db"])


PAGES = sorted(
    str(page.relative_to(ROOT)) for folder in ("", "docs", "migrations") for page in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text())
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_every_make_target_in_the_texts_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(" ".join(re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE)).split())
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert {one or other for one, other in named} <= targets, page
