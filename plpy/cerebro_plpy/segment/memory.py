"""The memory of trainers."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any, Callable

from cerebro_db.core.engines import AUTO_SHARD, NEVER_SHARD
from cerebro_db.core.errors import DiskFull, LimitExceeded, OutOfMemory
from cerebro_db.core.protocol import Average, BeginJoint, Computation, Evaluate, Train, TrainedGroup, TrainerSettings
from cerebro_db.core.sql import sql

from ..database.access import Database
from ..database.cancellation import Listen
from ..database.polling import LISTEN_EVERY
from ..platform import machine

LARGE_STATE = 64 << 20  # bytes; smaller states are not checked
MEMORY_WITHIN = 10.0  # seconds


def limit_of_trainers(db: Database) -> int | None:
    """The megabytes of private memory that each trainer of the current user may take; None: no limit."""
    found = db.value(sql("SELECT cerebro_internal._trainer_limit(current_user, session_user)"))
    return None if found is None else int(found)


def require_within_limit(db: Database, memory_mb: int, on_gpu: bool) -> None:
    """Refuse a run whose trainers are to have more memory than an administrator lets them have."""
    limit = None if on_gpu else limit_of_trainers(db)
    if limit is not None and memory_mb > limit:
        raise LimitExceeded(
            f"memory_mb is {memory_mb:,}, and your trainers may have {limit:,} MB each",
            hint="Leave the option memory_mb out: models are then cut to fit into that limit. SELECT * FROM"
            " cerebro.limits shows it as trainer_mb; cerebro_admin sets it with cerebro.set_limits().",
        )


def within_limit(db: Database, memory_mb: int | None, on_gpu: bool) -> int | None:
    """What an earlier run allowed its trainers, as far as an administrator lets the caller's have it now."""
    limit = None if memory_mb is None or on_gpu else limit_of_trainers(db)
    return memory_mb if limit is None or memory_mb is None else min(memory_mb, limit)


def resident(pid: int) -> int | None:
    """The bytes of memory that a process has."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None


def state_sizes(order: Computation[Any]) -> list[int]:
    """The bytes of the states that an order needs in memory, for each group of models that is there at once."""
    if isinstance(order, Train):
        return [sum(member.state_bytes for member in group.members) for group in order.groups]
    if isinstance(order, BeginJoint):
        return [order.member.state_bytes]
    if isinstance(order, Average):
        return [2 * order.state_bytes]  # a tensor and its sum, which has 64 bits, may be nearly the whole state
    return [model.state_bytes for model in order.models] if isinstance(order, Evaluate) else []


def needed(state_bytes: int, settings: TrainerSettings | None) -> int:
    """Bytes of memory that a trainer with these settings needs for a model with such a state: it may cut the model."""
    whole = machine.memory_needed(state_bytes)
    if settings is None or settings.shard == NEVER_SHARD:
        return whole
    if settings.shard == AUTO_SHARD:
        return min(whole, settings.memory_mb << 20) if settings.memory_mb else whole
    return min(whole, machine.memory_needed(2 * state_bytes // int(settings.shard)))  # the next shard is read ahead


def require_memory(pid: int, state_bytes: int, on_gpu: bool, listen: Listen, settings: TrainerSettings | None) -> None:
    """Refuse to train a large model for which a trainer finds no memory, before the kernel kills the trainer.

    Other processes may give memory back just now, so this waits for a while.  A model on a GPU is not in this memory.
    """
    if state_bytes < LARGE_STATE or on_gpu:
        return
    deadline = time.monotonic() + MEMORY_WITHIN
    while True:
        more = needed(state_bytes, settings) - (resident(pid) or 0)
        free = machine.memory_available()
        if free is None or more <= free:
            return
        if time.monotonic() >= deadline:
            raise OutOfMemory(
                f"a model with a state of {state_bytes >> 20:,} MB needs about {more >> 20:,} MB of memory more,"
                f" and {free >> 20:,} MB are available",
                hint="Train in fewer segments or with smaller models, or make room; then"
                " SELECT cerebro.resume(run, retry_failed => true) tries it again.",
            )
        listen()
        time.sleep(LISTEN_EVERY)


def with_words(group: TrainedGroup, room_left: Callable[[], str]) -> TrainedGroup:
    """The group's result; the error of a full disk also says how much room there is."""
    if group.error is None or not isinstance(group.error.error(), DiskFull):
        return group
    return replace(group, error=replace(group.error, message=group.error.message + room_left()))
