"""The results of a benchmark as one JSON file: the commit, the machine, the versions, every measurement and ratio."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from cerebro_plpy.platform.machine import described_gpus
from tests.bench import report, search
from tests.bench.meter import Taken
from tests.bench.stage import Measured
from tests.bench.works import WORKS, Work
from tests.sql.lab import Json

CLONE = Path(__file__).resolve().parents[2]
PACKAGES = {
    "keras": "Keras",
    "tensorflow-cpu": "TensorFlow",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "optuna": "Optuna",
}
LARGE = {"curve", "units", "epochs"}  # in ``Measured.more``; the JSON lines have them
GROWING = {work.name for work in WORKS["growth"]}  # whose simulation needs the units


class Unfit(Exception):
    """These results are not for the pages; the message says why."""


# --- writing ---------------------------------------------------------------------------------------------


def begun(postgresql: str, reduced: Json) -> Json:
    """Results without any work.  ``reduced``: how the works are smaller than usual; such results are for no page."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": {"PostgreSQL": postgresql.split()[0], "Python": platform.python_version(), **packages()},
        "reduced": reduced,
        "works": {},
    }


def of_work(work: Work, repeats: report.Repeats) -> Json:
    names = report.contenders(repeats)
    ours = [name for name in names if name.startswith("ours")]
    found: Json = {
        "about": work.about,
        "measured": [[_brief(one, keep_units=work.name in GROWING) for one in repeat] for repeat in repeats],
        "ratios": {
            mine: {name: times for name in names if name != mine and (times := report.times(repeats, mine, name))}
            for mine in ours
        },
    }
    if searched := search.figures(repeats):
        found["search"] = searched
    return rounded(found)


def _brief(one: Measured, keep_units: bool) -> Json:
    results = []
    if one.results:
        losses, accuracies = zip(*((result["loss"], result["accuracy"]) for result in one.results))
        results = [{"loss": median(losses), "accuracy": max(accuracies)}]  # the figures that the report compares
    left_out = LARGE - {"units"} if keep_units else LARGE
    more = {name: value for name, value in one.more.items() if name not in left_out}
    return {**dataclasses.asdict(one), "results": results, "more": more}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def write(results: Json, path: Path) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def machine() -> Json:
    """The facts about this machine that the figures depend on."""
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": processors[0] if processors else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": ".".join(platform.release().split(".")[:2]),  # the rest names the machine's maker
        "gpus": [gpu.model for gpu in described_gpus()],
    }


def packages() -> dict[str, str]:
    found = {}
    for package, name in PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(package)
    return found


def _git(*arguments: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(["git", *arguments], cwd=CLONE, check=True, capture_output=True, text=True)
        return done.stdout.strip()
    return None


# --- reading ---------------------------------------------------------------------------------------------


def repeats_of(results: Json, work: str) -> report.Repeats:
    """The measurements of a work, as the report reads them; empty if the work was not measured."""
    measured = results["works"].get(work, {}).get("measured", [])
    return [[Measured(**{**one, "taken": Taken(**one["taken"])}) for one in repeat] for repeat in measured]


def merged(paths: Iterable[Path]) -> Json:
    """The results of one or more calls of the benchmark at one commit on one machine.  A later call replaces works."""
    whole: Json = {}
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not found["commit"] or found["uncommitted"]:
            raise Unfit(f"{path}: measured with changes that no commit has; commit them and measure again")
        if found["reduced"]:
            raise Unfit(f"{path}: measured with smaller works ({found['reduced']}); measure without BENCH=…")
        for what in ("commit", "machine", "versions"):
            if whole and whole[what] != found[what]:
                why = "measure all works at one commit on one machine"
                raise Unfit(f"{path}: {what} differs from that of the first file ({found[what]}); {why}")
        whole = {**(whole or found), "works": {**whole.get("works", {}), **found["works"]}}
    if not whole:
        raise Unfit("no file of results was given")
    return whole
