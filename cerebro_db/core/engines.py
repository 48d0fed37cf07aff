"""The engines that a trainer can use, and which one to take where that is left to us."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# The first one is the default. Each engine and the package that it takes.
ENGINES = {"tensorflow": "tensorflow", "jax": "jax"}
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX"}
DEFAULT = "tensorflow"
AUTO = "auto"


def cheapest(trials: Mapping[str, Mapping[str, Any]], batch_sizes: Iterable[int], batches: float) -> dict[str, float]:
    """What each engine that was tried would take for all that a segment has to do, in seconds; the best one first.

    An engine is built once and compiled for each batch size.
    """
    sizes = len(set(batch_sizes))
    seconds = {
        engine: round(trial["build"] + trial["compile"] * sizes + trial["batch"] * batches, 3)
        for engine, trial in trials.items()
    }
    return dict(sorted(seconds.items(), key=lambda item: item[1]))
