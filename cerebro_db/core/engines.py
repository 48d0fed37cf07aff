"""What a trainer computes with: the engines, which one to take where that is left to us, and which GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# The first one is the default. Each engine and the package that it takes.
ENGINES = {"tensorflow": "tensorflow", "jax": "jax"}
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX"}
DEFAULT = "tensorflow"
AUTO = "auto"
# Those that compile, for each batch size, and for longer than it takes to read what another trainer has compiled.
COMPILING = frozenset({"jax"})


def cheapest(
    trials: Mapping[str, Mapping[str, Any]], batch_sizes: Iterable[int], batches: float, segments: int = 1
) -> dict[str, float]:
    """What each engine that was tried would take for all that a segment has to do, in seconds; the best one first.

    Segments share what an engine compiles.
    """
    sizes = len(set(batch_sizes))
    seconds = {}
    for engine, trial in trials.items():
        compiled = max(1.0, sizes / segments) if engine in COMPILING else 1.0
        seconds[engine] = round(trial["build"] + trial["compile"] * compiled + trial["batch"] * batches, 3)
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def in_turn(hosts: Sequence[str], gpus: Mapping[str, int]) -> list[int | None]:
    """The GPU of each segment: those of one host share its GPUs in turn. None: its host has none."""
    before: Counter[str] = Counter()
    chosen: list[int | None] = []
    for host in hosts:
        chosen.append(before[host] % gpus[host] if gpus[host] else None)
        before[host] += 1
    return chosen
