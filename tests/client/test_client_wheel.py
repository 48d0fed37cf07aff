"""The wheel in an environment that has what the wheel requires, and no package of the trainer."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import Trained

CLONE = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "LICENSE", "README.md", "cerebro_db.control", "cerebro_db", "plpy", "sql", "migrations")


class Client:
    """An environment with the wheel in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self, program: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not re.match("PYTHON|CEREBRO_", name)}
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            env={**kept, "CEREBRO_HOME": str(self.folder / "home"), "COLUMNS": "120", **settings},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )


def required_by(name: str) -> set[str]:
    """The distributions that this one requires, and those that they require. Extras are left out."""
    seen: set[str] = set()
    left = [name]
    while left:
        for line in importlib.metadata.requires(left.pop()) or []:
            found = re.match(r"[\w.-]+", line)
            assert found
            required = re.sub("[-_.]+", "-", found.group()).lower()
            if "extra ==" not in line and required not in seen:
                try:
                    importlib.metadata.distribution(required)
                except importlib.metadata.PackageNotFoundError:
                    continue  # for another system or another Python
                seen.add(required)
                left.append(required)
    return seen


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    folder = tmp_path_factory.mktemp("client")
    sources = folder / "sources"
    sources.mkdir()
    for part in PARTS:
        if (CLONE / part).is_dir():
            shutil.copytree(CLONE / part, sources / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(CLONE / part, sources / part)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(sources)], check=True
    )
    (wheel,) = folder.glob("*.whl")
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    subprocess.run([*pip, "--python", str(environment), "install", *offline, str(wheel)], check=True)
    # Without a network, what the wheel requires comes from this environment: these packages and no others.
    (site,) = environment.glob("lib/python3*/site-packages")
    (metadata,) = site.glob("cerebro_db-*.dist-info")
    own = importlib.metadata.PathDistribution(metadata).requires or []
    wanted = {re.split(r"[^\w-]", line)[0] for line in own if "extra ==" not in line}
    here = Path(sysconfig.get_path("purelib"))
    for name in sorted(wanted.union(*(required_by(one) for one in wanted))):
        for file in importlib.metadata.distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(here / top)
    return Client(environment)


def test_it_requires_nothing_of_the_trainer(client: Client) -> None:
    code = """
for package in ("numpy", "keras", "tensorflow", "jax", "sklearn", "optuna"):
    try:
        __import__(package)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{package} is there")
import cerebro_db.client.cli as it
print(it.__file__)
# MLflow is found by the entry point in the wheel; the contracts are there and need nothing but what they test.
import cerebro_db.testing.search_methods, cerebro_db.testing.trackers as it
print(it.TRACKERS["mlflow"])
"""
    done = client.runs("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(client.folder)) and "write" in done.stdout


def test_it_lists_follows_and_steers(client: Client, trained: Trained) -> None:
    listed = client.runs("cerebro", "runs", CEREBRO_DSN=trained.dsn)
    assert listed.returncode == 0 and "client_tests.models" in listed.stdout, listed.stderr
    # The other commands in one process, because each would import the client again.
    program = f"""
from cerebro_db.client import cli
for words in (["watch", "{trained.run}"], ["show", "{trained.run}"], ["report", "{trained.run}"],
              ["stop", "{trained.run}", "1"], ["models"]):
    try:
        cli.app(words)
    except SystemExit as ended:
        print(words[0], "ended with", ended.code, flush=True)
"""
    done = client.runs("python", "-c", program, CEREBRO_DSN=trained.dsn)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    ended = re.findall(r"^(\w+) ended with (\d+)$", done.stdout, re.MULTILINE)
    assert ended == [("watch", "0"), ("show", "0"), ("report", "0"), ("stop", "1"), ("models", "0")], done.stderr
    assert "finished" in done.stdout.partition("watch ended")[0] and "Leaderboard" in done.stdout
    assert "uPlot" in (client.folder / "report.html").read_text()
    assert "finished" in done.stderr + done.stdout.partition("report ended")[2].partition("stop ended")[0]


def test_it_trains_in_the_server(client: Client, trained: Trained, fresh_output: Callable[[], str]) -> None:
    output = f"client_tests.{fresh_output()}"
    program = f"""
from cerebro_db.client import MissingPackage, connect
with connect({trained.dsn!r}) as cerebro:
    configurations = [{{"learning_rate": 0.01}}, {{"units": 16}}]
    run = cerebro.fit("client_tests.packed", {output!r}, configurations, epochs=300, wait=False)
    cerebro.extend(run.run, 301)
    cerebro.stop_model(run.run, 1, reason="from the client")
    for progress in run.follow():
        if progress.percent > 0:
            break
    run.cancel()
    print("followed", run.run)
    try:
        cerebro.model("client_tests.models", 1)
    except MissingPackage as error:
        print(error)
"""
    done = client.runs("python", "-c", program)
    assert done.returncode == 0, done.stderr
    assert "followed" in done.stdout and "pip install 'keras" in done.stdout


def test_it_says_that_it_has_no_server(client: Client) -> None:
    for command in (["up"], ["runs"]):
        done = client.runs("cerebro", *command)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "CEREBRO_DSN" in done.stderr + done.stdout, (command, done.stderr)
