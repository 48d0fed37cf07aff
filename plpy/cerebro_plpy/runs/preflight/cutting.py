"""Models that are larger than a trainer's memory: which of them are cut, which are refused, and what users are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cerebro_db.core.engines import NEVER_SHARD
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.texts import counted
from cerebro_db.core.trainers import sharding
from cerebro_db.core.trainers.sharding import ModelMemory

from ...database.access import Database
from ...sessions import limits
from ..record.run import Model, Run
from . import engine_choice

MOST_NAMED = 10  # configurations in a message


def memory_of_trainer(figures: limits.Figures, run: Run) -> int | None:
    """The megabytes that each trainer of a run may use; None: nobody has said."""
    allowed = None if run.options.gpus else figures["trainer_mb"][0]
    known = [int(one) for one in (run.options.trainer.memory_mb, allowed) if one is not None]
    return min(known, default=None)


def offer(run: Run, answers: Mapping[int, Any]) -> None:
    """Errors about memory offer to cut the model, or say why it cannot be cut."""
    # Models of groups and folds share an error.
    for number, error in {id(one): (number, one) for number, one in answers.items()}.values():
        if not isinstance(error, CerebroError):
            continue
        if run.why_whole is not None:
            error.message = sharding.told_uncut(error, run.trainer_mb, run.why_whole)
        else:
            engine = run.models[number].build.engine or engine_choice.first_tried(run)
            memory = run.models[number].build.memory
            error.message = sharding.told(error, memory, run.trainer_mb, engine, str(run.options.trainer.shard))


def refused(run: Run, memory: ModelMemory, engine: str) -> CerebroError | None:
    """Why a model cannot be trained with the memory that there is; None: it can, or is tried."""
    limit = run.trainer_mb
    if run.options.trainer.shard in (NEVER_SHARD, 1) and limit is not None and memory.uncut_mb > limit:
        return sharding.too_large(memory, limit, engine, run.why_whole)
    return None


def say(db: Database, run: Run, built: Iterable[int]) -> None:
    """Say which configurations are cut, and into how many shards; and which need more than there is, and are not."""
    _warn(db, run, built)
    cut: dict[int, list[Model]] = {}
    for number in built:
        model = run.models[number]
        if model.build.memory.is_cut:
            cut.setdefault(model.build.memory.shards, []).append(model)
    for shards, models in sorted(cut.items()):
        keys, largest = {model.key for model in models}, max(models, key=lambda model: model.build.memory.uncut_mb)
        one, memory = len(keys) == 1, largest.build.memory
        db.detail(
            f"{_named(keys)} {'is' if one else 'are'} cut into {counted(shards, 'shard')}: a trainer needs"
            f" {'about' if one else 'up to'} {memory.needed_mb:,} MB instead of {memory.uncut_mb:,} MB"
            + (f", and may use {run.trainer_mb:,} MB" if run.trainer_mb is not None else "")
            + sharding.cost_of(model.build.memory for model in models)
        )


def _warn(db: Database, run: Run, built: Iterable[int]) -> None:
    limit = run.trainer_mb
    whole = [run.models[number] for number in built if not run.models[number].build.memory.is_cut]
    large = [model for model in whole if limit is not None and model.build.memory.uncut_mb > limit]
    if not large:
        return
    keys, most = {model.key for model in large}, max(model.build.memory.uncut_mb for model in large)
    one = len(keys) == 1
    db.warning(
        f"{_named(keys)} {'is' if one else 'are'} not cut: a trainer needs {'about' if one else 'up to'} {most:,} MB,"
        f" and may use {limit:,} MB",
        hint=f"{(run.why_whole or 'the engine or the model does not allow it, or its layers are small').capitalize()}."
        f" {'It trains' if one else 'They train'} as a whole, as far as the memory allows.",
    )


def _named(keys: set[int]) -> str:
    named = ", ".join(map(str, sorted(keys)[:MOST_NAMED]))
    others = f" and {len(keys) - MOST_NAMED} others" if len(keys) > MOST_NAMED else ""
    return f"{'configuration' if len(keys) == 1 else 'configurations'} {named}{others}"
