"""Models that are cut into shards: what a trainer needs in memory for them, and what errors offer.

A shard is some layers of a model that follow each other. A trainer has one shard in memory at a time, or two while it
reads the next one; the others are in a file (nn/shards).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from .. import codec
from ..codec import Within
from ..engines import MOST_SHARDS, NEVER_SHARD, SHARDING_ENGINES
from ..errors import CerebroError, OutOfMemory, TrainerKilled
from ..protocol import Described
from ..records import dataclass

PROCESS_MB = 300  # of a trainer that has no model
MOST_SLOWER = 1e9
PAGE = "docs/experts.md describes it."


Megabytes = Annotated[int, Within(0, 2**31 - 1)]


@dataclass(frozen=True)
class ModelMemory:
    """What a trainer needs in memory to train a model."""

    shards: Annotated[int, Within(1, 2**31 - 1)] = codec.omitted(1)  # into which it is cut
    needed_mb: Megabytes = codec.omitted(0, "memory_mb")  # with so many shards; 0: not known
    uncut_mb: Megabytes = codec.omitted(0, "uncut_memory_mb")  # as a whole; 0: not known
    # At least so many times as long a batch takes as without shards; 0: not measured.
    slower: Annotated[float, Within(0.0, MOST_SLOWER)] = codec.omitted(0.0)
    lenient = True  # it is read from an event, and those of older versions say nothing of it

    @classmethod
    def of(cls, described: Described) -> ModelMemory:
        return cls(described.shards, described.memory_mb, described.uncut_memory_mb, described.slower)

    @property
    def is_cut(self) -> bool:
        return self.shards > 1

    @property
    def cost(self) -> str:
        """How much longer it takes to train it, as the end of a sentence; empty: that was not measured."""
        return cost_of([self])

    def number_to_offer(self, limit_mb: int | None) -> int:
        """Into how many shards a model should be cut that has found too little memory."""
        if self.is_cut:
            return min(2 * self.shards, MOST_SHARDS)
        if limit_mb is None or limit_mb <= PROCESS_MB or self.uncut_mb <= PROCESS_MB:
            return 2
        # Two shards are in memory at a time.
        return max(2, min(math.ceil(2 * (self.uncut_mb - PROCESS_MB) / (limit_mb - PROCESS_MB)), MOST_SHARDS))


def cost_of(models: Iterable[ModelMemory]) -> str:
    """How much longer it takes to train models that are cut, as the end of a sentence; empty: that was not measured."""
    found = sorted({f"{max(1.0, one.slower):.1f}" for one in models if one.slower}, key=float)
    if not found:
        return ""
    return (
        f"; a batch takes at least {' to '.join(dict.fromkeys((found[0], found[-1])))} times as long as without shards"
    )


def is_short_of_memory(error: CerebroError) -> bool:
    """Whether a trainer would perhaps have had enough memory for the shards of a model."""
    return isinstance(error, (OutOfMemory, TrainerKilled))


def offer(memory: ModelMemory, limit_mb: int | None, engine: str, shard: str) -> str:
    """What to do about a model for which a trainer had too little memory, in the middle of a sentence."""
    number = memory.number_to_offer(limit_mb)
    others = "" if engine in SHARDING_ENGINES else f'"engine": "{min(SHARDING_ENGINES)}", '
    instead = f' instead of "shard": "{NEVER_SHARD}"' if shard == NEVER_SHARD else ""
    more = "more shards" if memory.is_cut else "shards that are in memory one after the other"
    return f'the options {{{others}"shard": {number}}}{instead} cut it into {more}'


def told(error: CerebroError, memory: ModelMemory, limit_mb: int | None, engine: str, shard: str) -> str:
    """The message of an error, with an offer to cut the model if a trainer had too little memory."""
    if not is_short_of_memory(error):
        return error.message
    return f"{error.message}{_may(limit_mb)}; {offer(memory, limit_mb, engine, shard)}"


def told_uncut(error: CerebroError, limit_mb: int | None, why: str) -> str:
    """The message of an error about a model that cannot be cut.  ``why``: as ``why_whole`` says it."""
    return f"{error.message}{_may(limit_mb)}; {why}" if is_short_of_memory(error) else error.message


def _may(limit_mb: int | None) -> str:
    return "" if limit_mb is None else f" (it may use {limit_mb:,} MB)"


def why_whole(*, jointly: bool, averages: bool) -> str | None:
    """Why a run cuts no model, whatever its options are; None: it may cut models."""
    if jointly:
        return "models that several segments train at the same time (parallel) are not cut"
    return "models whose states are averaged are not cut" if averages else None


def too_large(memory: ModelMemory, limit_mb: int, engine: str, why: str | None = None) -> OutOfMemory:
    """The error for a model that is not to be cut, and that does not fit into the memory that a trainer may use.

    ``why``: it could not be cut anyway.
    """
    otherwise = f"{(why or '').capitalize()}. Take"
    if why is None:
        otherwise = (
            f'Leave out the option "shard": "{NEVER_SHARD}", so that it is cut; or'
            f" {offer(memory, limit_mb, engine, '')}. {PAGE} Or take"
        )
    return OutOfMemory(
        f"a trainer needs about {memory.uncut_mb:,} MB to train it, and may use {limit_mb:,} MB",
        hint=f'{otherwise} smaller batches or fewer layers, or more memory: "memory_mb": {memory.uncut_mb}.',
    )
