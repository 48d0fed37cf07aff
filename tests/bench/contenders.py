"""The contenders: cerebro_db as a user calls it, and its rivals."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2

from tests.bench.stage import Contender, Measured, Skipped, Stage
from tests.sql.lab import Json

CLONE = Path(__file__).resolve().parents[2]
LONGEST = 3600  # seconds


# --- ours ------------------------------------------------------------------------------------------------


OUTPUT = "bench_output"


def ours(name: str, madlib: bool = False, gpus: bool = False, **options: Any) -> Contender:
    """The first call of a new session, and a second call in the same session.  ``madlib``: through its function.

    If the server keeps something for later sessions, another session makes the very first call before these.
    """

    def contend(stage: Stage) -> Iterator[Measured]:
        database = stage.database
        sessions: list[tuple[str, ...]] = [(name, f"{name}, second call")]
        if options.get("engine"):
            sessions.insert(0, (f"{name}, nothing kept",))
        database.forget_what_is_kept()
        for calls in sessions:
            stage.settle()
            with contextlib.closing(database.lab.connect()) as session:
                for call in calls:
                    yield _fit(stage, session, call, None if madlib else options, gpus)

    return contend


def _fit(stage: Stage, session: Any, name: str, options: Json | None, gpus: bool) -> Measured:
    """``options``: None for a call of MADlib's function, which takes none."""
    database = stage.database
    with stage.meter() as meter:
        began = time.time()
        try:
            if options is None:
                run = database.fit_as_madlib(stage.work, session, OUTPUT)
            else:
                run = database.fit(stage.work, session, OUTPUT, {"seed": 1, **options}, use_gpus=gpus)
        except psycopg2.Error as error:
            if options and options.get("engine") and "engine" in str(error):
                raise Skipped(f"without {name}: {str(error).splitlines()[0]}") from None
            raise
        ended = time.time()
    fitted = database.fitted(run, OUTPUT, began, ended)
    database.drop_models(OUTPUT)
    packed = f"{stage.work.name.lower()}_packed"
    more = {
        "end": fitted.end,
        "profile": fitted.profile,
        "units": fitted.units,
        "stored": {
            "packed": database.bytes_of(packed, f"{packed}_validation"),
            "states": fitted.states,
            "models": fitted.models,
        },
    }
    return Measured(name, meter.taken, fitted.start, fitted.results, more)


# --- rivals ----------------------------------------------------------------------------------------------


def script(name: str, module: str, *arguments: str, needs: str | None = None, **settings: str) -> Contender:
    """A rival that runs as a script in processes of its own.  ``settings``: of their environment."""

    def contend(stage: Stage) -> Iterator[Measured]:
        python = python_with(needs) if needs else sys.executable
        if python is None:
            raise Skipped(f"without {name}: {needs} is not installed")
        result, scratch = stage.folder / "result.json", stage.folder / "scratch"
        result.unlink(missing_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with stage.meter(scratch) as meter:
            began = time.time()
            call([python, "-m", f"tests.bench.rivals.{module}", str(stage.folder), *arguments], **settings)
        found = json.loads(result.read_text())
        yield Measured(name, meter.taken, found.pop("ready") - began, found.pop("results"), found)

    return contend


def loop_jax(stage: Stage) -> Iterator[Measured]:
    """Twice, as cerebro_db: first with nothing compiled, then with the compiled programs of the first call."""
    shutil.rmtree(stage.folder / "compiled", ignore_errors=True)
    for name in ("(b2) bare loop, JAX, nothing kept", "(b2) bare loop, JAX"):
        yield from script(name, "scan_loop", needs="jax")(stage)
        stage.settle()


@functools.cache
def python_with(package: str) -> str | None:
    """The Python interpreter that has this package: the current one, or one of the suite's environments."""
    for python in (
        sys.executable,
        *(
            str(CLONE / f"build/bench/{name}/bin/python")
            for name in ("env", "tables", "networks", "related", "forecasts")
        ),
    ):
        with contextlib.suppress(OSError):
            find = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({package!r}))"
            if subprocess.run([python, "-c", find], cwd="/", capture_output=True).returncode == 0:
                return python
    return None


def call(command: list[str], **settings: str) -> None:
    path = {**os.environ, "PYTHONPATH": f"{CLONE}:{CLONE / 'plpy'}", **settings}
    done = subprocess.run(command, cwd=CLONE, env=path, capture_output=True, text=True, timeout=LONGEST)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-3000:]}")


OURS = {
    "ours": ours("ours"),
    "ours-jax": ours("ours, jax", engine="jax"),
    "ours-auto": ours("ours, auto", engine="auto"),
    "ours-madlib": ours("ours, MADlib's function", madlib=True),
    "ours-one-by-one": ours("ours, nothing read ahead", read_ahead=False),
    "ours-gradients": ours("ours, gradients", parallel="gradients"),
    "ours-copies": ours("ours, copies", parallel="copies"),
}
RIVALS = {
    "keras": script("(a) Keras", "keras_queue"),
    "tuned": script("(b) Keras, tuned", "keras_queue", "--tuned"),
    "loop": script("(b2) bare loop", "graph_loop"),
    "loop-shared": script("(b2) bare loop, traced once", "graph_loop", "--shared"),
    "loop-jax": loop_jax,
    "ray": script("(c) Ray Tune", "ray_tune", needs="ray"),
    "optuna": script("(d) Optuna", "optuna_processes", needs="optuna"),
    "task-parallel": script("(e) task-parallel", "modes", "--task-parallel"),
    "averaging": script("(e) model averaging", "modes", "--averaging"),
}
CONTENDERS: dict[str, Contender] = {**OURS, **RIVALS}
