"""Contender (f): the method of MADlib, the predecessor in the database.

Keras runs in the backends.  A hop is a statement on each segment: an aggregate gets the weights and the packed rows,
builds the model, fits it buffer by buffer, and returns the weights without the state of the optimizer.  The next hop
begins when all segments have finished.  After the last epoch, each model is evaluated by itself on the training rows
and on the validation rows.  MADlib on Greenplum took 57 s for W1, where plain Keras on the same machine took 30 s.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.stage import Measured, Skipped, Stage
from tests.bench.works import Work
from tests.sql.lab import Json, Lab, run

IN_BACKEND = Path(__file__).with_name("rivals") / "in_backend.py"

SETUP = """
CREATE FUNCTION straw_ready(packages text, source text) RETURNS void LANGUAGE plpython3u AS $py$
import os, sys, types
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
sys.path.insert(0, packages)
sys.argv = [""]
GD["straw"] = types.ModuleType("straw")
exec(source, GD["straw"].__dict__)
$py$;
CREATE FUNCTION straw_fit_buffer(buffers integer, x bytea, y bytea, task text, weights bytea) RETURNS integer
LANGUAGE plpython3u AS $py$
return GD["straw"].fit_buffer(*args)
$py$;
CREATE FUNCTION straw_weights(buffers integer) RETURNS bytea LANGUAGE plpython3u AS $py$
return GD["straw"].weights_now()
$py$;
CREATE AGGREGATE straw_fit(bytea, bytea, text, bytea) (
    SFUNC = straw_fit_buffer, STYPE = integer, FINALFUNC = straw_weights);
CREATE FUNCTION straw_evaluate_buffer(sums float8[], x bytea, y bytea, task text, weights bytea) RETURNS float8[]
LANGUAGE plpython3u AS $py$
return GD["straw"].evaluate_buffer(*args)
$py$;
CREATE AGGREGATE straw_evaluate(bytea, bytea, text, bytea) (SFUNC = straw_evaluate_buffer, STYPE = float8[]);
"""


def strawman(stage: Stage) -> Iterator[Measured]:
    packages = packages_for_server()
    lab, work = stage.database.lab, stage.work
    prepare(lab, work)
    straw = Strawman(lab, work)
    with contextlib.ExitStack() as opened, stage.meter() as meter:
        began = time.time()
        straw.sessions = [opened.enter_context(contextlib.closing(lab.connect())) for _ in range(work.segments)]
        straw.everywhere("SELECT straw_ready(%s, %s)", packages, IN_BACKEND.read_text())
        ready = time.time()
        straw.fit()
        straw.evaluate(f"{work.name.lower()}_straw")
        results = straw.evaluate(f"{work.name.lower()}_straw_validation")
    yield Measured("(f) strawman", meter.taken, ready - began, results)


def packages_for_server() -> str:
    """The folder of the trainer's packages, if the server's embedded Python can load them."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        asked = ["/usr/bin/python3", "-c", "import platform; print(platform.python_version())"]
        found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        if found.split(".")[:2] == platform.python_version().split(".")[:2]:
            return str(Path(np.__file__).resolve().parents[1])
    raise Skipped(
        "without (f) strawman: the server's embedded Python is of another version than the environment of Keras"
    )


def prepare(lab: Lab, work: Work) -> None:
    """Pack the rows as MADlib does: one buffer for each segment, unless it would be very large."""
    name = work.name.lower()
    if lab.value("SELECT to_regclass(%s)", f"{name}_straw") is None:
        lab.pack(
            name, f"{name}_straw", "y", "x", segments=work.segments, seed=1, normalizing_const=work.scale,
            buffer_size=math.ceil(work.rows / work.segments),
        )  # fmt: skip
        lab.pack(
            f"{name}_validation", f"{name}_straw_validation", "y", "x", training_preprocessor_table=f"{name}_straw",
            buffer_size=math.ceil(work.validation_rows / work.segments),
        )  # fmt: skip
    if lab.value("SELECT to_regproc('straw_fit')") is None:
        lab(SETUP)
    lab("DROP TABLE IF EXISTS straw_state")
    lab("CREATE TABLE straw_state (configuration integer, hop integer, weights bytea)")


class Strawman:
    def __init__(self, lab: Lab, work: Work) -> None:
        self.work = work
        self.sessions: list[Any] = []
        self.layout: Json = lab.value(f"SELECT layout FROM {work.name.lower()}_straw_summary")

    def everywhere(self, statement: str, *values: Any) -> list[Any]:
        return self.at_once([(statement, values)] * len(self.sessions))

    def at_once(self, statements: list[tuple[str, tuple[Any, ...]] | None]) -> list[Any]:
        """Run one statement for each segment, and wait for all of them."""
        with ThreadPoolExecutor(len(statements)) as pool:
            waiting = [
                pool.submit(run, session, one[0], *one[1]) for session, one in zip(self.sessions, statements) if one
            ]
            return [one.result() for one in waiting]

    def task(self, number: int) -> str:
        one, variable = self.work.configurations[number], self.layout["inputs"][0]
        return json.dumps(
            {
                **vars(one),
                "architecture": self.work.architectures[one.model],
                "dtype": variable["dtype"],
                "shape": variable["shape"],
                "scale": variable["scale"],
            }
        )

    def fit(self) -> None:
        """In each round, every segment trains one configuration, which then moves to the next segment."""
        segments, configurations = len(self.sessions), len(self.work.configurations)
        rounds = max(segments, configurations)
        hops = [0] * configurations
        for _ in range(self.work.epochs):
            for turn in range(rounds):
                now = [(turn + segment) % rounds for segment in range(segments)]
                self.at_once([self.hop(segment, one, hops) for segment, one in enumerate(now)])
                for one in now:
                    if one < configurations:
                        hops[one] += 1
        self.last = hops

    def hop(self, segment: int, number: int, hops: list[int]) -> tuple[str, tuple[Any, ...]] | None:
        if number >= len(hops):
            return None
        return (
            "INSERT INTO straw_state SELECT %s, %s, straw_fit(x, y, %s,"
            " (SELECT weights FROM straw_state WHERE configuration = %s AND hop = %s) ORDER BY buffer_id)"
            f" FROM {self.work.name.lower()}_straw WHERE __dist_key__ = %s",
            (number, hops[number] + 1, self.task(number), number, hops[number], self.key(segment)),
        )

    def evaluate(self, table: str) -> list[dict[str, float]]:
        results = []
        for number, hop in enumerate(self.last):
            parts = self.at_once(
                [
                    (
                        "SELECT straw_evaluate(x, y, %s,"
                        f" (SELECT weights FROM straw_state WHERE configuration = %s AND hop = %s)) FROM {table}"
                        " WHERE __dist_key__ = %s",
                        (self.task(number), number, hop, self.key(segment)),
                    )
                    for segment in range(len(self.sessions))
                ]
            )
            rows, loss, accuracy = (sum(sums) for sums in zip(*(part[0][0] for part in parts)))
            results.append({"loss": loss / rows, "accuracy": accuracy / rows})
        return results

    def key(self, segment: int) -> int:
        return self.layout["partitions"][segment]["key"]
