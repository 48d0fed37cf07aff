"""Entry points of other packages: what is looked up, when, and where."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from cerebro_db.client.errors import ClientError, found
from cerebro_db.client.trackers import TRACKERS, mlflow
from cerebro_db.core import entry_points
from cerebro_db.core.engines import DISPLAY_NAMES, ENGINES
from cerebro_db.core.errors import InvalidArgument, Unsupported
from cerebro_db.core.options import check
from cerebro_db.core.search import named_methods
from cerebro_db.nn.nursery import is_installed

ROOT = Path(__file__).parents[2]
METHOD = """
from cerebro_db.core.records import dataclass
from cerebro_db.core.search.policy import Decision, Parameter, Policy, Verdict
from cerebro_db.core.search.proposing import Sampler
from cerebro_db.testing.search_methods import SearchMethodContract

@dataclass
class Early(Policy):
    epochs: int
    after: int = 1
    name, does, parameters = "early", "stops every model", (Parameter("after", 1, 1),)

    def decide(self, history, model, epoch):
        ends = self.after <= epoch < self.epochs
        return Decision(model, epoch, Verdict.STOP, "early") if ends else Decision(model, epoch, Verdict.CONTINUE)

@dataclass
class Fixed(Sampler):
    space: object
    seed: int
    name, does, independent = "fixed", "draws points", True

    def sample(self, history, number, count):
        return [self.space.drawn(self.seed, number + place) for place in range(count)]

class TestEarly(SearchMethodContract):
    method = Early

class TestFixed(SearchMethodContract):
    method = Fixed
"""
OFFERED = """
[cerebro_db.search_methods]
early = strangers.methods:Early
fixed = strangers.methods:Fixed
asha = strangers.methods:Fixed

[cerebro_db.engines]
abacus = strangers.abacus
auto = strangers.abacus
"""


def package(site: Path, name: str = "strangers") -> Path:
    """A package with entry points, as pip installs it."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("")
    (site / name / "methods.py").write_text(METHOD)
    information = site / f"{name}-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(OFFERED.replace("strangers", name))
    return site


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = package(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    forget = entry_points._points.cache_clear
    forget()
    yield site
    forget()
    for name in [name for name in sys.modules if name.partition(".")[0] == "strangers"]:
        del sys.modules[name]


def test_a_method_of_another_package_is_used_by_its_name(strangers: Path) -> None:
    assert named_methods.checked({"name": "early", "after": 2}, proposes=False) == {"name": "early", "after": 2}
    spec = named_methods.checked({"name": "early", "sampler": "fixed"}, proposes=True)
    assert spec == {"name": "early", "after": 1, "sampler": {"name": "fixed"}}
    assert named_methods.policy_of({"name": "early", "after": 2}, 9, 3).decide(None, 1, 2).reason == "early"
    assert (
        "fixed" in named_methods.INDEPENDENT
        and "early" not in named_methods.SAMPLING
        and not named_methods.needs_optuna(spec)
    )
    with pytest.raises(InvalidArgument, match="no search method 'other'") as raised:
        named_methods.checked("other", proposes=False)
    assert "early" in str(raised.value.hint) and "fixed" not in str(raised.value.hint)
    assert "early" not in [*named_methods.METHODS], "lists and pages have ours"


def test_an_engine_is_known_without_an_import(strangers: Path) -> None:
    assert check({"engine": "abacus"})["engine"] == "abacus" and ENGINES["abacus"] == "strangers"
    assert DISPLAY_NAMES["abacus"] == "abacus" and "strangers" not in sys.modules and "auto" not in ENGINES


def test_a_package_that_cannot_be_loaded_is_named(strangers: Path) -> None:
    offered = strangers / "strangers-1.dist-info" / "entry_points.txt"
    offered.write_text("[cerebro_db.search_methods]\nbroken = strangers.broken:Nothing\n")
    with pytest.raises(Unsupported, match="'broken' of the search methods cannot be loaded: ModuleNotFoundError"):
        named_methods.checked("broken", proposes=False)


def test_ours_come_first_and_nothing_is_looked_up_for_them(strangers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "_points", lambda group: pytest.fail("looked up"))
    assert named_methods.checked("asha", proposes=True)["name"] == "asha" and "asha" not in named_methods.SAMPLING
    assert not named_methods.needs_optuna({"name": named_methods.PLANNED}) and "auto" not in ENGINES
    assert check({"engine": "auto"})["engine"] == "auto"
    code = "import cerebro_db.core.search.named_methods, cerebro_db.core.options, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "importlib.metadata" not in done.stdout.split()


def test_a_server_takes_packages_from_the_trainers_environment_only(
    strangers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Greenplum a user can add folders to Python's path."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "install.json").write_text(json.dumps({"trainer_python": str(tmp_path / "venv" / "bin" / "python")}))
    monkeypatch.setattr(entry_points, "CODE", str(code))
    assert "early" not in named_methods.METHODS
    site = package(tmp_path / "venv" / "lib" / "python3.12" / "site-packages")
    entry_points._points.cache_clear()
    method = named_methods.METHODS["early"]
    assert sys.modules[method.__module__].__file__ == str(site / "strangers" / "methods.py")
    assert str(site) not in sys.path
    other = package(tmp_path / "other")  # of the same name, imported before
    for name in [name for name in sys.modules if name.partition(".")[0] == "strangers"]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(other)
    __import__("strangers")
    with pytest.raises(Unsupported, match="another package is called strangers"):
        named_methods.METHODS["early"]


@pytest.mark.parametrize("said", [None, "{not json", "[]", "{}", '{"trainer_python": null}'])
def test_a_server_that_does_not_say_where_that_is_takes_none(
    strangers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    monkeypatch.setattr(entry_points, "CODE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "plpy", types.ModuleType("plpy"))
    if said is not None:
        (tmp_path / "install.json").write_text(said)
        monkeypatch.delitem(sys.modules, "plpy")
    assert "early" not in named_methods.METHODS and "strangers" not in sys.modules


def test_what_a_package_says_of_itself_may_be_anything(strangers: Path) -> None:
    (strangers / "torn-1.dist-info").mkdir()
    (strangers / "torn-1.dist-info" / "entry_points.txt").write_text("[console_scripts]\nnonsense\n")
    assert "early" in named_methods.METHODS and ENGINES.names()[-1] == "abacus"


def test_a_broken_package_does_not_hide_another_mistake(strangers: Path) -> None:
    offered = strangers / "strangers-1.dist-info" / "entry_points.txt"
    offered.write_text(
        "[cerebro_db.search_methods]\nbroken = strangers.broken:Nothing\nodd = strangers.methods:Decision\n"
        "[cerebro_db.trackers]\nbroken = strangers.broken:Nothing\nodd = strangers.methods:__name__\n"
    )
    with pytest.raises(InvalidArgument, match="there is no search method 'ashaa'"):
        named_methods.checked("ashaa", proposes=True)
    with pytest.raises(Unsupported, match="'odd' of the search methods .* is of another kind"):
        named_methods.checked("odd", proposes=True)
    for name, why in {"nope": "no tracker", "broken": "ModuleNotFoundError", "odd": "of another kind"}.items():
        with pytest.raises(ClientError, match=why):
            found(TRACKERS, name, "There is no tracker.", "trackers")


def test_the_contract_runs_as_tests_of_the_package(strangers: Path) -> None:
    tests = str(strangers / "strangers" / "methods.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    environment = {"PYTHONPATH": f"{ROOT}:{strangers}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=strangers, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "10 passed" in done.stdout, done.stdout + done.stderr


def test_mlflow_is_an_entry_point_of_this_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][entry_points.TRACKERS] == {"mlflow": "cerebro_db.client.trackers.mlflow:write"}
    assert "mlflow" not in [*TRACKERS] and callable(mlflow.write)


@pytest.mark.parametrize(("package", "there"), [("json", True), ("no_such_package", False), ("", False)])
def test_whether_the_package_of_an_engine_is_installed(package: str, there: bool) -> None:
    assert is_installed(package) is there
