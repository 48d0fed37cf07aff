"""The options of a fit: everything that its results depend on besides its data and its configurations."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from cerebro_db.core import options, run_options
from cerebro_db.core.engines import (
    AUTO,
    AUTO_ENGINES,
    AUTO_SHARD,
    ENGINES,
    NEVER_SHARD,
    OPTIONAL_PACKAGES,
    SHARDING_ENGINES,
)
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, Unsupported
from cerebro_db.core.options import GRADIENTS, GivenOptions
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.budget import Budget

from ... import platform
from ...database.access import Database
from ...database.cancellation import Listen, listener
from ...packing.packed import Packed
from ...platform import machine
from ...segment import installation, memory, nursery_connection
from ...sessions import warm_up
from ..record.log import RunLog
from .place import in_own_session


def choose_options(
    db: Database, given: GivenOptions, keys: Sequence[int], use_gpus: bool, tables: Sequence[Packed | None]
) -> RunOptions:
    """The options that the user gives, and the values of all others.  ``tables`` are those that the run reads."""
    if "replay" in given:
        own = {name: value for name, value in given.items() if name != "seed"}
        recorded = replayed(db, given["replay"])
        if "objective" in own:
            recorded.pop("direction", None)  # it belongs to the recorded objective
        given = options.check({**recorded, **own})
    gpus = platform.require_gpus(db, use_gpus, keys)
    if "memory_mb" in given:
        memory.require_within_limit(db, given["memory_mb"], any(gpu is not None for gpu in gpus))
    deterministic = given.get("deterministic", False)
    wanted = given.get("engine")
    if given.get("shard", AUTO_SHARD) not in UNCUT and wanted == AUTO:
        wanted = next(iter(SHARDING_ENGINES))
    engine, among = choose_engine(wanted, deterministic, listener(db.plpy))
    if engine != AUTO:
        warm_up.ahead(db, engine)  # the rest of what is done before training takes 0.2 s
    require_cutting(given, engine)
    in_session = in_own_session(db, given.get("execution"), tables, given.get("stop_when"))
    if in_session and given.get("parallel") == GRADIENTS:
        raise InvalidArgument(
            "with the option parallel => gradients all segments train at the same time, but this run trains in your own"
            " session, one segment after the other.",
            hint="COMMIT the packed tables first and leave out the option execution; or leave out the option parallel.",
        )
    require_waiting(db, given.get("synchronous_commit"))
    if "method" in given:
        given = {**given, "method": named_methods.checked(given["method"], proposes=False)}
    if "budget" in given:
        require_budget(given["budget"])
    at_once = 1 if in_session else len(keys)  # trainers
    threads = 1 if deterministic else machine.threads(at_once)
    return run_options.of_given(
        {
            # A deterministic run has the same seed every time, from the first call on.
            "seed": 0 if deterministic else secrets.randbits(31),
            "threads": threads,
            **given,
            "engine": engine,
            "among": among,
            "in_session": in_session,
            "gpus": gpus,
            # Fused models have the numbers of single ones, but not their bits.
            **({"fuse": False} if deterministic else {}),
        }
    )


UNCUT = (AUTO_SHARD, NEVER_SHARD, 1)  # the values of the option shard with which small models are not cut


def require_cutting(given: GivenOptions, engine: str) -> None:
    """Refuse a number of shards with what models that are cut cannot do."""
    shard = given.get("shard", AUTO_SHARD)
    if shard in UNCUT:
        return
    if engine not in SHARDING_ENGINES:
        raise Unsupported(
            f"the engine {engine} cannot train models that are cut into shards, and option 'shard' is {shard}.",
            hint=f'Take "engine": "{next(iter(SHARDING_ENGINES))}", or leave the option shard out.',
        )
    if given.get("parallel") == GRADIENTS:
        raise InvalidArgument(
            "options 'shard' and 'parallel' exclude each other: a model that is cut cannot be trained by several"
            " segments at the same time.",
            hint="Leave one of them out. Without the option parallel, models hop from segment to segment.",
        )


def require_budget(given: dict[str, Any]) -> None:
    try:
        Budget.from_document(given)
    except ValueError as error:
        raise InvalidArgument(f"option 'budget': {error}", hint='For instance {"budget": {"seconds": 600}}.') from error


def require_waiting(db: Database, waits: bool | None) -> None:
    """Refuse a ``synchronous_commit`` that is false where commits have to wait for the disk."""
    if waits is False and not platform.of(db).loses_only_the_last_commits:
        raise Unsupported(
            "option 'synchronous_commit' cannot be false on Greenplum.",
            hint="Each segment has a write-ahead log of its own, so a crash could lose a visit and keep later ones."
            " Leave the option out.",
        )


def choose_engine(engine: str | None, deterministic: bool, listen: Listen) -> tuple[str, tuple[str, ...]]:
    """The engine, or those among which a trial is to choose; all of them installed."""
    if engine is None or (engine == AUTO and deterministic):  # a trial would depend on the load
        return nursery_connection.default_engine(listen), ()
    installed = nursery_connection.report(listen).engines
    if engine == AUTO:
        among = tuple(one for one in AUTO_ENGINES if one in installed)
        return (AUTO, among) if len(among) > 1 else (nursery_connection.default_engine(listen), ())
    if engine not in installed:
        package, python = ENGINES[engine], installation.installation()["trainer_python"]
        pinned = OPTIONAL_PACKAGES.get(engine)
        with_tensorflow = f"{installation.installer()}{' --tensorflow' if engine == 'tensorflow' else ''}"
        how = f"{python} -m pip install {pinned}" if pinned else with_tensorflow
        raise Unsupported(
            f"the engine '{engine}' is not installed where the trainers are.",
            hint=f"Installed: {', '.join(installed) or 'none'}. Leave the option engine out, or install the package"
            f" {package} into the trainer's environment on every host: {how}",
        )
    return engine, ()


def replayed(db: Database, run_id: int) -> dict[str, Any]:
    """The options of an earlier run, for a run that repeats its numbers."""
    recorded = RunLog.of_caller(db, run_id).known.options()
    if recorded is None:
        raise UndefinedObject(
            f"there is no run {run_id} of yours to replay.",
            hint="SELECT run, run_name, status FROM cerebro.runs lists your runs.",
        )
    if recorded.averaging:
        raise Unsupported(
            f"run {run_id} was made by madlib_keras_fit, which averages weights, so a fit cannot replay it.",
            hint="Call madlib_keras_fit again. On a table with one segment it averages nothing.",
        )
    return options.replayable(recorded.to_json())
