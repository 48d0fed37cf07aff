"""requirements*.txt, which `make lock` writes: they agree with pyproject.toml, have hashes, and name no server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
MACHINES = ("x86_64", "aarch64")
LOCKS = {  # extra -> its file, the files that are installed before it, and the minor versions of Python
    "trainer": (["requirements.txt"], range(10, 14)),
    "trainer-jax": (["requirements-jax.txt"], range(10, 15)),
    "trainer-gpu": (["requirements-gpu.txt"], range(11, 14)),
    "dev": (["requirements-dev.txt", "requirements-jax.txt"], range(11, 15)),
    "bench": (["requirements-bench.txt", "requirements-dev.txt", "requirements.txt"], range(11, 14)),
    "site": (["requirements-site.txt"], range(11, 15)),  # a dependency group, without the client
}


def wanted(extra: str) -> list[Requirement]:
    """What pyproject.toml lists for the client and for an extra, or for a dependency group."""
    if extra in PYPROJECT["dependency-groups"]:
        return [Requirement(line) for line in PYPROJECT["dependency-groups"][extra]]
    listed = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    own = [one for one in listed if one.name == PROJECT["name"]]
    found = [one for one in listed if one.name != PROJECT["name"]]
    for other in {name for one in own for name in one.extras}:
        found += wanted(other)
    return [*found, *(Requirement(line) for line in PROJECT["dependencies"])]


def pinned(file: str) -> list[Requirement]:
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line.removesuffix("\\")) for line in lines if line[0] not in " #"]


def named(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def machines(versions: range) -> list[dict[str, Any]]:
    return [
        {
            **default_environment(),
            "python_version": f"3.{minor}",
            "python_full_version": f"3.{minor}.{patch}",
            "sys_platform": "linux",
            "platform_machine": machine,
        }  # fmt: skip
        for minor in versions
        for patch in ("0", "0rc1")  # Python 3.11 of Ubuntu 22.04 is a release candidate
        for machine in MACHINES
    ]


def applies(requirement: Requirement, machine: dict[str, Any]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(machine)


@pytest.mark.parametrize("extra", LOCKS)
def test_every_package_of_pyproject_is_pinned_as_pyproject_wants_it(extra: str) -> None:
    files, versions = LOCKS[extra]
    pins = [pin for file in files for pin in pinned(file)]
    for machine in machines(versions):
        here = [pin for pin in pins if applies(pin, machine)]
        for requirement in (one for one in wanted(extra) if applies(one, machine)):
            found = {
                str(pin.specifier).removeprefix("==") for pin in here if named(pin.name) == named(requirement.name)
            }
            told = f"{requirement} with Python {machine['python_version']}: {found or 'not pinned'}. Run make lock"
            assert len(found) == 1 and requirement.specifier.contains(found.pop()), told


@pytest.mark.parametrize("extra", LOCKS)
def test_a_file_pins_one_version_of_each_package_and_the_same_as_the_other_files(extra: str) -> None:
    files, versions = LOCKS[extra]
    for machine in machines(versions):
        found: dict[str, str] = {}
        for pin in (one for file in [*files, "requirements-jax.txt"] for one in pinned(file) if applies(one, machine)):
            assert found.setdefault(named(pin.name), str(pin.specifier)) == str(pin.specifier), (pin, machine)


@pytest.mark.parametrize("extra", LOCKS)
def test_all_pins_are_exact_and_have_hashes_and_no_server_is_named(extra: str) -> None:
    text = (ROOT / LOCKS[extra][0][0]).read_text()
    assert "make lock writes this file" in text and "://" not in text and "--index" not in text and "--find" not in text
    for pin in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.match(r"[a-z0-9-]+==\S+( ; [^\\]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", pin), pin
