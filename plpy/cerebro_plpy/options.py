"""The options of a fit: all that its results depend on besides its data and its configurations."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.engines import AUTO, DEFAULT, ENGINES, OPTIONAL, TRIED
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, Unsupported
from cerebro_db.core.precision import PRECISIONS

from . import engine, machine, trainer
from .db import Database
from .trainer import HANG_AFTER

MODULE = "madlib_fit_multiple_model"
MOST_THREADS = 256  # of one trainer; it starts them all, and the server's account has only so many
OPTIONS: dict[str, type] = {
    "seed": int,
    "deterministic": bool,
    "engine": str,
    "threads": int,
    "nan": str,
    "replay": int,
    "hang_after": int,
    "fuse": bool,
    "read_ahead": bool,
    "cache_mb": int,
    "precision": str,
}


def choose_options(db: Database, text: str | None, keys: Sequence[int], use_gpus: bool) -> dict[str, Any]:
    """Everything that a run's results depend on besides its data and its configurations."""
    given = json.loads(text) if text else {}
    if not isinstance(given, dict):
        raise InvalidArgument(f"{MODULE} error: options must be a JSON object.", hint='For instance {"seed": 1}.')
    for key, value in given.items():
        if key not in OPTIONS:
            raise InvalidArgument(
                f"{MODULE} error: there is no option '{key}'.", hint=f"The options are: {', '.join(OPTIONS)}."
            )
        if type(value) is not OPTIONS[key]:
            takes = {int: "a whole number", bool: "true or false", str: "a text"}[OPTIONS[key]]
            raise InvalidArgument(
                f"{MODULE} error: option '{key}' cannot be {json.dumps(value)}.", hint=f"It takes {takes}."
            )
    if "replay" in given:
        given = {**replayed(db, given["replay"]), **{k: v for k, v in given.items() if k != "seed"}}
    if given.get("nan", "stop") not in ("stop", "keep"):
        raise InvalidArgument(f"{MODULE} error: option 'nan' must be 'stop' or 'keep'.")
    if given.get("precision", PRECISIONS[0]) not in PRECISIONS:
        raise InvalidArgument(
            f"{MODULE} error: option 'precision' cannot be {json.dumps(given['precision'])}.",
            hint=f"It is one of {', '.join(PRECISIONS)}; without it layers compute as their architecture says.",
        )
    if not 1 <= given.get("threads", 1) <= MOST_THREADS:
        raise InvalidArgument(f"{MODULE} error: option 'threads' must be between 1 and {MOST_THREADS}.")
    if not 0 <= given.get("hang_after", 0) < 2**31:
        raise InvalidArgument(f"{MODULE} error: option 'hang_after' must be a number of seconds, or 0 for no limit.")
    if not 0 <= (given.get("cache_mb") or 0) < 2**31:  # a run to replay may have left it open
        raise InvalidArgument(f"{MODULE} error: option 'cache_mb' must be a number of megabytes.")
    if not -(2**63) <= given.get("seed", 0) < 2**63:
        raise InvalidArgument(f"{MODULE} error: option 'seed' must fit a bigint.")
    if given.get("fuse") and given.get("deterministic"):
        raise InvalidArgument(
            f"{MODULE} error: options 'deterministic' and 'fuse' exclude each other.",
            hint="Models that train together have the numbers of single ones, but not their bits.",
        )
    gpus = require_gpus(db, use_gpus, keys, MODULE)
    deterministic = given.get("deterministic", False)
    return {
        **choose_engine(given.get("engine", DEFAULT), deterministic),
        "deterministic": deterministic,
        "threads": given.get("threads", 1 if deterministic else max(1, machine.cores() // len(keys))),
        "nan": given.get("nan", "stop"),
        "gpus": gpus,
        "hang_after": given.get("hang_after", HANG_AFTER),
        # A run that is told to be deterministic is so from the first call on.
        "seed": given.get("seed", 0 if deterministic else secrets.randbits(31)),
        # Together, models have the numbers of single ones but not their bits.
        "fuse": False if deterministic else given.get("fuse"),
        "read_ahead": given.get("read_ahead"),
        "cache_mb": given.get("cache_mb"),
        **{key: given[key] for key in ("precision", "replay") if key in given},
    }


def choose_engine(engine: str, deterministic: bool) -> dict[str, Any]:
    """The engine, or those among which a trial is to choose; all of them installed."""
    if engine not in (*ENGINES, AUTO):
        raise Unsupported(
            f"{MODULE} error: there is no engine '{engine}'.",
            hint=f"The engines are: {', '.join(ENGINES)}; {AUTO} takes {' or '.join(TRIED)} for each architecture: the"
            " likelier one, and where there is enough to do it tries the other, too.",
        )
    if engine == DEFAULT or (engine == AUTO and deterministic):  # a trial would depend on the load
        return {"engine": DEFAULT}
    installed = trainer.engines()
    if engine == AUTO:
        among = [one for one in TRIED if one in installed]
        return {"engine": AUTO, "among": among} if len(among) > 1 else {"engine": (among or installed)[0]}
    if engine not in installed:
        package, python = ENGINES[engine], trainer.installation()["trainer_python"]
        pinned = OPTIONAL.get(engine)
        how = f"{python} -m pip install {pinned}, on every host" if pinned else "docker/install.sh does"
        raise Unsupported(
            f"{MODULE} error: the engine '{engine}' is not installed where the trainers are.",
            hint=f"Use one of: {', '.join(installed)}; or have the package {package} installed into the"
            f" trainer's environment ({how}).",
        )
    return {"engine": engine}


def replayed(db: Database, run_id: int) -> dict[str, Any]:
    """The options of an earlier run, to have its very numbers again."""
    found = db.value("SELECT options FROM cerebro.run WHERE run = $1 AND owner = current_user", ("bigint",), run_id)
    if found is None:
        raise UndefinedObject(
            f"{MODULE} error: there is no run {run_id} of yours to replay.",
            hint="SELECT run, name, status FROM cerebro.runs lists your runs.",
        )
    return {key: value for key, value in json.loads(found).items() if key in OPTIONS}


def require_gpus(db: Database, use_gpus: bool | None, keys: Sequence[int], module: str) -> list[int | None]:
    """The GPU of each segment, or an empty list if trainers may use none."""
    if not use_gpus:
        return []
    found = engine.gpus_of_segments(db, keys)
    without = found.count(None)
    if without == len(found):
        raise InvalidArgument(f"{module} error: No GPUs configured on host(s).", hint="Call it with use_gpus => false.")
    if without:
        db.notice(
            f"{without} of {len(found)} segments have no GPU and use processors; distribution_rules => 'gpu_segments'"
            " would leave them out when rows are packed"
        )
    return found
